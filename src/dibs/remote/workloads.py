"""`Workloads` over a gateway: the same methods, answers and errors, so that `cli` and `sdk` do not know the difference.

Made by `choose.open_service`. It keeps nothing but its line to the gateway; use it from one thread. What is about the
gateway's own machine (its home, its ledger, its inventory of files) is not here.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from dibs.backends.port import Exec, LogRecord, Session
from dibs.devices.model import Device, Inventory
from dibs.errors import BackendUnavailable, NotFound, Timeout
from dibs.http import Response, segment
from dibs.ledger.rows import Event, Lease, Taint, Ticket
from dibs.plan.device_state import DeviceState
from dibs.plan.explanation import Explanation
from dibs.receipt import Receipt
from dibs.remote.choose import host_socket
from dibs.remote.connection import Line
from dibs.remote.conversion import device_of, event_row, inventory_of, lease_row, mapping_of, sandbox_of, ticket_row
from dibs.remote.target import Target
from dibs.request.spec import SandboxSpec
from dibs.sandbox import Sandbox
from dibs.wire import devices as wd
from dibs.wire import sandboxes as ws
from dibs.wire import service as wv
from dibs.workloads.waiter import WaitNews

if TYPE_CHECKING:
    from dibs.remote.session import Socket

_POLL = 60.0  # seconds that one question waits for an answer at the gateway
_SLOW = 900.0  # seconds for what ends a sandbox: grace, and then some
_PAGE = 1000
_LONGEST_QUERY = 4000
_REFERENCE = re.compile(r"[a-z0-9-]{1,64}", re.ASCII)  # what can be a name or an id, and so a part of a path
_LOG = msgspec.json.Decoder(ws.LogLine)


class RemoteWorkloads:
    """The service of a gateway."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._line = Line(target)
        self._direct: dict[str, Socket | None] = {}  # of sandboxes that we are attached to ourselves

    def close(self) -> None:
        for line in self._direct.values():
            if line is not None:
                line.close()
        self._direct.clear()
        self._line.close()

    def __enter__(self) -> RemoteWorkloads:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- looking ----------------------------------------------------------------------------------------------------

    def devices(self) -> tuple[Inventory, list[DeviceState]]:
        return inventory_of(self._line.ask(wd.Devices, "GET", "/devices"))

    def inventory(self) -> Inventory:
        return self.devices()[0]

    def taint(self, name: str, taint: Taint) -> Device:
        path = f"/devices/{segment(name)}/taints"
        return device_of(self._line.ask(wd.Device, "POST", path, json={"taint": str(taint)}))

    def untaint(self, name: str, key: str) -> int:
        path = f"/devices/{segment(name)}/taints"
        return self._line.ask(wd.TaintsGone, "DELETE", path, key=key or None).removed

    def sandboxes(self, *, all: bool = False) -> list[Sandbox]:  # noqa: A002
        found: list[ws.Sandbox] = []
        page = 1
        while True:
            answer = self._line.ask(ws.SandboxPage, "GET", "/sandboxes", all=all, page=page, page_size=_PAGE)
            found += answer.sandboxes
            if len(answer.sandboxes) < _PAGE:
                break
            page += 1
        return [sandbox_of(one) for one in reversed(found)]  # a gateway tells the newest first

    def recent(self, limit: int, *, all: bool = False) -> tuple[list[Sandbox], list[Lease], int]:  # noqa: A002
        """The newest sandboxes, newest first (0: every one of them), their leases, and how many there are in all."""
        found: list[ws.Sandbox] = []
        page, size = 1, min(limit, _PAGE) or _PAGE
        while True:
            answer = self._line.ask(ws.SandboxPage, "GET", "/sandboxes", all=all, page=page, page_size=size)
            found += answer.sandboxes
            if len(answer.sandboxes) < size or 0 < limit <= len(found):
                break
            page += 1
        return [sandbox_of(one) for one in found[: limit or None]], self.leases(all=all), answer.total

    def sandbox(self, reference: str) -> Sandbox:
        return sandbox_of(self._line.ask(ws.Sandbox, "GET", self._path(reference)))

    @staticmethod
    def _path(reference: str, verb: str = "") -> str:
        if _REFERENCE.fullmatch(reference) is None:
            remedy = "`dibs sandbox ls --all` shows what there is"
            raise NotFound("there is no such sandbox", field="sandbox", value=reference, remedy=remedy)
        return f"/sandboxes/{reference}" + (f"/{verb}" if verb else "")

    def leases(self, *, all: bool = False) -> list[Lease]:  # noqa: A002
        return [lease_row(one) for one in self._line.ask(wd.Leases, "GET", "/leases", all=all).leases]

    def queue(self) -> list[Ticket]:
        return [ticket_row(one) for one in self._line.ask(wd.Queue, "GET", "/queue").tickets]

    def remove_ticket(self, ticket: str) -> Ticket:
        if _REFERENCE.fullmatch(ticket) is None:
            raise NotFound(
                "there is no such ticket in the queue", field="ticket", value=ticket, code="TICKET_NOT_FOUND",
                remedy="`dibs queue` shows who waits",
            )  # fmt: skip
        return ticket_row(self._line.ask(wd.Ticket, "DELETE", f"/queue/{ticket}"))

    def events(self, reference: str | None = None) -> list[Event]:
        if reference is None:
            return self._all_events()
        found: list[Event] = []
        while True:
            after = found[-1].seq if found else 0
            answer = self._line.ask(ws.Events, "GET", self._path(reference, "events"), after=after, limit=_PAGE)
            found += map(event_row, answer.events)
            if len(answer.events) < _PAGE:
                return found

    def _all_events(self) -> list[Event]:
        """Everything so far, out of the stream of events."""
        response = self._line.send("GET", "/events", after=0, follow=False)
        lines = (line[6:] for line in response.lines() if line.startswith(b"data: "))
        return [event_row(msgspec.json.decode(line, type=ws.Event)) for line in lines]

    def receipt(self, reference: str) -> Receipt:
        return self._line.ask(Receipt, "GET", self._path(reference, "receipt"))

    def explain(self, spec: SandboxSpec) -> Explanation:
        return self._line.ask(Explanation, "POST", "/explain", json=mapping_of(spec, here=self.target.host))

    # -- claims -----------------------------------------------------------------------------------------------------

    def claims(self) -> list[str]:
        """The names of the claims that the gateway keeps."""
        return list(self._line.ask(wv.Claims, "GET", "/claims").claims)

    def claim(self, name: str) -> dict[str, Any]:
        return self._line.ask(dict[str, Any], "GET", f"/claims/{segment(name)}")

    def keep_claim(self, name: str, claim: Mapping[str, Any]) -> None:
        self._line.ask(dict, "PUT", f"/claims/{segment(name)}", json=claim)

    def forget_claim(self, name: str) -> None:
        self._line.ask(type(None), "DELETE", f"/claims/{segment(name)}")

    # -- creating ---------------------------------------------------------------------------------------------------

    def create(
        self,
        spec: SandboxSpec,
        *,
        base_env: Mapping[str, str] | None = None,
        on_wait: Callable[[WaitNews], None] | None = None,
        on_note: Callable[[str], None] | None = None,
    ) -> Sandbox:
        line, row = self._make(spec, base_env, False, on_wait, on_note)
        line.close()
        return row

    def launch(
        self,
        spec: SandboxSpec,
        *,
        base_env: Mapping[str, str] | None = None,
        on_wait: Callable[[WaitNews], None] | None = None,
        on_note: Callable[[str], None] | None = None,
    ) -> tuple[Sandbox, Session]:
        from dibs.remote.session import RemoteSession

        if self.target.address == f"unix://{host_socket()}":
            from dibs.remote.direct import launch

            row, own, line = launch(self, spec, base_env, on_wait, on_note)
            if own is not None:
                self._direct[row.id] = line
                return row, own
            assert line is not None
        else:
            line, row = self._make(spec, base_env, True, on_wait, on_note)
        return row, RemoteSession(line, interactive=spec.interactive or spec.tty)

    def asked(self, spec: SandboxSpec, base_env: Mapping[str, str] | None) -> dict[str, Any]:
        """What is asked for, as it is sent."""
        mapping = mapping_of(spec, here=self.target.host)
        if base_env and self.target.host:
            # On another machine the variables of this one (PATH, HOME …) would be wrong, and some are secret.
            mapping["base_env"] = {name: value for name, value in base_env.items() if "\0" not in value}
        return mapping

    def open(self, path: str) -> Socket:
        from dibs.remote.session import Socket

        return Socket(self._line, path)

    def broken(self, reason: str) -> BackendUnavailable:
        return self._line.broken(reason)

    def _make(
        self,
        spec: SandboxSpec,
        base_env: Mapping[str, str] | None,
        foreground: bool,
        on_wait: Callable[[WaitNews], None] | None,
        on_note: Callable[[str], None] | None,
    ) -> tuple[Socket, Sandbox]:
        from dibs.remote.session import CONTROL, Socket, news, refusal_of

        mapping = self.asked(spec, base_env)
        line = Socket(self._line, "/run")
        try:
            line.send(CONTROL + msgspec.json.encode({"run": mapping, "foreground": foreground}))
            for words in news(line):
                if "waiting" in words and on_wait is not None:
                    on_wait(msgspec.convert(words["waiting"], WaitNews))
                elif "note" in words and on_note is not None:
                    on_note(str(words["note"]))
                elif "error" in words:
                    raise refusal_of(words["error"])
                elif "sandbox" in words:
                    return line, sandbox_of(msgspec.convert(words["sandbox"], ws.Sandbox))
        except OSError as error:
            line.close()
            raise self._line.broken(error.strerror or "the connection ended") from error
        except BaseException:
            line.close()
            raise
        line.close()
        raise self._line.broken("the connection ended before there was a sandbox")

    # -- looking after ----------------------------------------------------------------------------------------------

    def attach(self, reference: str) -> Session:
        from dibs.remote.session import RemoteSession, Socket

        return RemoteSession(Socket(self._line, self._path(reference, "attach")))

    def exec(self, reference: str, command: Exec) -> Session:
        from dibs.remote.session import CONTROL, RemoteSession, Socket

        further: dict[str, Any] = {"command": command.command, "env": command.env, "tty": command.tty}
        if command.workdir is not None:
            further["workdir"] = command.workdir
        if command.user:
            further["user"] = command.user
        asked = _as_query(further)
        # In the address a refusal comes before the conversation, as in a process of its own; but it must be short.
        if len(asked) < _LONGEST_QUERY:
            return RemoteSession(Socket(self._line, self._path(reference, "exec") + asked))
        line = Socket(self._line, self._path(reference, "exec"))
        try:
            line.send(CONTROL + msgspec.json.encode({"exec": further}))
        except BaseException:
            line.close()
            raise
        return RemoteSession(line)

    def logs(self, reference: str, *, follow: bool = False) -> Iterator[LogRecord]:
        line, response = self._stream(self._path(reference, "logs"), follow=follow)
        response.set_timeout(None)
        lines = _closing(line, response.lines())
        return (LogRecord(one.at, one.stream, one.data) for one in map(_LOG.decode, lines))

    def _stream(self, path: str, /, **parameters: Any) -> tuple[Line, Response]:
        """An answer that is read piece by piece, on a line of its own."""
        line = self._line.fresh()
        try:
            return line, line.send("GET", path, **parameters)
        except BaseException:
            line.close()
            raise

    def copy_in(self, reference: str, archive: Iterator[bytes], path: str) -> None:
        headers = {"Content-Type": "application/x-tar"}
        self._line.ask(type(None), "PUT", self._path(reference, "files"), body=archive, headers=headers, path=path)

    def copy_out(self, reference: str, path: str) -> Iterator[bytes]:
        line, response = self._stream(self._path(reference, "files"), path=path)
        return _closing(line, response.iter())

    def pause(self, reference: str) -> None:
        self._line.ask(ws.Sandbox, "POST", self._path(reference, "pause"))

    def resume(self, reference: str) -> None:
        self._line.ask(ws.Sandbox, "POST", self._path(reference, "resume"))

    def stop(self, reference: str, grace_seconds: float | None = None) -> Sandbox:
        return self._end("POST", self._path(reference, "stop"), grace_seconds)

    def remove(self, reference: str, grace_seconds: float | None = None) -> Sandbox:
        return self._end("DELETE", self._path(reference), grace_seconds)

    def _end(self, method: str, path: str, grace: float | None) -> Sandbox:
        words = None if grace is None else f"{round(grace * 1000)}ms" if grace < 60 else f"{round(grace)}s"
        return sandbox_of(self._line.ask(ws.Sandbox, method, path, patience=_SLOW + (grace or 0.0), grace=words))

    def wait(self, reference: str, timeout: float | None = None) -> Sandbox:
        until = None if timeout is None else time.monotonic() + timeout
        path = self._path(reference, "wait")
        while True:
            left = _POLL if until is None else max(0.0, min(_POLL, until - time.monotonic()))
            row = sandbox_of(self._line.ask(ws.Sandbox, "GET", path, patience=left + _POLL, timeout=left))
            if not row.live:
                return row
            if until is not None and time.monotonic() >= until:
                remedy = "wait longer, or stop it"
                raise Timeout("the sandbox still runs", field="sandbox", value=row.name, remedy=remedy)

    def settle(self, reference: str) -> Sandbox:
        """A gateway settles what has ended before it tells of the end. One that was not in between is told of it."""
        if reference in self._direct:
            from dibs.remote.direct import settle

            return settle(self, reference, self._direct.pop(reference))
        return self.sandbox(reference)


def _closing(line: Line, pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The pieces of an answer; its connection is closed after them, also when the rest is not wanted."""
    try:
        yield from pieces
    except OSError as error:
        raise line.broken(error.strerror or str(error)) from error
    finally:
        line.close()


def _as_query(further: Mapping[str, Any]) -> str:
    from urllib.parse import urlencode

    pairs = [("command", word) for word in further["command"]]
    pairs += [("env", f"{name}={value}") for name, value in further["env"].items()]
    pairs += [(name, further[name]) for name in ("workdir", "user") if name in further]
    return "?" + urlencode([*pairs, ("tty", str(further["tty"]).lower())])
