"""What OpenSandbox has and dibs has not: templates, pools, network policies of a running sandbox. 501, and why.

The egress sidecar, which the clients look for at port 18080 of a sandbox, is refused by `execd`.
"""

from __future__ import annotations

from typing import Any

from litestar import HttpMethod, Request, Response, route

from dibs.gateway.auth import require
from dibs.gateway.opensandbox.answers import not_offered, part, refused

Asked = Request[Any, Any, Any]
_ALL = [HttpMethod.GET, HttpMethod.POST, HttpMethod.PUT, HttpMethod.PATCH, HttpMethod.DELETE]


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
async def network_policy(request: Asked) -> Response[bytes]:
    sandbox_id = part(request, "sandbox_id")
    require(request, "sandboxes:read")
    del sandbox_id  # the same for each of them, also for those that are not there
    reason = "dibs filters no network"
    remedy = "a sandbox has a private network, or none at all: networkPolicy with defaultAction deny and no rules"
    return refused(request, not_offered("NETWORK_POLICY_NOT_OFFERED", reason, remedy))


HANDLERS = [templates, pools, network_policy]
