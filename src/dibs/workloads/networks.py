"""The network of a sandbox that asked for none, and which caller may have which network.

`rendering` settles it, `admission` refuses what a gateway does not give, `explain` says both.
In a process of the host's own a sandbox shares the host's network unless it asks for another one: it is the user's own
program. Sandboxes of a gateway must reach neither each other nor the host's loopback, where the gateway may trust every
caller: their network is private, or none where that is not possible.
"""

from __future__ import annotations

from dibs.backends.port import Backend, Capability, GivesNetworks, Network, scheduler_of
from dibs.errors import Problem
from dibs.request.spec import SandboxSpec
from dibs.settings import GatewaySettings


def able(backend: Backend, network: Network) -> Capability:
    """Whether a backend can give a network, here and now."""
    if isinstance(backend, GivesNetworks):
        return backend.can_network(network)
    return Capability(ok=network == "host", reason=f"the {backend.name} backend gives the host's network only")


def settle(spec: SandboxSpec, backend: Backend, *, gateway: bool) -> tuple[Network, str]:
    """The network that it gets on a backend, and what there is to say about it."""
    if spec.network:
        return spec.network, ""
    if not gateway:
        return ("private" if scheduler_of(backend) is not None and not able(backend, "host").ok else "host"), ""
    private = able(backend, "private")
    if private.ok:
        return "private", ""
    return "none", f"it has no network: a private one cannot be had here ({private.reason}); {private.remedy}"


def not_given(spec: SandboxSpec, settings: GatewaySettings) -> list[Problem]:
    """What a gateway does not give without its administrator's word."""
    problems = []
    if spec.network == "host" and not settings.allow_host_network:
        reason = "this gateway gives no sandbox the host's network, where tenants would meet"
        remedy = "ask for private or none; the gateway's administrator can set gateway.allow_host_network"
        problems.append(Problem("NETWORK_NOT_ALLOWED", "network", "host", reason, remedy))
    if spec.publish and not settings.allow_publish:
        said = ", ".join(map(str, spec.publish))
        reason = "this gateway publishes no ports of its host"
        remedy = "reach the port through the gateway, at /proxy/PORT; its administrator can set gateway.allow_publish"
        problems.append(Problem("PUBLISH_NOT_ALLOWED", "publish", said, reason, remedy))
    return problems
