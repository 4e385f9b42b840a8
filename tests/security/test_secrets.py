"""Secrets stay where they belong: not in logs, not in the ledger, not in the arguments of processes, not in errors."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from .conftest import Scene


def secrets_of(scene: Scene) -> list[str]:
    return [scene.red, scene.blue, scene.gateway.token, scene.door["OpenSandbox-Secure-Access"], "hunter2"]


def test_no_secret_is_in_the_log_whatever_was_asked(scene: Scene) -> None:
    gateway = scene.gateway
    secret = scene.door["OpenSandbox-Secure-Access"]
    scene.inside("POST", "/command", {"command": "echo hunter2", "envs": {"P": "hunter2"}})
    scene.inside("POST", "/command", {"command": 7, "envs": "hunter2"})
    gateway.ask("POST", "/v1/sandboxes", {"env": {"P": "hunter2"}, "nonsense": "hunter2"}, token=scene.red)
    gateway.ask("GET", f"/v1/sandboxes?token={scene.red}", token=scene.blue)
    gateway.ask("GET", f"{scene.execd}/ping", token=None, headers={"OpenSandbox-Secure-Access": secret + "x"})
    gateway.ask("GET", "/v1/sandboxes", token=None, headers={"Authorization": f"Basic {scene.red}"})
    gateway.ask("GET", "/v1/sandboxes", token=None, headers={"X-Request-ID": scene.red + "\t"})
    for one in secrets_of(scene):
        assert one not in gateway.log


def test_no_secret_is_in_the_ledger_in_clear(scene: Scene) -> None:
    for path in scene.gateway.home.state.glob("ledger.db*"):
        data = path.read_bytes()
        for one in (scene.red, scene.blue, scene.gateway.token, scene.door["OpenSandbox-Secure-Access"]):
            assert one.encode() not in data, path
    with sqlite3.connect(scene.gateway.home.ledger) as connection:
        rows = connection.execute("SELECT spec, pending, receipt, annotations, handle FROM sandboxes").fetchall()
    connection.close()
    assert "hunter2" not in str(rows)


def test_no_secret_is_in_the_arguments_of_a_process(scene: Scene) -> None:
    """All users of the host can read those."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(path.read_bytes())
        except OSError:
            continue
    for one in secrets_of(scene):
        assert not [line for line in lines if one.encode() in line]


def test_a_sandbox_gets_no_secret_of_the_gateway(scene: Scene) -> None:
    reply = scene.inside("POST", "/command", {"command": "env; cat /proc/1/environ /proc/1/cmdline"})
    assert reply.status == 200
    for one in (scene.red, scene.blue, scene.gateway.token, scene.door["OpenSandbox-Secure-Access"]):
        assert one not in reply.body.decode(errors="replace")
    seen = scene.inside(
        "POST", "/command", {"command": f"cat {scene.gateway.home.state}/gateway.token; ls {scene.gateway.home.state}"}
    )
    assert scene.gateway.token not in seen.body.decode()
    assert "ledger.db" not in seen.body.decode()


def test_an_error_shows_no_value_of_a_variable_and_no_path_of_the_gateway(scene: Scene) -> None:
    wrong = {"image": {"uri": "host"}, "env": {"PASSWORD": "hunter2", "BAD=NAME": "hunter2"}, "timeout": -1}
    for path, body in (("/v1/sandboxes", wrong), ("/api/v1/sandboxes", {"env": {"A=B": "hunter2"}, "gpu": "x"})):
        reply = scene.gateway.ask("POST", path, body, token=scene.red)
        assert 400 <= reply.status < 500
        assert "hunter2" not in reply.body.decode()
        assert str(scene.gateway.home.state) not in reply.body.decode()
