"""Sandboxes of a host service: each runs as the user who asked for it, never as root.

`dibs serve --host-service` runs as root and knows its callers by the uid of their socket. `HostBackend` stands in front
of the local backend: what belongs to an ordinary user is done by a process of that user (`actor`), with the user's
groups and no privilege; what belongs to root is done here, as on a machine without a service (in user namespaces,
without capabilities). So the kernel itself checks paths, devices and who may enter what.

Root does only what a user cannot: create the sandbox's folder and hand it over, delegate a control group, observe the
finished sandbox from outside for the receipt. Files below a user's folder belong to the user: root neither reads nor
follows them.

    <state>/users/<uid>/              root's, 0711
    <state>/users/<uid>/sandboxes/    root's, 0711; one folder per sandbox in it, the user's, 0700
    <state>/users/<uid>/roots/        the user's, 0700: unpacked archives, probes
    <cgroup>/dibs/user-<uid>/         delegated to the user; limits that are written on the folder itself stay root's
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from dibs.backends.local.backend import LocalBackend
from dibs.backends.per_user.actor import Call, Talk, close_all, records
from dibs.backends.per_user.workers import PATIENCE, Worker, account, give, no_worker, workers_of
from dibs.backends.port import (
    Backend,
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
from dibs.errors import BackendUnavailable, Conflict, InvalidRequest, Problem, StateError
from dibs.home import Home
from dibs.process import absent, name_of

HURRY = 5.0  # seconds for a verb while others wait for the ledger

T = TypeVar("T")


def host_sockets() -> Path:
    """The folder of the host service's socket. DIBS_HOST_ROOT puts a whole host service below another folder."""
    return Path(f"{os.environ.get('DIBS_HOST_ROOT', '')}/run/dibs")


def acting_for(home: Home) -> Callable[[Backend, int], Backend]:
    """For `Registry(as_user=…)`: the local backend, for one user of the host."""

    def bind(backend: Backend, uid: int) -> Backend:
        return HostBackend(backend, home, uid) if isinstance(backend, LocalBackend) else backend

    return bind


class HostBackend:
    """See `dibs.backends.port.Backend`. Made for one user; a handle of another user is served as that user.

    Root's own sandboxes go straight to the local backend.
    """

    name = "local"
    holds = True

    def __init__(self, inner: LocalBackend, home: Home, uid: int) -> None:
        self._inner = inner
        self._home = home
        self._uid = uid
        self._workers = workers_of(home)
        self._made: set[str] = set()  # folders of those that it has created, and that are held

    # --- who it is about

    def _owner(self, workload: Workload) -> int:
        """Who it runs as. A remote caller has no account here, and must not get root's by accident."""
        if workload.private or workload.owner != self._uid or self._uid < 0:
            raise InvalidRequest(
                "the caller is not a user of this host, so there is no user to run it as",
                field="user", code="NO_HOST_USER", remedy="ask over the host's own socket, or run a gateway of its own",
            )  # fmt: skip
        return self._uid

    def _place(self, uid: int, folder: Path) -> Path:
        return folder if uid == 0 else self._home.state / "users" / str(uid) / "sandboxes" / folder.name

    def _whose(self, handle: Handle) -> tuple[int, Handle]:
        """The owner of a sandbox: its folder's, which stands where only root can put one. Root's if there is none."""
        folder = Path(handle.folder)
        users = self._home.state / "users"
        if folder.parent.parent.parent == users:
            name = folder.parent.parent.name
            return (int(name) if name.isdigit() else 0), handle
        if folder.parent == self._home.sandboxes and not folder.exists():
            for found in users.glob(f"*/sandboxes/{folder.name}"):
                uid = int(found.parent.parent.name)
                return uid, msgspec.structs.replace(handle, folder=str(found))
        return 0, handle

    def _ask(self, handle: Handle, verb: str, kind: type[T], *, patience: float | None = PATIENCE, **more: Any) -> T:
        uid, handle = self._whose(handle)
        with self._workers.worker(uid, holding=handle.folder) as worker:
            answer: T = _read(worker.call(Call(verb=verb, handle=handle, **more), patience=patience), kind, uid)
            return answer

    # --- what can be had

    def available(self) -> Capability:
        return self._inner.available() if self._uid == 0 else self._of_user("available")

    def inspect_image(self, image: str) -> None:
        self._inner.inspect_image(image)

    def check_volumes(self, volumes: Sequence[Volume]) -> list[Problem]:
        if not self._uid:
            return self._inner.check_volumes(volumes)
        reason = "the host service keeps no volumes for its users"
        remedy = "mount a folder of your own instead, or use a volume of docker or podman"
        return [Problem("VOLUME_UNSUPPORTED", "volumes", one.name, reason, remedy) for one in volumes]

    def can_limit(self, limit: Literal["cpu", "memory", "pids"]) -> Capability:
        return self._inner.can_limit(limit) if self._uid == 0 else self._of_user("can_limit", text=limit)

    def can_network(self, network: Network) -> Capability:
        return self._inner.can_network(network) if self._uid == 0 else self._of_user("can_network", text=network)

    def _of_user(self, verb: str, **more: Any) -> Capability:
        with self._workers.worker(self._uid) as worker:
            found: Capability = _read(worker.call(Call(verb=verb, **more)), Capability, self._uid)
            return found

    # --- making

    def render(self, workload: Workload, folder: Path) -> Realisation:
        uid = self._owner(workload)
        if uid == 0:
            return _hide_service(self._inner.render(workload, folder), workload)
        with self._workers.worker(uid) as worker:
            call = Call(verb="render", workload=workload, folder=str(self._place(uid, folder)))
            # The ledger is locked meanwhile: a user must not block it by blocking a process of their own.
            return _hide_service(_read(worker.call(call, patience=HURRY), Realisation, uid), workload)

    def finalise(self, workload: Workload, realisation: Realisation) -> Realisation:
        # What a user's own process has rendered is not rendered again as root.
        return self._inner.finalise(workload, realisation) if self._owner(workload) == 0 else realisation

    def outdated(self, realisation: Realisation) -> bool:  # noqa: ARG002
        return False

    def create(self, workload: Workload, realisation: Realisation, folder: Path) -> Handle:
        uid = self._owner(workload)
        if uid == 0:
            return self._inner.create(workload, realisation, folder)
        worker = self._workers.take(uid)
        place = self._place(uid, folder)
        try:
            gid = account(uid)[0]
            try:
                give(place, uid, gid)
            except OSError as error:
                raise StateError(
                    f"the sandbox's folder cannot be made: {error.strerror}", field="folder", value=str(place)
                ) from error
            call = Call(verb="create", workload=workload, realisation=realisation, folder=str(place))
            handle = _checked(_read(worker.call(call, patience=300.0), Handle, uid), workload.id, place, uid)
        except BaseException:
            # Not known whether something is held: it ends with the process.
            self._workers.drop(worker)
            _remove(place)
            raise
        self._made.add(handle.folder)
        self._workers.hold(handle.folder, worker)
        return handle

    def observe(self, handle: Handle) -> Observation:
        uid, handle = self._whose(handle)
        if uid == 0:
            return self._inner.observe(handle)
        if handle.folder not in self._made:
            return self._ask(handle, "observe", Observation)
        from dibs.backends.local import observe

        return observe.look(handle)

    def start(self, handle: Handle) -> None:
        uid, handle = self._whose(handle)
        if uid == 0:
            self._inner.start(handle)
            return
        try:
            self._ask(handle, "start", type(None), patience=300.0)
        finally:
            self._let_go(handle)

    def _let_go(self, handle: Handle) -> None:
        self._made.discard(handle.folder)
        self._workers.release(handle.folder)

    # --- what became of it

    def status(self, handle: Handle) -> Status:
        uid, handle = self._whose(handle)
        if uid == 0:
            return self._inner.status(handle)
        try:
            return self._ask(handle, "status", Status)
        except BackendUnavailable as error:
            return _from_processes(handle, str(error))

    def survey(self, handles: Sequence[Handle]) -> dict[str, Status]:
        """One question per user; a user whose process does not answer is asked of the kernel instead."""
        found: dict[str, Status] = {}
        by_user: dict[int, list[Handle]] = {}
        for handle in handles:
            uid, real = self._whose(handle)
            by_user.setdefault(uid, []).append(real)
        for uid, theirs in by_user.items():
            if uid == 0:
                found |= self._inner.survey(theirs)
                continue
            try:
                with self._workers.worker(uid) as worker:
                    answer = worker.call(Call(verb="survey", handles=tuple(theirs)))
                    found |= _read(answer, dict[str, Status], uid)
            except BackendUnavailable as error:
                found |= {handle.sandbox_id: _from_processes(handle, str(error)) for handle in theirs}
        return {handle.sandbox_id: found[handle.sandbox_id] for handle in handles if handle.sandbox_id in found}

    def wait(self, handle: Handle, timeout: float | None = None) -> Status:
        uid, handle = self._whose(handle)
        if uid == 0:
            return self._inner.wait(handle, timeout)
        patience = None if timeout is None else timeout + PATIENCE
        return self._ask(handle, "wait", Status, patience=patience, number=timeout)

    def logs(self, handle: Handle, *, follow: bool = False) -> Iterator[LogRecord]:
        uid, handle = self._whose(handle)
        if uid == 0:
            return self._inner.logs(handle, follow=follow)
        worker, reading = self._begin(uid, Call(verb="logs", handle=handle, flag=follow))
        return self._finish(worker, records(reading))

    def _begin(self, uid: int, call: Call) -> tuple[Worker, int]:
        """A call whose answer is a stream; the reading end of it, once it has begun."""
        reading, writing = os.pipe()
        worker = self._workers.take(uid)
        try:
            try:
                worker.call(call, (writing,))
            finally:
                os.close(writing)
        except BaseException:
            os.close(reading)
            self._workers.drop(worker)
            raise
        return worker, reading

    def _finish(self, worker: Worker, stream: Iterator[T]) -> Iterator[T]:
        """The stream, and then how it ended. Left early, the process goes with it."""
        done = False
        try:
            yield from stream
            worker.answer()
            done = True
        finally:
            if done:
                self._workers.put_back(worker)
            else:
                worker.process.kill()
                self._workers.drop(worker)

    # --- conversations

    def attach(self, handle: Handle) -> Session:
        uid, handle = self._whose(handle)
        return self._inner.attach(handle) if uid == 0 else self._talk(uid, Call(verb="attach", handle=handle))

    def exec(self, handle: Handle, command: Exec) -> Session:
        uid, handle = self._whose(handle)
        if uid == 0:
            return self._inner.exec(handle, command)
        return self._talk(uid, Call(verb="exec", handle=handle, command=command))

    def _talk(self, uid: int, call: Call) -> Session:
        from dibs.backends.local.shim_client import ShimSession

        assert call.handle is not None
        with self._workers.worker(uid, holding=call.handle.folder) as worker:
            value, descriptors = worker.ask(call)
            try:
                talk = _read(value, Talk, uid)
                if len(descriptors) != 1 or not stat.S_ISSOCK(os.fstat(descriptors[0]).st_mode):
                    raise no_worker(uid, "it gave no conversation")
            except BaseException:
                close_all(descriptors)
                raise
        return ShimSession.resumed(descriptors[0], interactive=talk.interactive, waiting=talk.waiting)

    def connect(self, handle: Handle, port: int) -> socket.socket:
        uid, handle = self._whose(handle)
        if uid == 0:
            return self._inner.connect(handle, port)
        with self._workers.worker(uid) as worker:
            _, descriptors = worker.ask(Call(verb="connect", handle=handle, number=float(port)))
            if len(descriptors) != 1 or not stat.S_ISSOCK(os.fstat(descriptors[0]).st_mode):
                close_all(descriptors)
                raise no_worker(uid, "it gave no connection")
        return socket.socket(fileno=descriptors[0])

    def copy_in(self, handle: Handle, archive: Iterator[bytes], path: str) -> None:
        uid, handle = self._whose(handle)
        if uid == 0:
            self._inner.copy_in(handle, archive, path)
            return
        reading, writing = os.pipe()
        try:
            with self._workers.worker(uid) as worker:
                worker.line.sock.settimeout(PATIENCE)
                worker.line.send(Call(verb="copy_in", handle=handle, text=path), (reading,))
                os.close(reading)
                reading = -1
                with suppress(BrokenPipeError):  # it refused the rest: the answer says why
                    for piece in archive:
                        view = memoryview(piece)
                        while view:
                            view = view[os.write(writing, view) :]
                os.close(writing)
                writing = -1
                worker.answer(None)
        finally:
            for fd in (reading, writing):
                if fd >= 0:
                    os.close(fd)

    def copy_out(self, handle: Handle, path: str) -> Iterator[bytes]:
        uid, handle = self._whose(handle)
        if uid == 0:
            return self._inner.copy_out(handle, path)
        worker, reading = self._begin(uid, Call(verb="copy_out", handle=handle, text=path))
        return self._finish(worker, _pieces(reading))

    # --- changing it

    def pause(self, handle: Handle) -> None:
        uid, _ = self._whose(handle)
        return self._inner.pause(handle) if uid == 0 else self._ask(handle, "pause", type(None))

    def resume(self, handle: Handle) -> None:
        uid, _ = self._whose(handle)
        return self._inner.resume(handle) if uid == 0 else self._ask(handle, "resume", type(None))

    def set_expiry(self, handle: Handle, at: float | None) -> None:
        uid, _ = self._whose(handle)
        if uid == 0:
            return self._inner.set_expiry(handle, at)
        return self._ask(handle, "set_expiry", type(None), number=at)

    def usage(self, handle: Handle) -> Usage:
        uid, _ = self._whose(handle)
        return self._inner.usage(handle) if uid == 0 else self._ask(handle, "usage", Usage)

    def stop(self, handle: Handle, grace_seconds: float) -> None:
        uid, handle = self._whose(handle)
        if uid == 0:
            self._inner.stop(handle, grace_seconds)
            return
        try:
            self._ask(handle, "stop", type(None), patience=grace_seconds + PATIENCE, number=grace_seconds)
        except BackendUnavailable as error:
            if error.code != "HELPER_LOST" or handle.init is None:
                raise
            # His process is of no use: root ends the sandbox by its first process, which takes all others along.
            _kill(handle)
        finally:
            self._let_go(handle)

    def delete(self, handle: Handle) -> None:
        uid, handle = self._whose(handle)
        if uid == 0:
            self._inner.delete(handle)
            return
        try:
            self._ask(handle, "delete", type(None))
        finally:
            self._let_go(handle)
        _remove(Path(handle.folder))

    def discard(self, handle: Handle) -> None:
        uid, handle = self._whose(handle)
        if uid == 0:
            self._inner.discard(handle)
            return
        try:
            self._ask(handle, "discard", type(None))
        finally:
            self._let_go(handle)
        _remove(Path(handle.folder))


def _read(value: msgspec.Raw, kind: Any, uid: int) -> Any:
    try:
        return msgspec.json.decode(value, type=kind)
    except msgspec.DecodeError as error:
        raise no_worker(uid, f"its answer cannot be read: {error}") from error


def _pieces(reading: int) -> Iterator[bytes]:
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        while piece := pipe.read(1 << 16):
            yield piece


def _hide_service(realisation: Realisation, workload: Workload) -> Realisation:
    """No sandbox sees the service's socket: through it one would act as the user outside of the sandbox."""
    from dibs.backends.local import rendering

    folder = host_sockets()
    there = {mount.target for mount in realisation.expectation.mounts if mount.source == "tmpfs"}
    if workload.root != "host" or not folder.is_dir() or str(folder) in there:
        return realisation
    native = dict(realisation.native)
    native["args"] = [*native["args"], "--tmpfs", str(folder)]
    return rendering.with_mounts(msgspec.structs.replace(realisation, native=native))


def _checked(handle: Handle, sandbox_id: str, place: Path, uid: int) -> Handle:
    """A handle from a user's process, with nothing in it that root would stumble over."""
    from dibs.backends.local import cgroups
    from dibs.backends.local.kernel import status_field

    for process in (handle.keeper, handle.init):
        if process is None or name_of(process.pid) != process:
            raise no_worker(uid, "the sandbox that it made is not there")
        if status_field(process.pid, "Uid").split()[:1] != [str(uid)]:
            raise no_worker(uid, "the sandbox that it made is not the user's")
    trees = [cgroups.tree(name) for name in (*cgroups.CONTROLLERS, "freezer")]
    mounts = {f"{tree.folder}/user-{uid}/" for tree in trees if tree.folder}
    paths = [*handle.data.get("groups", "").split("\n"), handle.data.get("freezer", "")]
    for path in filter(None, paths):
        if os.path.normpath(path) != path or not any(path.startswith(mount) for mount in mounts):
            raise no_worker(uid, f"it named a control group that is not the user's: {path}")
    if handle.sandbox_id != sandbox_id or handle.folder != str(place) or handle.backend != "local":
        raise no_worker(uid, "it made another sandbox than it was told to")
    return handle


def _from_processes(handle: Handle, detail: str) -> Status:
    """What the kernel says of a sandbox whose user's process cannot be asked."""
    if handle.keeper is not None and absent(handle.keeper) and (handle.init is None or absent(handle.init)):
        return Status(Phase.ABSENT, Exit(137, ExitReason.LOST, 9, "its shim is gone, and how it ended cannot be read"))
    return Status(Phase.UNKNOWN, detail=detail)


def _kill(handle: Handle) -> None:
    from dibs.backends.local.handles import await_gone
    from dibs.process import is_here

    for process in (handle.init, handle.keeper):
        if process is not None and is_here(process):
            with suppress(ProcessLookupError):
                os.kill(process.pid, 9)
            await_gone(process, 10.0)
            if is_here(process):
                raise Conflict("the sandbox does not end", field="sandbox", value=handle.sandbox_id)


def _remove(folder: Path) -> None:
    """Remove a user's folder. Links in it are removed, never followed."""
    import shutil

    if folder.is_symlink() or not folder.is_dir():
        return
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        raise StateError("the sandbox's folder cannot be removed", field="folder", value=str(folder))
