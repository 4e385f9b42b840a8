"""The routes of the agentless execd, below `/v1/sandboxes/{id}/proxy/44772` and the same without `/v1`.

`app` mounts `route_handlers()`. One Litestar handler takes all that comes for a port of a sandbox; which of execd's
calls it is, is decided here, so that also an unknown path is answered in execd's own form, `{code, message}`. Port
18080 (egress) is answered with 501, every other port is a port of the sandbox (`proxy`). Who calls is known from the
edge: the sandbox's own secret or a token of its owner; the service refuses all others with every call.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qsl, quote, unquote
from weakref import WeakKeyDictionary

from litestar import Request, WebSocket, route
from litestar.handlers import HTTPRouteHandler, WebsocketRouteHandler, websocket
from litestar.types import ASGIApp

from dibs.errors import DibsError, InvalidRequest, NotFound
from dibs.gateway import proxy
from dibs.gateway.auth import require
from dibs.gateway.execd import answers, transfer
from dibs.gateway.execd.command_registry import CommandBook
from dibs.gateway.execd.commands import LARGEST_ID, CommandRequest, Commands, status_data
from dibs.gateway.execd.files import Files, Found, Permission, Rename, Replacement, decode, refusal
from dibs.gateway.execd.pty import PtyRequest, Terminals
from dibs.gateway.execd.script_runner import Inside, ScriptFailed
from dibs.gateway.execd.shells import RunRequest, SessionRequest, Shells
from dibs.gateway.execd.usage import Measures
from dibs.gateway.middleware import too_large
from dibs.gateway.problems import Refused, body_of
from dibs.gateway.state import Gateway

EXECD, EGRESS = 44772, 18080
_PATH = re.compile(rb"((?:/v1)?/sandboxes/[^/]+/proxy/([^/?]+))(/[^?]*)?(?:\?.*)?", re.DOTALL)
_ID = re.compile(r"sb-[0-9a-f]{12}")
_IDENTITY = re.compile(r"/v1/filesystem/(\d{1,10})/(\d{1,10})(/.*)")
UNREADABLE = b"dibs-unreadable"  # the header that tells of folders that could not be read
_METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"]


class Execd:
    """What the calls of one gateway share."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.commands = Commands(CommandBook(gateway.pool), lambda: gateway.stopping)
        self.shells = Shells(self.commands)
        self.measures = Measures(lambda: gateway.stopping)
        self.terminals = Terminals()

    async def close(self) -> None:
        """The gateway stops: what runs for its clients ends, on every backend. What lives in the sandbox stays."""
        await self.terminals.close()
        await self.commands.close()


_execds: WeakKeyDictionary[Gateway, Execd] = WeakKeyDictionary()


def execd_of(gateway: Gateway) -> Execd:
    if gateway not in _execds:
        _execds[gateway] = Execd(gateway)
    return _execds[gateway]


class Call:
    """One request to execd: what was asked, and where it is done."""

    def __init__(self, execd: Execd, request: Request[Any, Any, Any], inside: Inside) -> None:
        self.execd = execd
        self.request = request
        self.inside = inside
        query = request.scope.get("query_string", b"").decode("latin-1")
        # Names of files need not be UTF-8: what is not stays as it came, up to the sandbox.
        self.query = parse_qsl(query, keep_blank_values=True, encoding="utf-8", errors="surrogateescape")

    def one(self, name: str, default: str | None = None) -> str:
        for key, value in self.query:
            if key == name:
                return value
        if default is None:
            raise InvalidRequest("it is missing", field=name, code="MISSING_QUERY", remedy=f"add ?{name}=")
        return default

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.query if key == name]

    def number(self, name: str, default: int) -> int:
        text = self.one(name, "") or str(default)
        if not text.isdecimal() or not text.isascii() or len(text) > 18:
            raise InvalidRequest("it must be a whole number", field=name, value=text, code="INVALID_REQUEST_BODY")
        return int(text)

    async def text(self) -> bytes:
        """The body of a call that is no upload, up to max_body: the edge lets more of it through for other ports."""
        limit = self.execd.gateway.settings.gateway.max_body
        box = bytearray()
        async for piece in self.request.stream():
            box += piece
            if len(box) > limit:
                raise too_large(limit)
        return bytes(box)

    async def body(self, kind: Any) -> Any:
        return decode(await self.text(), kind)

    @property
    def files(self) -> Files:
        return Files(self.inside)


Handler = Callable[..., Awaitable[Any]]
_routes: list[tuple[str, re.Pattern[str], Handler]] = []


def on(method: str, path: str) -> Callable[[Handler], Handler]:
    pattern = re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", path))

    def keep(handler: Handler) -> Handler:
        _routes.append((method, pattern, handler))
        return handler

    return keep


# -- commands


@on("GET", "/ping")
async def ping(call: Call) -> Any:
    await call.inside.check()
    return answers.json({"status": "ok"})


@on("POST", "/command")
async def run(call: Call) -> Any:
    wanted: CommandRequest = await call.body(CommandRequest)
    if not wanted.background:
        return await call.execd.commands.run(call.inside, wanted)
    events = await call.execd.commands.detach(call.inside, wanted)
    return answers.Whole(200, events, "text/event-stream; charset=utf-8", [(b"cache-control", b"no-cache")])


@on("DELETE", "/command")
async def interrupt(call: Call) -> Any:
    await call.execd.commands.interrupt(call.inside, call.one("id"))
    return answers.done()


@on("GET", "/command/status/{command}")
async def status(call: Call, command: str) -> Any:
    return answers.json(status_data(await call.execd.commands.status(call.inside, command)))


@on("GET", "/command/{command}/logs")
async def logs(call: Call, command: str) -> Any:
    data, cursor = await call.execd.commands.logs(call.inside, command, call.number("cursor", 0))
    text = data.decode("utf-8", "replace").encode()
    header = (b"execd-commands-tail-cursor", str(cursor).encode())
    return answers.Whole(200, text, "text/plain; charset=utf-8", [header])


# -- shells that stay


@on("POST", "/session")
async def make_session(call: Call) -> Any:
    body = await call.text()
    wanted = decode(body, SessionRequest) if body.strip() else SessionRequest()
    return answers.json({"session_id": await call.execd.shells.make(call.inside, wanted)})


@on("POST", "/session/{session}/run")
async def run_in_session(call: Call, session: str) -> Any:
    return await call.execd.shells.run(call.inside, session, await call.body(RunRequest))


@on("DELETE", "/session/{session}")
async def end_session(call: Call, session: str) -> Any:
    await call.execd.shells.end(call.inside, session)
    return answers.done()


# -- files


@on("GET", "/files/info")
async def info(call: Call) -> Any:
    return answers.json(await call.files.info(call.all("path")))


@on("GET", "/files/search")
async def search(call: Call) -> Any:
    return _found(await call.files.search(call.one("path"), call.one("pattern", "**")))


@on("GET", "/directories/list")
async def listing(call: Call) -> Any:
    return _found(await call.files.listing(call.one("path"), call.number("depth", 1)))


def _found(found: Found) -> answers.Whole:
    """The list; in a header how many places below could not be read, and the first of them, percent-encoded."""
    if not found.unreadable:
        return answers.json(found)
    first = "; ".join(quote(said, safe=" /:'") for said in found.unreadable[:5])
    return answers.json(found, headers=[(UNREADABLE, f"{len(found.unreadable)}; {first}"[:2000].encode())])


@on("POST", "/directories")
async def make_folders(call: Call) -> Any:
    await call.files.make_folders(await call.body(dict[str, Permission]))
    return answers.done()


@on("POST", "/files/permissions")
async def set_permissions(call: Call) -> Any:
    await call.files.set_permissions(await call.body(dict[str, Permission]))
    return answers.done()


@on("DELETE", "/files")
async def remove(call: Call) -> Any:
    await call.files.remove(call.all("path"))
    return answers.done()


@on("DELETE", "/directories")
async def remove_folders(call: Call) -> Any:
    await call.files.remove(call.all("path"), folders=True)
    return answers.done()


@on("POST", "/files/mv")
async def move(call: Call) -> Any:
    await call.files.move(await call.body(list[Rename]))
    return answers.done()


@on("POST", "/files/replace")
async def replace(call: Call) -> Any:
    wanted: dict[str, Replacement] = await call.body(dict[str, Replacement])
    counts = {path: {"replacedCount": await transfer.replace(call.inside, path, one)} for path, one in wanted.items()}
    return answers.json(counts) if call.one("verbose", "").lower() in ("true", "1") else answers.done()


@on("POST", "/files/upload")
async def upload(call: Call) -> Any:
    await transfer.upload(call.inside, call.request.headers.get("content-type", ""), call.request.stream())
    return answers.done()


@on("GET", "/files/download")
async def download(call: Call) -> Any:
    return await transfer.download(
        call.inside,
        call.one("path"),
        byte_range=call.request.headers.get("range", ""),
        offset=call.one("offset", ""),
        limit=call.one("limit", ""),
    )


# -- what it uses


@on("GET", "/metrics")
async def metrics(call: Call) -> Any:
    return answers.json(await call.execd.measures.measure(call.inside))


@on("GET", "/metrics/watch")
async def watch_metrics(call: Call) -> Any:
    return await call.execd.measures.watch(call.inside)


# -- terminals


@on("POST", "/pty")
async def make_terminal(call: Call) -> Any:
    body = await call.text()
    wanted = decode(body, PtyRequest) if body.strip() else PtyRequest()
    await call.inside.check()
    return answers.json({"session_id": call.execd.terminals.make(call.inside, wanted)}, 201)


@on("GET", "/pty/{terminal}")
async def terminal_status(call: Call, terminal: str) -> Any:
    await call.inside.check()
    found = call.execd.terminals.find(call.inside.sandbox_id, terminal)
    return answers.json({"session_id": found.id, "running": found.running, "output_offset": found.ring.end})


@on("DELETE", "/pty/{terminal}")
async def end_terminal(call: Call, terminal: str) -> Any:
    await call.inside.check()
    await call.execd.terminals.end(call.inside.sandbox_id, terminal)
    return answers.done()


# -- what is not there


@on("GET", "/v1/isolated/capabilities")
async def isolated(_: Call) -> Any:
    return answers.json({"available": False, "message": "sandboxes within the sandbox are not served here"})


def not_there(path: str) -> answers.Whole:
    first = path.split("/")[1] if path.count("/") else ""
    if path.startswith("/v1/isolated"):
        text = "sandboxes within the sandbox are not served here; make another sandbox"
        return answers.error(501, "NOT_SUPPORTED", text)
    if first == "code":
        text = "code contexts are not served here; run the interpreter with a command"
        return answers.error(501, "NOT_SUPPORTED", text)
    return answers.error(404, "NOT_SUPPORTED", f'path "{path[:80]}": execd has no such call')


# -- the way in


def _split(scope: Any) -> tuple[str, str, bytes]:
    """Prefix, port and rest of a path. The rest is as it came, with its escapes."""
    raw = scope.get("raw_path") or scope["path"].encode("latin-1", "replace")
    match = _PATH.fullmatch(raw)
    if match is None:
        raise NotFound("there is no such path", field="path", code="PATH_UNKNOWN")
    return match[1].decode("latin-1"), unquote(match[2].decode("latin-1")), match[3] or b"/"


async def _inside(connection: Any, gateway: Gateway, sandbox_id: str, scope: str) -> Inside:
    identity = require(connection, scope)
    if _ID.fullmatch(sandbox_id) is None:  # a name: what is kept of it is kept under its id
        sandbox_id = await gateway.pool.call(lambda workloads: workloads.seen_by(identity).sandbox(sandbox_id).id)
    return Inside(gateway.pool, identity, sandbox_id)


@route(
    [
        f"{prefix}/sandboxes/{{sandbox_id:str}}/proxy/{{port:str}}{rest}"
        for prefix in ("", "/v1")
        for rest in ("", "/{rest:path}")
    ],
    http_method=_METHODS,  # type: ignore[arg-type]
    include_in_schema=False,
    name="sandbox-port",
)
async def on_request(request: Request[Any, Any, Any]) -> ASGIApp:
    """All of HTTP for a port of a sandbox."""
    sandbox_id = str(request.path_params["sandbox_id"])
    gateway: Gateway = request.app.state.gateway
    prefix, port_text, rest = _split(request.scope)
    port = proxy.port_of(port_text)
    path = unquote(rest.decode("latin-1"), errors="replace")  # no name of ours is anything but ASCII
    if port not in (EXECD, EGRESS):
        query = request.scope.get("query_string", b"")
        target = rest + (b"?" + query if query else b"")
        inside = await _inside(request, gateway, sandbox_id, "sandboxes:write")
        await inside.check()
        return proxy.Proxied(inside, port, target, prefix)
    reading = request.method == "GET" and path in ("/ping", "/metrics", "/metrics/watch")
    inside = await _inside(request, gateway, sandbox_id, "sandboxes:read" if reading else "sandboxes:write")
    if port == EGRESS:
        await inside.check()
        text = "network policies are not enforced here: no egress proxy is set up"
        return answers.error(501, "NOT_SUPPORTED", text)
    if match := _IDENTITY.fullmatch(path):
        uid, gid, path = match[1], match[2], match[3]
        if max(int(uid), int(gid)) > LARGEST_ID or not path.startswith(("/files", "/directories")):
            return not_there(path)
        inside = inside.as_user(f"{uid}:{gid}")
    return await _dispatch(Call(execd_of(gateway), request, inside), path)


async def _dispatch(call: Call, path: str) -> ASGIApp:
    methods = []
    for method, pattern, handler in _routes:
        match = pattern.fullmatch(path)
        if match is not None and method == call.request.method:
            try:
                found: ASGIApp = await handler(call, **match.groupdict())
            except ScriptFailed as error:
                raise refusal(error, []) from error
            return found
        if match is not None:
            methods.append(method)
    await call.inside.check()  # a caller that may not see the sandbox learns nothing else
    if methods:
        allow = (b"allow", ", ".join(methods).encode())
        return answers.error(405, "METHOD_NOT_ALLOWED", f"the path takes {', '.join(methods)}", [allow])
    return not_there(path)


@websocket(
    [
        f"{prefix}/sandboxes/{{sandbox_id:str}}/proxy/{{port:str}}{rest}"
        for prefix in ("", "/v1")
        for rest in ("", "/{rest:path}")
    ],
    name="sandbox-port-websocket",
)
async def on_websocket(socket: WebSocket[Any, Any, Any]) -> None:
    """All WebSockets for a port of a sandbox."""
    sandbox_id = str(socket.path_params["sandbox_id"])
    gateway: Gateway = socket.app.state.gateway
    try:
        prefix, port_text, rest = _split(socket.scope)
        port = proxy.port_of(port_text)
        inside = await _inside(socket, gateway, sandbox_id, "sandboxes:write")
        await inside.check()
        if port in (EXECD, EGRESS):
            await _terminal(execd_of(gateway), socket, inside, unquote(rest.decode("latin-1")))
        else:
            query = socket.scope.get("query_string", b"")
            await proxy.proxy_websocket(inside, port, socket, rest + (b"?" + query if query else b""), prefix)
    except DibsError as error:
        await _deny(socket, error)


async def _terminal(execd: Execd, socket: WebSocket[Any, Any, Any], inside: Inside, path: str) -> None:
    match = re.fullmatch(r"/pty/([^/]+)/ws", path)
    if match is None:
        raise Refused(404, "NOT_SUPPORTED", "execd has no such WebSocket", field="path", value=path[:80])
    terminal = execd.terminals.find(inside.sandbox_id, match[1])
    since = socket.query_params.get("since", "0")
    offset = int(since) if since.isdecimal() and since.isascii() and len(since) < 19 else 0
    await terminal.serve(socket, since=offset, takeover=socket.query_params.get("takeover") == "1")


async def _deny(socket: WebSocket[Any, Any, Any], error: DibsError) -> None:
    """Refuse before the connection is accepted: with a whole answer, where the server can."""
    scope: Any = socket.scope
    if socket.connection_state not in {"init", "connect"}:
        await socket.close(1011, error.code)
        return
    status, media_type, body, headers = body_of(error, scope["path"], "")
    send: Any = socket.send
    if "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": 1008, "reason": error.code})
        return
    extra = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    start = {"type": "websocket.http.response.start", "status": status}
    await send({**start, "headers": [(b"content-type", media_type.encode()), *extra]})
    await send({"type": "websocket.http.response.body", "body": body, "more_body": False})


def route_handlers() -> list[HTTPRouteHandler | WebsocketRouteHandler]:
    return [on_request, on_websocket]
