"""The loop around one process: its streams, its log, its clients, its deadlines.

`Shim` fills in what a sandbox's main command needs, `enter` what a further command needs. Like them it runs as a file
of its own, isolated, and must import nothing of dibs and little of the standard library.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _socket
import os
import select
import sys

TYPE_CHECKING = False  # importing typing for it would cost a megabyte
if TYPE_CHECKING:
    from dibs.backends.local.kernel import boottime
    from dibs.backends.local.logfile import Log
    from dibs.backends.local.wire import Fields, cut, decode, encode, frame
else:
    from kernel import boottime
    from logfile import Log
    from wire import cut, decode, encode, frame

SIGHUP, SIGINT, SIGQUIT, SIGKILL, SIGTERM, SIGCONT, SIGSTOP = 1, 2, 3, 9, 15, 18, 19
IGNORED = (SIGHUP, SIGINT, SIGQUIT, SIGTERM, 13, 25)  # 13 and 25 (pipe, file size) are ignored by Python itself
POLLIN, POLLOUT = select.POLLIN, select.POLLOUT
PIECE = 65536
# A client that is behind by this much makes the workload wait; one that then reads nothing for STALLED seconds is
# let go, so that a stuck terminal cannot hold up a sandbox. Both numbers are guesses.
BEHIND = 1 << 20
STALLED = 10.0
PIPE_ROOM = 1 << 16  # what the kernel keeps in a pipe or a terminal, at most, unless more was asked for
FIONREAD, F_SETPIPE_SZ = 0x541B, 1031
TICK = 30.0  # the longest sleep while a deadline is set: poll's clock stands still while the machine is suspended


class Client:
    """One connection: what it wants, and what it has yet to get."""

    def __init__(self, sock: _socket.socket) -> None:
        self.sock = sock
        self.fd = sock.fileno()
        self.inbox = bytearray()
        self.outbox = bytearray()
        self.mode = ""
        self.bye = False
        self.moved = 0.0
        self.told = -1  # the log sequence that a follower has been told of
        self.asked = False
        self.counts = False  # whether it is told how much of its input the command has read


class Keeper:
    """The loop around one process: its streams, its clients, its deadlines. `Shim` and `enter` fill in the rest."""

    stalled = STALLED

    def __init__(self) -> None:
        self.poller = select.poll()
        self.clients: dict[int, Client] = {}
        self.listener: _socket.socket | None = None
        self.log: Log | None = None
        self.process = -1
        self.process_fd = -1
        self.stdin = -1
        self.pending_input = bytearray()
        self.input_ended = False
        self.fed = 0  # bytes of input that were put into the command's pipe
        self.taken = 0  # of these, how many it had read when the pipe was last empty
        self.descriptors = -1  # /proc/self/fd, opened while this /proc was the host's
        self.leftover = -1  # the pipe of an input that has ended, to see what of it was read
        self.outputs: dict[int, int] = {}  # descriptor -> stream number
        self.master = -1
        self.status: int | None = None
        self.reason = ""
        self.grace = 10.0
        self.kill_at: float | None = None
        self.expires_at: float | None = None
        self.foreground = False
        self.interactive = False
        self.congested = False
        self.early: bytearray | None = None  # collects what bubblewrap says before the command runs

    # --- what differs between the main command and a further one

    def phase(self) -> str:
        return "running"

    def deliver(self, number: int) -> None:
        """Send a signal to the command."""
        raise NotImplementedError

    def kill(self) -> None:
        raise NotImplementedError

    def wake(self) -> None:
        """A paused command cannot act on a signal."""

    def request(self, client: Client, kind: bytes, fields: dict[str, str]) -> None:
        raise NotImplementedError

    # --- clients

    def add(self, sock: _socket.socket) -> Client:
        sock.setblocking(False)
        client = Client(sock)
        self.clients[client.fd] = client
        self.poller.register(client.fd, POLLIN)
        return client

    def drop(self, client: Client) -> None:
        if self.clients.pop(client.fd, None) is None:
            return
        self.poller.unregister(client.fd)
        client.sock.close()
        if client.mode == "attach" and self.foreground and not client.bye:
            self.hang_up()

    def hang_up(self) -> None:
        """The one for whom the command runs is gone."""
        if self.status is None and not self.reason:
            self.reason = "client-gone"
            self.deliver(SIGHUP)
            self.wake()
            self.kill_at = boottime() + self.grace

    def send(self, client: Client, kind: bytes, payload: bytes = b"") -> None:
        if not client.outbox:
            client.moved = boottime()
        client.outbox += frame(kind, payload)
        self.flush(client)

    def answer(self, client: Client, fields: Fields) -> None:
        self.send(client, b"A", encode(fields))

    def flush(self, client: Client) -> None:
        try:
            while client.outbox:
                sent = client.sock.send(memoryview(client.outbox)[:PIECE])
                del client.outbox[:sent]
                client.moved = boottime()
        except BlockingIOError:
            pass
        except OSError:
            self.drop(client)
            return
        self.watch(client)

    def watch(self, client: Client) -> None:
        if client.fd in self.clients:
            reading = len(self.pending_input) < BEHIND or client.mode != "attach"
            self.poller.modify(client.fd, (POLLIN if reading else 0) | (POLLOUT if client.outbox else 0))

    def readable(self, client: Client) -> None:
        try:
            data = client.sock.recv(PIECE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.drop(client)
            return
        client.inbox += data
        while client.fd in self.clients:
            one = cut(client.inbox)
            if one is None:
                break
            self.handle(client, *one)

    def handle(self, client: Client, kind: bytes, payload: bytes) -> None:
        if kind == b"I":
            self.feed(payload)
        elif kind == b"E":
            self.input_ended = True
            self.feed(b"")
        elif kind == b"C":
            client.counts = True
        elif kind == b"D":
            client.bye = True
            self.drop(client)
        else:
            fields = dict(decode(payload))
            if kind == b"H":
                client.mode = fields.get("mode", "")
                self.answer(
                    client,
                    [
                        ("phase", self.phase()),
                        ("interactive", str(int(self.interactive))),
                        ("tty", str(int(self.master >= 0))),
                    ],
                )
            elif kind == b"S":
                self.deliver(int(fields["number"]))
            elif kind == b"R":
                self.resize(int(fields["rows"]), int(fields["columns"]))
            elif kind == b"N":
                client.asked = True
                self.tell_followers()
            else:
                self.request(client, kind, fields)

    def tell_followers(self) -> None:
        if self.log is None:
            return
        for client in list(self.clients.values()):
            if client.asked and client.told != self.log.sequence:
                client.asked = False
                client.told = self.log.sequence
                self.send(client, b"M")

    # --- the command's streams

    def resize(self, rows: int, columns: int) -> None:
        if self.master >= 0:
            set_size(self.master, rows, columns)

    def feed(self, data: bytes) -> None:
        if self.stdin < 0:
            return
        if self.master >= 0:
            data = self.keys(data)
        self.pending_input += data
        try:
            while self.pending_input:
                written = os.write(self.stdin, memoryview(self.pending_input)[:PIECE])
                del self.pending_input[:written]
                self.fed += written
        except BlockingIOError:
            pass
        except OSError:  # the command closed its end
            self.refuse_input()
            return
        if self.input_ended and not self.pending_input:
            self.close_input()
        elif self.stdin != self.master:
            # The pipe holds one page, so it takes more only when the command has read everything.
            self.poller.register(self.stdin, POLLOUT if self.pending_input or self.taken < self.fed else 0)
        if self.master >= 0:
            self.arm()
        for client in self.clients.values():
            self.watch(client)

    def arm(self) -> None:
        for fd in self.outputs:
            writing = POLLOUT if fd == self.master and self.pending_input else 0
            self.poller.modify(fd, writing | (0 if self.congested else POLLIN))

    def keys(self, data: bytes) -> bytes:
        return data

    def close_input(self) -> None:
        if self.stdin < 0:
            return
        if self.stdin == self.master:
            self.input_ended = False
            self.pending_input += b"\x04"  # a terminal has no end of input, only a key for it
            return
        try:  # noqa: SIM105  # contextlib is not worth its memory here
            self.poller.unregister(self.stdin)
        except KeyError:
            pass
        try:
            if self.descriptors < 0:
                self.descriptors = own_descriptors()
            flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
            self.leftover = os.open(str(self.stdin), flags, dir_fd=self.descriptors)
        except OSError:
            self.leftover = -1  # then what was left unread is not reported
        os.close(self.stdin)
        self.stdin = -1

    def refuse_input(self) -> None:
        """It has no reader any more."""
        self.pending_input.clear()
        self.close_input()

    def tell_taken(self) -> None:
        """The command has read all of its input so far."""
        self.taken = self.fed
        for client in list(self.clients.values()):
            if client.counts:
                self.send(client, b"C", encode([("taken", str(self.taken))]))

    def read_by_command(self) -> int | None:
        """How much of its input the command has read; None if that is not known (a terminal, or no input at all)."""
        pipe = self.leftover if self.leftover >= 0 else self.stdin
        if pipe < 0 or pipe == self.master:
            return None
        import fcntl

        return self.fed - int.from_bytes(fcntl.ioctl(pipe, FIONREAD, bytes(4)), sys.byteorder)

    def emit(self, stream: int, data: bytes) -> None:
        if self.early is not None and stream == 2:
            self.early += data
        if self.log is not None:
            self.log.append(stream, data)
        for client in list(self.clients.values()):
            if client.mode == "attach":
                self.send(client, b"O" if stream == 1 else b"2", data)
        self.tell_followers()

    def read_output(self, fd: int) -> bool:
        """One piece; False at the end."""
        try:
            data = os.read(fd, PIECE)
        except BlockingIOError:
            return True
        except OSError:  # EIO: no process has the terminal open any more
            data = b""
        if data:
            self.emit(self.outputs[fd], data)
            return True
        self.end_output(fd)
        return False

    def end_output(self, fd: int) -> None:
        if self.outputs.pop(fd, None) is not None:
            self.poller.unregister(fd)
            if fd == self.master:
                self.master = self.stdin = -1
            os.close(fd)

    def drain(self) -> None:
        """Whatever is still in the pipes after the end, without waiting for writers.

        No more than a pipe holds: a background process may go on writing for ever, and is ignored.
        """
        for fd in list(self.outputs):
            left = PIPE_ROOM
            while fd in self.outputs:
                try:
                    data = os.read(fd, min(PIECE, left))
                except OSError:
                    data = b""
                if data:
                    self.emit(self.outputs[fd], data)
                    left -= len(data)
                if not data or not left:
                    self.end_output(fd)

    # --- the loop

    def tick(self) -> float | None:
        """Do what is due; say how long to sleep at most."""
        now = boottime()
        if self.expires_at is not None and now >= self.expires_at:
            self.expires_at = None
            self.stop("expired", self.grace)
        if self.kill_at is not None and now >= self.kill_at:
            self.kill_at = None
            self.kill()
        behind = [c for c in self.clients.values() if len(c.outbox) > BEHIND]
        stuck = [c for c in behind if now - c.moved > self.stalled]
        for client in [c for c in stuck if not (self.foreground and c.mode == "attach")]:
            client.bye = True
            self.drop(client)
            behind.remove(client)
        if bool(behind) != self.congested:
            self.congested = bool(behind)
            self.arm()
        due = [t for t in (self.expires_at, self.kill_at) if t is not None]
        due += [c.moved + self.stalled for c in behind]
        if not due:
            return None
        return max(0.0, min(TICK, min(due) - now)) * 1000 + 1

    def stop(self, reason: str, grace: float) -> None:
        if self.status is not None:
            return
        self.reason = self.reason or reason
        if grace > 0 and self.phase() != "held":
            self.deliver(SIGTERM)
            self.wake()
            due = boottime() + grace
            self.kill_at = due if self.kill_at is None else min(due, self.kill_at)
        else:
            self.kill()

    def step(self) -> None:
        for fd, events in self.poller.poll(self.tick()):
            if fd == self.process_fd:
                self.reap()
            elif self.listener is not None and fd == self.listener.fileno():
                self.welcome()
            elif fd in self.clients:
                client = self.clients[fd]
                if events & POLLOUT:
                    self.flush(client)
                if events & ~POLLOUT and fd in self.clients:
                    self.readable(client)
            elif fd in self.outputs:
                if events & POLLOUT and self.pending_input:
                    self.feed(b"")
                if events & ~POLLOUT and fd in self.outputs:
                    self.read_output(fd)
            elif fd == self.stdin:
                if events & POLLOUT:
                    if not self.pending_input:
                        self.tell_taken()
                    self.feed(b"")
                else:  # the reader is gone
                    self.refuse_input()
            else:
                self.other(fd)

    def other(self, fd: int) -> None:
        """A descriptor of which the loop knows nothing: it was closed by an earlier event of the same round."""

    def welcome(self) -> None:
        raise NotImplementedError

    def reap(self) -> None:
        _, status = os.waitpid(self.process, 0)
        self.poller.unregister(self.process_fd)
        os.close(self.process_fd)
        self.process_fd = -1
        self.status = os.waitstatus_to_exitcode(status)

    def adopt(self, pid: int, stdin: int, outputs: dict[int, int], master: int) -> None:
        """Take charge of a process that has just been made."""
        self.process = pid
        self.process_fd = os.pidfd_open(pid)
        self.poller.register(self.process_fd, POLLIN)
        self.stdin, self.outputs, self.master = stdin, outputs, master
        for fd in {stdin, *outputs} - {-1}:
            os.set_blocking(fd, False)
        for fd in outputs:
            self.poller.register(fd, POLLIN)

    def finish_clients(self, fields: Fields) -> None:
        """Give every client the rest and the exit status, waiting for slow readers as long as they read."""
        taken = self.read_by_command()
        if taken is not None:
            fields = [*fields, ("taken", str(taken))]
        for client in list(self.clients.values()):
            if client.mode in ("attach", "wait"):
                self.send(client, b"X", encode(fields))
        while True:
            now = boottime()
            owing = [c for c in self.clients.values() if c.outbox and now - c.moved < self.stalled]
            if not owing:
                return
            poller = select.poll()
            for client in owing:
                poller.register(client.fd, POLLOUT)
            for fd, events in poller.poll(1000):
                if events & ~POLLOUT:
                    self.clients[fd].bye = True
                    self.drop(self.clients[fd])
                else:
                    self.flush(self.clients[fd])


def own_descriptors() -> int:
    return os.open("/proc/self/fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def set_size(fd: int, rows: int, columns: int) -> None:
    import fcntl
    import termios

    size = b"".join(n.to_bytes(2, sys.byteorder) for n in (rows, columns, 0, 0))
    fcntl.ioctl(fd, termios.TIOCSWINSZ, size)


def streams(tty: bool, interactive: bool) -> tuple[tuple[int, int, int], int, dict[int, int], int]:
    """The child's three descriptors, and ours: stdin, outputs by stream, terminal."""
    import fcntl

    if tty:
        master, slave = os.openpty()
        set_size(master, 24, 80)
        return (slave, slave, slave), master, {master: 1}, master
    if interactive:
        in_child, in_ours = os.pipe()
        fcntl.fcntl(in_ours, F_SETPIPE_SZ, 1)  # one page: see `feed`
    else:
        in_child, in_ours = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC), -1
    out_ours, out_child = os.pipe()
    err_ours, err_child = os.pipe()
    return (in_child, out_child, err_child), in_ours, {out_ours: 1, err_ours: 2}, -1


def hand_over(child: tuple[int, int, int], uid: int, gid: int) -> None:
    """Give the streams to another user, who may want to open /dev/stdout by its name."""
    for fd in set(child):
        info = os.fstat(fd)
        if info.st_mode & 0o170000 == 0o010000 or (fd == child[0] == child[1]):  # a pipe, or the terminal
            os.fchown(fd, uid, gid)


def become(child: tuple[int, int, int], tty: bool) -> None:
    """In the child: take its descriptors, and the terminal if it has one; undo what Python and we ignore."""
    for number in IGNORED:
        _signal.signal(number, _signal.SIG_DFL)
    if tty:
        import fcntl
        import termios

        os.setsid()
        fcntl.ioctl(child[0], termios.TIOCSCTTY, 0)
    # None of the three may be overwritten before it is copied: move them out of the way first.
    high = [os.dup(fd) if fd > 2 else fd for fd in child]
    for target, fd in enumerate(high):
        os.dup2(fd, target, inheritable=True)


def receive(sock: _socket.socket) -> bytes:
    """The payload of the one frame that a spec is; empty if the other side is gone.

    Before it, the other side may ask who we are: our number is not that of the process which it has started.
    """
    box = bytearray()
    while True:
        one = cut(box)
        if one is not None and one[0] == b"W":
            sock.sendall(frame(b"A", encode([("pid", str(os.getpid()))])))
            continue
        if one is not None:
            return one[1]
        data = sock.recv(PIECE)
        if not data:
            return b""
        box += data
