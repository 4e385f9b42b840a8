"""Traces: a span for each request, with the route and the status and nothing secret; stand-ins for the packages."""

from __future__ import annotations

import asyncio
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from dibs.gateway.tracing import traced
from dibs.settings import GatewaySettings

pytest.importorskip("opentelemetry.trace", reason="the API of OpenTelemetry is not installed")


class Span:
    def __init__(self, name: str, parent: Any) -> None:
        self.name = name
        self.parent = parent
        self.data: dict[str, Any] = {}
        self.failed = False

    def __enter__(self) -> Span:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def update_name(self, name: str) -> None:
        self.name = name

    def set_attribute(self, name: str, value: Any) -> None:
        self.data[name] = value

    def set_status(self, _: Any) -> None:
        self.failed = True


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The spans that are made, and (first) the endpoint that they would go to."""
    made: list[Any] = []

    def start(name: str, parent: Any, kind: Any) -> Span:
        span = Span(name, parent)
        made.append(span)
        return span

    def provider(resource: Any) -> Any:
        tracer = SimpleNamespace(start_as_current_span=start)
        return SimpleNamespace(add_span_processor=lambda _: None, get_tracer=lambda *_: tracer)

    stand_ins: dict[str, dict[str, Any]] = {
        "opentelemetry.sdk": {},
        "opentelemetry.sdk.trace": {"TracerProvider": provider},
        "opentelemetry.sdk.resources": {"Resource": SimpleNamespace(create=dict)},
        "opentelemetry.sdk.trace.export": {"BatchSpanProcessor": lambda exporter: exporter},
        "opentelemetry.exporter.otlp.proto.http.trace_exporter": {
            "OTLPSpanExporter": lambda endpoint: made.append(endpoint)
        },
    }
    for name, names in stand_ins.items():
        module = ModuleType(name)
        vars(module).update(names)
        monkeypatch.setitem(sys.modules, name, module)
    return made


def call(app: Any, **scope: Any) -> None:
    async def receive() -> Any:
        return {"type": "http.request"}

    async def send(_: Any) -> None:
        return

    asyncio.run(app({"type": "http", "headers": [], "state": {}, **scope}, receive, send))


def test_without_an_endpoint_nothing_stands_in_between() -> None:
    app = object()
    assert traced(app, GatewaySettings()) is app


@pytest.mark.parametrize("status", [200, 503])
def test_a_request_is_a_span_with_its_route_and_without_its_secrets(spans: list[Any], status: int) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        scope["path_template"] = "/api/v1/sandboxes/{ref}"
        scope["state"]["request_id"] = "r7"
        await send({"type": "http.response.start", "status": status})

    whole = traced(app, GatewaySettings(otel_endpoint="http://collector:4318"))
    headers = [
        (b"authorization", b"Bearer dibs_secret"),
        (b"traceparent", b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01"),
    ]
    call(whole, method="GET", path="/api/v1/sandboxes/lab", query_string=b"token=dibs_secret", headers=headers)
    endpoint, span = spans
    assert endpoint == "http://collector:4318/v1/traces"
    assert span.name == "GET /api/v1/sandboxes/{ref}"
    assert span.data == {
        "http.request.method": "GET", "http.route": "/api/v1/sandboxes/{ref}", "http.response.status_code": status,
        "dibs.request_id": "r7",
    }  # fmt: skip
    assert span.failed is (status == 503)
    assert "dibs_secret" not in str(vars(span))
