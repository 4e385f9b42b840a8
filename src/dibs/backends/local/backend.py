"""The embedded backend: bubblewrap, control groups and one shim per sandbox.

`workloads` calls it through the port. Its only state are the sandboxes that it has created and not yet started: their
shim ends them if this process dies before `start`.

Files of a sandbox, in its folder:
    shim.sock   where the shim listens while the sandbox lives
    log, log.1  the command's output
    exit.json   how it ended; written last
    uplink      the process that connects a private network: its pid and start time
    uplink.err  the stderr of that process
    phase       held, running or paused, while the sandbox lives
    shim.err    errors of the shim itself; normally empty
"""

from __future__ import annotations

import errno
import os
import select
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from dibs.backends import plain_fields, proc
from dibs.backends.local import (
    bubblewrap,
    cgroups,
    enter_client,
    helper,
    hooks,
    observe,
    rendering,
    roots,
    setup_steps,
    uplinks,
)
from dibs.backends.local.handles import (
    await_gone,
    exit_status,
    groups,
    is_running,
    living_init,
    not_running,
    noted_phase,
)
from dibs.backends.local.kernel import kill_strays
from dibs.backends.local.logs import Reader
from dibs.backends.local.plain_fields import FIELDS
from dibs.backends.local.probes import Probes
from dibs.backends.local.shim_client import START_TIMEOUT, Connection, ShimSession, exit_of
from dibs.backends.local.wire import decode
from dibs.backends.port import (
    Capability,
    Exec,
    Exit,
    ExitReason,
    Handle,
    LogRecord,
    Network,
    Observation,
    Phase,
    Realisation,
    Session,
    Status,
    Usage,
    Volume,
    Workload,
)
from dibs.cdi.spec import Hook
from dibs.errors import (
    BackendUnavailable,
    Conflict,
    DibsError,
    InvalidRequest,
    NotFound,
    Problem,
    StateError,
)
from dibs.home import Home
from dibs.process import ProcessName, absent, is_here

if TYPE_CHECKING:
    import socket

LOG_LIMIT = 16 << 20  # per file, of which there are two; arbitrary
_PULSE = 1.0  # seconds of silence after which a follower of the log gets an empty record
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
    holds = True

    def __init__(self, home: Home, *, long_lived: bool = False, probes: Probes | None = None) -> None:
        """`long_lived`: for a process that makes many sandboxes, or goes into them often, such as a gateway. `probes`:
        where what was found out of this host is remembered, if not in the home."""
        self._home = home
        self._given_probes = probes
        self._helpers = helper.Helpers(long_lived=long_lived)

    @cached_property
    def _probes(self) -> Probes:
        return self._given_probes or Probes(self._home.state / "local-probes.json")

    @cached_property
    def _bwrap(self) -> bubblewrap.Bubblewrap:
        return bubblewrap.find(self._probes)

    def holds_some(self) -> bool:
        """Whether this process holds a sandbox back that would end with it."""
        return bool(_held)

    # --- what can be had

    def available(self) -> Capability:
        found = self._bwrap
        return Capability(bool(found.path), found.reason, found.remedy)

    def inspect_image(self, image: str) -> None:
        """There is nothing to know: images are folders of this host."""

    def check_volumes(self, volumes: Sequence[Volume]) -> list[Problem]:
        from dibs.backends.local import volumes as folders

        return folders.problems(self._home, volumes)

    def can_network(self, network: Network) -> Capability:
        if network != "private":
            return Capability(ok=True)
        from dibs.backends.local import networks

        return networks.capability(self._probes)

    def can_limit(self, limit: Literal["cpu", "memory", "pids"]) -> Capability:
        return cgroups.can_limit(limit)

    # --- making

    def render(self, workload: Workload, folder: Path) -> Realisation:  # noqa: ARG002  # nothing is in it yet
        return rendering.render(workload, self._home, self._bwrap, self._probes)

    def finalise(self, workload: Workload, realisation: Realisation) -> Realisation:
        """Nothing has to be fetched; but volumes may have to be made, and the host's root may have changed while the
        request waited."""
        if workload.volumes:
            from dibs.backends.local import volumes

            volumes.make(self._home, workload.volumes)
        if workload.volumes or self.outdated(realisation):
            return rendering.render(workload, self._home, self._bwrap, self._probes)
        return realisation

    def outdated(self, realisation: Realisation) -> bool:
        return rendering.host_has_changed(realisation.native.get("host"))

    def create(self, workload: Workload, realisation: Realisation, folder: Path) -> Handle:
        native = realisation.native
        for fact in realisation.expectation.nodes:
            setup_steps.check_still_there(fact, native["args"])
        if workload.root != "host" and os.path.isfile(workload.root):
            unpacked = roots.unpacked(Path(os.path.realpath(workload.root)), self._home.state / "roots")
            if str(unpacked) != native["root"]:
                raise Conflict("the root archive was changed since the plan", field="root", value=workload.root)
        made = not folder.exists()
        group = cgroups.Group()
        shim: helper.Program | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            shim = self._helpers.start("shim")
            group = cgroups.make(workload.id, workload.limits, shim.pid)
            spec = rendering.shim_spec(workload, realisation, folder, group, LOG_LIMIT)
            spec += [("join", path)] if (path := _network_to_join(workload)) else []
            answer = shim.connection.ask(b"H", spec)
            if answer is None or "error" in answer:
                raise setup_steps.setup_failed((answer or {}).get("error") or setup_steps.complaint(folder))
            handle = setup_steps.make_handle(workload, folder, answer, group, powers=native["powers"])
            for field, amount in plain_fields.asked(FIELDS, workload):
                if field.apply is not None:
                    setup_steps.apply(field, int(answer["init"]), amount)
            self._run_hooks_before(workload, native, handle)
        except (DibsError, OSError) as error:
            if shim is not None:
                shim.connection.close()
                setup_steps.wait_for_end(folder)
                shim.reap()
                kill_strays(workload.id)
            setup_steps.forget(folder, made, group)
            if isinstance(error, OSError):
                full = error.errno in (errno.ENOSPC, errno.EDQUOT)
                raise StateError(
                    f"the sandbox's folder cannot be used: {error.strerror}", field="folder", value=str(folder),
                    code="DISK_FULL" if full else "", remedy="free some space; nothing was changed" if full else "",
                ) from error  # fmt: skip
            raise
        if workload.peers is not None and workload.peers.leader == workload.id and handle.init is not None:
            _leaders[workload.id] = handle.init
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
                enter_client.run_hook(self._helpers, hook, handle, workload, privileged=True)

    def observe(self, handle: Handle) -> Observation:
        return observe.look(handle)

    def start(self, handle: Handle) -> None:
        held = _held.pop(handle.folder, None)
        if held is None:
            phase = self.status(handle).phase
            raise Conflict(
                f"the sandbox is {phase}, it cannot be started here", code="NOT_HELD", value=handle.sandbox_id
            )
        try:
            init = living_init(handle)
            path = held.workload.env.get("PATH", DEFAULT_PATH)
            observe.check_command(init, held.workload.command[0], path, held.workdir)
            for hook in held.hooks:
                if hook.hook_name == "startContainer":
                    enter_client.run_hook(self._helpers, hook, handle, held.workload, privileged=False)
            # Only a process that was in the sandbox before the command can be mistaken for it.
            entered = any(hook.hook_name in ("createContainer", "startContainer") for hook in held.hooks)
            answer = held.shim.connection.ask(b"G", [("hooks", "1")] if entered else [], START_TIMEOUT)
            setup_steps.check_started(answer, held.workload.command[0])
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
        ended = exit_status(handle)
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
        ended = exit_status(handle)
        if ended is not None:
            return Status(Phase.EXITED, ended)
        if all(one is not None and absent(one) for one in (handle.keeper, handle.init)):
            ended = exit_status(handle)  # written between the two looks?
            if ended is not None:
                return Status(Phase.EXITED, ended)
            uplinks.end(Path(handle.folder))
            cgroups.remove([*groups(handle), *filter(None, [handle.data.get("freezer")])])  # its shim could not
            if noted_phase(handle) == "held":
                detail = "its shim was killed before the command was started"
                return Status(Phase.ABSENT, Exit(1, ExitReason.NOT_STARTED, detail=detail))
            return Status(Phase.ABSENT, Exit(137, ExitReason.LOST, 9, "its shim was killed, and the sandbox with it"))
        return Status(Phase.UNKNOWN, detail="the shim does not listen, and is not proved gone")

    def survey(self, handles: Sequence[Handle]) -> dict[str, Status]:
        return {handle.sandbox_id: self.status(handle) for handle in handles}

    def usage(self, handle: Handle) -> Usage:
        """By the groups of the sandbox; of what has none, what its processes have used that are there, and their
        children that have ended. A command of `exec` that has ended is then no longer counted."""
        from dibs.backends.local import usage

        init = living_init(handle)
        found = usage.measure(init, groups(handle))
        living_init(handle)  # or the pid may have been reused
        return found

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
                        return Status(Phase.EXITED, exit_status(handle) or exit_of(dict(decode(one[1]))))
            except TimeoutError:
                return self.status(handle)
            except OSError:
                pass  # it ended while we came: see below
            finally:
                connection.close()
        for process in (handle.keeper, handle.init):
            await_gone(process, 5.0)
        return self.status(handle)

    def logs(self, handle: Handle, *, follow: bool = False) -> Iterator[LogRecord]:
        folder = Path(handle.folder)
        if not folder.is_dir():
            reason = "its log was removed with it"
            raise NotFound(reason, field="sandbox", value=handle.sandbox_id, remedy="its receipt is kept: dibs receipt")
        return self._records(folder, follow)

    def _records(self, folder: Path, follow: bool) -> Iterator[LogRecord]:
        reader = Reader(folder)
        connection = Connection.to(folder) if follow else None
        asked = False
        try:
            while connection is not None:
                try:
                    if not asked:
                        connection.send(b"N")
                    if connection.next(_PULSE) is None:
                        break
                except TimeoutError:
                    asked = True
                    yield LogRecord(0.0, "stdout", b"")  # nothing was written; a reader may stop here
                    continue
                except OSError:
                    break
                asked = False
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
            raise not_running(self.status(handle), handle)
        return ShimSession(connection, hello)

    def exec(self, handle: Handle, command: Exec) -> Session:
        self._must_run(handle)
        return enter_client.run(self._helpers, handle, command)

    def _must_run(self, handle: Handle) -> None:
        if is_running(handle):
            return
        status = self.status(handle)
        if status.phase is not Phase.RUNNING:
            raise not_running(status, handle)

    def copy_in(self, handle: Handle, archive: Iterator[bytes], path: str) -> None:
        self._must_run(handle)
        enter_client.copy_in(self._helpers, handle, archive, path)

    def copy_out(self, handle: Handle, path: str) -> Iterator[bytes]:
        self._must_run(handle)
        return enter_client.copy_out(self._helpers, handle, path)

    def connect(self, handle: Handle, port: int) -> socket.socket:
        import socket

        if not 0 < port < 1 << 16:
            raise InvalidRequest("a port is a number from 1 to 65535", field="port", value=str(port))
        self._must_run(handle)
        if observe.isolation(living_init(handle))["network"] == "own":
            return socket.socket(fileno=enter_client.connect(self._helpers, handle, port))
        self._must_listen(handle, port)
        try:
            connection = socket.create_connection(("127.0.0.1", port), enter_client.CONNECT_TIMEOUT)
        except OSError as error:
            raise enter_client.not_connected(port, error.errno or errno.ETIMEDOUT, str(error)) from error
        try:
            self._must_listen(handle, port)  # still: or another server has come to the port meanwhile
        except DibsError:
            connection.close()
            raise
        return connection

    def _must_listen(self, handle: Handle, port: int) -> None:
        """On the host's network a port is reached only if the sandbox itself listens there."""
        from dibs.backends import sockets
        from dibs.backends.local.kernel import inside

        try:
            if sockets.owned(port, inside(living_init(handle))):
                return
        except OSError as error:
            raise proc.unreadable("who listens on the port", error) from error
        raise enter_client.not_connected(port, errno.ECONNREFUSED, "")

    # --- changing it

    def _request(self, handle: Handle, kind: bytes, verb: str, wanted: Phase) -> None:
        connection = Connection.to(Path(handle.folder))
        if connection is None:
            raise not_running(self.status(handle), handle)
        try:
            answer = connection.ask(kind)
        finally:
            connection.close()
        if answer is None:
            raise not_running(self.status(handle), handle)
        if "error" in answer:
            raise BackendUnavailable(f"the sandbox cannot be {verb}: {answer['error']}", value=handle.sandbox_id)
        if answer["phase"] != wanted:
            raise Conflict(f"the sandbox is {answer['phase']}, it cannot be {verb}", value=handle.sandbox_id)

    def set_expiry(self, handle: Handle, at: float | None) -> None:
        connection = Connection.to(Path(handle.folder))
        if connection is None:
            raise not_running(self.status(handle), handle)
        try:
            answer = connection.ask(b"K", [] if at is None else [("at", repr(float(at)))])
        finally:
            connection.close()
        if answer is None:
            raise not_running(self.wait(handle, 5.0), handle)

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
        self._end_orphan(handle)
        if self.wait(handle).phase in (Phase.EXITED, Phase.ABSENT):
            return
        self._end_orphan(handle)  # its shim was killed meanwhile
        status = self.status(handle)
        if status.phase not in (Phase.EXITED, Phase.ABSENT):
            raise BackendUnavailable(f"the sandbox did not end: {status.detail}", value=handle.sandbox_id)

    def _end_orphan(self, handle: Handle) -> None:
        """Without its shim a sandbox ends by itself, unless it is frozen or held back."""
        if handle.keeper is not None and absent(handle.keeper):
            from dibs.backends.local import leftovers

            leftovers.end_orphan(handle)

    def delete(self, handle: Handle) -> None:
        folder = Path(handle.folder)
        status = self.status(handle)
        if status.phase not in (Phase.EXITED, Phase.ABSENT) and folder.exists():
            raise Conflict(
                f"the sandbox is {status.phase}", value=handle.sandbox_id, code="STILL_RUNNING", remedy="stop it first"
            )
        if handle.keeper is not None:
            await_gone(handle.keeper, 5.0)  # it tidies up after it has told the end
        else:
            kill_strays(handle.sandbox_id)
        uplinks.end(folder)
        for _ in range(100):
            left = cgroups.remove([*groups(handle), *filter(None, [handle.data.get("freezer")])])
            if not left:
                break
            select.select([], [], [], 0.01)
        else:
            raise BackendUnavailable("a control group is still in use", field="cgroup", value=left[0])
        if (held := _held.pop(handle.folder, None)) is not None:
            held.let_go()
        if folder.exists():
            setup_steps.remove(folder)

    def discard(self, handle: Handle) -> None:
        from dibs.backends.local import leftovers

        folder = Path(handle.folder)
        held = _held.pop(handle.folder, None)
        if held is not None:
            held.let_go()
        lock = leftovers.take_over(folder, lambda: self._end_at_once(folder))
        try:
            if not kill_strays(handle.sandbox_id):
                raise BackendUnavailable(
                    "processes of the sandbox are still there", field="sandbox", value=handle.sandbox_id
                )
            uplinks.end(folder)
            leftovers.remove_groups(handle.sandbox_id)
            if folder.exists():
                setup_steps.remove(folder)
        finally:
            if lock >= 0:
                os.close(lock)

    def _end_at_once(self, folder: Path) -> None:
        connection = Connection.to(folder)
        if connection is not None:
            connection.ask(b"T", [("grace", "0.0")])
            connection.close()


_leaders: dict[str, ProcessName] = {}  # the first processes of sandboxes whose network others join


def _network_to_join(workload: Workload) -> str:
    """The network namespace of the first rank of its job, which this process has made before; empty: its own."""
    peers = workload.peers
    if peers is None or workload.network == "host" or peers.leader == workload.id:
        return ""
    init = _leaders.get(peers.leader)
    if init is None or not is_here(init):
        raise BackendUnavailable(
            "the first rank of its job is gone, and with it their network", field="sandbox", value=workload.id,
            code="NETWORK_UNAVAILABLE",
        )  # fmt: skip
    return f"/proc/{init.pid}/ns/net"
