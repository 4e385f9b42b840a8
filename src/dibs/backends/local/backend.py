"""The embedded backend: bubblewrap, control groups and one shim per sandbox.

`workloads` calls it through the port. It holds no state of its own apart from the sandboxes that it has created and not
yet started: their shim lets the command run only as long as this process is there to say so.

Files of a sandbox, in its folder:
    shim.sock   where the shim listens while the sandbox lives
    log, log.1  what the command said
    exit.json   how it ended; written last
    layout      the mount points that make up its root
    shim.err    what went wrong with the shim itself; empty
"""

from __future__ import annotations

import os
import select
import shutil
import stat
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import msgspec

from dibs.backends.local import bubblewrap, cgroups, edits, helper, hooks, observe, rootfs, roots
from dibs.backends.local.logs import Reader
from dibs.backends.local.probes import Probes
from dibs.backends.local.rootfs import Bind, Layout, below
from dibs.backends.local.shim_client import Connection, ShimSession, exit_of
from dibs.backends.local.wire import decode
from dibs.backends.port import (
    Capability,
    Exec,
    Exit,
    Expectation,
    Handle,
    LogRecord,
    Observation,
    Phase,
    Realisation,
    Session,
    Status,
    Workload,
)
from dibs.cdi.spec import Hook
from dibs.errors import (
    BackendUnavailable,
    CommandFailed,
    Conflict,
    DibsError,
    InvalidRequest,
    NotFound,
    Problem,
    StateError,
    Unsupported,
)
from dibs.home import Home, find_home
from dibs.process import ProcessName, absent, name_of

LOG_LIMIT = 16 << 20  # per file, of which there are two; arbitrary
DEFAULT_PATH = "/bin:/usr/bin"  # what execvp takes when there is no PATH


class _Held(msgspec.Struct):
    """A sandbox between create and start."""

    shim: helper.Program
    workload: Workload
    hooks: tuple[Hook, ...]
    workdir: str

    def let_go(self) -> None:
        """After `go` this only closes the line; before, it makes the shim end the sandbox."""
        self.shim.connection.close()
        self.shim.reap()


_held: dict[str, _Held] = {}


class LocalBackend:
    """See `dibs.backends.port.Backend`."""

    name = "local"

    def __init__(self, home: Home) -> None:
        self._home = home

    @cached_property
    def _probes(self) -> Probes:
        return Probes(self._home.state / "local-probes.json")

    @cached_property
    def _bwrap(self) -> bubblewrap.Bubblewrap:
        return bubblewrap.find(self._probes)

    # --- what can be had

    def available(self) -> Capability:
        found = self._bwrap
        return Capability(bool(found.path), found.reason, found.remedy)

    def can_limit(self, limit: Literal["cpu", "memory", "pids"]) -> Capability:
        return cgroups.can_limit(limit)

    # --- making

    def render(self, workload: Workload, folder: Path) -> Realisation:  # noqa: ARG002  # nothing is in it yet
        bwrap = self._bwrap
        if not bwrap.path:
            raise BackendUnavailable(bwrap.reason, field="backend", value=self.name, remedy=bwrap.remedy)
        applied = edits.apply(workload.devices)
        problems = [*_wrong(workload, self._home), *applied.problems, *_limits_problems(workload)]
        if problems:
            unsupported = all(problem.code in UNSUPPORTED_CODES for problem in problems)
            raise (Unsupported if unsupported else InvalidRequest)(problems)
        host_root = workload.root == "host"
        if host_root:
            layout = self._host_layout(bwrap.path)
            workdir = os.path.realpath(workload.workdir)
            binds = [Bind(workdir, workdir, writable=True)]
            root = "/"
        else:
            root = os.path.realpath(workload.root)
            if os.path.isfile(root):
                root = str(self._home.state / "roots" / roots.known(Path(root), self._home.state / "roots"))
            layout = rootfs.folder_layout(root)
            workdir = os.path.normpath(workload.workdir)
            binds = []
        rootfs.add_own(layout, host_network=workload.network == "host", host_root=host_root, root=root)
        if not host_root:
            layout.folder(workdir)
        base = list(layout.points)
        explicit = [Bind(os.path.realpath(m.source), os.path.normpath(m.target), m.writable) for m in workload.mounts]
        binds += explicit
        binds += [Bind(one.source, one.target, one.writable) for one in applied.mounts if one.source]
        for bind in binds:
            layout.bind(bind)
        for one in applied.mounts:
            if not one.source:
                layout.tmpfs(one.target)
        expected_mounts = {b.target: "rw" if b.writable else "ro" for b in binds}
        expected_mounts |= {one.target: "rw" for one in applied.mounts if not one.source}
        hidden = rootfs.hide(layout, self._secrets(), binds, host_root=host_root)
        for node in applied.nodes:
            layout.args += ["--dev-bind", node.source, node.fact.path]
        env = {**workload.env, "PWD": workdir}  # bubblewrap sets it
        args = [*bubblewrap.SEPARATION, *bwrap.flags]
        if workload.network == "none":
            args.append("--unshare-net")
        if not workload.tty:
            args.append("--new-session")
        args += layout.args
        for name, value in env.items():
            if bubblewrap.is_loader_variable(name):
                args += ["--setenv", name, value]
        args += ["--chdir", workdir]
        native: dict[str, Any] = {
            "bwrap": bwrap.path,
            "version": bwrap.version,
            "args": args,
            "command": list(workload.command),
            "workdir": workdir,
            "root": root,
            "base": [*base, *hidden],
            "limits": cgroups.expected(workload.limits),
            "hooks": [msgspec.to_builtins(hook) for hook in applied.hooks],
            "notes": layout.notes,
        }
        return Realisation(
            self.name,
            native,
            Expectation(
                nodes=tuple(sorted(node.fact for node in applied.nodes)),
                env=env,
                mounts=tuple(
                    sorted(f"{p} {m}" for p, m in expected_mounts.items() if p not in base and p not in hidden)
                ),
                limits=cgroups.expected(workload.limits),
            ),
        )

    def _secrets(self) -> list[str]:
        """Folders that no sandbox may see: with the socket of a shim one commands a sandbox."""
        default = find_home({"HOME": os.path.expanduser("~")}).state
        return list(dict.fromkeys(os.path.realpath(path) for path in (self._home.state, default)))

    def _host_layout(self, bwrap: str) -> Layout:
        with open("/proc/self/mountinfo") as file:
            mounts = rootfs.mount_points(file.read())
        layout = rootfs.host_layout(mounts)

        def find_out() -> str:
            refused = rootfs.refused_overlays(layout, lambda args: bubblewrap.try_out(bwrap, args))
            return "\n".join(["refused", *refused])

        known = self._probes.get(f"overlays {bwrap} {rootfs.fingerprint(layout)}", find_out)
        refused = frozenset(known.splitlines()[1:])
        return rootfs.host_layout(mounts, refused) if refused else layout

    def create(self, workload: Workload, realisation: Realisation, folder: Path) -> Handle:
        native = realisation.native
        for fact in realisation.expectation.nodes:
            _check_still_there(fact, native["args"])
        if workload.root != "host" and os.path.isfile(workload.root):
            unpacked = roots.unpacked(Path(os.path.realpath(workload.root)), self._home.state / "roots")
            if str(unpacked) != native["root"]:
                raise Conflict("the root archive was changed since the plan", field="root", value=workload.root)
        made = not folder.exists()
        group = cgroups.Group()
        shim: helper.Program | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            (folder / "layout").write_text("\n".join(native["base"]))
            group = cgroups.make(workload.id, workload.limits)
            shim = helper.start("shim", str(folder / "shim.err"))
            answer = shim.connection.ask(b"H", _spec(workload, realisation, folder, group))
            if answer is None or "error" in answer:
                raise _setup_failed((answer or {}).get("error") or _complaint(folder))
            handle = _handle(workload, folder, answer, group)
            self._run_hooks_before(workload, native, handle)
        except (DibsError, OSError) as error:
            if shim is not None:
                shim.connection.close()
                _wait_for_end(folder)
                shim.reap()
            _forget(folder, made, group)
            if isinstance(error, OSError):
                raise StateError(
                    f"the sandbox's folder cannot be used: {error.strerror}", field="folder", value=str(folder)
                ) from error
            raise
        all_hooks = tuple(msgspec.convert(hook, Hook) for hook in native["hooks"])
        _held[str(folder)] = _Held(shim, workload, all_hooks, native["workdir"])
        return handle

    def _run_hooks_before(self, workload: Workload, native: dict[str, Any], handle: Handle) -> None:
        assert handle.init is not None
        wanted = [msgspec.convert(hook, Hook) for hook in native["hooks"]]
        folder = Path(handle.folder)
        if not wanted:
            return
        outside = hooks.write_bundle(folder, "bundle", f"/proc/{handle.init.pid}/root")
        for hook in wanted:
            if hook.hook_name in hooks.OUTSIDE:
                hooks.run_outside(hook, hooks.state(workload.id, "created", handle.init.pid, str(outside)))
        for hook in wanted:
            if hook.hook_name == "createContainer":
                self._run_inside(hook, handle, workload, privileged=True)

    def _run_inside(self, hook: Hook, handle: Handle, workload: Workload, *, privileged: bool) -> None:
        bundle = hooks.write_bundle(Path(handle.folder), "bundle-inside", "/")
        spec = [*_enter_spec(handle), ("mode", "exec"), ("cwd", "/"), ("bundle", str(bundle))]
        spec += [("cmd", word) for word in (hook.args or (hook.path,))]
        spec += [("env", item) for item in hook.env]
        # A createContainer hook's program is the host's, a startContainer hook's the sandbox's.
        spec += [("program", hook.path), ("privileged", "1")] if privileged else [("file", hook.path)]
        session = _enter(spec, hook.path)
        session.send(hooks.state(workload.id, "created", 1, "/proc/self/fd/200"))
        session.end_of_input()
        said = b""
        import time

        until = time.monotonic() + hook.timeout if hook.timeout else None
        try:
            while True:
                left = None if until is None else max(0.0, until - time.monotonic())
                for piece in session.receive(left):
                    if isinstance(piece, Exit):
                        if piece.code:
                            words = said.decode(errors="replace").strip()
                            raise hooks.failed(hook, f"ended with {piece.code}{': ' + words if words else ''}")
                        return
                    said = (said + piece.data)[-1000:]
                if until is not None and time.monotonic() >= until:
                    session.signal(9)
                    raise hooks.failed(hook, f"took longer than {hook.timeout} s")
        finally:
            session.close()

    def observe(self, handle: Handle) -> Observation:
        init = _living_init(handle)
        try:
            base = set((Path(handle.folder) / "layout").read_text().split("\n"))
            limits = cgroups.read_back(_groups(handle))
        except OSError as error:
            raise observe.unreadable("its limits and layout", error) from error
        found = Observation(observe.device_nodes(init), observe.environment(init), observe.mounts(init, base), limits)
        _living_init(handle)  # or the pid may have been somebody else's
        return found

    def start(self, handle: Handle) -> None:
        held = _held.pop(handle.folder, None)
        if held is None:
            phase = self.status(handle).phase
            raise Conflict(
                f"the sandbox is {phase}, it cannot be started here", code="NOT_HELD", value=handle.sandbox_id
            )
        try:
            init = _living_init(handle)
            path = held.workload.env.get("PATH", DEFAULT_PATH)
            observe.Sandboxed(init).check_command(held.workload.command[0], path, held.workdir)
            for hook in held.hooks:
                if hook.hook_name == "startContainer":
                    self._run_inside(hook, handle, held.workload, privileged=False)
            if held.shim.connection.ask(b"G") is None:
                raise BackendUnavailable("the sandbox's shim ended before the start", code="SHIM_LOST")
        except DibsError:
            held.let_go()
            self.wait(handle, 30.0)
            raise
        held.let_go()
        for hook in held.hooks:
            if hook.hook_name == "poststart":
                try:
                    bundle = str(Path(handle.folder) / "bundle")
                    hooks.run_outside(hook, hooks.state(handle.sandbox_id, "running", init, bundle))
                except BackendUnavailable as error:
                    self._tell(handle, f"[dibs: {error}]\n")

    def _tell(self, handle: Handle, text: str) -> None:
        """Put a line into the log. OCI wants a failed poststart hook told, and the workload to go on."""
        connection = Connection.to(Path(handle.folder))
        if connection is not None:
            connection.ask(b"L", [("text", text)])
            connection.close()

    # --- what became of it

    def status(self, handle: Handle) -> Status:
        ended = _exit(handle)
        if ended is not None:
            return Status(Phase.EXITED, ended)
        connection = Connection.to(Path(handle.folder))
        if connection is not None:
            try:
                answer = connection.ask(b"Q")
            except BackendUnavailable as error:
                return Status(Phase.UNKNOWN, detail=str(error))
            finally:
                connection.close()
            if answer is not None:
                return Status(Phase(answer["phase"]))
        return self._without_shim(handle)

    def _without_shim(self, handle: Handle) -> Status:
        ended = _exit(handle)
        if ended is not None:
            return Status(Phase.EXITED, ended)
        if all(one is not None and absent(one) for one in (handle.keeper, handle.init)):
            ended = _exit(handle)  # written between the two looks?
            if ended is not None:
                return Status(Phase.EXITED, ended)
            return Status(Phase.ABSENT, Exit(137, "lost", 9, "its shim was killed, and the sandbox with it"))
        return Status(Phase.UNKNOWN, detail="the shim does not listen, and is not proved gone")

    def wait(self, handle: Handle, timeout: float | None = None) -> Status:
        folder = Path(handle.folder)
        connection = Connection.to(folder)
        if connection is not None:
            import time

            until = None if timeout is None else time.monotonic() + timeout
            try:
                connection.send(b"H", [("mode", "wait")])
                while True:
                    left = None if until is None else max(0.0, until - time.monotonic())
                    one = connection.next(left)
                    if one is None:
                        break
                    if one[0] == b"X":
                        return Status(Phase.EXITED, _exit(handle) or exit_of(dict(decode(one[1]))))
            except TimeoutError:
                return self.status(handle)
            except OSError:
                pass  # it ended while we came: see below
            finally:
                connection.close()
        for process in (handle.keeper, handle.init):
            _await_gone(process, 5.0)
        return self.status(handle)

    def logs(self, handle: Handle, *, follow: bool = False) -> Iterator[LogRecord]:
        folder = Path(handle.folder)
        if not folder.is_dir():
            raise NotFound("the sandbox's folder is gone", field="sandbox", value=handle.sandbox_id)
        return self._records(folder, follow)

    def _records(self, folder: Path, follow: bool) -> Iterator[LogRecord]:
        reader = Reader(folder)
        connection = Connection.to(folder) if follow else None
        try:
            while connection is not None:
                try:
                    connection.send(b"N")
                    if connection.next(None) is None:
                        break
                except OSError:
                    break
                yield from reader.records()
            yield from reader.records()
        finally:
            reader.close()
            if connection is not None:
                connection.close()

    # --- conversations

    def attach(self, handle: Handle) -> Session:
        connection = Connection.to(Path(handle.folder))
        hello = connection.ask(b"H", [("mode", "attach")]) if connection is not None else None
        if connection is None or hello is None:
            if connection is not None:
                connection.close()
                self.wait(handle)  # it was just ending
            raise _not_running(self.status(handle), handle)
        return ShimSession(connection, hello)

    def exec(self, handle: Handle, command: Exec) -> Session:
        self._must_run(handle)
        init = _living_init(handle)
        env = observe.environment(init) | command.env
        cwd = command.workdir or env.get("PWD", "/")
        env["PWD"] = cwd
        spec = [*_enter_spec(handle), ("mode", "exec"), ("cwd", cwd), ("tty", str(int(command.tty)))]
        spec += [("cmd", word) for word in command.command]
        spec += [("env", f"{name}={value}") for name, value in env.items()]
        return _enter(spec, command.command[0])

    def _must_run(self, handle: Handle) -> None:
        status = self.status(handle)
        if status.phase is not Phase.RUNNING:
            raise _not_running(status, handle)

    def copy_in(self, handle: Handle, archive: Iterator[bytes], path: str) -> None:
        self._must_run(handle)
        reading, writing = os.pipe()
        try:
            connection = helper.enter(stdin=reading)
        except DibsError:
            os.close(writing)
            raise
        finally:
            os.close(reading)
        try:
            connection.send(b"H", [*_enter_spec(handle), ("mode", "in"), ("path", _inside(handle, path))])
            _copy_answer(connection, path)
            try:
                for piece in archive:
                    view = memoryview(piece)
                    while view:
                        view = view[os.write(writing, view) :]
            except BrokenPipeError:
                pass  # it refused the rest: the answer says why
            finally:
                os.close(writing)
                writing = -1
            _copy_answer(connection, path)
        finally:
            if writing >= 0:
                os.close(writing)
            connection.close()

    def copy_out(self, handle: Handle, path: str) -> Iterator[bytes]:
        self._must_run(handle)
        reading, writing = os.pipe()
        try:
            connection = helper.enter(stdout=writing)
            connection.send(b"H", [*_enter_spec(handle), ("mode", "out"), ("path", _inside(handle, path))])
        except (DibsError, OSError):
            os.close(reading)
            raise
        finally:
            os.close(writing)
        try:
            _copy_answer(connection, path)
        except DibsError:
            os.close(reading)
            connection.close()
            raise
        return _stream(reading, connection, path)

    # --- changing it

    def _request(self, handle: Handle, kind: bytes, verb: str, wanted: Phase) -> None:
        connection = Connection.to(Path(handle.folder))
        if connection is None:
            raise _not_running(self.status(handle), handle)
        try:
            answer = connection.ask(kind)
        finally:
            connection.close()
        if answer is None:
            raise _not_running(self.status(handle), handle)
        if "error" in answer:
            raise BackendUnavailable(f"the sandbox cannot be {verb}: {answer['error']}", value=handle.sandbox_id)
        if answer["phase"] != wanted:
            raise Conflict(f"the sandbox is {answer['phase']}, it cannot be {verb}", value=handle.sandbox_id)

    def pause(self, handle: Handle) -> None:
        self._request(handle, b"P", "paused", Phase.PAUSED)

    def resume(self, handle: Handle) -> None:
        self._request(handle, b"U", "resumed", Phase.RUNNING)

    def stop(self, handle: Handle, grace_seconds: float) -> None:
        held = _held.pop(handle.folder, None)
        connection = Connection.to(Path(handle.folder))
        if connection is not None:
            connection.ask(b"T", [("grace", repr(float(grace_seconds)))])
            connection.close()
        if held is not None:
            held.let_go()
        status = self.wait(handle)
        if status.phase in (Phase.EXITED, Phase.ABSENT):
            return
        # The shim is gone but something of the sandbox is not: the kernel is on its way to end it. Help.
        if handle.init is not None and _is_here(handle.init):
            os.kill(handle.init.pid, 9)
            _await_gone(handle.init, 10.0)
        status = self.status(handle)
        if status.phase not in (Phase.EXITED, Phase.ABSENT):
            raise BackendUnavailable(f"the sandbox did not end: {status.detail}", value=handle.sandbox_id)

    def delete(self, handle: Handle) -> None:
        folder = Path(handle.folder)
        status = self.status(handle)
        if status.phase not in (Phase.EXITED, Phase.ABSENT) and folder.exists():
            raise Conflict(
                f"the sandbox is {status.phase}", value=handle.sandbox_id, code="STILL_RUNNING", remedy="stop it first"
            )
        if handle.keeper is not None:
            _await_gone(handle.keeper, 5.0)  # it tidies up after it has told the end
        for _ in range(100):
            left = cgroups.remove([*_groups(handle), *filter(None, [handle.data.get("freezer")])])
            if not left:
                break
            select.select([], [], [], 0.01)
        else:
            raise BackendUnavailable("a control group is still in use", field="cgroup", value=left[0])
        if (held := _held.pop(handle.folder, None)) is not None:
            held.let_go()
        if folder.exists():
            shutil.rmtree(folder)


# Problems that another backend may not have; everything else is wrong anywhere.
UNSUPPORTED_CODES = frozenset(
    ("FIELD_NOT_SUPPORTED", "LIMIT_NOT_ENFORCEABLE", "DEVICE_NOT_ACCESSIBLE", "HOOK_NOT_FOUND")
)


def _wrong(workload: Workload, home: Home) -> list[Problem]:
    """What is wrong with a workload's own fields."""
    found: list[Problem] = []

    def problem(code: str, field: str, value: str, reason: str, remedy: str = "") -> None:
        found.append(Problem(code, field, value, reason, remedy))

    if not workload.command or not workload.command[0]:
        problem("INVALID_REQUEST", "command", "", "there is no command")
    words = [("command", word) for word in workload.command]
    words += [(f"env {name}", value) for name, value in workload.env.items()]
    words += [("env", name) for name in workload.env]
    for field, word in words:
        if "\0" in word:
            problem("INVALID_REQUEST", field, word, "it has a NUL character in it")
    for name in workload.env:
        if not name or "=" in name:
            problem("INVALID_REQUEST", "env", name, "the name of a variable is not empty and has no = in it")
    state = os.path.realpath(home.state)
    if workload.root == "host":
        _wrong_workdir(workload.workdir, state, problem)
    else:
        if not os.path.exists(workload.root):
            problem("NOT_FOUND", "root", workload.root, "there is no such folder or archive")
        elif os.path.realpath(workload.root) == "/":
            problem("INVALID_REQUEST", "root", workload.root, "it is the host's own root", 'say root "host"')
        if not workload.workdir.startswith("/"):
            problem("INVALID_REQUEST", "workdir", workload.workdir, "it must be an absolute path")
    for mount in workload.mounts:
        target = os.path.normpath(mount.target)
        if not mount.target.startswith("/") or ".." in mount.target.split("/") or target == "/":
            problem("INVALID_REQUEST", "mounts", mount.target, "the target must be an absolute path other than /")
        elif any(below(target, own) for own in ("/proc", "/sys", "/dev")):
            problem("INVALID_REQUEST", "mounts", mount.target, "the kernel's own folders cannot be mounted over")
        try:
            mode = os.stat(mount.source).st_mode
        except OSError as error:
            reason = f"the source cannot be used: {(error.strerror or str(error)).lower()}"
            problem("NOT_FOUND", "mounts", mount.source, reason)
            continue
        if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)):
            remedy = "ask for devices with --gpu or --device"
            problem("INVALID_REQUEST", "mounts", mount.source, "only folders, files and sockets can be mounted", remedy)
        if below(os.path.realpath(mount.source), state):
            problem("INVALID_REQUEST", "mounts", mount.source, "it is in dibs' own state folder")
    return found


def _wrong_workdir(workdir: str, state: str, problem: Any) -> None:
    real = os.path.realpath(workdir)
    if not workdir.startswith("/"):
        problem("INVALID_REQUEST", "workdir", workdir, "it must be an absolute path")
    elif not os.path.isdir(real):
        problem("NOT_FOUND", "workdir", workdir, "there is no such folder")
    elif real == "/":
        reason = "the whole host would be writable"
        problem("INVALID_REQUEST", "workdir", workdir, reason, "choose a folder for the workload to write to")
    elif any(below(real, own) for own in ("/proc", "/sys", "/dev")):
        problem("INVALID_REQUEST", "workdir", workdir, "it is one of the kernel's own folders")
    elif below(real, state):
        problem("INVALID_REQUEST", "workdir", workdir, "it is in dibs' own state folder")


def _limits_problems(workload: Workload) -> list[Problem]:
    limits = workload.limits
    found = []
    for name, value in (("cpu", limits.cpu_millis), ("memory", limits.memory_bytes), ("pids", limits.pids)):
        if value is None:
            continue
        if value <= 0:
            found.append(Problem("INVALID_REQUEST", name, str(value), "a limit must be more than nothing"))
            continue
        capability = cgroups.can_limit(name)
        if not capability.ok:
            found.append(Problem("LIMIT_NOT_ENFORCEABLE", name, str(value), capability.reason, capability.remedy))
    return found


def _spec(workload: Workload, realisation: Realisation, folder: Path, group: cgroups.Group) -> list[tuple[str, str]]:
    native = realisation.native
    spec = [
        ("id", workload.id),
        ("folder", str(folder)),
        ("bwrap", native["bwrap"]),
        ("tty", str(int(workload.tty))),
        ("interactive", str(int(workload.interactive))),
        ("foreground", str(int(workload.foreground))),
        ("grace", repr(float(workload.grace_seconds))),
        ("logmax", str(LOG_LIMIT)),
        ("freezer", group.freezer),
        ("oom", group.oom),
    ]
    if workload.ttl_seconds is not None:
        spec.append(("ttl", repr(float(workload.ttl_seconds))))
    spec += [("arg", word) for word in native["args"]]
    spec += [("cmd", word) for word in native["command"]]
    env = realisation.expectation.env
    spec += [("env", f"{name}={value}") for name, value in env.items() if not bubblewrap.is_loader_variable(name)]
    spec += [("cgroup", path) for path in group.folders]
    for hook in native["hooks"]:
        if hook["hookName"] == "poststop":
            spec.append(("hook", hook["path"]))
            spec += [("hookarg", word) for word in hook.get("args", ())]
            spec += [("hookenv", item) for item in hook.get("env", ())]
            spec.append(("hooktimeout", str(hook.get("timeout") or 0)))
    return spec


def _handle(workload: Workload, folder: Path, answer: dict[str, str], group: cgroups.Group) -> Handle:
    keeper, init = name_of(int(answer["keeper"])), name_of(int(answer["init"]))
    if keeper is None or init is None:
        raise _setup_failed("it ended at once")
    data = {"groups": "\n".join(group.folders), "freezer": group.freezer.partition(":")[2]}
    return Handle("local", workload.id, str(folder), keeper, init, data)


def _check_still_there(fact: Any, args: list[str]) -> None:
    """A node may have vanished since the plan was made."""
    source = args[args.index(fact.path) - 1]
    try:
        info = os.stat(source)
    except OSError:
        info = None
    if info is None or (os.major(info.st_rdev), os.minor(info.st_rdev)) != (fact.major, fact.minor):
        raise NotFound(
            "the device node was there when the plan was made, and is gone"
            if info is None
            else "the device node is another one than when the plan was made",
            field="devices",
            value=source,
            code="DEVICE_GONE",
            remedy="look at the devices again: dibs gpus list",
        )


def _setup_failed(reason: str) -> BackendUnavailable:
    return BackendUnavailable(
        f"the sandbox could not be set up: {reason}", field="sandbox", code="SANDBOX_SETUP_FAILED"
    )


def _complaint(folder: Path) -> str:
    try:
        lines = (folder / "shim.err").read_text(errors="replace").strip().splitlines()
    except OSError:
        lines = []
    return lines[-1] if lines else "its shim ended without a word"


def _forget(folder: Path, made: bool, group: cgroups.Group) -> None:
    """Leave nothing of a sandbox that could not be made."""
    for _ in range(200):
        if not cgroups.remove(list(group.folders)):
            break
        select.select([], [], [], 0.005)
    if made:
        shutil.rmtree(folder, ignore_errors=True)
        return
    for name in ("shim.sock", "exit.json", "exit.json.new", "shim.err", "layout", "log", "log.1"):
        (folder / name).unlink(missing_ok=True)
    for name in ("bundle", "bundle-inside"):
        shutil.rmtree(folder / name, ignore_errors=True)


def _wait_for_end(folder: Path) -> None:
    """After the hold was let go: until the shim has tidied up."""
    connection = Connection.to(folder)
    if connection is not None:
        try:
            connection.send(b"H", [("mode", "wait")])
            while connection.next(30.0) is not None:
                pass
        except OSError:
            pass
        finally:
            connection.close()


def _groups(handle: Handle) -> list[str]:
    return [path for path in handle.data.get("groups", "").split("\n") if path]


def _exit(handle: Handle) -> Exit | None:
    try:
        data = (Path(handle.folder) / "exit.json").read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StateError(f"the exit status cannot be read: {error.strerror}", value=handle.folder) from error
    try:
        return msgspec.json.decode(data, type=Exit)
    except msgspec.DecodeError as error:
        raise StateError(f"the exit status cannot be read: {error}", value=handle.folder) from error


def _is_here(process: ProcessName) -> bool:
    found = name_of(process.pid)
    return found == process


def _await_gone(process: ProcessName | None, seconds: float) -> None:
    """Wait for the end of a process of this host, without polling."""
    if process is None or not _is_here(process):
        return
    try:
        fd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    try:
        if _is_here(process):
            select.select([fd], [], [], seconds)
    finally:
        os.close(fd)


def _living_init(handle: Handle) -> int:
    if handle.init is None or absent(handle.init):
        raise Conflict("the sandbox has ended", field="sandbox", value=handle.sandbox_id, code="NOT_RUNNING")
    return handle.init.pid


def _not_running(status: Status, handle: Handle) -> Conflict:
    remedy = {Phase.PAUSED: "resume it first", Phase.HELD: "start it first"}.get(status.phase, "")
    return Conflict(
        f"the sandbox is {status.phase}", field="sandbox", value=handle.sandbox_id, code="NOT_RUNNING", remedy=remedy
    )


def _enter_spec(handle: Handle) -> list[tuple[str, str]]:
    init = handle.init
    if init is None or absent(init):
        raise Conflict("the sandbox has ended", field="sandbox", value=handle.sandbox_id, code="NOT_RUNNING")
    return [("pid", str(init.pid)), ("started", str(init.started)), *(("cgroup", path) for path in _groups(handle))]


def _enter(spec: list[tuple[str, str]], command: str) -> ShimSession:
    connection = helper.enter()
    connection.send(b"H", spec)
    one = connection.next(None)
    if one is not None and one[0] == b"A":
        return ShimSession(connection, dict(decode(one[1])))
    connection.close()
    fields = dict(decode(one[1])) if one is not None else {}
    reason, step = fields.get("error", "the helper ended without a word"), fields.get("step")
    if step == "exec":
        missing = fields.get("errno") in ("2", "20")
        raise CommandFailed(reason.lower(), missing=missing, value=command)
    if step == "chdir":
        raise InvalidRequest(f"the working directory cannot be used: {reason.lower()}", field="workdir")
    if step == "enter" and fields.get("errno") in ("2", "3"):
        raise Conflict("the sandbox has ended", code="NOT_RUNNING")
    raise BackendUnavailable(f"the sandbox cannot be entered: {reason}", code="ENTER_FAILED")


def _inside(handle: Handle, path: str) -> str:
    """A path of the sandbox; a relative one starts at its working directory."""
    if path.startswith("/"):
        return path
    return os.path.join(observe.environment(_living_init(handle)).get("PWD", "/"), path)


def _copy_answer(connection: Connection, path: str) -> None:
    one = connection.next(None)
    if one is not None and one[0] in (b"A", b"X"):
        return
    fields = dict(decode(one[1])) if one is not None else {}
    reason, kind = fields.get("error", "the sandbox ended while files were copied"), fields.get("kind", "gone")
    if kind == "missing":
        raise NotFound(reason, field="path", value=path)
    if kind in ("hostile", "broken"):
        raise InvalidRequest(reason, field="archive", code="ARCHIVE_REFUSED")
    if kind == "gone":
        raise Conflict(f"the sandbox cannot be entered: {reason}", code="NOT_RUNNING")
    raise InvalidRequest(f"files cannot be copied: {reason.lower()}", field="path", value=path, code="COPY_FAILED")


def _stream(reading: int, connection: Connection, path: str) -> Iterator[bytes]:
    try:
        with os.fdopen(reading, "rb", buffering=0) as pipe:
            while piece := pipe.read(65536):
                yield piece
        _copy_answer(connection, path)
    finally:
        connection.close()
