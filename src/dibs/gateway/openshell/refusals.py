"""Methods that OpenShell has and dibs has not: UNIMPLEMENTED, with what to use instead."""

from __future__ import annotations

from dibs.gateway.problems import Refused

_INSTEAD = (
    ("Ssh", "dibs puts no SSH server into a sandbox", "use ExecSandboxInteractive for a terminal"),
    ("ForwardTcp", "dibs forwards no raw TCP over gRPC", "use ExposeService, which gives a URL"),
    ("Provider", "dibs hands out no credentials of providers", "pass what a sandbox needs in spec.environment"),
    ("Inference", "dibs routes no inference", "give the sandbox the address and key of a model in spec.environment"),
    ("Polic", "dibs enforces no OpenShell policies", "the annotation dibs.network: none or private limits the network"),
    ("Draft", "dibs enforces no OpenShell policies", "the annotation dibs.network: none or private limits the network"),
    ("WorkspaceMember", "who is in a workspace is said by tokens", "dibs token create NAME --tenant WORKSPACE"),
    ("RootfsTar", "images are not uploaded over this API", "name one that an engine can pull, or see [images]"),
    ("Config", "settings are not changed over this API", "see config.toml, and `dibs serve --check`"),
    ("SandboxToken", "a sandbox has no identity of its own here", "use a token: dibs token create"),
)
_INSIDE = ("no supervisor runs in a sandbox, so none reports here", "nothing needs to be done")


def not_offered(method: str) -> Refused:
    """The answer to a method that is not served."""
    for part, reason, remedy in _INSTEAD:
        if part in method and not method.startswith(("Report", "Push", "Peer", "Connect", "Relay")):
            return Refused(501, "METHOD_NOT_OFFERED", reason, field="method", value=method[:80], remedy=remedy)
    inside = ("Report", "Push", "Peer", "Connect", "Relay", "Finalize", "Exchange")
    reason, remedy = _INSIDE if method.startswith(inside) else ("there is no such method here", "see docs/openshell.md")
    return Refused(501, "METHOD_NOT_OFFERED", reason, field="method", value=method[:80], remedy=remedy)
