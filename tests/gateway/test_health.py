"""Health, readiness, version: without a token, always cheap."""

from __future__ import annotations

from .conftest import RunningGateway


def test_health_ready_and_version_need_no_token(gateway: RunningGateway) -> None:
    assert gateway.ask("GET", "/health", token=None).data == {"status": "healthy"}
    assert gateway.ask("GET", "/ready", token=None).data == {"status": "ready"}
    assert gateway.ask("GET", "/version", token=None).data["name"] == "dibs"
    assert gateway.ask("GET", "/health", unix=True).status == 200
