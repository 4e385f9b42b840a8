"""OpenSandbox's execd, served by the gateway itself: nothing is installed in the sandbox, all goes through exec.

`app` mounts `route_handlers()`.
"""

from __future__ import annotations

from typing import Any


def route_handlers() -> list[Any]:
    from dibs.gateway.execd.routes import route_handlers as found

    return list(found())
