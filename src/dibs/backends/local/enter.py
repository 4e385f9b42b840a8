"""The helper that goes into a running sandbox: for `exec`, for hooks, for copying files and for its network.

`backend` spawns it with a socket on descriptor 3, or has it forked by `forker`, and sends the spec. It joins the
sandbox's groups and namespaces, gives up every capability, forks, and runs the command (or the code of `tar_writer` and
`tar_extract`) as the child. The parent serves the socket with the same frames as the shim.

It must import nothing of dibs, and nothing at all once it is inside: the files there belong to the sandbox, and code
loaded from them would run with a view of the host's processes. Nor may one inside look into it before it has become
the command.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _socket
import ctypes
import errno
import fcntl
import os
import sys
import termios

TYPE_CHECKING = False  # importing typing for it would cost a megabyte
if TYPE_CHECKING:
    from collections.abc import Callable

    from dibs.backends.local import keeper, keyring, seccomp
    from dibs.backends.local.keeper import Client
    from dibs.backends.local.kernel import close_inherited, write
    from dibs.backends.local.userns import FILE_POWERS, lone, switch
    from dibs.backends.local.wire import Fields, decode, encode, frame
else:
    import keeper
    import keyring
    import seccomp
    from kernel import close_inherited, write
    from userns import FILE_POWERS, lone, switch
    from wire import decode, encode, frame

NS_GET_USERNS = 0xB701
PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 22, 2
PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 4, 24, 38, 47, 4
FSOPEN, FSCONFIG, FSMOUNT, FSCONFIG_CMD_CREATE, NOSUID_NODEV_NOEXEC = 430, 431, 432, 6, 2 | 4 | 8
NAMESPACES = ("ipc", "uts", "net", "cgroup", "pid", "mnt")
LOADED_EARLY = (termios,)  # `keeper` imports it when it is needed, which would be too late here

libc = ctypes.CDLL(None, use_errno=True)


def checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def check_start(pid: int, started: int) -> None:
    """After something of the process was opened: it was really its own."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        if int(file.read().rpartition(b")")[2].split()[19]) != started:
            raise ProcessLookupError(errno.ESRCH, "the sandbox has ended")


def join(pid: int, started: int, groups: list[str], *, as_owner: bool = False) -> None:
    """Become a member of the sandbox whose init is `pid`; only our children are in its pid namespace.

    `as_owner` keeps the powers over its mounts, which are not the command's.
    """
    opened = {name: os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY) for name in (*NAMESPACES, "user")}
    check_start(pid, started)
    for group in groups:
        write(group + "/cgroup.procs", "0")
    # bubblewrap may nest two user namespaces: the outer one owns the others, the command lives in the inner one.
    owner = fcntl.ioctl(opened["mnt"], NS_GET_USERNS)
    inner = os.fstat(owner).st_ino != os.fstat(opened["user"]).st_ino
    checked(libc.setns(owner, 0), "join the user namespace")
    for name in NAMESPACES:
        if os.fstat(opened[name]).st_ino != os.stat(f"/proc/self/ns/{name}").st_ino:
            checked(libc.setns(opened[name], 0), f"join the {name} namespace")
    if inner and not as_owner:
        checked(libc.setns(opened["user"], 0), "join the inner user namespace")
    for fd in (*opened.values(), owner):
        os.close(fd)
    checked(libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0), "keep others from looking in")


def give_up_capabilities(user: tuple[int, int] | None = None, powers: tuple[int, ...] = ()) -> None:
    """All of them, for ever; and become another user of the sandbox on the way. Root keeps its `powers`, if any."""
    libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    if os.geteuid() if user is None else user[0]:
        powers = ()
    for capability in range(64):
        if capability in powers:
            continue
        if libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) < 0:
            if ctypes.get_errno() == errno.EINVAL:
                break  # past the last one that this kernel knows
            checked(-1, "drop a capability")
    if user is not None:
        switch(*user)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    kept = sum(1 << number for number in powers)
    sets = (ctypes.c_uint32 * 6)(kept, kept)  # effective, permitted; and none to inherit
    checked(libc.capset(header, sets), "drop the capabilities")
    checked(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "set no_new_privs")
    checked(libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0), "keep others from looking in")  # another user may undo it


class Filter(ctypes.Structure):
    """struct sock_fprog"""

    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))


def limit_calls() -> None:
    """Allow only the system calls that a sandbox may make, for ever: see `seccomp`."""
    code = seccomp.program()
    rules = Filter(len(code) // 8, code)
    checked(libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(rules), 0, 0), "filter system calls")


def user_of(spec: dict[str, str]) -> tuple[int, int] | None:
    """The user to become inside, if it is another one. Our own supplementary groups are dropped then."""
    if "uid" not in spec or spec.get("privileged") == "1":
        return None
    lone()
    return int(spec["uid"]), int(spec["gid"])


class Entered(keeper.Keeper):
    """The keeper of one further command. Its only client is its creator."""

    # The client may take its time to read: the command waits as long, and nothing is thrown away.
    stalled = float("inf")

    def deliver(self, number: int) -> None:
        """To the command and all that it has started in its own group, as from the keys of a terminal."""
        if self.process_fd >= 0:  # not reaped yet, so that the group's number is still its own
            try:
                os.killpg(self.process, number)
            except ProcessLookupError:
                return

    def kill(self) -> None:
        self.deliver(keeper.SIGKILL)

    def request(self, client: Client, kind: bytes, fields: dict[str, str]) -> None:
        """There is nothing else to ask of an exec."""

    def drop(self, client: Client) -> None:  # noqa: ARG002
        """The session is over; the command is told as by a terminal that is closed, and may go on if it wants to.

        One with input that it did not take is killed: it would see the end of its input too early, and may be stuck.

        It is waited for all the same. A sandbox does not end before the last of its dead is buried, and the process
        that adopts orphans on this host may be slow at that, or never do it.
        """
        if self.process_fd >= 0:
            try:  # noqa: SIM105  # contextlib is not worth its memory here
                os.killpg(self.process, keeper.SIGKILL if self.pending_input else keeper.SIGHUP)
            except ProcessLookupError:
                pass
            os.closerange(3, MOST_DESCRIPTORS)  # its streams and its terminal are gone
            os.waitpid(self.process, 0)
        os._exit(0)

    def outcome(self) -> Fields:
        status = self.status or 0
        if status < 0:
            return [("code", str(128 - status)), ("reason", "signalled"), ("signal", str(-status))]
        return [("code", str(status)), ("reason", "exited")]


def search(command: str, path: str) -> list[str]:
    return [command] if "/" in command else [f"{folder or '.'}/{command}" for folder in path.split(":")]


def unsearchable(path: str) -> bool:
    """Whether it is in a folder that may not be searched."""
    try:
        os.lstat(path)
    except PermissionError:
        return True
    except OSError:
        return False
    return False


def first_of(command: str, path: str, attempt: Callable[[str], int]) -> int:
    """What comes of the first program that can be executed; raises with the most telling error."""
    worst: OSError = FileNotFoundError(errno.ENOENT, "there is no such command")
    for candidate in search(command, path):
        try:
            return attempt(candidate)
        except PermissionError as error:
            # A folder of PATH that may not be searched has no commands, as for a shell.
            if "/" in command or not unsearchable(candidate):
                worst = error
        except (FileNotFoundError, NotADirectoryError) as error:
            if os.path.exists(candidate):  # its interpreter is missing
                worst = PermissionError(errno.EACCES, "its interpreter is missing")
            elif worst.errno == errno.ENOENT:
                worst = FileNotFoundError(error.errno, "there is no such command")
        except OSError as error:
            worst = error
    raise worst


def failure_of(error: OSError, step: str) -> Fields:
    return [("error", error.strerror or str(error)), ("errno", str(error.errno)), ("step", step)]


def spawn(child: tuple[int, int, int], command: list[str], env: dict[str, str]) -> int:
    """The command without a copy of ourselves in between, which takes longer than all the rest. Its pid."""
    actions = [(os.POSIX_SPAWN_DUP2, fd, target) for target, fd in enumerate(child)]

    def attempt(candidate: str) -> int:
        os.stat(candidate)  # a process that only finds that there is no such file costs a hundred times as much
        return os.posix_spawn(candidate, command, env, file_actions=actions, setsid=True, setsigdef=keeper.IGNORED)

    return first_of(command[0], env.get("PATH", "/bin:/usr/bin"), attempt)


def fork(
    child: tuple[int, int, int], tty: bool, what: tuple[str, int, int], command: list[str], env: dict[str, str]
) -> int:
    """For what cannot be had by a spawn: a terminal, or a hook. Its pid."""
    file, program, bundle = what
    failed, failure = os.pipe()

    def attempt(candidate: str) -> int:
        os.execve(candidate, command, env)  # noqa: S606

    pid = os.fork()
    if pid == 0:
        try:
            if not tty:
                os.setsid()
            keeper.become(child, tty)
            for fd in (program, bundle):
                if fd >= 0:
                    os.set_inheritable(fd, True)
            if bundle >= 0:
                os.dup2(bundle, BUNDLE_FD, inheritable=True)
            if program >= 0:
                os.execve(program, command, env)  # noqa: S606
            first_of(file or command[0], env.get("PATH", "/bin:/usr/bin"), attempt)
        except OSError as error:
            os.write(failure, encode(failure_of(error, "exec")))
        finally:
            os._exit(1)
    os.close(failure)
    words = dict(decode(os.read(failed, 4096)))
    os.close(failed)
    if words:
        os.waitpid(pid, 0)
        raise OSError(int(words["errno"]), words["error"])
    return pid


def sealed_copy(path: str) -> int:
    """A program of the host in a file that cannot be changed.

    In the sandbox it is loaded by the sandbox's own loader. Through /proc/self/exe, or its descriptor, that could write
    to the program itself, which may belong to the same user.
    """
    copy = os.memfd_create("hook", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with open(path, "rb", buffering=0) as source:
        while piece := source.read(1 << 20):
            os.write(copy, piece)
    fcntl.fcntl(
        copy, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
    )
    # Reading only: as a script it is opened again by its interpreter.
    reading = os.open(f"/proc/self/fd/{copy}", os.O_RDONLY)
    os.close(copy)
    return reading


def own_bundle(config: str) -> int:
    """A bundle in a file system of its own, which is mounted nowhere: from a folder of the host `..` would lead out."""
    context = checked(libc.syscall(FSOPEN, b"tmpfs", 1), "make a file system for the bundle")
    checked(libc.syscall(FSCONFIG, context, FSCONFIG_CMD_CREATE, None, None, 0), "make a file system for the bundle")
    bundle = checked(libc.syscall(FSMOUNT, context, 1, NOSUID_NODEV_NOEXEC), "make a file system for the bundle")
    os.close(context)
    fd = os.open("config.json", os.O_WRONLY | os.O_CREAT, 0o644, dir_fd=bundle)
    os.write(fd, config.encode())
    os.close(fd)
    return bundle


def run(sock: _socket.socket, spec: Fields) -> None:
    one = dict(spec)
    tty = one.get("tty") == "1"
    command = [v for k, v in spec if k == "cmd"]
    env = dict(v.split("=", 1) for k, v in spec if k == "env")
    cwd = one.get("cwd", "/")
    file = one.get("file", "")
    program = sealed_copy(one["program"]) if "program" in one else -1
    child, stdin, outputs, master = keeper.streams(tty, interactive=True)
    if tty and "rows" in one:
        keeper.set_size(master, int(one["rows"]), int(one["columns"]))
    privileged = one.get("privileged") == "1"
    user = user_of(one)
    descriptors = keeper.own_descriptors()
    join(int(one["pid"]), int(one["started"]), [v for k, v in spec if k == "cgroup"], as_owner=privileged)
    sys.meta_path.clear()
    bundle = own_bundle(one["config"]) if "config" in one else -1
    if user is not None:
        keeper.hand_over(child, *user)
    try:
        if user is not None:
            os.chdir(cwd)  # a user may be started in a folder that only root could have gone to, as with engines
        if not privileged:
            give_up_capabilities(user, tuple(FILE_POWERS) if one.get("powers") == "1" else ())
        if user is None:
            os.chdir(cwd)
    except OSError as error:
        sock.sendall(frame(b"F", encode(failure_of(error, "chdir"))))
        return
    if not privileged:
        limit_calls()
    try:
        if tty or file or program >= 0:
            pid = fork(child, tty, (file, program, bundle), command, env)
        else:
            pid = spawn(child, command, env)
    except OSError as error:
        sock.sendall(frame(b"F", encode(failure_of(error, "exec"))))
        return
    for fd in {*child, program, bundle} - {-1}:
        os.close(fd)
    entered = Entered()
    entered.interactive = True
    entered.descriptors = descriptors
    entered.adopt(pid, stdin, outputs, master)
    client = entered.add(sock)
    client.mode = "attach"
    entered.answer(client, [("phase", "running"), ("interactive", "1"), ("tty", str(int(tty)))])
    while entered.status is None:
        entered.step()
    entered.drain()
    entered.finish_clients(entered.outcome())


MOST_DESCRIPTORS = 256  # more than we ever have
BUNDLE_FD = 200  # where a hook finds its bundle: /proc/self/fd/200; high, so that it is free


def copy(sock: _socket.socket, spec: Fields) -> None:
    """Pack to descriptor 1 or unpack from descriptor 0, as a process of the sandbox."""
    if TYPE_CHECKING:
        from dibs.backends import tar_extract, tar_reader, tar_writer
    else:
        import tar_extract
        import tar_reader
        import tar_writer
    one = dict(spec)
    tar_reader.prepare()
    tar_writer.prepare()
    user = user_of(one)
    join(int(one["pid"]), int(one["started"]), [v for k, v in spec if k == "cgroup"])
    sys.meta_path.clear()
    give_up_capabilities(user)
    limit_calls()
    pid = os.fork()
    if pid:
        os._exit(0 if os.waitpid(pid, 0)[1] == 0 else 1)
    os.setsid()

    def ready() -> None:
        sock.sendall(frame(b"A"))

    try:
        if one["mode"] == "in":
            with open(0, "rb", closefd=False) as stream:
                tar_extract.unpack_into(one["path"], stream, ready)
        else:
            pieces = tar_writer.pack(one["path"])
            ready()
            for piece in pieces:
                view = memoryview(piece)
                while view:
                    view = view[os.write(1, view) :]
        sock.sendall(frame(b"X"))
    except tar_reader.Refused as error:
        sock.sendall(frame(b"F", encode([("error", str(error)), ("kind", error.kind)])))
    except OSError as error:
        text = f"{error.strerror}: {error.filename}" if error.filename else str(error)
        sock.sendall(frame(b"F", encode([("error", text), ("kind", "failed")])))
    os._exit(0)


def connect(sock: _socket.socket, spec: Fields) -> None:
    """A connection to a port of the sandbox's own loopback, sent back as a descriptor.

    A socket belongs to the network namespace in which it was made, whatever process uses it later.
    """
    one = dict(spec)
    pid = int(one["pid"])
    network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    check_start(pid, int(one["started"]))
    checked(libc.setns(fcntl.ioctl(network, NS_GET_USERNS), 0), "join the user namespace")
    checked(libc.setns(network, 0), "join the net namespace")
    refused: OSError = ConnectionRefusedError(errno.ECONNREFUSED, "nothing listens there")
    for family, address in ((_socket.AF_INET, "127.0.0.1"), (_socket.AF_INET6, "::1")):
        try:
            found = _socket.socket(family, _socket.SOCK_STREAM)
            found.settimeout(float(one["timeout"]))
            found.connect((address, int(one["port"])))
        except OSError as error:
            if family == _socket.AF_INET:
                refused = error
            continue
        found.settimeout(None)
        passed = found.fileno().to_bytes(4, sys.byteorder)
        sock.sendmsg([frame(b"A")], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, passed)])
        return
    number = errno.ETIMEDOUT if isinstance(refused, TimeoutError) else refused.errno
    words = [("error", refused.strerror or "no answer"), ("errno", str(number)), ("step", "connect")]
    sock.sendall(frame(b"F", encode(words)))


def main() -> None:
    close_inherited(4)
    if os.fork():  # as in the shim: our maker must not have to wait for us
        os._exit(0)
    serve()


def serve() -> None:
    for number in keeper.IGNORED:
        _signal.signal(number, _signal.SIG_IGN)
    sock = _socket.socket(fileno=3)
    os.set_inheritable(3, False)
    payload = keeper.receive(sock)
    if not payload:
        return
    spec = decode(payload)
    try:
        keyring.join_own()
        seccomp.program()
        {"in": copy, "out": copy, "connect": connect}.get(dict(spec)["mode"], run)(sock, spec)
    except OSError as error:
        sock.sendall(frame(b"F", encode([*failure_of(error, "enter"), ("kind", "gone")])))
