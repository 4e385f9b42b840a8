"""OpenSandbox's execd, served by the gateway itself: nothing is installed in the sandbox, all goes through exec.

`app` mounts `route_handlers()`, and calls `close` when the gateway stops.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dibs.gateway.state import Gateway


def route_handlers() -> list[Any]:
    from dibs.gateway.execd.routes import route_handlers as found

    return list(found())


async def close(gateway: Gateway) -> None:
    from dibs.gateway.execd.routes import execd_of

    await execd_of(gateway).close()
