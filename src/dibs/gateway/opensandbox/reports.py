"""`POST /metrics/events`: how long a creation took as its client saw it. One histogram, beside the gateway's own."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from litestar import Request, post
from prometheus_client import Histogram

from dibs.errors import InvalidRequest
from dibs.gateway.auth import require
from dibs.gateway.metrics import Metrics
from dibs.gateway.opensandbox.requests import decode_object
from dibs.gateway.state import Gateway

_BUCKETS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 2, 5, 10, 30, 60, 300)
_histograms: WeakKeyDictionary[Metrics, Histogram] = WeakKeyDictionary()


def _histogram(metrics: Metrics) -> Histogram:
    found = _histograms.get(metrics)
    if found is None:
        found = Histogram(
            "dibs_client_create_seconds", "From create to ready, as OpenSandbox's clients report it.", ("success",),
            buckets=_BUCKETS, registry=metrics.registry,
        )  # fmt: skip
        _histograms[metrics] = found
    return found


@post("/metrics/events", status_code=204)
async def metrics_event(request: Request[Any, Any, Any]) -> None:
    require(request, "sandboxes:read")
    event = decode_object(await request.body())
    took, success = event.get("createDurationMs"), event.get("success")
    known = event.get("eventType") == "sandbox.create" and isinstance(success, bool)
    if not known or isinstance(took, bool) or not isinstance(took, int) or took < 0:
        reason = "must be a sandbox.create event with createDurationMs and success"
        raise InvalidRequest(reason, field="eventType", value=str(event.get("eventType")), code="BODY_INVALID")
    gateway: Gateway = request.app.state.gateway
    _histogram(gateway.metrics).labels("true" if success else "false").observe(took / 1000.0)


HANDLERS = [metrics_event]
