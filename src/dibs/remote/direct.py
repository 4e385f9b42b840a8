"""`dibs run` in the foreground through the host service, attached to the sandbox itself.

`workloads` uses it. The service makes the sandbox and holds its command back until we are attached to its shim, as the
user to whom both belong. From then on the service is not in between: it can be restarted, and neither the command nor
its output or input notice. Until then nothing has run, so what a restart interrupts is simply asked for again; a place
in the queue has an id of ours, with which it is resumed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from dibs.backends.local.shim_client import Connection, ShimSession
from dibs.backends.port import Session
from dibs.errors import BackendUnavailable, NotFound
from dibs.ledger.store import new_id
from dibs.remote.conversion import sandbox_of
from dibs.remote.session import CONTROL, Socket, news, refusal_of
from dibs.request.spec import SandboxSpec
from dibs.sandbox import Sandbox
from dibs.wire import sandboxes as ws
from dibs.workloads.waiter import WaitNews

if TYPE_CHECKING:
    from dibs.remote.workloads import RemoteWorkloads

_AWAY = frozenset(("GATEWAY_UNREACHABLE", "STOPPING"))
_PATIENCE = 60.0  # seconds for a service that is being restarted
_PAUSES = 0.1, 1.0  # seconds between two attempts, twice as long each time

OnWait = Callable[[WaitNews], None] | None
OnNote = Callable[[str], None] | None


class _Back:
    """When to ask a service again that is away."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._until: float | None = None
        self._pause = _PAUSES[0]

    def again(self, error: BackendUnavailable) -> None:
        """Wait a moment; raises the error when it has been away for too long."""
        now = time.monotonic()
        if error.code not in _AWAY:
            raise error
        self._until = self._until or now + self._patience
        if now >= self._until:
            raise error
        time.sleep(self._pause)
        self._pause = min(self._pause * 2, _PAUSES[1])

    def here(self) -> None:
        self._until, self._pause = None, _PAUSES[0]


def launch(
    service: RemoteWorkloads, spec: SandboxSpec, base_env: Mapping[str, str] | None, on_wait: OnWait, on_note: OnNote
) -> tuple[Sandbox, Session | None, Socket | None]:
    """The sandbox, our own session with it, and the line on which its end is told; without a session the line is the
    conversation."""
    asked = {"run": service.asked(spec, base_env), "foreground": True, "direct": True, "ticket": new_id("tk")}
    back = _Back(max(_PATIENCE, spec.wait_seconds or 0.0))
    told = False
    while True:
        attempt = _Attempt(service, asked, on_wait, on_note, back)
        try:
            return attempt.run()
        except BackendUnavailable as error:
            if attempt.session is not None:
                row = _attached(service, attempt.sandbox_id, back)
                if row is not None:
                    return row, attempt.session, None
                attempt.session.close()
            if on_note is not None and not told and error.code in _AWAY:
                on_note("the host service is away; waiting for it to come back")
                told = True
            back.again(error)


class _Attempt:
    """One conversation with the service, up to the sandbox."""

    def __init__(
        self, service: RemoteWorkloads, asked: dict[str, Any], on_wait: OnWait, on_note: OnNote, back: _Back
    ) -> None:
        self.session: ShimSession | None = None
        self.sandbox_id = ""
        self._service = service
        self._asked = asked
        self._on_wait = on_wait
        self._on_note = on_note
        self._back = back

    def run(self) -> tuple[Sandbox, Session | None, Socket | None]:
        line = self._service.open("/run")
        try:
            line.send(CONTROL + msgspec.json.encode(self._asked))
            for words in news(line):
                self._back.here()
                if "sandbox" in words:
                    return sandbox_of(msgspec.convert(words["sandbox"], ws.Sandbox)), self.session, line
                self._hear(line, words)
        except OSError as error:
            line.close()
            raise self._service.broken(error.strerror or "the connection ended") from error
        except BaseException:
            line.close()
            raise
        line.close()
        raise self._service.broken("the connection ended before there was a sandbox")

    def _hear(self, line: Socket, words: dict[str, Any]) -> None:
        if "waiting" in words and self._on_wait is not None:
            self._on_wait(msgspec.convert(words["waiting"], WaitNews))
        elif "note" in words and self._on_note is not None:
            self._on_note(str(words["note"]))
        elif "error" in words:
            raise refusal_of(words["error"])
        elif "attach" in words:
            self.sandbox_id = str(words["attach"]["id"])
            self.session = _attach(str(words["attach"]["folder"]))
            line.send(CONTROL + msgspec.json.encode({"attached": self.session is not None}))


def _attach(folder: str) -> ShimSession | None:
    """A session with the shim; None where its folder cannot be reached, as from inside a container."""
    try:
        connection = Connection.to(Path(folder))
    except BackendUnavailable:
        return None
    hello = connection.ask(b"H", [("mode", "attach")]) if connection is not None else None
    if connection is None or hello is None:
        return None
    return ShimSession(connection, hello)


def _attached(service: RemoteWorkloads, sandbox_id: str, back: _Back) -> Sandbox | None:
    """The service went while it started our command: the sandbox if it runs, or None if it did not come to that."""
    while True:
        try:
            row = service.sandbox(sandbox_id)
        except NotFound:
            return None
        except BackendUnavailable as error:
            back.again(error)
            continue
        if row.state != "creating":
            return None if row.state == "failed" else row
        time.sleep(_PAUSES[0])


def settle(service: RemoteWorkloads, sandbox_id: str, line: Socket | None) -> Sandbox:
    """Tell the service that the command has ended; its devices are free afterwards."""
    if line is not None:
        with suppress(OSError):  # it was restarted meanwhile, and sees by itself what has ended
            line.send(CONTROL + b'{"ended":true}')
            for _ in news(line):
                break
        line.close()
    back = _Back(_PATIENCE)
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            row = service.sandbox(sandbox_id)
        except BackendUnavailable as error:
            back.again(error)
            continue
        if not row.live or time.monotonic() > until:
            return row
        time.sleep(_PAUSES[0])
