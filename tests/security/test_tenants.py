"""A tenant learns nothing of another's sandbox, on any surface: it is as unknown as one that never was."""

from __future__ import annotations

import pytest

from .conftest import BODY, Scene

NOBODY = "sb-000000000000"
LIFECYCLE = [
    ("GET", ""), ("DELETE", ""), ("GET", "/endpoints/44772"), ("GET", "/endpoints/8080"),
    ("POST", "/renew-expiration"), ("POST", "/pause"), ("POST", "/resume"), ("PATCH", "/metadata"),
    ("GET", "/diagnostics/logs"), ("GET", "/diagnostics/events"), ("GET", "/diagnostics/inspect"),
    ("GET", "/diagnostics/summary"), ("POST", "/snapshots"),
]  # fmt: skip
EXECD = [
    ("GET", "/ping"), ("POST", "/command"), ("GET", "/files/info?path=/etc/passwd"), ("GET", "/metrics"),
    ("GET", "/files/download?path=/etc/passwd"), ("POST", "/session"), ("POST", "/pty"),
    ("GET", "/command/status/cmd-1"), ("GET", "/directories/list?path=/"), ("DELETE", "/files?path=/etc/passwd"),
]  # fmt: skip
BODIES = {
    "/renew-expiration": {"expiresAt": "2099-01-01T00:00:00Z"},
    "/metadata": {"a": "b"},
    "/command": {"command": "true"},
    "/session": {},
    "/pty": {},
    "/snapshots": {"name": "s"},
}


def asked(scene: Scene, method: str, path: str, box: str, prefix: str = "/v1/sandboxes/") -> tuple[int, str]:
    """Status and words of an answer to blue, without the id that it asked for."""
    body = next((body for end, body in BODIES.items() if path.endswith(end)), None)
    reply = scene.gateway.ask(method, f"{prefix}{box}{path}", body, token=scene.blue)
    return reply.status, reply.body.decode().replace(box, "ID")


@pytest.mark.parametrize(("method", "path"), LIFECYCLE)
def test_the_lifecycle_of_anothers_sandbox_is_unknown(scene: Scene, method: str, path: str) -> None:
    mine, nobodys = asked(scene, method, path, scene.box), asked(scene, method, path, NOBODY)
    assert mine == nobodys
    assert 400 <= mine[0] < 502
    assert "crimson" not in mine[1]


@pytest.mark.parametrize(("method", "path"), EXECD)
@pytest.mark.parametrize("prefix", ["/v1/sandboxes/", "/sandboxes/"])
def test_the_inside_of_anothers_sandbox_is_unknown(scene: Scene, method: str, path: str, prefix: str) -> None:
    path = f"/proxy/44772{path}"
    mine, nobodys = asked(scene, method, path, scene.box, prefix), asked(scene, method, path, NOBODY, prefix)
    assert mine == nobodys
    assert mine[0] in (401, 403, 404)


@pytest.mark.parametrize("port", [1, 8080, 18080, 65535])
def test_no_port_of_anothers_sandbox_is_passed_on_to(scene: Scene, port: int) -> None:
    mine = asked(scene, "GET", f"/proxy/{port}/", scene.box)
    assert mine == asked(scene, "GET", f"/proxy/{port}/", NOBODY)


def test_anothers_sandbox_lives_on_after_all_that(scene: Scene) -> None:
    for method, path in LIFECYCLE:
        asked(scene, method, path, scene.box)
    reply = scene.gateway.ask("GET", f"/v1/sandboxes/{scene.box}", token=scene.red)
    assert reply.data["status"]["state"] == "Running"
    assert reply.data["metadata"] == {"team": "crimson"}
    assert "expiresAt" in reply.data


def test_the_secret_of_one_sandbox_opens_no_other_and_no_lifecycle(scene: Scene) -> None:
    gateway = scene.gateway
    other = gateway.ask("POST", "/v1/sandboxes", BODY, token=scene.blue).data["id"]
    gateway.until(lambda: gateway.ask("GET", f"/v1/sandboxes/{other}/endpoints/44772", token=scene.blue).status == 200)
    path = f"/v1/sandboxes/{other}/proxy/44772"
    assert gateway.ask("GET", f"{path}/ping", token=None, headers=scene.door).status == 401
    for method, rest in (("GET", f"/{scene.box}"), ("DELETE", f"/{scene.box}"), ("GET", "")):
        assert gateway.ask(method, f"/v1/sandboxes{rest}", token=None, headers=scene.door).status == 401
    assert gateway.ask("GET", f"/api/v1/sandboxes/{scene.box}", token=None, headers=scene.door).status == 401
    # The path that is looked at for the secret is the one that is served: nothing in between can be confused.
    for sly in (
        f"{path}/../../{scene.box}/proxy/44772/ping",
        f"/v1/sandboxes/{scene.box}/proxy/../../{other}/proxy/44772/ping",
        f"/v1/sandboxes/{scene.box}%2fproxy%2f44772%2f../../{other}/proxy/44772/ping",
        f"/v1/sandboxes/{other}/proxy/44772/ping?x=/v1/sandboxes/{scene.box}/proxy/",
    ):
        reply = gateway.ask("GET", sly, token=None, headers=scene.door)
        assert reply.status in (400, 401, 403, 404), (sly, reply.status)
    gateway.ask("DELETE", f"/v1/sandboxes/{other}", token=scene.blue)


def test_lists_devices_and_queue_tell_a_tenant_nothing_of_another(scene: Scene) -> None:
    gateway = scene.gateway
    for path in ("/v1/sandboxes", "/v1/sandboxes?state=Running", "/api/v1/sandboxes?all=true", "/api/v1/devices",
                 "/api/v1/leases", "/api/v1/queue", "/v1/sandboxes?metadata=team%3Dcrimson"):  # fmt: skip
        reply = gateway.ask("GET", path, token=scene.blue)
        assert reply.status == 200, path
        for word in (scene.box, "crimson", "red"):
            assert word not in reply.body.decode(), (path, word)
    refusal = gateway.ask("POST", "/v1/sandboxes", {**BODY, "resourceLimits": {"gpu": "8"}}, token=scene.blue)
    assert refusal.status == 409
    assert scene.box not in refusal.body.decode()


def test_a_key_of_one_tenant_means_nothing_to_another(scene: Scene) -> None:
    gateway = scene.gateway
    body = {**BODY, "extensions": {"dibs.idempotency-key": "the-same"}}
    made = [gateway.ask("POST", "/v1/sandboxes", body, token=token).data["id"] for token in (scene.red, scene.blue)]
    assert made[0] != made[1]
    for name, token in zip(made, (scene.red, scene.blue), strict=True):
        assert gateway.ask("DELETE", f"/v1/sandboxes/{name}", token=token).status == 204
