"""Errors as HTTP answers: RFC 9457 problems (native), `{code, message}` (OpenSandbox), `Status` (Kubeflow).

Every handler may raise a DibsError; `app` turns it into an answer here. Which form it gets is decided by the path, so
that also a request that no handler saw (an unknown path, a wrong method, a missing token) gets the form of its API. No
stack trace and no internal path leaves the gateway: what is not a DibsError is logged and answered as INTERNAL.
"""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Request, Response
from litestar.exceptions import HTTPException

from dibs import errors
from dibs.errors import DibsError, Internal, Problem

STATUS: dict[type[DibsError], int] = {
    errors.InvalidRequest: 400,
    errors.Unsupported: 409,
    errors.NoMatch: 409,
    errors.Busy: 409,
    errors.Unhealthy: 409,
    errors.QuotaExceeded: 403,
    errors.BackendUnavailable: 503,
    errors.DeliveryMismatch: 500,
    errors.Conflict: 409,
    errors.NotFound: 404,
    errors.Timeout: 504,
    errors.StateError: 503,
    errors.CommandFailed: 409,
    errors.Internal: 500,
}
# The same for gRPC: a code's name, by class, and for some public codes by themselves.
GRPC: dict[type[DibsError], str] = {
    errors.InvalidRequest: "INVALID_ARGUMENT",
    errors.Unsupported: "FAILED_PRECONDITION",
    errors.NoMatch: "FAILED_PRECONDITION",
    errors.Busy: "RESOURCE_EXHAUSTED",
    errors.Unhealthy: "FAILED_PRECONDITION",
    errors.QuotaExceeded: "RESOURCE_EXHAUSTED",
    errors.BackendUnavailable: "UNAVAILABLE",
    errors.DeliveryMismatch: "INTERNAL",
    errors.Conflict: "FAILED_PRECONDITION",
    errors.NotFound: "NOT_FOUND",
    errors.Timeout: "DEADLINE_EXCEEDED",
    errors.StateError: "UNAVAILABLE",
    errors.CommandFailed: "FAILED_PRECONDITION",
    errors.Internal: "INTERNAL",
}
GRPC_OF_CODE = {
    "NAME_TAKEN": "ALREADY_EXISTS", "REQUEST_ID_USED": "ALREADY_EXISTS", "NOT_YOURS": "PERMISSION_DENIED",
    "STILL_CREATING": "ABORTED", "OUTCOME_UNKNOWN": "ABORTED",
}  # fmt: skip
GRPC_OF_STATUS = {
    400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND",
    408: "DEADLINE_EXCEEDED", 409: "FAILED_PRECONDITION", 413: "RESOURCE_EXHAUSTED", 429: "RESOURCE_EXHAUSTED",
    501: "UNIMPLEMENTED", 503: "UNAVAILABLE", 504: "DEADLINE_EXCEEDED",
}  # fmt: skip
TITLES: dict[str, str] = {
    "InvalidRequest": "the request is wrong",
    "Unsupported": "no backend here can deliver it",
    "NoMatch": "no device here fits",
    "Busy": "the devices are held",
    "Unhealthy": "the fitting devices are broken",
    "QuotaExceeded": "over what the tenant may hold",
    "BackendUnavailable": "something that it needs cannot be reached",
    "DeliveryMismatch": "what was seen is not what was planned",
    "Conflict": "the thing is in a state that forbids it",
    "NotFound": "no such thing",
    "Timeout": "waited as long as asked",
    "StateError": "the ledger cannot be used",
    "CommandFailed": "the command could not be started",
    "Internal": "a defect in dibs",
    "Refused": "the request is refused",
}
PROBLEM_TYPE = "application/problem+json"
KUBEFLOW = "/kubeflow"
_NATIVE = ("/api/", "/health", "/ready", "/version", "/metrics", "/openapi.json")


class ClientGone(Exception):
    """The client has hung up: there is no reader of the answer. No error of ours."""


class Refused(DibsError):
    """An answer that belongs to HTTP alone: no token, too large, too slow, no such path."""

    exit_code = 80
    default_code = "REFUSED"

    def __init__(
        self,
        status: int,
        code: str,
        reason: str,
        *,
        field: str = "",
        value: str = "",
        remedy: str = "",
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(Problem(code, field, value, reason, remedy))
        self.status = status
        self.headers = headers or {}


def status_of(error: DibsError) -> int:
    if isinstance(error, Refused):
        return error.status
    for kind in type(error).__mro__:
        if kind in STATUS:
            return STATUS[kind]
    return 500


def grpc_of(error: DibsError) -> str:
    """The name of the gRPC code of an error."""
    if isinstance(error, Refused):
        return GRPC_OF_STATUS.get(error.status, "INTERNAL")
    if error.code in GRPC_OF_CODE:
        return GRPC_OF_CODE[error.code]
    for kind in type(error).__mro__:
        if kind in GRPC:
            return GRPC[kind]
    return "INTERNAL"


def kind_of(error: DibsError) -> str:
    """The name of the error's class in the public tree: what a client raises again."""
    for kind in type(error).__mro__:
        if kind.__name__ in TITLES:
            return kind.__name__
    return "Internal"


def is_native(path: str) -> bool:
    return path.startswith(_NATIVE) or path == "/"


def problem_data(error: DibsError, request_id: str) -> dict[str, Any]:
    """RFC 9457, with ours: the class, whether it may be tried again, and every problem."""
    kind = kind_of(error)
    status = status_of(error)
    words, problems = outward(error)
    return {
        "type": f"urn:dibs:error:{kind}",
        "title": TITLES[kind],
        "status": status,
        "detail": readable(words),
        "code": error.code,
        "error": kind,
        "retryable": error.retryable or status == 503,
        "problems": [
            {name: readable(value) for name, value in msgspec.to_builtins(problem).items()} for problem in problems
        ],
        "request_id": request_id,
    }


def outward(error: DibsError) -> tuple[str, tuple[Problem, ...]]:
    """The words and problems of an error for a client. Where the ledger is kept is of no use to it, but to others."""
    problems = tuple(
        msgspec.structs.replace(problem, value="") if problem.field == "ledger" else problem
        for problem in error.problems
    )
    return "\n".join(str(problem) for problem in problems) if problems != error.problems else str(error), problems


def body_of(error: DibsError, path: str, request_id: str) -> tuple[int, str, bytes, dict[str, str]]:
    """Status, media type, body and headers of the answer to an error, in the form of the API that owns the path."""
    headers = error.headers if isinstance(error, Refused) else {}
    if is_native(path):
        return status_of(error), PROBLEM_TYPE, msgspec.json.encode(problem_data(error, request_id)), headers
    if path == KUBEFLOW or path.startswith(f"{KUBEFLOW}/"):
        data = _status_object(error, path)
        return data["code"], "application/json", msgspec.json.encode(data), headers
    return status_of(error), "application/json", msgspec.json.encode(opensandbox_data(error)), headers


def _status_object(error: DibsError, path: str) -> dict[str, Any]:
    from dibs.gateway.kubeflow.status import status_object

    words, problems = outward(error)
    problems = tuple(
        Problem(**{name: readable(value) for name, value in msgspec.to_builtins(problem).items()})
        for problem in problems
    )
    return status_object(error, status_of(error), readable(words), problems, readable(path))


def opensandbox_data(error: DibsError) -> dict[str, str]:
    return {"code": error.code, "message": readable(outward(error)[0])}


def readable(text: str) -> str:
    """As JSON can carry it: bytes of a path that were no UTF-8 are shown, not sent."""
    return text.encode("utf-8", "backslashreplace").decode()


def request_id_of(request: Request[Any, Any, Any]) -> str:
    return str(request.scope.get("state", {}).get("request_id", ""))


def opensandbox_error(
    error: DibsError, request: Request[Any, Any, Any], *, status: int | None = None
) -> Response[bytes]:
    """OpenSandbox's answer: `{code, message}`, with every reason in the message."""
    del request
    headers = error.headers if isinstance(error, Refused) else {}
    data = msgspec.json.encode(opensandbox_data(error))
    return Response(data, status_code=status or status_of(error), media_type="application/json", headers=headers)


def answer(error: DibsError, request: Request[Any, Any, Any]) -> Response[bytes]:
    """In the form of the API that owns the path."""
    status, media_type, data, headers = body_of(error, request.scope["path"], request_id_of(request))
    return Response(data, status_code=status, media_type=media_type, headers=headers)


def from_http(error: HTTPException) -> DibsError:
    """Litestar's own refusals in our words."""
    headers = dict(error.headers or {})
    if error.status_code == 404:
        return Refused(404, code="PATH_UNKNOWN", reason="there is no such path", remedy="GET /openapi.json lists them")
    if error.status_code == 405:
        allowed = headers.get("allow", headers.get("Allow", ""))
        remedy = f"it takes {allowed}" if allowed else "GET /openapi.json lists what there is"
        return Refused(
            405, code="METHOD_NOT_ALLOWED", reason="the path does not take this method", remedy=remedy, headers=headers
        )
    if error.status_code >= 500:
        return Internal("something went wrong here; it was logged", remedy="report it with the request id")
    return Refused(error.status_code, code="REQUEST_INVALID", reason=str(error.detail), headers=headers)
