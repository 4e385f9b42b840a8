"""The native API: /api/v1, and what stands beside it (/health, /ready, /version, /metrics)."""

from __future__ import annotations

from typing import Any


def route_handlers() -> list[Any]:
    from dibs.gateway.native import exec_ws, host, run_ws, sandboxes, service, streams

    return [
        *service.HANDLERS,
        *sandboxes.HANDLERS,
        *host.HANDLERS,
        *streams.HANDLERS,
        *exec_ws.HANDLERS,
        *run_ws.HANDLERS,
    ]
