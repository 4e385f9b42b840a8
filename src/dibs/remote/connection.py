"""One line to a gateway: requests of the native API, answers of its types, problems raised again as what they were.

`workloads` asks over it. An error of the gateway is the same DibsError, with the same problems, that the same call in
this process would have raised; what is wrong with the line itself is BackendUnavailable, and names the gateway.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec

from dibs import errors
from dibs.errors import BackendUnavailable, CommandFailed, DibsError, InvalidRequest, Problem
from dibs.http import Body, Connection, Response, query
from dibs.remote.choose import host_socket
from dibs.remote.target import Target
from dibs.wire.service import ProblemDetails

API = "/api/v1"
PATIENCE = 90.0  # seconds without a byte from the gateway; what may take longer says so
_LARGEST = 256 << 20
_PROBLEM = msgspec.json.Decoder(ProblemDetails)

T = TypeVar("T")


class Line:
    """A kept connection to one gateway. One thread at a time."""

    def __init__(self, target: Target) -> None:
        self.target = target
        headers = {"User-Agent": "dibs", "Accept": "application/json"}
        if target.token:
            headers["Authorization"] = f"Bearer {target.token}"
        self.headers = headers
        self._connection = Connection(target.address, timeout=PATIENCE, headers=headers, context=_context(target))

    def close(self) -> None:
        self._connection.close()

    def fresh(self) -> Line:
        """Another line to the same gateway, for an answer that is read while others are asked."""
        return Line(self.target)

    def connect(self) -> socket.socket:
        with self._told():
            return self._connection.connect()

    @property
    def base(self) -> str:
        """What stands before every path of the gateway."""
        return self._connection.base

    def ask(
        self,
        kind: type[T],
        method: str,
        where: str,
        /,
        *,
        json: Any = None,
        body: Body = None,
        headers: dict[str, str] | None = None,
        patience: float = PATIENCE,
        **parameters: Any,
    ) -> T:
        """The answer as a value of a type."""
        with self._told():
            response = self.send(method, where, json=json, body=body, headers=headers, patience=patience, **parameters)
            text = response.read(_LARGEST)
        try:
            found: T = msgspec.json.decode(text or b"null", type=kind)
        except msgspec.DecodeError as error:
            raise self.broken(f"its answer cannot be read: {error}") from error
        return found

    def send(
        self,
        method: str,
        where: str,
        /,
        *,
        json: Any = None,
        body: Body = None,
        headers: dict[str, str] | None = None,
        patience: float = PATIENCE,
        **parameters: Any,
    ) -> Response:
        """The answer, not yet read; a refusal is raised."""
        full = f"{API}{where}{query(**parameters)}"
        with self._told():
            response = self._connection.request(method, full, body, json=json, headers=headers, timeout=patience)
            if response.status < 400:
                return response
            text = response.read(_LARGEST)
        raise problem_of(text, response.status, self.target)

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self.broken(error.strerror or str(error) or type(error).__name__) from error

    def broken(self, reason: str) -> BackendUnavailable:
        # A private ledger beside a host service would give away devices that others hold: it is not offered there.
        shared = os.path.exists(host_socket())
        remedy = f"it was named by {self.target.why}{'' if shared else '; --gateway none does without one'}"
        if self.target.address == f"unix://{host_socket()}":
            remedy = "try again in a moment; if it stays away, an administrator can see why: systemctl status dibs"
        return BackendUnavailable(
            f"the gateway cannot be used: {reason[:1].lower()}{reason[1:]}", field="gateway", value=self.target.address,
            code="GATEWAY_UNREACHABLE", remedy=remedy,
        )  # fmt: skip


def _context(target: Target) -> Any:
    """How to trust an https gateway; None: as the system does."""
    if not target.ca_file or not target.address.startswith("https://"):
        return None
    import ssl

    try:
        return ssl.create_default_context(cafile=target.ca_file)
    except (OSError, ssl.SSLError) as error:
        raise InvalidRequest(
            f"the certificates cannot be read: {error}", field="ca-file", value=target.ca_file, code="CA_UNREADABLE"
        ) from error


def problem_of(text: bytes, status: int, target: Target) -> DibsError:
    """A refusal, as the error that it was; of a server that is no gateway, that it is none."""
    try:
        return error_of(_PROBLEM.decode(text))
    except msgspec.DecodeError:
        return BackendUnavailable(
            f"whatever answers there is no dibs gateway (HTTP status {status})", field="gateway", value=target.address,
            code="GATEWAY_UNREACHABLE", remedy=f"check the address; it was named by {target.why}",
        )  # fmt: skip


def error_of(details: ProblemDetails) -> DibsError:
    """The error in dibs' own tree. What belongs to HTTP alone (no token, no scope) is a wrong request."""
    problems = [Problem(one.code, one.field, one.value, one.reason, one.remedy) for one in details.problems]
    first = problems[0] if problems else Problem(details.code, "", "", details.detail)
    kind = getattr(errors, details.error, InvalidRequest)
    if kind is CommandFailed:
        missing = first.code == "COMMAND_NOT_FOUND"
        return CommandFailed(first.reason, missing=missing, value=first.value, remedy=first.remedy)
    if not (isinstance(kind, type) and issubclass(kind, DibsError)):
        kind = InvalidRequest
    return kind(problems or [first])
