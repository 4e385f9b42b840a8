"""Errors as Kubernetes `Status` objects. `gateway.problems` calls it for every path below /kubeflow.

The reason is Kubernetes' word for the HTTP status, so that clients act on it; each cause carries one of our public
codes, the field and the remedy.
"""

from __future__ import annotations

from typing import Any

import msgspec

from dibs.errors import DibsError, Problem
from dibs.train.refusals import CODE

Json = dict[str, Any]

_REASONS = {
    400: "BadRequest", 401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 405: "MethodNotAllowed",
    408: "Timeout", 409: "Conflict", 410: "Expired", 413: "RequestEntityTooLarge", 415: "UnsupportedMediaType",
    422: "Invalid", 429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable", 504: "Timeout",
}  # fmt: skip
_BY_CODE = {CODE: 422, "UNKNOWN_FIELD": 422, "WATCH_EXPIRED": 410}
_TAKEN = ("NAME_TAKEN", "CLUSTER_EXISTS")
_SOON = 1  # seconds after which trying again is worth while


def http_status(error: DibsError, usual: int) -> int:
    """The HTTP status: `usual`, unless Kubernetes has one that says more."""
    return _BY_CODE.get(error.code, usual)


def status_object(error: DibsError, usual: int, words: str, problems: tuple[Problem, ...], path: str) -> Json:
    """The `Status` of an error. `words`, `problems`: what may be told outside."""
    code = http_status(error, usual)
    reason = "AlreadyExists" if error.code in _TAKEN else _REASONS.get(code, "InternalError" if code >= 500 else "")
    details: Json = {**_asked(path), "causes": [_cause(problem) for problem in problems]}
    if error.retryable or code == 503:
        details["retryAfterSeconds"] = _SOON
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": words,
        "reason": reason,
        "details": details,
        "code": code,
    }


def deleted(name: str, uid: str, group: str, kind: str) -> Json:
    """The answer to a deletion that is complete."""
    details = {"name": name, "group": group, "kind": kind, "uid": uid}
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}


def _cause(problem: Problem) -> Json:
    message = f"{problem.reason}; {problem.remedy}" if problem.remedy else problem.reason
    if problem.value:
        message = f"{msgspec.json.encode(problem.value).decode()}: {message}"
    return {"reason": problem.code, "message": message, **({"field": problem.field} if problem.field else {})}


def _asked(path: str) -> Json:
    """Group, kind (the plural, as Kubernetes has it) and name of what a path names."""
    parts = path.strip("/").split("/")[1:]
    if not parts or parts[0] not in ("api", "apis"):
        return {}
    group = parts[1] if parts[0] == "apis" and len(parts) > 1 else ""
    rest = parts[3:] if parts[0] == "apis" else parts[2:]
    if len(rest) > 2 and rest[0] == "namespaces":
        rest = rest[2:]
    found: Json = {"group": group} if group else {}
    for key, value in zip(("kind", "name"), rest, strict=False):
        found[key] = value
    return found
