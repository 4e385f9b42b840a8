"""OpenTelemetry traces, if the settings name an endpoint. Without one nothing of it is even loaded.

`app` wraps the application with `traced`. A span has the route, the method, the status and the request id; no
header, no query string, no body.
"""

from __future__ import annotations

import importlib
from typing import Any

from dibs._version import __version__
from dibs.errors import InvalidRequest
from dibs.settings import GatewaySettings

# By name, because they are no dependency: an installation without traces does not have them.
_MODULES = (
    "opentelemetry.sdk.trace",
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "opentelemetry.sdk.resources",
    "opentelemetry.sdk.trace.export",
    "opentelemetry.propagate",
    "opentelemetry.trace",
)
_PASSED = (b"traceparent", b"tracestate")


def check(settings: GatewaySettings) -> None:
    """Raise if traces are wanted and the packages are not there."""
    if not settings.otel_endpoint:
        return
    try:
        for name in _MODULES:
            importlib.import_module(name)
    except ImportError as error:
        raise InvalidRequest(
            f"traces need a package that is not installed ({error.name})", field="gateway.otel_endpoint",
            value=settings.otel_endpoint, code="OTEL_MISSING", remedy="pip install 'dibs[otel]', or leave it out",
        ) from error  # fmt: skip


def traced(app: Any, settings: GatewaySettings) -> Any:
    """The application with a span around every request; the application itself if no endpoint is set."""
    if not settings.otel_endpoint:
        return app
    sdk, exporter, resources, export, propagate, trace = (importlib.import_module(name) for name in _MODULES)
    named = resources.Resource.create({"service.name": "dibs", "service.version": __version__})
    provider = sdk.TracerProvider(resource=named)
    endpoint = settings.otel_endpoint.rstrip("/")
    if not endpoint.endswith("/v1/traces"):
        endpoint += "/v1/traces"
    provider.add_span_processor(export.BatchSpanProcessor(exporter.OTLPSpanExporter(endpoint=endpoint)))
    tracer = provider.get_tracer("dibs.gateway", __version__)

    async def call(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        carrier = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"] if name in _PASSED
        }
        status = 0

        async def watched(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        parent = propagate.extract(carrier)
        with tracer.start_as_current_span(scope["method"], parent, kind=trace.SpanKind.SERVER) as span:
            try:
                await app(scope, receive, watched)
            finally:
                route = str(scope.get("path_template") or "unmatched")
                span.update_name(f"{scope['method']} {route}")
                span.set_attribute("http.request.method", scope["method"])
                span.set_attribute("http.route", route)
                span.set_attribute("http.response.status_code", status)
                span.set_attribute("dibs.request_id", scope["state"].get("request_id", ""))
                if status >= 500:
                    span.set_status(trace.StatusCode.ERROR)

    return call
