"""What OpenSandbox has and dibs has not: templates, pools, network policies, the egress sidecar. 501, and why.

The clients ask for the endpoint of port 18080 whenever they make a sandbox, and talk to the sidecar there only when
somebody uses its policy. Its paths are answered here, so that this is a clear refusal and not a broken connection.
"""

from __future__ import annotations

from typing import Any

from litestar import HttpMethod, Request, Response, route

from dibs.gateway.auth import require
from dibs.gateway.opensandbox.answers import not_offered, refused

Asked = Request[Any, Any, Any]
_ALL = [HttpMethod.GET, HttpMethod.POST, HttpMethod.PUT, HttpMethod.PATCH, HttpMethod.DELETE]
_EGRESS = "/sandboxes/{sandbox_id:str}/proxy/18080"


@route(["/templates", "/templates/{template_id:str}"], http_method=_ALL)
async def templates(request: Asked) -> Response[bytes]:
    require(request, "sandboxes:read")
    reason = "there are no templates here"
    return refused(request, not_offered("TEMPLATES_NOT_OFFERED", reason, "make a sandbox from an image"))


@route(["/pools", "/pools/{pool_name:str}"], http_method=_ALL)
async def pools(request: Asked) -> Response[bytes]:
    require(request, "sandboxes:read")
    reason = "there are no pools here: a sandbox is made in a moment"
    return refused(request, not_offered("POOLS_NOT_OFFERED", reason, "make a sandbox when it is needed"))


@route("/sandboxes/{sandbox_id:str}/networkpolicy", http_method=_ALL)
async def network_policy(request: Asked, sandbox_id: str) -> Response[bytes]:
    require(request, "sandboxes:read")
    return refused(request, _network(sandbox_id))


@route([f"{_EGRESS}/policy", f"{_EGRESS}/credential-vault", f"{_EGRESS}/credential-vault/{{rest:path}}"],
       http_method=_ALL)  # fmt: skip
async def egress(request: Asked, sandbox_id: str) -> Response[bytes]:
    require(request, "sandboxes:read")
    return refused(request, _network(sandbox_id))


def _network(_sandbox_id: str) -> Any:
    reason = "dibs filters no network and keeps no credentials for one"
    remedy = "a sandbox has the host's network, or none at all: networkPolicy with defaultAction deny and no rules"
    return not_offered("NETWORK_POLICY_NOT_OFFERED", reason, remedy)


HANDLERS = [templates, pools, network_policy, egress]
