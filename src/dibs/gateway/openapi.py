"""The OpenAPI 3.1 document of the native API, written from the types that the code itself uses.

`GET /openapi.json` serves it. Each operation is one line here; a test holds the lines to the routes that there really
are, and another one fuzzes the running gateway with the document.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

from dibs._version import __version__
from dibs.gateway.native.host import AllQuery, TaintQuery
from dibs.gateway.native.sandboxes import EventsQuery, GraceQuery, ListQuery, WaitQuery
from dibs.gateway.native.streams import FilesQuery, FollowQuery, LogsQuery
from dibs.plan.explanation import Explanation
from dibs.receipt import Receipt
from dibs.wire import devices as wd
from dibs.wire import sandboxes as ws
from dibs.wire import service as wv
from dibs.wire.requests import EXPLAIN_SCHEMA, REQUEST_SCHEMA

READ, WRITE, DEVICES, ADMIN = "sandboxes:read", "sandboxes:write", "devices:write", "admin"
ANY = "any"  # a token, whatever its scopes
PROBLEM = "application/problem+json"
_REF = "#/components/schemas/{name}"
_CLAIM = {"type": "object", "title": "ResourceClaim", "description": "resource.k8s.io/v1, as kubectl takes it"}
_SANDBOX_REF = {"type": "string", "pattern": "^[a-z0-9-]{1,63}$"}
_NAMES: dict[str, dict[str, Any]] = {
    "ref": _SANDBOX_REF,
    "device": {"type": "string", "pattern": "^[A-Za-z0-9._-]{1,128}$"},
    "ticket": _SANDBOX_REF,
    "name": {"type": "string", "pattern": "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"},
}


class Raw(msgspec.Struct, frozen=True):
    """A body that is not one of our types."""

    media_types: tuple[str, ...]
    schema: dict[str, Any]


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One method of one path. `scope` empty: open to all. `fails`: which errors besides the common ones."""

    method: str
    path: str
    name: str
    what: str
    answer: Any = None
    status: int = 200
    scope: str = READ
    query: Any = None
    body: Any = None
    headers: tuple[str, ...] = ()
    fails: tuple[int, ...] = ()


_TAR = Raw(("application/x-tar",), {"type": "string", "format": "binary"})
_UPLOAD = Raw(("application/x-tar", "application/octet-stream"), _TAR.schema)
_TEXT = Raw(("text/plain",), {"type": "string"})
_LINES = Raw(("application/x-ndjson",), {"type": "string", "description": "one LogLine as JSON on each line"})
_SSE = Raw(("text/event-stream",), {"type": "string", "description": "events; data is an Event as JSON"})
_REQUEST = Raw(("application/json",), REQUEST_SCHEMA)
_QUESTION = Raw(("application/json",), EXPLAIN_SCHEMA)
_CLAIM_BODY = Raw(("application/json",), _CLAIM)
_S = "/api/v1/sandboxes"
_O = _S + "/{ref}"

OPERATIONS: tuple[Operation, ...] = (
    Operation(method="GET", path="/health", name="health", what="The process answers.", answer=wv.Health, scope=""),
    Operation(method="GET", path="/ready", name="ready", what="The ledger can be read, and no stop was asked for.",
              answer=wv.Health, scope="", fails=(503,)),
    Operation(method="GET", path="/version", name="version", what="Its version.", answer=wv.Version, scope=""),
    Operation(method="GET", path="/api/v1/version", name="apiVersion", what="Its version.", answer=wv.Version,
              scope=ANY),
    Operation(method="GET", path="/openapi.json", name="openapi", what="This document.",
              answer=Raw(("application/json",), {"type": "object"}), scope=""),
    Operation(method="GET", path="/metrics", name="metrics", what="Numbers for Prometheus.", answer=_TEXT, scope=ADMIN),
    Operation(method="POST", path=_S, name="createSandbox", status=202, scope=WRITE, body=_REQUEST, answer=ws.Sandbox,
              headers=("Idempotency-Key",), fails=(409,),
              what="Accept a sandbox: checked, decided and booked before the answer, made after it."),
    Operation(method="GET", path=_S, name="listSandboxes", what="Sandboxes, newest first.", answer=ws.SandboxPage,
              query=ListQuery),
    Operation(method="GET", path=_O, name="getSandbox", what="One sandbox.", answer=ws.Sandbox),
    Operation(method="PATCH", path=_O, name="changeSandbox", what="Change labels or the time to live.", scope=WRITE,
              body=ws.SandboxPatch, answer=ws.Sandbox, fails=(409,)),
    Operation(method="DELETE", path=_O, name="removeSandbox", scope=WRITE, query=GraceQuery, answer=ws.Sandbox,
              what="Stop it and remove its files; its devices are free with the answer.", fails=(409,)),
    Operation(method="POST", path=_O + "/stop", name="stopSandbox", what="Ask, then force. Its files stay.",
              scope=WRITE, query=GraceQuery, answer=ws.Sandbox, fails=(409,)),
    Operation(method="POST", path=_O + "/pause", name="pauseSandbox", what="Stop its processes where they are.",
              scope=WRITE, answer=ws.Sandbox, fails=(409,)),
    Operation(method="POST", path=_O + "/resume", name="resumeSandbox", what="Let it go on.", scope=WRITE,
              answer=ws.Sandbox, fails=(409,)),
    Operation(method="GET", path=_O + "/wait", name="waitForSandbox", query=WaitQuery, answer=ws.Sandbox,
              what="The sandbox when it has ended (or is ready), or when the time is over."),
    Operation(method="GET", path=_O + "/receipt", name="getReceipt", answer=Receipt,
              what="What was asked, planned, rendered and observed."),
    Operation(method="GET", path=_O + "/events", name="listSandboxEvents", what="What happened to it.",
              query=EventsQuery, answer=ws.Events),
    Operation(method="GET", path=_O + "/logs", name="getLogs", what="What its command has written.", query=LogsQuery,
              answer=_LINES, fails=(409,)),
    Operation(method="GET", path=_O + "/files", name="downloadFiles", what="A file or folder, as tar.",
              scope=WRITE, query=FilesQuery, answer=_TAR, fails=(409,)),
    Operation(method="PUT", path=_O + "/files", name="uploadFiles", what="Unpack a tar stream below a folder.",
              status=204, scope=WRITE, query=FilesQuery, body=_UPLOAD, fails=(409,)),
    Operation(method="POST", path=_O + "/exec", name="execCommand", what="Run one more command to its end.",
              scope=WRITE, body=ws.ExecRequest, answer=ws.ExecResult, fails=(409, 504)),
    Operation(method="GET", path="/api/v1/events", name="followEvents", what="What happens, as it happens.",
              query=FollowQuery, answer=_SSE, headers=("Last-Event-ID",)),
    Operation(method="GET", path="/api/v1/devices", name="listDevices", what="Devices, and who has them.",
              answer=wd.Devices),
    Operation(method="POST", path="/api/v1/devices/{device}/taints", name="taintDevice", scope=DEVICES,
              what="Keep a device from being given away.", body=wd.TaintRequest, answer=wd.Device, fails=(404,)),
    Operation(method="DELETE", path="/api/v1/devices/{device}/taints", name="untaintDevice", scope=DEVICES,
              what="Take taints off a device.", query=TaintQuery, answer=wd.TaintsGone, fails=(404,)),
    Operation(method="GET", path="/api/v1/leases", name="listLeases", what="What is held.", query=AllQuery,
              answer=wd.Leases),
    Operation(method="GET", path="/api/v1/queue", name="listQueue", what="Who waits.", answer=wd.Queue),
    Operation(method="DELETE", path="/api/v1/queue/{ticket}", name="removeTicket", scope=WRITE, answer=wd.Ticket,
              fails=(404, 409),
              what="Remove a ticket from the queue: its client is told, a queued sandbox is removed."),
    Operation(method="POST", path="/api/v1/explain", name="explain", body=_QUESTION, answer=Explanation,
              what="What would happen to a request, on each backend and to each device. Creates nothing."),
    Operation(method="GET", path="/api/v1/capabilities", name="capabilities", answer=wv.Capabilities,
              what="Which backends work here, and the delivery table."),
    Operation(method="GET", path="/api/v1/whoami", name="whoami", what="The caller.", answer=wv.WhoAmI,
              scope=ANY),
    Operation(method="POST", path="/api/v1/claims/check", name="checkClaim", what="Every mistake in a claim.",
              body=wv.ClaimRequest, answer=wv.ClaimCheck),
    Operation(method="POST", path="/api/v1/claims/solve", name="solveClaim", body=wv.ClaimRequest, answer=Explanation,
              what="What the allocator would give for a claim here, and why. Books nothing."),
    Operation(method="GET", path="/api/v1/claims", name="listClaims", what="The claims that are kept.",
              answer=wv.Claims),
    Operation(method="GET", path="/api/v1/claims/{name}", name="getClaim", what="One of them.", answer=_CLAIM_BODY),
    Operation(method="PUT", path="/api/v1/claims/{name}", name="keepClaim", what="Keep a claim under a name.",
              scope=DEVICES, body=_CLAIM_BODY, answer=_CLAIM_BODY),
    Operation(method="DELETE", path="/api/v1/claims/{name}", name="forgetClaim", what="Forget it.", scope=DEVICES,
              status=204),
)  # fmt: skip
_HEADERS: dict[str, dict[str, Any]] = {
    "Idempotency-Key": {"type": "string", "pattern": "^[A-Za-z0-9._:/-]{1,128}$"},
    "Last-Event-ID": {"type": "string", "pattern": "^[0-9]{1,15}$"},
}
_MEANINGS = {
    400: "the request is wrong: every problem is listed",
    401: "no token, or one that is not known, expired or revoked",
    403: "the token does not have the scope, or it is over the tenant's quota",
    404: "there is no such thing, or it is another tenant's",
    405: "the path does not take this method",
    408: "the body did not come in time",
    409: "it cannot be had now, or the thing is in a state that forbids it",
    413: "the body is too large",
    500: "a defect in dibs",
    503: "something that it needs cannot be reached; try again",
    504: "it took longer than asked",
}


@cache
def document() -> bytes:
    """The whole document, as JSON."""
    types = {one for op in OPERATIONS for one in (op.answer, op.body) if isinstance(one, type)}
    ours: list[Any] = sorted(types, key=lambda one: one.__name__)
    ours += [wv.ProblemDetails, ws.LogLine, ws.Event]
    schemas, components = msgspec.json.schema_components(
        ours, ref_template=_REF, schema_hook=lambda _: {"description": "any value"}
    )
    by_type = dict(zip(ours, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for op in OPERATIONS:
        paths.setdefault(op.path, {})[op.method.lower()] = _operation(op, by_type)
    whole = {
        "openapi": "3.1.0",
        "info": {
            "title": "dibs",
            "version": __version__,
            "summary": "Ask for accelerators once; get them, with a receipt, or be told exactly why not.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }
    return msgspec.json.encode(whole)


def _operation(op: Operation, by_type: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {"operationId": op.name, "summary": op.what}
    if not op.scope:
        made["security"] = []
    else:
        made["description"] = "Needs a token." if op.scope == ANY else f"Needs the scope `{op.scope}`."
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": schema}
        for name, schema in _NAMES.items()
        if f"{{{name}}}" in op.path
    ]
    parameters += _query(op.query) if op.query is not None else []
    parameters += [{"name": name, "in": "header", "schema": _HEADERS[name]} for name in op.headers]
    if parameters:
        made["parameters"] = parameters
    if op.body is not None:
        made["requestBody"] = {"required": True, "content": _content(op.body, by_type)}
    answer: dict[str, Any] = {"description": "done"}
    if op.answer is not None:
        answer["content"] = _content(op.answer, by_type)
    made["responses"] = {str(op.status): answer}
    problem = {PROBLEM: {"schema": by_type[wv.ProblemDetails]}}
    for status in sorted(_failures(op)):
        made["responses"][str(status)] = {"description": _MEANINGS[status], "content": problem}
    return made


def _failures(op: Operation) -> set[int]:
    found = {400, 405, 500, 503, *op.fails} if op.path != "/health" else {405}
    if op.scope:
        found |= {401, 403}
    if "{" in op.path:
        found |= {404}
    if op.body is not None:
        found |= {408, 413}
    return found


def _query(kind: type[msgspec.Struct]) -> list[dict[str, Any]]:
    schema = msgspec.json.schema(kind)
    shape = schema["$defs"][kind.__name__]
    needed = shape.get("required", ())
    found = []
    for name, value in shape["properties"].items():
        parameter = {"name": name, "in": "query", "schema": _no_null(value)}
        if name in needed:
            parameter["required"] = True
        found.append(parameter)
    return found


def _no_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A query parameter cannot be null; it is left out instead."""
    if schema.get("default", 0) is None:
        schema = {key: value for key, value in schema.items() if key != "default"}
    options = [one for one in schema.get("anyOf", ()) if one != {"type": "null"}]
    return {**{k: v for k, v in schema.items() if k != "anyOf"}, **options[0]} if len(options) == 1 else schema


def _content(kind: Any, by_type: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    if isinstance(kind, Raw):
        return {name: {"schema": kind.schema} for name in kind.media_types}
    return {"application/json": {"schema": by_type[kind]}}
