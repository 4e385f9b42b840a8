"""The shim: one small process per sandbox that owns it and outlives its creator.

`backend` spawns it with a socket on descriptor 3 (the *hold*) and sends the spec; it starts bubblewrap, which sets
everything up but holds the command back, and answers with the init's pid. Until `go` arrives on the hold, its end kills
the sandbox: a caller that dies leaves nothing running. From then on the shim serves `shim.sock`: attach, stdin,
signals, stop, pause, status. It writes the log and, last, `exit.json`.

It must import nothing of dibs and little of the standard library: it stays in memory as long as the sandbox. `enter`
reuses its loop for commands that are run in addition. The frames are described in `wire`.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _socket
import fcntl
import os
import select
import sys
import time

TYPE_CHECKING = False  # importing typing for it would cost a megabyte
if TYPE_CHECKING:
    from dibs.backends.local import keyring, seccomp
    from dibs.backends.local.freezer import Freezer
    from dibs.backends.local.hookrun import Hook, run_hook
    from dibs.backends.local.keeper import (
        IGNORED,
        PIECE,
        POLLIN,
        SIGINT,
        SIGKILL,
        SIGQUIT,
        Client,
        Keeper,
        become,
        hand_over,
        receive,
        streams,
    )
    from dibs.backends.local.kernel import (
        boottime,
        children_of,
        close_inherited,
        gone,
        has_executed,
        inside,
        session,
        status_field,
        write,
    )
    from dibs.backends.local.logfile import Log
    from dibs.backends.local.mount_sources import by_descriptor
    from dibs.backends.local.uplink import Uplink
    from dibs.backends.local.userns import UserNamespace, lone, switch
    from dibs.backends.local.wire import Fields, cut, decode, encode, frame
else:
    import keyring
    import seccomp
    from freezer import Freezer
    from hookrun import Hook, run_hook
    from keeper import (
        IGNORED,
        PIECE,
        POLLIN,
        SIGINT,
        SIGKILL,
        SIGQUIT,
        Client,
        Keeper,
        become,
        hand_over,
        receive,
        streams,
    )
    from kernel import boottime, children_of, close_inherited, gone, has_executed, inside, session, status_field, write
    from logfile import Log
    from mount_sources import by_descriptor
    from userns import UserNamespace, lone, switch
    from wire import cut, decode, encode, frame

PHASE_ROOM = 8
MOUNTING = 1 << 21  # CAP_SYS_ADMIN, which no command has
SETUP_TIME = 60  # seconds; arbitrary, and more than any set-up takes
HOSTS_FD = "HOSTS"  # the same, of the /etc/hosts of a rank
NAME_SERVERS_FD = "NAMESERVERS"  # in bubblewrap's arguments: the descriptor of a private network's resolv.conf
EXIT_ROOM = 2048  # bytes reserved for exit.json at the start, so that a full disk cannot swallow the exit status


def quote(text: str) -> str:
    """A JSON string; the json module costs a megabyte."""
    out = []
    for char in text:
        if char in '"\\':
            out.append("\\" + char)
        elif " " <= char <= "~":
            out.append(char)
        else:
            point = ord(char)
            if point > 0xFFFF:
                point -= 0x10000
                out.append(f"\\u{0xD800 + (point >> 10):04x}\\u{0xDC00 + (point & 0x3FF):04x}")
            else:
                out.append(f"\\u{point:04x}")
    return '"' + "".join(out) + '"'


def enter_network(path: str) -> None:
    """Have the network namespace of another sandbox from now on. OSError if that may not be."""
    import _ctypes  # as in `keyring`

    network = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    call = _ctypes.dlsym(_ctypes.dlopen(None, 0), "setns")  # type: ignore[arg-type]
    if _ctypes.call_function(call, (network, 0x40000000)) != 0:
        raise OSError(1, f"the network {path} cannot be joined")
    os.close(network)


def may_mount(status: int) -> bool:
    """Whether the process of a /proc/PID/status, open as a descriptor, still has the capability to mount. It is asked
    many times: the file stays open, and only this line is taken from it."""
    try:
        text = os.pread(status, 4096, 0)
    except ProcessLookupError:
        return False
    return bool(int(text.partition(b"CapEff:")[2].partition(b"\n")[0] or b"0", 16) & MOUNTING)


class Shim(Keeper):
    """The keeper of a sandbox's main command."""

    def __init__(self, hold: _socket.socket, guard: int, ids: UserNamespace | None, spec: Fields) -> None:
        super().__init__()
        self.guard = guard
        self.ids = ids
        self.hold: _socket.socket | None = hold
        self.hold_box = bytearray()
        one = dict(spec)
        self.folder_path = one["folder"]
        self.folder = os.open(self.folder_path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        # While we hold it the folder is not removed under our feet; who has it while no shim does, keeps any from
        # coming after. The kernel lets go of it when we end, however we do.
        fcntl.flock(self.folder, fcntl.LOCK_EX)
        if not os.path.exists(self.folder_path):
            raise FileNotFoundError(2, "the sandbox's folder was removed")
        self.sandbox_id = one["id"]
        self.tty = one["tty"] == "1"
        self.interactive = self.tty or one["interactive"] == "1"
        self.wants_foreground = one["foreground"] == "1"
        self.grace = float(one["grace"])
        self.ttl = float(one["ttl"]) if "ttl" in one else None
        self.all_ids = one.get("ids") == "all"
        self.user = (int(one.get("uid", "0")), int(one.get("gid", "0")))
        self.bwrap = one["bwrap"]
        self.args = [v for k, v in spec if k == "arg"]
        sources = [v for k, v in spec if k == "source"]
        self.sources = dict(zip(sources, [v for k, v in spec if k == "identity"], strict=True))
        # Files of its own, by what stands for their descriptors in bubblewrap's arguments.
        self.own_files = [(NAME_SERVERS_FD, one.get("nameservers", "")), (HOSTS_FD, one.get("hosts", ""))]
        self.join = one.get("join", "")  # the network namespace that it has in common with others
        self.command = [v for k, v in spec if k == "cmd"]
        self.env = dict(v.split("=", 1) for k, v in spec if k == "env")
        self.groups = [v for k, v in spec if k == "cgroup"]
        self.freezer = Freezer(one.get("freezer", ""), -1)
        self.oom = one.get("oom", "")
        self.hooks: list[Hook] = []
        for key, value in spec:
            if key == "hook":
                self.hooks.append(Hook(value))
            elif key == "hookarg":
                self.hooks[-1].args.append(value)
            elif key == "hookenv":
                self.hooks[-1].env.append(value)
            elif key == "hooktimeout":
                self.hooks[-1].timeout = float(value)
        self.uplink: Uplink | None = None
        words = [v for k, v in spec if k == "uplink"]
        if words:
            if not TYPE_CHECKING:
                from uplink import Uplink  # few sandboxes have one
            self.uplink = Uplink(self.folder, self.sandbox_id, words, [v for k, v in spec if k == "publish"])
        self.log = Log(self.folder, int(one["logmax"]))
        self.held = True
        self.deserted = False  # the one for whom it is to run was attached, and has gone before the start
        self.phase_fd = -1
        self.init = -1
        self.init_fd = -1
        self.command_pid = -1
        self.before: set[int] = set()  # what hooks have left in the sandbox
        self.go = -1
        self.told = -1  # what bubblewrap tells: its init's pid, at the end the exit code of a command that ran
        self.executed = False
        self.detail = ""

    def phase(self) -> str:
        return "held" if self.held else "paused" if self.freezer.frozen else "running"

    # --- making

    def prepare(self) -> None:
        room = os.open("exit.json.new", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600, dir_fd=self.folder)
        os.write(room, b" " * EXIT_ROOM)
        os.close(room)
        self.phase_fd = os.open("phase", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600, dir_fd=self.folder)
        self.write_phase(self.phase())
        self.listener = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        # A socket's path has room for 107 bytes; through the folder's descriptor it is always short enough.
        self.listener.bind(f"/proc/self/fd/{self.folder}/shim.sock")
        os.chmod("shim.sock", 0o600, dir_fd=self.folder)
        self.listener.listen(16)
        self.listener.setblocking(False)
        self.poller.register(self.listener.fileno(), POLLIN)

    def write_phase(self, phase: str) -> None:
        """For readers that do not connect to the shim. Rather no file than a wrong one."""
        try:
            os.pwrite(self.phase_fd, phase.encode().ljust(PHASE_ROOM), 0)
        except OSError:
            try:  # noqa: SIM105  # contextlib is not worth its memory here
                os.unlink("phase", dir_fd=self.folder)
            except OSError:
                pass  # there is none already

    def launch(self) -> None:
        """Start bubblewrap up to the point where only the command is missing."""
        child, stdin, outputs, master = streams(self.tty, self.interactive)
        self.told, info = os.pipe()
        block, self.go = self.hold_back()
        rules = os.memfd_create("seccomp")
        os.write(rules, seccomp.program())
        os.lseek(rules, 0, os.SEEK_SET)
        try:
            args, sources = by_descriptor(self.args, self.sources)
        except OSError as error:
            raise RuntimeError(f"{error.filename} cannot be mounted: {error.strerror}") from error
        passed = {info, block, rules, *sources}
        for name, content in self.own_files:
            if content:
                reading, filled = os.pipe()  # a pipe has room for more
                os.write(filled, content.encode())
                os.close(filled)
                passed.add(reading)
                args = [str(reading) if word == name else word for word in args]
        argv = [self.bwrap, *args, "--json-status-fd", str(info), "--block-fd", str(block), "--seccomp", str(rules)]
        if self.all_ids:
            namespace = self.user_namespace()
            # As what bubblewrap calls its sync-fd too, because that is closed before the command runs.
            argv += ["--userns", str(namespace), "--sync-fd", str(namespace)]
            passed.add(namespace)
        argv += ["--", *self.command]
        program = os.open(self.bwrap, os.O_RDONLY | os.O_CLOEXEC)  # another user may not see its folder
        pid = os.fork()
        if pid == 0:
            try:
                for group in self.groups:
                    write(group + "/cgroup.procs", "0")
                if self.all_ids and any(self.user):
                    hand_over(child, *self.user)
                    lone()
                    switch(*self.user)
                if self.join:
                    enter_network(self.join)
                keyring.join_own()
                become(child, self.tty)
                for fd in passed:
                    os.set_inheritable(fd, True)
                os.chdir("/")
                os.execve(program, argv, self.env)  # noqa: S606
            except BaseException as error:  # noqa: BLE001  # the child of a fork: whatever it is, it must end here
                os.write(2, f"bwrap: cannot be started: {error}\n".encode())
            finally:
                os._exit(1)
        for fd in {*child, *passed, program}:
            os.close(fd)
        self.early = bytearray()
        self.adopt(pid, stdin, outputs, master)
        text = b""
        while b"}" not in text:
            piece = os.read(self.told, 4096)
            if not piece:
                break
            text += piece
        os.set_blocking(self.told, False)
        number = text.partition(b'"child-pid":')[2].strip()
        digits = b""
        for byte in number:
            if not 48 <= byte <= 57:
                break
            digits += bytes([byte])
        if not digits:
            raise RuntimeError(self.complaint())
        self.init = self.freezer.init = int(digits)
        try:
            self.init_fd = os.pidfd_open(self.init)
            status = os.open(f"/proc/{self.init}/status", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise RuntimeError(self.complaint()) from error
        os.write(self.guard, digits)
        # bubblewrap needs its capabilities for every step of the set-up, and gives up those that are not for the
        # command at the end of it. There is no event for that; it takes a few milliseconds.
        until = boottime() + SETUP_TIME
        while may_mount(status):
            if gone(self.init_fd):
                break
            if boottime() > until:
                self.kill()
                raise RuntimeError(f"bubblewrap was not ready after {SETUP_TIME} seconds")
            time.sleep(0.0005)
        os.close(status)
        if gone(self.init_fd) or gone(self.process_fd):
            raise RuntimeError(self.complaint())
        if self.uplink is not None:
            self.uplink.start(self.init)
            self.poller.register(self.uplink.fd, POLLIN)
        for fd in list(self.outputs):  # warnings of bubblewrap are not the workload's output
            self.skim(fd)

    def hold_back(self) -> tuple[int, int]:
        """What bubblewrap waits on before it runs the command, and our end of it.

        bubblewrap takes an end of file for "go", so there must never be one, even if we are killed: it is given an end
        that is a writer too.
        """
        reading, writing = os.pipe()
        block = os.open(f"/proc/self/fd/{reading}", os.O_RDWR | os.O_CLOEXEC)
        os.close(reading)
        return block, writing

    def user_namespace(self) -> int:
        ids, self.ids = self.ids, None
        if ids is not None and ids.owner != self.user:
            ids.leave()
            ids = None
        return (ids or UserNamespace(*self.user)).take()

    def skim(self, fd: int) -> None:
        try:
            while data := os.read(fd, PIECE):
                if self.early is not None:
                    self.early += data
        except OSError:
            return

    def complaint(self) -> str:
        """Why bubblewrap gave up, in its own words."""
        poller = select.poll()
        poller.register(self.process_fd, POLLIN)
        if not poller.poll(5000):
            self.kill()
            poller.poll(5000)
        for fd in list(self.outputs):
            self.skim(fd)
        said = bytes(self.early or b"").decode(errors="replace").strip()
        return said or "bubblewrap ended without a word"

    # --- signals

    def target(self) -> int:
        """The command's pid on the host: the first that the init forks. In its namespace that is mostly 2, but hooks
        may have run there before; what is left of them has become the init's child too."""
        if self.command_pid < 0 and not self.held:
            own, found = session(self.init), []
            for pid in children_of(self.init):
                number = status_field(pid, "NSpid").split()[-1:]
                if number and pid not in self.before:
                    found.append((session(pid) != own, int(number[0]), pid))  # one that entered has its own session
            if found:
                self.command_pid = min(found)[2]
        return self.command_pid

    def deliver(self, number: int) -> None:
        if self.held:
            return
        for _ in range(200):  # just after `go` the init may not have forked yet
            pid = self.target()
            if pid > 0 or gone(self.init_fd):
                break
            time.sleep(0.001)
        # The init reaps the command before the pid can be given away again, and its namespace is the same: check both.
        if self.target() > 0 and self.command_pid in children_of(self.init):
            try:
                os.kill(self.command_pid, number)
            except ProcessLookupError:
                return

    def wake(self) -> None:
        if self.freezer.frozen:
            self.freezer.thaw()

    def kill(self) -> None:
        """End everything in the sandbox: its init takes the whole pid namespace with it."""
        for fd, pid in ((self.init_fd, self.init), (self.process_fd, self.process)):
            if fd >= 0 and pid > 0:
                try:
                    _signal.pidfd_send_signal(fd, SIGKILL)
                except ProcessLookupError:
                    continue
                break
        self.wake()

    def keys(self, data: bytes) -> bytes:
        """Terminal keys that make signals.

        The kernel would send them to the terminal's whole foreground group, which bubblewrap's own monitor is in as
        long as the command has made no group of its own; the monitor would die of it and take the sandbox along.
        """
        import termios

        try:
            modes = termios.tcgetattr(self.master)
            group = os.tcgetpgrp(self.master)
        except (OSError, termios.error):
            return data
        if not modes[3] & termios.ISIG or group != self.process:
            return data
        out = bytearray()
        signals = {modes[6][termios.VINTR]: SIGINT, modes[6][termios.VQUIT]: SIGQUIT, modes[6][termios.VSUSP]: 0}
        for value in data:
            key = bytes([value])
            if key in signals and key != b"\0":
                # A suspended main command could never be woken again: there is no shell above it.
                if signals[key]:
                    self.to_group(group, signals[key])
            else:
                out += key
        return bytes(out)

    def to_group(self, group: int, number: int) -> None:
        for pid in inside(self.init):
            try:
                if os.getpgid(pid) == group:
                    os.kill(pid, number)
            except ProcessLookupError:
                continue

    # --- requests

    def welcome(self) -> None:
        assert self.listener is not None
        try:
            fd, _ = self.listener._accept()  # type: ignore[attr-defined]  # noqa: SLF001
        except OSError:
            return
        sock = _socket.socket(fileno=fd)
        # struct ucred: pid, uid, gid
        peer = sock.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)
        if int.from_bytes(peer[4:8], sys.byteorder) in (0, os.getuid()):
            self.add(sock)
        else:
            sock.close()

    def drop(self, client: Client) -> None:
        self.deserted = self.deserted or (self.held and client.mode == "attach" and not client.bye)
        super().drop(client)

    def request(self, client: Client, kind: bytes, fields: dict[str, str]) -> None:
        if kind == b"Q":
            self.answer(client, [("phase", self.phase())])
        elif kind == b"T":
            self.answer(client, [("ok", "1")])
            self.stop("stopped", float(fields["grace"]))
        elif kind == b"K":
            self.keep_until(float(fields["at"]) if "at" in fields else None)
            self.answer(client, [("phase", self.phase())])
        elif kind == b"L":
            self.emit(2, fields["text"].encode(errors="surrogateescape"))
            self.answer(client, [("ok", "1")])
        elif kind in (b"P", b"U"):
            wanted, change = ("running", self.freezer.freeze) if kind == b"P" else ("paused", self.freezer.thaw)
            if self.phase() == wanted:
                try:
                    self.write_phase("paused")  # until it is certain that it is not
                    change()
                except OSError as error:
                    self.answer(client, [("error", str(error))])
                    return
            self.write_phase(self.phase())
            self.answer(client, [("phase", self.phase())])

    def keep_until(self, at: float | None) -> None:
        """Set another deadline, in wall-clock time, as the client gave it."""
        left = None if at is None else max(0.0, at - time.time())
        if self.held:
            self.ttl = left
        else:
            self.expires_at = None if left is None else boottime() + left

    def other(self, fd: int) -> None:
        """The hold: `go`, or the end of the caller. Or the end of the uplink."""
        if self.uplink is not None and fd == self.uplink.fd:
            self.lose_network()
            return
        hold = self.hold
        if hold is None or fd != hold.fileno():
            return
        try:
            data = hold.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self.hold_box += data
        one = cut(self.hold_box)
        if one is not None and one[0] == b"G":
            if "hooks" in dict(decode(one[1])):
                self.before = set(inside(self.init))
            self.start()
            self.release(frame(b"A", encode(self.await_command())))
            if self.foreground and self.deserted and not any(one.mode == "attach" for one in self.clients.values()):
                self.hang_up()
        elif not data or one is not None:
            self.release(b"")
            self.stop("not-started", 0)

    def lose_network(self) -> None:
        """A sandbox without the network that it was given is not what was asked for: it ends."""
        assert self.uplink is not None
        self.poller.unregister(self.uplink.fd)
        self.detail = f"{os.path.basename(self.uplink.words[0])}, which connects its network, was killed or has failed"
        self.uplink.end()
        self.stop("network-lost", 0)

    def release(self, last_words: bytes) -> None:
        if self.hold is not None:
            self.poller.unregister(self.hold.fileno())
            try:
                if last_words:
                    self.hold.send(last_words)
            except OSError:
                pass  # the caller is gone, which is its right after `go`
            self.hold.close()
            self.hold = None

    def start(self) -> None:
        self.held = False
        self.early = bytearray()
        self.foreground = self.wants_foreground
        if self.ttl is not None:
            self.expires_at = boottime() + self.ttl
        self.write_phase(self.phase())
        os.write(self.go, b"g")
        os.close(self.go)
        os.write(self.guard, b"g")
        os.close(self.guard)

    def await_command(self) -> Fields:
        """Until it is certain that the command was executed: what it runs under; or that it was not: why.

        Everything that can still fail (going to the working directory, a fork, the filter, the program itself) fails
        in bubblewrap, whose exit status would pass for the command's.
        """
        until = boottime() + SETUP_TIME
        while not gone(self.process_fd):
            if boottime() > until:  # it hangs before its first instruction, say on a file system that does not answer
                self.kill()
                return [("error", f"the command was not executed within {SETUP_TIME} seconds")]
            pid = self.target()
            if pid > 0 and has_executed(pid):
                self.executed = True
                facts = [("seccomp", status_field(pid, "Seccomp")), ("no_new_privs", status_field(pid, "NoNewPrivs"))]
                return [("ok", "1"), *(fact for fact in facts if fact[1])]
            time.sleep(0.0003)
        if self.ran():
            return [("ok", "1")]
        return [("error", self.complaint())]

    def ran(self) -> bool:
        """Whether the command was executed, once bubblewrap has ended."""
        if not self.executed:
            try:  # noqa: SIM105  # contextlib is not worth its memory here
                self.executed = b'"exit-code"' in os.read(self.told, 4096)
            except BlockingIOError:
                pass
        return self.executed

    # --- the end

    def outcome(self) -> Fields:
        status = self.status if self.status is not None else -SIGKILL
        code = status if status >= 0 else 128 - status
        number = code - 128 if 128 < code <= 128 + 64 else 0
        reason, detail = self.reason, self.detail
        if self.held:
            reason = "not-started"
        elif not reason:
            reason = "signalled" if number else "exited"
            said = bytes(self.early or b"").decode(errors="replace")
            if number == SIGKILL and self.oom_kills():
                reason, detail = "out-of-memory", "the sandbox used more memory than its limit"
            elif not self.ran():
                reason, detail, number = "not-started", said.strip(), 0
                if said.startswith("bwrap: execvp "):
                    code = 127 if "No such file" in said else 126
        if self.log is not None and self.log.lost_in_all:
            lost = f"{self.log.lost_in_all} bytes of output were not logged: {self.log.why}"
            detail = f"{detail}; {lost}" if detail else lost
        fields = [("code", str(code)), ("reason", reason), ("detail", detail), ("at", repr(time.time()))]
        return [*fields, ("signal", str(number))] if number else fields

    def oom_kills(self) -> bool:
        if not self.oom:
            return False
        try:
            with open(self.oom) as file:
                return any(line.split()[0] == "oom_kill" and line.split()[1] != "0" for line in file)
        except OSError:
            return False

    def write_exit(self, outcome: Fields) -> None:
        numbers = ("code", "signal", "at")
        text = ",".join(f"{quote(k)}:{v if k in numbers else quote(v)}" for k, v in outcome)
        fd = os.open("exit.json.new", os.O_WRONLY | os.O_CLOEXEC, dir_fd=self.folder)
        os.write(fd, ("{" + text + "}").encode().ljust(EXIT_ROOM) + b"\n")
        os.close(fd)  # no fsync: after a power cut, how a sandbox of the last boot ended does not matter
        os.rename("exit.json.new", "exit.json", src_dir_fd=self.folder, dst_dir_fd=self.folder)

    def bury(self) -> None:
        """The command is over: end the rest, and wait until nothing is left."""
        self.kill()
        if self.init_fd >= 0:
            poller = select.poll()
            poller.register(self.init_fd, POLLIN)
            while not poller.poll(1000):
                self.kill()
        if self.uplink is not None:
            self.uplink.end()
        self.drain()

    def run_hooks(self) -> None:
        """The poststop hooks. A failure is told in the log; it cannot undo the end."""
        state = (
            f'{{"ociVersion":"1.0.2","id":{quote(self.sandbox_id)},"status":"stopped",'
            f'"bundle":{quote(self.folder_path)}}}'
        )
        for hook in self.hooks:
            failure = run_hook(hook, state.encode())
            if failure:
                self.emit(2, f"[dibs: poststop hook {hook.path}: {failure}]\n".encode(errors="replace"))

    def remove_groups(self) -> None:
        for path in dict.fromkeys([*self.groups, self.freezer.folder]):
            for _ in range(100):  # the last process leaves its group a moment after it is gone
                try:
                    if path:
                        os.rmdir(path)
                except FileNotFoundError:
                    break
                except OSError:
                    time.sleep(0.005)
                    continue
                break

    def serve(self) -> None:
        while self.status is None:
            self.step()
        self.write_phase("ended")
        self.bury()
        self.run_hooks()
        outcome = self.outcome()
        try:
            self.write_exit(outcome)
        finally:
            self.finish_clients(outcome)
            try:  # noqa: SIM105  # contextlib is not worth its memory here
                os.unlink("shim.sock", dir_fd=self.folder)
            except OSError:
                pass  # the folder is gone already
            self.remove_groups()


def stand_guard(reading: int) -> None:
    """End a sandbox whose shim is killed while the command is held back.

    bubblewrap's init dies with its parent only once it has been let go; until then it would wait for ever.
    """
    init = -1
    for number in IGNORED:
        _signal.signal(number, _signal.SIG_IGN)
    while words := os.read(reading, 64):
        if words == b"g":
            return
        try:
            init = os.pidfd_open(int(words))
        except ProcessLookupError:
            return
    if init >= 0:
        try:
            _signal.pidfd_send_signal(init, SIGKILL)
        except ProcessLookupError:
            return


def main() -> None:
    close_inherited(4)
    # Two processes: the shim proper, which needs no reaper, and a guard for as long as the command is held back.
    reading, guard = os.pipe()
    if os.fork():
        os.close(guard)
        os.close(3)
        stand_guard(reading)
        os._exit(0)
    os.close(reading)
    for number in IGNORED:
        _signal.signal(number, _signal.SIG_IGN)
    hold = _socket.socket(fileno=3)
    os.set_inheritable(3, False)
    # It takes a while, and our maker is still busy with what it will ask for. Only root can have it at all.
    ids = UserNamespace() if os.geteuid() == 0 else None
    seccomp.program()  # takes a moment too
    payload = receive(hold)
    if not payload:
        return
    fields = decode(payload)
    try:
        shim = Shim(hold, guard, ids, fields)
    except OSError as error:
        hold.sendall(frame(b"A", encode([("error", str(error))])))
        return
    if ids is not None and not shim.all_ids:
        shim.ids = None
        ids.leave()
    complaints = os.open("shim.err", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600, dir_fd=shim.folder)
    os.dup2(complaints, 2)
    os.close(complaints)
    try:
        shim.prepare()
        shim.launch()
    except (OSError, RuntimeError, ValueError) as error:
        shim.kill()
        if shim.uplink is not None:
            shim.uplink.end()
        hold.sendall(frame(b"A", encode([("error", str(error))])))
        shim.remove_groups()
        return
    try:  # contextlib is not worth its memory here
        answer = [("keeper", str(os.getpid())), ("init", str(shim.init))]
        if shim.uplink is not None:
            answer.append(("uplink", str(shim.uplink.pid)))
        hold.sendall(frame(b"A", encode(answer)))
    except OSError:
        pass  # the caller is gone already: the loop will see it and end the sandbox
    hold.setblocking(False)
    shim.poller.register(hold.fileno(), POLLIN)
    shim.serve()
