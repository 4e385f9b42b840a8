"""Health, readiness, version, metrics: what a load balancer, an administrator and Prometheus ask."""

from __future__ import annotations

from typing import Any

from litestar import Request, Response, get

from dibs._version import __version__
from dibs.errors import BackendUnavailable
from dibs.gateway.auth import require
from dibs.gateway.state import Gateway
from dibs.workloads.service import Workloads

_HEALTHY = b'{"status":"healthy"}'
_METRICS = "text/plain; version=0.0.4; charset=utf-8"
JSON = "application/json"


def gateway_of(request: Request[Any, Any, Any]) -> Gateway:
    found: Gateway = request.app.state.gateway
    return found


@get("/health", sync_to_thread=False)
def health() -> Response[bytes]:
    """The process answers. Says nothing about the ledger."""
    return Response(_HEALTHY, media_type=JSON)


@get("/ready")
async def ready(request: Request[Any, Any, Any]) -> Response[bytes]:
    """The ledger can be read, and no stop was asked for."""
    gateway = gateway_of(request)
    if gateway.stopping:
        raise BackendUnavailable("the gateway is stopping", field="gateway", code="STOPPING", remedy="try another one")

    def look(workloads: Workloads) -> None:
        workloads.ledger.tickets()

    await gateway.pool.call(look)
    return Response(b'{"status":"ready"}', media_type=JSON)


@get(["/version", "/api/v1/version"], sync_to_thread=False)
def version() -> dict[str, str]:
    return {"name": "dibs", "version": __version__, "api": "v1"}


@get("/metrics")
async def metrics(request: Request[Any, Any, Any]) -> Response[bytes]:
    require(request, "admin")
    gateway = gateway_of(request)
    return Response(await gateway.pool.call(gateway.metrics.page), media_type=_METRICS)


@get("/openapi.json", sync_to_thread=False)
def openapi() -> Response[bytes]:
    from dibs.gateway.openapi import document  # it reads the handlers, so they cannot read it

    return Response(document(), media_type=JSON)


HANDLERS = (health, ready, version, metrics, openapi)
