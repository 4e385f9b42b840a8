"""What the gateway says of itself: health, who the caller is, and what its backends can, from the delivery table."""

from __future__ import annotations

from typing import Any

from dibs._version import __version__
from dibs.gateway.openshell import schema
from dibs.gateway.openshell.calls import READ, Call, Method
from dibs.plan.delivery import Outcome, cell
from dibs.workloads.service import Workloads


async def health(call: Call, _: Any) -> Any:
    status = "UNHEALTHY" if call.gateway.stopping else "HEALTHY"
    return schema.message("HealthResponse")(status=schema.number(f"SERVICE_STATUS_{status}"), version=__version__)


async def current_user(call: Call, _: Any) -> Any:
    who = call.who
    answer = schema.message("GetCurrentUserResponse")(subject=who.name, display_name=who.name)
    answer.scopes.extend(sorted(who.scopes))
    answer.roles.append("admin" if who.sees_all else "user")
    answer.identity_provider = "dibs token" if who.token else "dibs"
    return answer


async def gateway_info(call: Call, _: Any) -> Any:
    def backends(workloads: Workloads) -> list[str]:
        return [backend.name for backend in workloads.registry.candidates("auto", workloads.identity.uid)]

    answer = schema.message("GetGatewayInfoResponse")(
        status=schema.number("SERVICE_STATUS_HEALTHY"), gateway_version=__version__
    )
    for name in await call.gateway.pool.call(backends):
        found = answer.compute_drivers.add(name=name)
        found.capabilities.driver_name, found.capabilities.driver_version = name, __version__
        can = found.capabilities.resource_capabilities
        can.cpu.limit_supported = _delivers("cpu", name)
        can.memory.limit_supported = _delivers("memory", name)
        can.gpu.default_selection_supported = can.gpu.count_selection_supported = _delivers("gpu.count", name)
    return answer


def _delivers(field: str, backend: str) -> bool:
    return cell(field, backend).outcome is not Outcome.REFUSED


METHODS = (
    Method("Health", "HealthRequest", "HealthResponse", health, ""),
    Method("GetCurrentUser", "GetCurrentUserRequest", "GetCurrentUserResponse", current_user, READ),
    Method("GetGatewayInfo", "GetGatewayInfoRequest", "GetGatewayInfoResponse", gateway_info, READ),
)
