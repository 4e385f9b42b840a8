"""Keeps one container to its time: a small process of its own, started by `ttl`.

It ends the container when its time to live is over, or when its foreground client goes away, and exits
itself when the container has ended. Whether dibs runs does not matter. It imports nothing of dibs and next to nothing
at all: there is one for each container with a time to live or a client, and `dibs run` pays for its start.

Arguments: address of the engine (a path, or host:port), the path of the requests for this container, how to ask for
its end, the folder of the sandbox, seconds of grace, and a pipe whose end means "the client is gone" (or -1).

In the folder: `expiry` holds the deadline (in seconds since the epoch and since the machine's start, or "none"), `init`
is there when the container runs, `ending` is written before the end is asked for and says why. SIGHUP: read the
deadline again. Only the time since boot counts: that clock is never set.

It never outlives its reason: it goes when the container has ended, when its folder is gone, and after it has ended the
container; also if the starter was killed before `init` was written.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # the wrappers take longer to load than all the rest
import _socket as socket
import os
import select
import sys
import time

RETRY = 1.0  # seconds between tries while the engine is away
TRIES = 3  # that an engine may fail before the container's first process is ended past it
LONGEST = 30.0  # seconds of one sleep: the clock of `select` stands still while the machine is suspended


def clock_ahead() -> float:
    """Seconds by which the clock of our time namespace is ahead of the machine's own, as in `dibs.process`."""
    try:
        with open("/proc/self/timens_offsets") as file:
            ahead = [line.split() for line in file if line.startswith(("boottime", "7"))]
    except FileNotFoundError:
        return 0.0
    return sum(int(seconds) + int(nanoseconds) / 1e9 for _, seconds, nanoseconds in ahead)


def boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME) - AHEAD


AHEAD = clock_ahead()


def deadline(folder: str) -> float | None:
    """In seconds since the machine's start."""
    try:
        with open(os.path.join(folder, "expiry")) as file:
            text = file.read().strip()
        return None if text == "none" else float(text.split()[-1])
    except (OSError, ValueError, IndexError):
        return None


def record(folder: str, reason: str) -> None:
    """The first who asks for the end says why."""
    path = os.path.join(folder, "ending")
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError:
        return  # it has been said, the sandbox was removed, or the disk is full: the end matters more
    try:
        os.write(fd, f"{reason} {time.time()!r}".encode())
    except OSError:
        os.unlink(path)
    finally:
        os.close(fd)


def first_process(folder: str) -> tuple[int, int] | None:
    """The container's first process and when it was started, as the kernel shows it to us; None if it cannot be seen
    from here."""
    try:
        with open(os.path.join(folder, "init")) as file:
            words = file.read().replace(":", ",").strip("{}\n").split(",")
        pid, started = (words[words.index(f'"{name}"') + 1] for name in ("pid", "started"))
        return int(pid), int(started) + round(AHEAD * os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError):
        return None


def is_gone(pid: int, started: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return True
    except OSError:
        return False
    return abs(int(fields[19]) - started) > 1 or (fields[0] in (b"Z", b"X") and int(fields[17]) <= 1)


def has_ended(folder: str) -> bool:
    """Whether the container's first process is gone. A client that saw the end goes away at once, and that may be heard
    before the engine says that there was an end."""
    init = first_process(folder)
    return init is not None and is_gone(*init)


def lives_on(folder: str) -> bool:
    """Whether the first process is seen to run, whatever the engine says: it may have lost its records."""
    init = first_process(folder)
    return init is not None and not is_gone(*init)


def force(folder: str) -> None:
    """End the first process past the engine: it has forgotten the container, or fails to end it. A frozen process of
    cgroup v1 does not even hear SIGKILL, so it is thawed."""
    init = first_process(folder)
    if init is None:
        return
    for _ in range(50):
        if is_gone(*init):
            return
        thaw(folder)
        try:
            descriptor = os.pidfd_open(init[0])
        except OSError:
            return
        try:
            if not is_gone(*init):  # else the number is another process's by now
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                select.select([descriptor], [], [], 0.1)
        except OSError:
            return  # it has ended, or we may not: `dibs` says so when it is asked
        finally:
            os.close(descriptor)


def thaw(folder: str) -> None:
    try:
        with open(os.path.join(folder, "record")) as file:
            words = file.read().split('"')
    except OSError:
        return
    for group in words:
        for name, word in (("freezer.state", "THAWED"), ("cgroup.freeze", "0")):
            path = f"{group}/{name}"
            if group.startswith("/") and os.path.exists(path):
                try:
                    with open(path, "w") as file:
                        file.write(word)
                except OSError:
                    continue  # not ours to thaw


def send(address: str, method: str, path: str) -> socket.socket:
    """A request on a line of its own; the answer is read by the caller."""
    if address.startswith("/"):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    else:
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        if address.startswith("/"):
            sock.connect(address)
        else:
            host, _, port = address.rpartition(":")
            sock.connect((host, int(port)))
        sock.sendall(
            f"{method} {path} HTTP/1.1\r\nHost: engine\r\nConnection: close\r\nContent-Length: 0\r\n\r\n".encode()
        )
    except OSError:
        sock.close()
        raise
    return sock


def status_of(sock: socket.socket) -> int:
    """The status of an answer, waiting for it; 0 if the line broke."""
    data = b""
    try:
        while b"\r\n" not in data:
            piece = sock.recv(4096)
            if not piece:
                return 0
            data += piece
        while sock.recv(65536):
            pass
    except OSError:
        return 0
    words = data.split(b" ", 2)
    return int(words[1]) if len(words) > 1 and words[1].isdigit() else 0


def end(address: str, base: str, folder: str, reason: str, grace: float) -> None:
    """Ask until the engine says that it is done, or that there is nothing to end; then see that it is so."""
    record(folder, reason)
    seconds = int(-(-grace // 1))
    verb = f"/stop?t={seconds}&timeout={seconds}" if grace > 0 else "/kill?signal=SIGKILL"
    failed = 0
    while os.path.isdir(folder) and failed < TRIES:
        try:
            sock = send(address, "POST", base + "/unpause")
            status_of(sock)  # a paused one could not hear
            sock.close()
            sock = send(address, "POST", base + verb)
            status = status_of(sock)
            sock.close()
        except OSError:
            status = 0
        if status in (200, 204, 304, 404, 409) or has_ended(folder):
            break
        failed += status >= 500
        time.sleep(RETRY)
    until = boottime() + (grace if grace > 0 else 1.0)
    while lives_on(folder) and boottime() < until:
        time.sleep(0.02)
    force(folder)


def main() -> None:
    address, base, condition, folder = sys.argv[1:5]
    grace, pipe = float(sys.argv[5]), int(sys.argv[6])
    os.chdir("/")
    woken, wakes = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes)
    signal.signal(signal.SIGHUP, lambda *_: None)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    os.dup2(os.open(os.devnull, os.O_RDWR), 1)
    starter = os.getppid()
    waiting: socket.socket | None = None
    answer = b""
    told = False  # that it has ended, of a container whose first process runs
    while os.path.isdir(folder):
        started = os.path.exists(os.path.join(folder, "init"))
        if not started and os.path.exists(os.path.join(folder, "ending")):
            return  # it never ran
        if told and not lives_on(folder):
            return
        if started and waiting is None and not told:
            try:
                waiting, answer = send(address, "POST", base + "/wait?" + condition), b""
            except OSError:
                waiting = None  # the engine is away: once more in a moment
        limit = deadline(folder)
        if limit is None and pipe < 0:
            return
        # A time to live begins with the start, and its starter sets it then; unless that one was killed.
        counts = started or os.getppid() != starter
        left = LONGEST if limit is None or not counts else min(LONGEST, max(0.0, limit - boottime()))
        if waiting is None:
            left = min(left, RETRY if started else 0.05)
        ears: list[socket.socket | int] = [woken]
        ears += [waiting] if waiting is not None else []
        ears += [pipe] if pipe >= 0 else []
        ready = select.select(ears, [], [], left)[0]
        if woken in ready:
            try:
                while os.read(woken, 64):
                    pass
            except BlockingIOError:
                pass  # all of it
        if waiting is not None and waiting in ready:
            # Engines may send the head of the answer long before the rest: only the end of the line counts.
            try:
                piece = waiting.recv(4096)
            except OSError:
                piece = b""  # as its end
            if piece:
                answer += piece
                continue
            waiting.close()
            waiting = None
            if answer.split(b" ", 2)[1:2] in ([b"200"], [b"404"]) and (b"\r\n\r\n" in answer):
                if not lives_on(folder):
                    return  # it has ended, or is gone
                told = True  # an engine that has lost its records says so of what runs
                continue
            time.sleep(RETRY)
        elif pipe >= 0 and pipe in ready:
            if started and has_ended(folder):
                return  # and so has its client
            end(address, base, folder, "client-gone", grace)
            return
        elif counts and limit is not None and boottime() >= limit and deadline(folder) == limit:
            end(address, base, folder, "expired", grace)
            return
