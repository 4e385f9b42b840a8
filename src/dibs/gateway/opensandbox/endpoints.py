"""Where a port of a sandbox is reached: at this gateway, with the sandbox's own token. The same in both of the clients'
modes, and for every port.

The clients poll here until a sandbox is there. They go on asking after one error only (404 with `NOT_YET`), and show
its message when their patience ends; so that is where a sandbox that waits says what for. Any other error is final to
them: that is how a sandbox that cannot be delivered says why.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any
from urllib.parse import urlsplit

from litestar import Request

from dibs.errors import InvalidRequest
from dibs.gateway.opensandbox import states, types
from dibs.gateway.opensandbox.rows import Found, look
from dibs.gateway.problems import Refused
from dibs.gateway.state import Gateway
from dibs.sandbox import Sandbox
from dibs.workloads.identity import Identity

NOT_YET = "KUBERNETES::POD_IP_NOT_AVAILABLE"
_WHILE_CREATING = 5.0  # seconds that an answer is held back: most sandboxes are there in a tenth of one
_FOR_IMPATIENT = 25.0  # and for clients that ask once only; they wait 30 seconds for an answer
_IMPATIENT = ("OpenSandbox-JS-SDK/",)
_HOST = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252})|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?", re.ASCII)
_CODE = re.compile(r"([A-Z][A-Z0-9_]{2,63}): (.+)", re.ASCII | re.DOTALL)


def authority(request: Request[Any, Any, Any], public_url: str) -> str:
    """How the client has reached us: host, port, and what a proxy before us has put in front of the path."""
    if public_url:
        parts = urlsplit(public_url)
        return parts.netloc + parts.path.rstrip("/")
    said = request.headers.get("host", "")
    if _HOST.fullmatch(said):
        return said
    server = request.scope.get("server")
    if server and server[1] is not None:
        host = f"[{server[0]}]" if ":" in str(server[0]) else server[0]
        return f"{host}:{server[1]}"
    return "localhost"


def port_of(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,5}", text, re.ASCII) or not 1 <= int(text) <= 65535:
        raise InvalidRequest("must be a number from 1 to 65535", field="port", value=text, code="PORT_INVALID")
    return int(text)


def check_query(request: Request[Any, Any, Any]) -> None:
    for name, value in request.query_params.multi_items():
        if name == "expires":
            raise Refused(
                501, "SIGNED_ENDPOINT_NOT_OFFERED", "dibs signs no addresses", field=name, value=str(value),
                remedy="leave expires out; the token in the endpoint's headers opens this one sandbox",
            )  # fmt: skip
        if name != "use_server_proxy" or str(value).lower() not in ("true", "false", "0", "1"):
            reason = "there is no such parameter" if name != "use_server_proxy" else "must be true or false"
            raise InvalidRequest(reason, field=name, value=str(value), code="PARAMETER_INVALID")


async def endpoint(
    request: Request[Any, Any, Any], gateway: Gateway, identity: Identity, sandbox_id: str, port: int
) -> types.Endpoint:
    """The address, when the sandbox is there; else Refused with the reason."""
    found = await _when_there(request, gateway, identity, sandbox_id)
    row = found.row
    if coming(row):
        raise Refused(404, NOT_YET, found.message or "is being started", field="sandbox", value=row.id)
    if not row.live or row.state == "stopping":
        raise ended(found)
    where = authority(request, gateway.settings.gateway.public_url)
    return types.Endpoint(
        endpoint=f"{where}/v1/sandboxes/{row.id}/proxy/{port}",
        headers={"OpenSandbox-Secure-Access": gateway.auth.sandbox_token(row.id, identity.token)},
    )


async def _when_there(request: Request[Any, Any, Any], gateway: Gateway, identity: Identity, sandbox_id: str) -> Found:
    """A look at the sandbox; a later one if it is about to be there."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    impatient = request.headers.get("user-agent", "").startswith(_IMPATIENT)
    pause = 0.01
    while True:
        found = await gateway.pool.call(look, identity, sandbox_id)
        # A client whose patience ends while an answer is held back loses what it was told before.
        waits = found.row.state == "queued" or bool(found.row.waits_for)
        hold = _FOR_IMPATIENT if impatient else 0.0 if waits else _WHILE_CREATING
        if not coming(found.row) or loop.time() - began >= hold or gateway.stopping:
            return found
        await asyncio.sleep(pause)
        pause = min(pause * 1.5, 0.2)


def coming(row: Sandbox) -> bool:
    """Not there yet. What is attached takes commands only when its own command has been let go."""
    return row.state in ("queued", "creating") or (row.state == "running" and not row.ready)


def ended(found: Found) -> Refused:
    """A final answer: what became of a sandbox that was never there, or is no more."""
    row = found.row
    if row.state == "failed":
        reason = states.ended_how(row)
        match = _CODE.fullmatch(reason)
        code, text = match.groups() if match else ("SANDBOX_FAILED", reason)
        return Refused(500, code, text, field="sandbox", value=row.id)
    how = "it is being removed" if row.state == "stopping" else states.ended_how(row)
    return Refused(404, "SANDBOX_ENDED", how, field="sandbox", value=row.id, remedy="make a new one")
