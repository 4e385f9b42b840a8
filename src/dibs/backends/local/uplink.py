"""The helper that connects a private network to the outside, as a process of the shim's.

The shim starts it when the sandbox's namespaces are there and the command is still held back, and ends it with the
sandbox. A guard, a process that does nothing else, ends it when the shim is killed. Its number is in the file `uplink`
of the sandbox's folder before it is executed, so reconciliation finds it should both be killed. It inherits nothing: no
descriptors but its own ends of two pipes, no environment but the sandbox's mark.

Like the shim it must import nothing of dibs and little of the standard library. `networks` writes its command line.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _socket
import fcntl
import os
import select
import time

TYPE_CHECKING = False  # importing typing for it would cost a megabyte
if TYPE_CHECKING:
    from dibs.backends.local.kernel import boottime, gone, own_start
else:
    from kernel import boottime, gone, own_start

NS_GET_USERNS = 0xB701
RLIMIT_FSIZE = 1
MOST_WORDS = 1 << 16  # bytes that it may write about its troubles
READY = 10.0  # seconds; it takes some 20 milliseconds
CHATTER = ("* ", "Failed to send", "received tapfd", "sent tapfd", "Starting slirp", "WARNING: Support")
SIGKILL, SIGXFSZ = 9, 25


class Uplink:
    """A running helper."""

    def __init__(self, folder: int, sandbox_id: str, words: list[str], ports: list[str]) -> None:
        self.folder = folder
        self.sandbox_id = sandbox_id
        self.words = words
        self.ports = ports
        self.pid = -1
        self.fd = -1
        self.exit = -1  # as long as it is open, slirp4netns goes on
        self.guard = -1
        self.line = -1  # to the guard; when it is closed, by us or with us, the guard acts

    def start(self, init: int) -> None:
        """Returns when the network is there. Raises RuntimeError with the helper's own words."""
        anchor = Anchor(init)
        try:
            ready = self.launch(init, anchor.pid)
            self.await_ready(init, ready)
        except BaseException:
            self.end()
            raise
        finally:
            anchor.leave()
        if any(word.startswith("--api-socket=") for word in self.words):
            for port in self.ports:
                self.publish(port)

    def launch(self, init: int, owner: int) -> int:
        self.set_guard(init)
        ready, told = os.pipe()
        leaving, self.exit = os.pipe()
        waiting, go = os.pipe()
        names = {"INIT": init, "OWNER": owner, "READY": told, "EXIT": leaving}
        argv = [word.replace("=APISOCKET", "=uplink.sock") for word in self.words]
        for name, value in names.items():
            argv = [w.replace(f"/proc/{name}/", f"/proc/{value}/").replace(f"-fd={name}", f"-fd={value}") for w in argv]
        passed = {told, leaving} if any("-fd=" in word for word in argv) else set()
        pid = os.fork()
        if pid == 0:
            try:
                os.close(go)
                if os.read(waiting, 1):  # else the shim was killed before the guard knew of us
                    self.become(argv, passed)
            except BaseException as error:  # noqa: BLE001  # the child of a fork: whatever it is, it must end here
                os.write(2, f"it cannot be started: {error}\n".encode())
            finally:
                os._exit(1)
        self.pid, self.fd = pid, os.pidfd_open(pid)
        os.write(self.line, b"%d\n" % pid)
        os.write(go, b"g")
        for fd in (told, leaving, waiting, go):
            os.close(fd)
        return ready

    def set_guard(self, init: int) -> None:
        reading, self.line = os.pipe()
        self.guard = os.fork()
        if self.guard == 0:
            try:
                os.setsid()
                close_all_but({reading})
                stand_guard(reading)
            finally:
                os._exit(0)
        os.close(reading)
        # Right after the start bubblewrap's init does not die with its parent yet.
        os.write(self.line, b"%d\n" % init)

    def become(self, argv: list[str], passed: set[int]) -> None:
        import resource

        os.setsid()
        for number in (1, 2, 3, 13, 15):
            _signal.signal(number, _signal.SIG_DFL)
        _signal.signal(SIGXFSZ, _signal.SIG_IGN)  # past the limit its words are lost, and it goes on
        nothing = os.open("/dev/null", os.O_RDWR)
        told = os.open("uplink.err", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600, dir_fd=self.folder)
        started = own_start()
        note = os.open("uplink", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600, dir_fd=self.folder)
        os.write(note, b"%d %d\n" % (os.getpid(), started))
        os.fchdir(self.folder)  # the path of a socket has room for 107 bytes
        for source, target in ((nothing, 0), (told, 1), (told, 2)):
            os.dup2(source, target, inheritable=True)
        close_all_but({0, 1, 2, *passed})
        for fd in passed:
            os.set_inheritable(fd, True)
        resource.setrlimit(RLIMIT_FSIZE, (MOST_WORDS, MOST_WORDS))
        os.execve(argv[0], argv, {"DIBS_SANDBOX": self.sandbox_id, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})  # noqa: S606

    def await_ready(self, init: int, ready: int) -> None:
        """slirp4netns tells; pasta sets the routes last."""
        until = boottime() + READY
        tells = any(word.startswith("--ready-fd=") for word in self.words)
        poller = select.poll()
        poller.register(ready if tells else self.fd, select.POLLIN)
        try:
            while True:
                came = poller.poll(100 if tells else 2)
                if tells and came and os.read(ready, 1):
                    return
                if gone(self.fd) or boottime() > until:
                    raise RuntimeError(f"its network cannot be connected: {self.complaint()}")
                if not tells and has_route(init):
                    return
        finally:
            os.close(ready)

    def complaint(self) -> str:
        try:
            with open(os.open("uplink.err", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self.folder), errors="replace") as file:
                lines = [line.strip() for line in file.read(4096).splitlines() if not line.startswith(CHATTER)]
        except OSError:
            lines = []
        name = os.path.basename(self.words[0])
        return f"{name} says: {lines[-1]}" if lines else f"{name} does not get ready"

    def publish(self, port: str) -> None:
        """Ask slirp4netns for a port of the host. Raises RuntimeError."""
        address, host_port, inside = port.split()
        sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        sock.settimeout(READY)
        try:
            sock.connect(f"/proc/self/fd/{self.folder}/uplink.sock")
            sock.send(
                b'{"execute":"add_hostfwd","arguments":{"proto":"tcp","host_addr":"%s","host_port":%s,"guest_port":%s}}'
                % (address.encode(), host_port.encode(), inside.encode())
            )
            sock.shutdown(_socket.SHUT_WR)
            answer = sock.recv(4096)
        except OSError as error:
            raise RuntimeError(f"port {host_port} cannot be published: {error}") from error
        finally:
            sock.close()
        if b'"error"' in answer:
            raise RuntimeError(f"port {host_port} cannot be published: slirp4netns says: {answer.decode().strip()}")

    def end(self) -> None:
        """Returns when it is gone."""
        if self.fd >= 0:
            try:  # noqa: SIM105
                _signal.pidfd_send_signal(self.fd, SIGKILL)
            except ProcessLookupError:
                pass
            try:  # noqa: SIM105  # contextlib is not worth its memory here
                os.waitpid(self.pid, 0)
            except ChildProcessError:
                pass  # where our program ignores its children, the kernel has waited for it
            os.close(self.fd)
            self.fd = -1
        if self.guard > 0:
            os.close(self.line)
            try:  # noqa: SIM105
                os.waitpid(self.guard, 0)
            except ChildProcessError:
                pass
            self.guard = -1
        for name in ("uplink", "uplink.sock"):
            try:  # noqa: SIM105
                os.unlink(name, dir_fd=self.folder)
            except OSError:
                pass  # there is none


def close_all_but(kept: set[int]) -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            try:  # noqa: SIM105  # contextlib is not worth its memory here
                os.close(int(name))
            except OSError:
                pass  # that of the listing itself


def stand_guard(reading: int) -> None:
    """End the processes whose numbers were told, once the shim has closed the line or is gone."""
    processes = []
    while words := os.read(reading, 64):
        for word in words.split():
            try:
                processes.append(os.pidfd_open(int(word)))
            except ProcessLookupError:
                continue
    for process in processes:
        try:
            _signal.pidfd_send_signal(process, SIGKILL)
        except ProcessLookupError:
            continue


class Anchor:
    """A process in the user namespace that owns the network: helpers are told a namespace by a process in it.

    Usually the sandbox's init is one. Where bubblewrap nests two user namespaces, no process is left in the outer one.
    """

    def __init__(self, init: int) -> None:
        self.own = -1
        self.pid = init
        network = os.open(f"/proc/{init}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        owner = fcntl.ioctl(network, NS_GET_USERNS)
        try:
            if os.fstat(owner).st_ino != os.stat(f"/proc/{init}/ns/user").st_ino:
                self.stay(owner)
        finally:
            os.close(network)
            os.close(owner)

    def stay(self, owner: int) -> None:
        waiting, self.own = os.pipe()
        inside, told = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                import ctypes

                os.close(self.own)
                if ctypes.CDLL(None).setns(owner, 0) == 0:
                    os.write(told, b"i")
                    os.read(waiting, 1)  # until the other end is closed, by us or with us
            finally:
                os._exit(0)
        os.close(waiting)
        os.close(told)
        joined = os.read(inside, 1)
        os.close(inside)
        if not joined:
            self.leave()
            raise RuntimeError("the user namespace that owns its network cannot be joined")

    def leave(self) -> None:
        if self.own >= 0:
            os.close(self.own)
            self.own = -1
            try:  # noqa: SIM105  # contextlib is not worth its memory here
                os.waitpid(self.pid, 0)
            except ChildProcessError:
                pass


def has_route(pid: int) -> bool:
    """Whether its network leads anywhere."""
    try:
        with open(f"/proc/{pid}/net/route") as file:
            if any(line.split()[1:2] == ["00000000"] for line in file):
                return True
        with open(f"/proc/{pid}/net/ipv6_route") as file:
            return any(line.startswith("0" * 32 + " 00 ") and not line.rstrip().endswith(" lo") for line in file)
    except OSError:
        time.sleep(0.001)
        return False
