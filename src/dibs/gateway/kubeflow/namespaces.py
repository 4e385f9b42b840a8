"""Namespaces are tenants. The host's own tenant, which has no name, is the namespace `default`.

A caller sees its own namespace; an administrator sees all of them. What is asked of another one is refused in the same
words whether it exists or not.
"""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Response, get

from dibs.errors import InvalidRequest
from dibs.gateway.auth import require
from dibs.gateway.kubeflow import requests, selectors
from dibs.gateway.kubeflow.resources import NAMESPACES
from dibs.gateway.native.common import Ask, gateway_of
from dibs.gateway.problems import Refused
from dibs.ledger.tokens import Tokens
from dibs.settings import NAME
from dibs.workloads.identity import HOST, Identity
from dibs.workloads.service import Workloads

Json = dict[str, Any]

READ, WRITE, ADMIN = "sandboxes:read", "sandboxes:write", "admin"
DEFAULT = "default"


def namespace_of(tenant: str) -> str:
    return DEFAULT if tenant == HOST else tenant


def tenant_named(namespace: str) -> str:
    return HOST if namespace == DEFAULT else namespace


def home_of(who: Identity) -> str:
    """The namespace that a caller's kubeconfig names."""
    return namespace_of(who.tenant)


def tenant_in(request: Ask, who: Identity) -> str:
    """The tenant of the namespace in the path; Refused (403) if it is not the caller's."""
    name = str(request.path_params["namespace"])
    tenant = tenant_named(name)
    if not who.sees(tenant) or (who.tenant == DEFAULT and not who.sees_all):
        own = home_of(who)
        if who.tenant == DEFAULT:
            remedy = 'a tenant called "default" has no namespace: that is the host\'s own; give it another name'
        else:
            remedy = f"your namespace is {own}; an administrator may use any"
        raise Refused(
            403, code="NAMESPACE_FORBIDDEN", reason="the token is not for this namespace", field="namespace",
            value=name[:63], remedy=remedy,
        )  # fmt: skip
    if NAME.fullmatch(name) is None:
        remedy = "up to 63 lower-case letters, digits and -"
        reason = "this cannot be the name of a namespace"
        raise InvalidRequest(reason, field="namespace", value=name[:63], code="NAME_INVALID", remedy=remedy)
    return tenant


def acting_in(who: Identity, tenant: str) -> Identity:
    """The caller as one of a tenant. On this API no folder of the host is shared with anyone."""
    return msgspec.structs.replace(who, tenant=tenant, sees_all=False, remote=True)


def tenants_of(who: Identity, workloads: Workloads) -> list[str]:
    """The tenants that a caller sees: from settings and tokens."""
    if not who.sees_all:
        return [who.tenant]
    found = {HOST, *workloads.registry.settings.tenants}
    found |= {token.tenant for token in Tokens(workloads.ledger).list() if token.revoked_at is None}
    return sorted(found - {DEFAULT})


def _view(tenant: str) -> Json:
    name = namespace_of(tenant)
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": name, "uid": name, "labels": {"kubernetes.io/metadata.name": name}},
        "spec": {},
        "status": {"phase": "Active"},
    }


@get(NAMESPACES.everywhere)
async def list_namespaces(request: Ask) -> Response[bytes]:
    who = require(request, READ)
    asked = requests.query(request, requests.ListQuery)
    selectors.check_list(asked, watchable=False)
    gateway = gateway_of(request)
    tenants = await gateway.pool.call(lambda workloads: tenants_of(who, workloads))
    items = [one for one in map(_view, tenants) if selectors.matches(asked, one)]
    return requests.show_list(request, NAMESPACES, items, "1")


@get(NAMESPACES.everywhere + "/{namespace:str}")
async def get_namespace(request: Ask) -> Response[bytes]:
    who = require(request, READ)
    requests.query(request, requests.GetQuery)
    tenant = tenant_in(request, who)
    if tenant not in await gateway_of(request).pool.call(lambda workloads: tenants_of(who, workloads)):
        raise requests.missing(NAMESPACES, tenant)
    return requests.show(request, NAMESPACES, _view(tenant))


HANDLERS = (list_namespaces, get_namespace)
