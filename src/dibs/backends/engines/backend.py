"""What Docker and Podman have in common: the verbs of the port, over an engine's own API.

`docker` and `podman` fill in what differs: how to find out what the engine can, and the form of a new container.
Nothing is kept in memory that matters: a container is found by its name (`dibs-<sandbox id>`), and what dibs knows
beside the engine lies in the sandbox's folder (`keeping`).

An engine cannot hold a container before its command (`holds` is false): `create` makes it, `start` runs it, and the
look from outside comes right after. What ended before anybody could look is described by the last look of the start
itself.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import msgspec

from dibs.backends.engines import archives, connecting, errors, images, keeping, looking, rendering, states
from dibs.backends.engines.cgroups import Groups
from dibs.backends.engines.client import Client, EngineError, Unreachable
from dibs.backends.engines.facts import Facts, own_task
from dibs.backends.engines.finding import Found, find
from dibs.backends.engines.sessions import Call, StreamSession
from dibs.backends.port import (
    Capability,
    Exec,
    Exit,
    Handle,
    LogRecord,
    Observation,
    Phase,
    Realisation,
    Session,
    Status,
    Usage,
    Workload,
)
from dibs.errors import (
    BackendUnavailable,
    CommandFailed,
    Conflict,
    DibsError,
    InvalidRequest,
    NotFound,
    StateError,
    Unsupported,
)
from dibs.home import Home
from dibs.http import query, segment
from dibs.process import ProcessName, absent

if TYPE_CHECKING:
    import socket

    from dibs.backends.engines.external import ExternalHolder
    from dibs.backends.engines.watching import Watch

RETRY_AFTER = 2.0  # seconds that an engine which was not there is not asked again; arbitrary
SLICE = 5.0  # seconds of one wait for an end, before the state is looked at again
FRESH = 2.0  # seconds that an image is taken to be as it was; a container is made from its id or refused
MOST_LOOKS = 256  # that are remembered; each is asked for right after its start
GONE = 30.0  # seconds for a container to vanish after its removal was asked for


class EngineBackend:
    """See `dibs.backends.port.Backend`."""

    name: str
    holds = False
    wait_condition: str  # of the wait request, for a container that was started

    def __init__(self, home: Home) -> None:
        self._home = home
        self._lock = threading.Lock()
        self._found: Found | None = None
        self._opened: Client | None = None
        self._known: Facts | None = None
        self._missing: tuple[float, DibsError] | None = None
        self._looks: dict[str, Observation] = {}  # taken during starts
        self._images: dict[str, tuple[float, images.Image]] = {}
        self.on_progress: images.Progress | None = None  # told while an image is pulled

    # --- filled in by each engine

    def _connect(self, target: str) -> Client:
        raise NotImplementedError

    def _look(self, client: Client) -> Facts:
        raise NotImplementedError

    def _body(self, form: rendering.Form) -> dict[str, Any]:
        raise NotImplementedError

    def _make(self, client: Client, name: str, body: dict[str, Any]) -> str:
        raise NotImplementedError

    def _ignite(self, handle: Handle, client: Client) -> int:
        """Run it, with a look just before if there can be one. The status of the answer."""
        raise NotImplementedError

    def _events_path(self, filters: str) -> str:
        raise NotImplementedError

    # --- the engine

    def close(self) -> None:
        """Let go of the connections; they are made again when they are needed."""
        with self._lock:
            if self._opened is not None:
                self._opened.close()

    def client(self) -> Client:
        """The engine, and `_known` filled in. Raises BackendUnavailable."""
        with self._lock:
            if self._opened is not None and self._known is not None:
                return self._opened
            if self._missing is not None and time.monotonic() - self._missing[0] < RETRY_AFTER:
                raise self._missing[1]
            try:
                if self._found is None or not self._found.target:
                    self._found = find(self.name, self._home)
                found = self._found
                if not found.target:
                    raise BackendUnavailable(
                        found.reason, field="backend", value=self.name, code="ENGINE_NOT_RUNNING", remedy=found.remedy
                    )
                try:
                    self._opened = self._opened or self._connect(found.target)
                    self._known = self._look(self._opened)
                except Unreachable as error:
                    raise errors.unreachable(self.name, error) from error
                except EngineError as error:
                    raise errors.translate(self.name, error, field="backend", value=self.name) from error
                except TimeoutError as error:
                    reason = f"{self.name} does not answer"
                    raise BackendUnavailable(reason, value=found.target, code="ENGINE_UNREACHABLE") from error
            except DibsError as error:
                self._opened = None
                self._missing = (time.monotonic(), error)
                raise
            return self._opened

    def facts(self) -> Facts:
        """What the engine is and can. Raises BackendUnavailable."""
        self.client()
        known = self._known
        if known is None or (known.peer is not None and absent(known.peer)):
            with self._lock:  # it was started anew while no line to it was open
                self._known = None
            self.client()
            known = self._known
        assert known is not None
        return known

    def _lost(self, error: Unreachable) -> NoReturn:
        """The engine may come back as another one: what is known of it is found out anew."""
        with self._lock:
            self._known = None
        raise errors.unreachable(self.name, error) from error

    def ask(
        self, handle: Handle | None, method: str, path: str, *, value: str = "", field: str = "", **more: Any
    ) -> Any:
        value = value or (handle.sandbox_id if handle else "")
        try:
            return self.client().call(method, path, **more)
        except Unreachable as error:
            self._lost(error)
        except EngineError as error:
            raise errors.translate(self.name, error, field=field or "sandbox", value=value) from error
        except TimeoutError as error:
            raise BackendUnavailable(f"{self.name} does not answer", value=value, code="ENGINE_UNREACHABLE") from error

    def container(self, handle: Handle) -> str:
        return "/containers/" + segment(container_name(handle.sandbox_id))

    # --- what can be had

    def available(self) -> Capability:
        try:
            self.client()
        except DibsError as error:
            problem = error.problems[0]
            return Capability(False, problem.reason, problem.remedy)
        return Capability(True)

    def can_limit(self, limit: Literal["cpu", "memory", "pids"]) -> Capability:
        try:
            facts = self.facts()
        except DibsError as error:
            return Capability(False, error.problems[0].reason, error.problems[0].remedy)
        if limit in facts.limits:
            return Capability(True)
        why = "a rootless engine without delegated control groups" if facts.rootless else "the engine says so"
        return Capability(
            False, f"{self.name} cannot limit {limit} here: {why}", "use cgroup v2 with delegation, or leave it out"
        )

    # --- making

    def render(self, workload: Workload, folder: Path) -> Realisation:  # noqa: ARG002  # nothing is in it yet
        client = self.client()
        form = self._form(workload, client, None)
        return rendering.realisation(self.name, form, self._body(form))

    def _form(self, workload: Workload, client: Client, image_id: str | None) -> rendering.Form:
        try:
            return rendering.form(
                self.name, workload, self.facts(), self._image(client), self._home, image_id, self.can_limit
            )
        except Unreachable as error:
            self._lost(error)
        except EngineError as error:
            raise errors.translate(self.name, error, field="image", value=workload.image) from error

    def _image(self, client: Client) -> rendering.FindImage:
        """What is known of an image; one that was looked at a moment ago is not looked at again."""

        def find(reference: str) -> images.Image | None:
            with self._lock:
                known = self._images.get(reference)
            if known is not None and time.monotonic() - known[0] < FRESH:
                return known[1]
            found = images.find(client, reference)
            with self._lock:
                if found is None:
                    self._images.pop(reference, None)
                else:
                    self._images[reference] = self._images[found.id] = (time.monotonic(), found)
                    if len(self._images) > MOST_LOOKS:
                        self._images.clear()
            return found

        return find

    def create(self, workload: Workload, realisation: Realisation, folder: Path) -> Handle:  # noqa: ARG002
        client = self.client()
        made = not folder.exists()
        try:
            form = self._form(workload, client, self._have_image(client, workload))
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            container = self._make(client, container_name(workload.id), self._body(form))
        except (DibsError, OSError, EngineError, Unreachable, TimeoutError) as error:
            if made:
                shutil.rmtree(folder, ignore_errors=True)
            if isinstance(error, EngineError):
                with self._lock:
                    self._images.clear()  # it may be the image that is gone
                raise errors.translate(self.name, error, field="sandbox", value=workload.id) from error
            if isinstance(error, Unreachable | TimeoutError):
                self._undo(workload.id, folder)
                if isinstance(error, Unreachable):
                    self._lost(error)
                raise BackendUnavailable(f"{self.name} does not answer", code="ENGINE_UNREACHABLE") from error
            if isinstance(error, OSError):
                reason = f"the sandbox's folder cannot be used: {error.strerror}"
                raise StateError(reason, field="folder", value=str(folder)) from error
            raise
        except BaseException:
            self._undo(workload.id, folder)
            raise
        return Handle(self.name, workload.id, str(folder), data=rendering.handle_data(form, container, client.target))

    def _undo(self, sandbox_id: str, folder: Path) -> None:
        """After a creation of which we do not know how far it went. If that fails too, reconciliation does it."""
        try:
            self.discard(Handle(self.name, sandbox_id, str(folder)))
        except DibsError:
            return

    def _have_image(self, client: Client, workload: Workload) -> str:
        """The image's id, pulled or loaded if it is not there."""
        reference = workload.image
        if images.is_file(reference):
            trouble = images.unusable(reference)
            if trouble is not None:
                raise trouble
            try:
                return images.load(client, self.name, reference, self._home.state / "images")
            except EngineError as error:
                raise errors.translate(self.name, error, field="image", value=reference) from error
        try:
            found = self._image(client)(reference)
            if found is not None and not (workload.platform and found.platform != workload.platform):
                return found.id
            images.pull(client, self.name, reference, workload.platform, self.on_progress)
            found = images.find(client, reference)
        except EngineError as error:
            raise errors.translate(self.name, error, field="image", value=reference) from error
        if found is None:
            raise NotFound("it was pulled, and is not there", field="image", value=reference, code="IMAGE_NOT_FOUND")
        return found.id

    # --- running

    def start(self, handle: Handle) -> None:
        folder = Path(handle.folder)
        if keeping.ending(folder) is not None:
            raise Conflict("the sandbox has ended", code="NOT_HELD", value=handle.sandbox_id)
        client = self.client()
        keeper = self._begin_keeper(handle, client)
        try:
            status = self._ignite(handle, client)
            if status == 304:
                raise Conflict("the sandbox was started already", code="NOT_HELD", value=handle.sandbox_id)
            self._check_started(handle)
        except Conflict:
            raise
        except EngineError as error:
            self._never_started(handle)
            program = handle.data.get("program", "")
            raise errors.translate(self.name, error, field="command", value=program) from error
        except Unreachable as error:
            self._lost(error)
        except CommandFailed:
            self._never_started(handle)
            raise
        if handle.data.get("ttl"):
            keeping.set_deadline(folder, time.time() + float(handle.data["ttl"]))
        if keeper is not None:
            keeping.finish_keeper(folder, keeper)

    def _begin_keeper(self, handle: Handle, client: Client) -> Any:
        """The process that ends it in time, or with its client. It is there before the command runs."""
        folder = Path(handle.folder)
        pipe = _clients.pop(handle.folder, -1)
        ttl = handle.data.get("ttl")
        if ttl:
            keeping.set_deadline(folder, time.time() + float(ttl))
        if not ttl and pipe < 0:
            return None
        try:
            return self._keeper(handle, client, pipe)
        finally:
            if pipe >= 0:
                os.close(pipe)

    def _keeper(self, handle: Handle, client: Client, pipe: int = -1) -> Any:
        address = keeping.address_of(client.target)
        base = client.prefix + self.container(handle)
        grace = float(handle.data.get("grace", "10"))
        return keeping.begin_keeper(Path(handle.folder), address, base, self.wait_condition, grace, pipe)

    def _never_started(self, handle: Handle) -> None:
        keeping.ask_end(Path(handle.folder), "not-started")
        self._remove(handle)

    def _check_started(self, handle: Handle) -> None:
        """Note its first process, and see that the engine's init found the command: it would only exit otherwise."""
        if (Path(handle.folder) / "init").exists():
            return  # done while it was held
        state = self._state(handle) or {}
        pid = int(state.get("Pid") or 0)
        init = keeping.remember_init(Path(handle.folder), pid)
        if not handle.data.get("init"):
            return
        if init is not None:
            try:
                self._check_command(handle, pid)
                return
            except OSError:
                pass  # it ended while we looked
        if pid and self.facts().peer is not None:
            self.wait(handle, GONE)  # its process is gone: the engine is about to know
            state = self._state(handle) or {}
        if state.get("ExitCode") in (1, 126, 127):
            said = b"".join(record.data for record in self.logs(handle)).decode(errors="replace")
            if "[FATAL tini" in said or "(catatonit:" in said:
                raise EngineError(500, said.strip(), "the engine's init")

    def _check_command(self, handle: Handle, pid: int) -> None:
        """Raises CommandFailed; OSError if the process cannot be looked at."""
        program, path, workdir = (handle.data.get(key, "") for key in ("program", "path", "workdir"))
        if program:
            looking.check_command(pid, program, path, workdir)

    def _remember_look(self, handle: Handle, seen: Observation | None) -> None:
        """For those who ask after the command has ended."""
        with self._lock:
            if seen is not None:
                while len(self._looks) >= MOST_LOOKS:
                    self._looks.pop(next(iter(self._looks)))
                self._looks[handle.folder] = seen

    def observe(self, handle: Handle) -> Observation:
        folder = Path(handle.folder)
        with self._lock:
            before = self._looks.pop(handle.folder, None)
        init = keeping.init_of(folder)
        facts = self.facts()
        if init is None and before is None:
            state = self._state(handle) or {}
            init = keeping.remember_init(folder, int(state.get("Pid") or 0)) if state.get("Pid") else None
        ended = Conflict("the sandbox has ended", field="sandbox", value=handle.sandbox_id, code="NOT_RUNNING")
        if init is not None:
            try:
                found = look(init.pid, facts.peer, legacy=handle.data.get("way") == "legacy")
            except BackendUnavailable:
                if before is None and not _ends(init):
                    raise
            else:
                if not absent(init):  # or the pid may have been somebody else's
                    return found
        elif facts.peer is None:
            raise BackendUnavailable(
                "the container's process is not visible from here", field="sandbox", value=handle.sandbox_id,
                code="OBSERVATION_FAILED", remedy="run dibs on the host of the engine",
            )  # fmt: skip
        if before is None:
            raise ended
        return before

    def recorded(self, handle: Handle) -> Observation:
        """What the engine says that a container got, for one that ended before anybody could look at it.

        The engine's word, not a look: a receipt that is made from it says so.
        """
        from dibs.backends.engines.recording import recorded

        document = self.ask(handle, "GET", self.container(handle) + "/json")
        return recorded(document, self.facts())

    # --- what became of it

    def _state(self, handle: Handle) -> dict[str, Any] | None:
        """The engine's word; None if there is no such container."""
        try:
            document = self.client().call("GET", self.container(handle) + "/json")
        except EngineError as error:
            if error.status == 404:
                return None
            raise errors.translate(self.name, error, value=handle.sandbox_id) from error
        except Unreachable as error:
            self._lost(error)
        found: dict[str, Any] = document["State"]
        return found

    def status(self, handle: Handle) -> Status:
        folder = Path(handle.folder)
        try:
            state = self._state(handle)
        except BackendUnavailable as error:
            return Status(Phase.UNKNOWN, detail=str(error))
        ending = keeping.ending(folder)
        if state is not None:
            return states.status_of(state, ending)
        if ending is not None and ending[0] == "not-started":
            return Status(Phase.EXITED, Exit(137, "not-started", 9, at=ending[1]))
        init = keeping.init_of(folder)
        if init is not None and not absent(init):
            return Status(Phase.UNKNOWN, detail="the engine does not know it, and its process is not proved gone")
        return Status(Phase.ABSENT)

    def survey(self, handles: Sequence[Handle]) -> dict[str, Status]:
        filters = msgspec.json.encode({"label": [f"dibs.home={self._home.state}"]}).decode()
        try:
            listed = self.client().call("GET", "/containers/json" + query(all=True, filters=filters)) or []
        except Unreachable as error:
            with self._lock:
                self._known = None
            unknown = Status(Phase.UNKNOWN, detail=str(errors.unreachable(self.name, error)))
            return {handle.sandbox_id: unknown for handle in handles}
        except EngineError as error:
            raise errors.translate(self.name, error) from error
        except BackendUnavailable as error:
            return {handle.sandbox_id: Status(Phase.UNKNOWN, detail=str(error)) for handle in handles}
        seen = {one["Names"][0].lstrip("/"): str(one.get("State", "")).lower() for one in listed if one.get("Names")}
        found = {}
        for handle in handles:
            phase = states.PHASES.get(seen.get(container_name(handle.sandbox_id), ""), Phase.UNKNOWN)
            lives = phase in (Phase.RUNNING, Phase.PAUSED, Phase.HELD)
            found[handle.sandbox_id] = Status(phase) if lives else self.status(handle)
        return found

    def wait(self, handle: Handle, timeout: float | None = None) -> Status:
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            status = self.status(handle)
            if status.phase in (Phase.EXITED, Phase.ABSENT):
                return status
            left = SLICE if until is None else min(SLICE, until - time.monotonic())
            if left <= 0:
                return status
            if status.phase in (Phase.HELD, Phase.UNKNOWN):
                time.sleep(min(left, 0.05))  # engines answer at once about what was not started
                continue
            try:
                self.client().call("POST", f"{self.container(handle)}/wait?{self.wait_condition}", timeout=left)
            except TimeoutError:
                continue
            except Unreachable:
                with self._lock:
                    self._known = None
                time.sleep(min(left, 0.2))
            except EngineError as error:
                if error.status != 404:
                    raise errors.translate(self.name, error, value=handle.sandbox_id) from error

    def logs(self, handle: Handle, *, follow: bool = False) -> Iterator[LogRecord]:
        path = self.container(handle) + "/logs"
        try:
            connection, response = self.client().stream(
                "GET", path + query(stdout=True, stderr=True, timestamps=True, follow=follow)
            )
        except Unreachable as error:
            self._lost(error)
        except EngineError as error:
            if error.status == 404 and keeping.ending(Path(handle.folder)) is not None:
                return iter(())  # it never ran
            raise errors.translate(self.name, error, value=handle.sandbox_id) from error
        raw = handle.data.get("tty") == "1" and self.name == "docker"
        return rendering.records(connection, response, raw=raw)

    # --- conversations

    def attach(self, handle: Handle) -> Session:
        folder = Path(handle.folder)
        held = folder.is_dir() and not (folder / "init").exists() and keeping.ending(folder) is None
        status = Status(Phase.HELD) if held else self.status(handle)
        if status.phase not in (Phase.RUNNING, Phase.PAUSED, Phase.HELD):
            raise not_running(status, handle)
        interactive = handle.data.get("interactive") == "1"
        tty = handle.data.get("tty") == "1"
        path = self.container(handle) + "/attach"
        sock = self.hijack(handle, path + query(stream=True, stdin=interactive or tty, stdout=True, stderr=True))
        pipe = -1
        if handle.data.get("foreground") and status.phase is Phase.HELD:
            theirs, pipe = os.pipe()
            _clients[handle.folder] = theirs

        def ended(wait: bool) -> Exit | None:
            found = self.wait(handle) if wait else self.status(handle)
            if found.phase is Phase.ABSENT:
                return found.exit or Exit(137, "lost", 9, "the container was removed")
            return found.exit

        def closed(over: bool) -> None:  # noqa: ARG001
            if pipe >= 0:
                os.close(pipe)
                unused = _clients.pop(handle.folder, -1)
                if unused >= 0:
                    os.close(unused)

        call = Call(
            ended=ended,
            signal=lambda number: self._signal(handle, number),
            resize=lambda rows, columns: self.resize(f"{self.container(handle)}/resize", rows, columns),
            closed=closed,
        )
        return StreamSession(sock, call, tty=tty, can_send=interactive or tty)

    def hijack(self, handle: Handle, path: str, json: Any = None) -> socket.socket:
        try:
            return self.client().hijack(path, json=json)
        except Unreachable as error:
            self._lost(error)
        except EngineError as error:
            raise errors.translate(self.name, error, value=handle.sandbox_id) from error

    def _signal(self, handle: Handle, number: int) -> None:
        self.ask(handle, "POST", f"{self.container(handle)}/kill?signal={number}", accept=(404, 409))

    def resize(self, path: str, rows: int, columns: int) -> None:
        # Nobody minds the size of a terminal that is not there yet, or no more.
        self.ask(None, "POST", path + query(h=rows, w=columns), accept=(400, 404, 409, 500))

    def exec(self, handle: Handle, command: Exec) -> Session:
        from dibs.backends.engines.executing import execute

        self._check_program(handle, command)
        return execute(self, handle, command)

    def _check_program(self, handle: Handle, command: Exec) -> None:
        """Engines tell a missing command in the middle of its output."""
        if not command.command or not command.command[0]:
            raise InvalidRequest("there is no command", field="command", code="COMMAND_INVALID")
        init = keeping.init_of(Path(handle.folder))
        if init is None or absent(init):
            return
        try:
            path = command.env.get("PATH") or looking.environment(init.pid).get("PATH") or rendering.DEFAULT_PATH
            workdir = command.workdir or handle.data.get("workdir") or "/"
            looking.check_command(init.pid, command.command[0], path, workdir)
        except (OSError, BackendUnavailable):
            return  # not visible from here, or just ending: the engine says the same later

    # --- files

    def copy_in(self, handle: Handle, archive: Iterator[bytes], path: str) -> None:
        uid, gid = self._owner(handle)
        init = self._visible(handle)
        if init is not None:
            looking.check_folder(init.pid, path)
        with archives.checked(archive, path, uid, gid) as file:
            self.ask(
                handle, "PUT", self.container(handle) + "/archive" + query(path=path, noOverwriteDirNonDir=True),
                body=archives.pieces(file), headers={"Content-Type": "application/x-tar"}, field="path", value=path,
                timeout=600.0,
            )  # fmt: skip

    def _owner(self, handle: Handle) -> tuple[int, int]:
        """Who the workload's command is; root where that cannot be seen."""
        init = keeping.init_of(Path(handle.folder))
        if init is None or absent(init):
            return 0, 0
        uid = gid = 0
        try:
            with open(f"/proc/{init.pid}/status") as file:
                for line in file:
                    if line.startswith("Uid:"):
                        uid = int(line.split()[1])
                    elif line.startswith("Gid:"):
                        gid = int(line.split()[1])
        except OSError:
            return 0, 0
        return (0, 0) if self.facts().rootless else (uid, gid)

    def copy_out(self, handle: Handle, path: str) -> Iterator[bytes]:
        try:
            connection, response = self.client().stream("GET", self.container(handle) + "/archive" + query(path=path))
        except Unreachable as error:
            self._lost(error)
        except EngineError as error:
            raise errors.translate(self.name, error, field="path", value=path) from error

        def pieces() -> Iterator[bytes]:
            try:
                yield from response.iter()
            finally:
                connection.close()

        return pieces()

    # --- changing it

    def pause(self, handle: Handle) -> None:
        self._freeze(handle, "pause", Phase.PAUSED)

    def resume(self, handle: Handle) -> None:
        self._freeze(handle, "unpause", Phase.RUNNING)

    def _freeze(self, handle: Handle, verb: str, wanted: Phase) -> None:
        status, _ = self._answer(handle, "POST", f"{self.container(handle)}/{verb}", accept=(404, 409, 500))
        if status in (200, 204):
            return
        found = self.status(handle)
        if found.phase is not wanted:
            raise not_running(found, handle)

    def _answer(self, handle: Handle, method: str, path: str, **more: Any) -> tuple[int, Any]:
        try:
            return self.client().answer(method, path, **more)
        except Unreachable as error:
            self._lost(error)
        except EngineError as error:
            raise errors.translate(self.name, error, value=handle.sandbox_id) from error
        except TimeoutError as error:
            raise BackendUnavailable(f"{self.name} does not answer", code="ENGINE_UNREACHABLE") from error

    def stop(self, handle: Handle, grace_seconds: float) -> None:
        folder = Path(handle.folder)
        status = self.status(handle)
        if status.phase in (Phase.EXITED, Phase.ABSENT):
            return
        if status.phase is Phase.HELD:
            keeping.ask_end(folder, "not-started")
            self._remove(handle)
            return
        if status.phase is Phase.UNKNOWN:
            raise BackendUnavailable(status.detail, field="sandbox", value=handle.sandbox_id)
        keeping.ask_end(folder, "stopped")
        base = self.container(handle)
        accept = (304, 404, 409, 500)
        if status.phase is Phase.PAUSED:
            if grace_seconds <= 0:
                self._answer(handle, "POST", f"{base}/kill?signal=SIGKILL", accept=accept)
            self._answer(handle, "POST", f"{base}/unpause", accept=accept)
        if grace_seconds > 0:
            grace = int(-(-grace_seconds // 1))
            self._answer(
                handle, "POST", f"{base}/stop" + query(t=grace, timeout=grace), timeout=grace + 60.0, accept=accept
            )
        status = self.wait(handle, 0.0)
        if status.phase in (Phase.RUNNING, Phase.PAUSED):
            self._answer(handle, "POST", f"{base}/kill?signal=SIGKILL", accept=accept)
            status = self.wait(handle, 30.0)
        if status.phase not in (Phase.EXITED, Phase.ABSENT):
            raise BackendUnavailable(
                f"the sandbox did not end: {status.detail or status.phase}", value=handle.sandbox_id
            )

    def delete(self, handle: Handle) -> None:
        status = self.status(handle)
        if status.phase is Phase.UNKNOWN:
            raise BackendUnavailable(status.detail, field="sandbox", value=handle.sandbox_id)
        if status.phase not in (Phase.EXITED, Phase.ABSENT):
            raise Conflict(
                f"the sandbox is {status.phase}", value=handle.sandbox_id, code="STILL_RUNNING", remedy="stop it first"
            )
        self._remove(handle)
        _forget(Path(handle.folder))

    def discard(self, handle: Handle) -> None:
        self._remove(handle)
        _forget(Path(handle.folder))

    def _remove(self, handle: Handle) -> None:
        """Remove the container, by force; returns when it is gone."""
        deadline = time.monotonic() + GONE
        path = self.container(handle) + query(force=True, v=True, timeout=0 if self.name == "podman" else None)
        while True:
            status, answer = self._answer(handle, "DELETE", path, accept=(404, 409, 500))
            if status == 404:
                return
            if status < 300:
                broken = [one.get("Err") for one in answer if one.get("Err")] if isinstance(answer, list) else []
                if not broken:
                    return
                answer = {"message": str(broken[0])}
            if time.monotonic() > deadline:
                said = answer.get("message", "") if isinstance(answer, dict) else str(answer)
                raise BackendUnavailable(
                    f"the container cannot be removed ({self.name} says: {errors.one_line(said)})",
                    field="sandbox", value=handle.sandbox_id, code="ENGINE_FAILED",
                )  # fmt: skip
            time.sleep(0.05)

    # --- its time, its use

    def set_expiry(self, handle: Handle, at: float | None) -> None:
        folder = Path(handle.folder)
        status = self.status(handle)
        if status.phase not in (Phase.RUNNING, Phase.PAUSED, Phase.HELD):
            raise not_running(status, handle)
        keeping.set_deadline(folder, at)
        keeper = keeping.keeper_of(folder)
        if keeper is not None and keeping.nudge(keeper):
            return
        if at is not None:
            keeping.finish_keeper(folder, self._keeper(handle, self.client()))

    def overdue(self, handle: Handle, now: float | None = None) -> bool:
        """Whether its time to live is over; see `keeping.overdue`."""
        return keeping.overdue(handle, now)

    def _visible(self, handle: Handle) -> ProcessName | None:
        """Its first process, if it lives and can be seen."""
        init = keeping.init_of(Path(handle.folder))
        return init if init is not None and not absent(init) else None

    def usage(self, handle: Handle) -> Usage:
        init = self._visible(handle)
        if init is not None:
            found = Groups(init.pid).usage()
            if found is not None and not absent(init):
                return found
        status = self.status(handle)
        if status.phase not in (Phase.RUNNING, Phase.PAUSED):
            raise not_running(status, handle)
        return self._stats(handle)

    def _stats(self, handle: Handle) -> Usage:
        raise Unsupported("what it uses cannot be seen from here", field="sandbox", value=handle.sandbox_id)

    def connect(self, handle: Handle, port: int) -> socket.socket:
        init = self._visible(handle)
        if init is not None and os.geteuid() == 0:
            return connecting.connect(init.pid, port)
        status = self.status(handle)
        if status.phase not in (Phase.RUNNING, Phase.PAUSED):
            raise not_running(status, handle)
        document = self.ask(handle, "GET", self.container(handle) + "/json")
        networks = (document.get("NetworkSettings") or {}).get("Networks") or {}
        address = next((one["IPAddress"] for one in networks.values() if one and one.get("IPAddress")), "")
        if not address and handle.data.get("network") == "host":
            address = "127.0.0.1"
        if not address:
            raise Unsupported(
                "the sandbox has no network that can be reached from here", field="port", value=str(port),
                remedy="run dibs as root, or give the sandbox a network",
            )  # fmt: skip
        return connecting.connect_to(address, port)

    def snapshot(self, handle: Handle, name: str) -> str:
        repository, tag = images.tagged(name)
        path = "/commit" + query(
            container=container_name(handle.sandbox_id), repo=repository, tag=tag or None, pause=True
        )
        self.ask(handle, "POST", path, json={} if self.name == "docker" else None, timeout=600.0)
        return f"{repository}:{tag}" if tag else repository

    # --- beyond the port

    def watch(self, on_change: Callable[[str, str], None]) -> Watch:
        """Follow the engine's events in a thread: `on_change(sandbox id, what)`; an id of "" says: look at all."""
        from dibs.backends.engines.watching import Watch

        filters = msgspec.json.encode({"type": ["container"], "label": [f"dibs.home={self._home.state}"]}).decode()
        return Watch(self.client, self._events_path(filters), on_change).start()

    def external_holders(self) -> list[ExternalHolder]:
        """Running containers that have devices and that are none of ours. Raises BackendUnavailable."""
        from dibs.backends.engines.external import holders

        try:
            return holders(self.name, self.client(), str(self._home.state))
        except Unreachable as error:
            self._lost(error)
        except EngineError as error:
            raise errors.translate(self.name, error) from error


_clients: dict[str, int] = {}  # folder → the end of a pipe that the keeper shall listen to


def container_name(sandbox_id: str) -> str:
    return f"dibs-{sandbox_id}"


def not_running(status: Status, handle: Handle) -> Conflict:
    remedy = {Phase.PAUSED: "resume it first", Phase.HELD: "start it first"}.get(status.phase, "")
    return Conflict(
        f"the sandbox is {status.phase}", field="sandbox", value=handle.sandbox_id, code="NOT_RUNNING", remedy=remedy
    )


def look(pid: int, engine: ProcessName | None, *, legacy: bool = False) -> Observation:
    """A running container, from outside."""
    nodes = looking.device_nodes(pid)
    if legacy:
        from dibs.backends.engines.passing import CONTROL_NODES

        nodes = tuple(node for node in nodes if node.path not in CONTROL_NODES)
    return Observation(
        nodes,
        looking.environment(pid),
        looking.mounts(pid),
        Groups(pid).limits(),
        looking.isolation(pid, own_task(engine.pid) if engine else "/proc/self"),
    )


def _ends(process: ProcessName) -> bool:
    """Whether a process that cannot be looked at is just ending: then it is gone in a moment."""
    deadline = time.monotonic() + 1.0
    while not absent(process):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def _forget(folder: Path) -> None:
    keeper = keeping.keeper_of(folder)
    shutil.rmtree(folder, ignore_errors=True)
    if keeper is not None:
        keeping.nudge(keeper)  # without a deadline it has nothing to do
