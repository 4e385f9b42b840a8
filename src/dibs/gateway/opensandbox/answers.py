"""Answers in OpenSandbox's form: the exact status codes that its clients parse, and errors as `{code, message}`.

For each operation the clients know a few status codes; of any other they show no code. So what has no code of its own
there (nothing reachable, ledger away) is a 500, and what is not offered is a 501 where that is all there is to say.
"""

from __future__ import annotations

from typing import Any

from litestar import Request, Response

from dibs.errors import Conflict, DibsError, Timeout
from dibs.gateway.opensandbox.types import encode
from dibs.gateway.problems import Refused, opensandbox_error, status_of

JSON = "application/json"
_AS_THEY_KNOW_IT = {502: 500, 503: 500, 504: 500}


def status_for(error: DibsError) -> int:
    if isinstance(error, Refused):
        return error.status
    if isinstance(error, Conflict) and error.code == "NOT_YOURS":
        return 403
    if isinstance(error, Timeout):
        return 409
    status = status_of(error)
    return _AS_THEY_KNOW_IT.get(status, status)


def refused(request: Request[Any, Any, Any], error: DibsError) -> Response[bytes]:
    """Every error that a handler raises."""
    return opensandbox_error(error, request, status=status_for(error))


def part(request: Request[Any, Any, Any], name: str) -> str:
    """A part of the path that has a name."""
    return str(request.path_params[name])


def answer(value: Any, status: int = 200) -> Response[bytes]:
    return Response(encode(value), status_code=status, media_type=JSON)


def nothing(status: int) -> Response[bytes]:
    return Response(b"", status_code=status, media_type=JSON)


def text(content: str) -> Response[bytes]:
    return Response(content.encode(), status_code=200, media_type="text/plain; charset=utf-8")


def not_offered(code: str, reason: str, remedy: str = "", *, status: int = 501) -> Refused:
    return Refused(status, code, reason, remedy=remedy)
