"""The engine itself: its connection, identity, capabilities and failures.

The other parts of a backend use it. `docker` and `podman` define how to connect and what to probe. An engine may be
replaced by another one at any time; then its facts are probed again.
"""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from dibs.backends import proc
from dibs.backends.engines import errors, networks
from dibs.backends.engines.client import QUESTION, Client, EngineError, Unreachable
from dibs.backends.engines.discovery import Found, find
from dibs.backends.engines.facts import Facts
from dibs.backends.port import Capability, Handle, Network
from dibs.errors import BackendUnavailable, DibsError
from dibs.home import Home
from dibs.http import segment
from dibs.process import absent

if TYPE_CHECKING:
    import socket

RETRY_AFTER = 2.0  # seconds that an engine which lets one wait, and then does not answer, is not asked again; arbitrary
PROBE = 2.0  # seconds within which an engine that was silent says that it is there, or is left alone again
QUICK = 0.1  # seconds; what is found out in that time can be found out again: the engine may just have come back


class Engine:
    """The line to one engine."""

    name: str

    def __init__(self, home: Home, address: str = "") -> None:
        """`address`: where the engine is, if the settings say so; else it is looked for."""
        self._home = home
        self._address = address
        self._lock = threading.Lock()
        self._found: Found | None = None
        self._opened: Client | None = None
        self._known: Facts | None = None
        self._missing: tuple[float, DibsError] | None = None
        self._silent = False  # it takes connections and does not answer

    @property
    def home(self) -> Home:
        return self._home

    # --- filled in by each engine

    def _connect(self, target: str, patience: float) -> Client:
        raise NotImplementedError

    def _look(self, client: Client) -> Facts:
        raise NotImplementedError

    # --- the line

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
            began = time.monotonic()
            try:
                if self._found is None or not self._found.target:
                    self._found = find(self.name, self._address)
                found = self._found
                if not found.target:
                    raise BackendUnavailable(
                        found.reason, field="backend", value=self.name, code="ENGINE_NOT_RUNNING", remedy=found.remedy
                    )
                try:
                    patience = PROBE if self._silent else QUESTION
                    self._opened = self._opened or self._connect(found.target, patience)
                    self._known = self._look(self._opened)
                    self._opened.patience, self._silent = QUESTION, False
                except Unreachable as error:
                    raise errors.unreachable(self.name, error) from error
                except EngineError as error:
                    raise errors.translate(self.name, error, field="backend", value=self.name) from error
                except TimeoutError as error:
                    self._silent = True
                    raise errors.silent(self.name, "backend", found.target) from error
            except DibsError as error:
                self._opened = None
                now = time.monotonic()
                self._missing = (now, error) if now - began > QUICK else None
                raise
            return self._opened

    def facts(self) -> Facts:
        """What the engine is and can. Raises BackendUnavailable."""
        self.client()
        known = self._known
        if known is None or (known.peer is not None and absent(known.peer)):
            self.forget()  # it was started anew while no line to it was open
            self.client()
            known = self._known
        assert known is not None
        return known

    def forget(self) -> None:
        """The engine may come back as another one: what is known of it is found out anew."""
        with self._lock:
            self._known = None

    def lost(self, error: Unreachable) -> NoReturn:
        self.forget()
        raise errors.unreachable(self.name, error) from error

    def waited(self, error: TimeoutError, field: str, value: str) -> NoReturn:
        """No answer came in time. If the engine is silent altogether, later callers need not wait as long."""
        found = errors.silent(self.name, field, value)
        with self._lock:
            client = self._opened
        if client is not None:
            probe = Client(client.target, "", PROBE)
            try:
                probe.ping()
            except (TimeoutError, Unreachable):
                with self._lock:
                    self._opened = self._known = None
                    self._missing, self._silent = (time.monotonic(), found), True
            finally:
                probe.close()
        raise found from error

    def asking(self, value: str = "", field: str = "sandbox") -> Asking:
        """For a `with`: the client, and whatever it raises in our words."""
        return Asking(self, field, value)

    def ask(
        self, handle: Handle | None, method: str, path: str, *, value: str = "", field: str = "sandbox", **more: Any
    ) -> Any:
        """One question, about a sandbox or about `value`."""
        return self.answer(handle, method, path, value=value, field=field, **more)[1]

    def answer(
        self, handle: Handle | None, method: str, path: str, *, value: str = "", field: str = "sandbox", **more: Any
    ) -> tuple[int, Any]:
        """As `ask`, with the status."""
        with self.asking(value or (handle.sandbox_id if handle else ""), field) as client:
            return client.answer(method, path, **more)

    def hijack(self, handle: Handle, path: str, json: Any = None) -> socket.socket:
        with self.asking(handle.sandbox_id) as client:
            return client.hijack(path, json=json)

    # --- what can be had

    def available(self) -> Capability:
        try:
            facts = self.facts()
        except DibsError as error:
            problem = error.problems[0]
            return Capability(False, problem.reason, problem.remedy, problem.code)
        if facts.peer is not None and not facts.rootless and not proc.may_look_at_all():
            reason = f"{self.name} runs as root, and only root may look into its containers: nothing could be proved"
            remedy = "run dibs as root, have a host service (sudo dibs host install), or use an engine of your own"
            return Capability(False, reason, remedy, "OBSERVATION_FAILED")
        return Capability(True)

    def can_network(self, network: Network) -> Capability:
        if network != "private":
            return Capability(True)
        try:
            return networks.capability(self.name, self.facts())
        except DibsError as error:
            return Capability(False, error.problems[0].reason, error.problems[0].remedy)

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


class Asking:
    """What `Engine.asking` gives."""

    def __init__(self, engine: Engine, field: str, value: str) -> None:
        self._engine = engine
        self._field = field
        self._value = value

    def __enter__(self) -> Client:
        return self._engine.client()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        name = self._engine.name
        if isinstance(error, Unreachable):
            self._engine.lost(error)
        if isinstance(error, EngineError):
            raise errors.translate(name, error, field=self._field, value=self._value) from error
        if isinstance(error, TimeoutError):
            self._engine.waited(error, self._field, self._value)


def container_name(sandbox_id: str) -> str:
    return f"dibs-{sandbox_id}"


def container(handle: Handle) -> str:
    """The path of its container, in the engine's API: by its id, for a name may be given to another container."""
    return "/containers/" + segment(identity(handle))


def identity(handle: Handle) -> str:
    """The id of its container; its name while that is not known."""
    return handle.data.get("container") or container_name(handle.sandbox_id)
