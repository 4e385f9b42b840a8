"""Which service this process uses: a gateway that was named, the host's own, or none, and then it does it all itself.

The command line and the SDK ask `open_service` in place of making a `Workloads`. In this order:

    --gateway URL            this command only
    DIBS_URL                 unix:///path, http://host:port or https://host; `none`: no gateway
    dibs context use NAME    from contexts.toml in the configuration folder
    /run/dibs/dibs.sock      the host service, if there is one and DIBS_HOME does not name a home of one's own
    in process

Imports nothing but `os` before it has decided: most machines have no gateway, and must not pay for the question.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # loading typing for it would cost more than the decision
if TYPE_CHECKING:
    from dibs.home import Home
    from dibs.remote.target import Target
    from dibs.workloads.service import Workloads

HOST_SOCKET = "/run/dibs/dibs.sock"
NOWHERE = "none"  # says: no gateway, whatever else is set

_named: list[str] = []  # what --gateway said, for this process


def name_gateway(address: str) -> None:
    """`--gateway`: for the rest of this process."""
    _named[:] = [address]


def host_socket() -> str:
    """Where the host service listens. DIBS_HOST_ROOT puts a whole host service below another folder, for tests."""
    return os.environ.get("DIBS_HOST_ROOT", "") + HOST_SOCKET


def contexts_path() -> str:
    """The file of this user's contexts."""
    env = os.environ
    if env.get("DIBS_HOME"):
        return os.path.join(os.path.expanduser(env["DIBS_HOME"]), "config", "contexts.toml")
    base = env.get("XDG_CONFIG_HOME") or os.path.join(env.get("HOME") or os.path.expanduser("~"), ".config")
    return os.path.join(base, "dibs", "contexts.toml")


def in_process() -> bool:
    """Whether it is plain that no gateway is used. Costs two looks at the environment and two at the file system."""
    address = _named[0] if _named else os.environ.get("DIBS_URL")
    if address:
        return address == NOWHERE
    if os.path.exists(contexts_path()):
        return False
    return bool(os.environ.get("DIBS_HOME")) or not os.path.exists(host_socket())


def target() -> Target | None:
    """The gateway to use; None: no gateway. Raises where one is named that cannot be meant."""
    if in_process():
        return None
    from dibs.remote.target import find

    return find(_named[0] if _named else "")


def open_service(home: Home | None = None) -> Workloads:
    """The service: of a gateway, or of this process. A home that is given is used here and now, without a gateway.

    What comes from a gateway is a `RemoteWorkloads`, which has the same methods and answers; a test holds it to that.
    """
    if home is None:
        found = target()
        if found is not None:
            from dibs.remote.workloads import RemoteWorkloads

            return RemoteWorkloads(found)  # type: ignore[return-value]
    from dibs.workloads.service import Workloads

    return Workloads(home)


def host_service() -> bool:
    """Whether the gateway in use is this machine's host service."""
    if in_process():
        return False
    found = target()
    return found is not None and found.address == f"unix://{host_socket()}"


def refuse_remotely(what: str, instead: str = "run it where the gateway runs") -> None:
    """For verbs that are about this machine and its own ledger: a gateway that is in use is not this machine."""
    found = target()
    if found is None:
        return
    from dibs.errors import Unsupported

    # Beside the host service a ledger of one's own would give away devices that others hold: it is not offered.
    alone = "" if host_service() else "; for this machine alone: dibs --gateway none …"
    raise Unsupported(
        f"{what} is about this machine, and {found.why} is in use ({found.address})",
        field="gateway", value=found.address, code="NOT_OVER_A_GATEWAY",
        remedy=f"{instead}{alone}",
    )  # fmt: skip


def about_this_machine(what: str) -> None:
    """For verbs that look at this machine whatever is in use: say so, beside their output, if a gateway is."""
    if in_process():
        return
    import sys

    found = target()
    if found is not None:
        sys.stderr.write(f"dibs: {what} is about this machine, not about {found.address} ({found.why})\n")
