"""`dibs serve` itself: what it opens, what it refuses, how it stops and starts again, what it writes down."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from dibs.home import Home

from .conftest import Reply, RunningGateway

ROOT = "/api/v1/sandboxes"


def serve(home: Home, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dibs", "serve", *words]
    environ = {**os.environ, "DIBS_HOME": str(home.state), **env}
    return subprocess.run(command, capture_output=True, text=True, env=environ, check=False, timeout=60)


def listening(pid: int) -> set[str]:
    """Every socket that a process listens on, by the kernel."""
    inodes = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        target = os.readlink(link)
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    found = set()
    for name, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                found.add(f"{name}:{int(fields[1].rpartition(':')[2], 16)}:{family.name}")
    for line in Path(f"/proc/{pid}/net/unix").read_text().splitlines()[1:]:
        fields = line.split()
        if int(fields[3], 16) & 0x10000 and fields[6] in inodes:
            found.add(f"unix:{fields[7]}" if len(fields) > 7 else "unix:")
    return found


def test_it_opens_what_it_says_and_nothing_else(gateway: RunningGateway) -> None:
    assert listening(gateway.process.pid) == {f"tcp:{gateway.port}:AF_INET", f"unix:{gateway.socket}"}
    assert stat.S_IMODE(gateway.socket.stat().st_mode) == 0o600


def test_it_says_how_to_connect_without_showing_the_token(gateway: RunningGateway) -> None:
    place = gateway.home.state / "gateway.token"
    assert gateway.hint == (
        f'export OPEN_SANDBOX_DOMAIN=127.0.0.1:{gateway.port} OPEN_SANDBOX_API_KEY="$(cat {place})"'
    )
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    shell = subprocess.run(
        ["sh", "-c", f"{gateway.hint}; echo $OPEN_SANDBOX_API_KEY"], capture_output=True, text=True, check=True
    )
    assert gateway.ask("GET", "/api/v1/whoami", token=shell.stdout.strip()).status == 200


def test_its_own_token_stays_the_same_until_it_is_revoked(start_gateway: Callable[..., RunningGateway]) -> None:
    gateway = start_gateway()
    first = gateway.token
    gateway.stop()
    gateway.start()
    assert gateway.token == first
    name = gateway.ask("GET", "/api/v1/whoami").data["name"]
    subprocess.run([sys.executable, "-m", "dibs", "token", "revoke", name], env=gateway.env, check=True)
    gateway.stop()
    gateway.start()
    assert gateway.token != first
    assert gateway.ask("GET", "/api/v1/whoami").status == 200


def test_check_says_what_would_be_opened_and_opens_nothing(home: Home) -> None:
    done = serve(home, "--check")
    assert done.returncode == 0, done.stderr
    assert f"unix:{home.state}/gateway.sock" in done.stdout
    assert "http://127.0.0.1:8080" in done.stdout
    assert "identity: a token" in done.stdout
    assert not (home.state / "gateway.sock").exists()
    data = json.loads(serve(home, "--check", "-o", "json", "--socket", "off").stdout)
    assert [one["address"] for one in data["listen"]] == ["http://127.0.0.1:8080"]


def test_check_tells_the_problems_of_file_environment_and_flags_at_once(home: Home) -> None:
    home.config.mkdir(parents=True)
    (home.config / "config.toml").write_text("[gateway]\nport = 1\n")
    done = serve(home, "--check", "--listen", "nowhere", DIBS_GATEWAY_DRAIN="long")
    assert done.returncode == 80
    for name in ("gateway.port", "DIBS_GATEWAY_DRAIN", "gateway.listen"):
        assert name in done.stderr


def test_beyond_loopback_a_token_must_exist(home: Home) -> None:
    done = serve(home, "--check", "--listen", "0.0.0.0:0")
    assert done.returncode == 80
    assert "[TOKENS_NEEDED]" in done.stderr
    assert "dibs token create" in done.stderr
    env = {**os.environ, "DIBS_HOME": str(home.state)}
    subprocess.run([sys.executable, "-m", "dibs", "token", "create", "one"], env=env, check=True, capture_output=True)
    assert serve(home, "--check", "--listen", "0.0.0.0:0").returncode == 0


def test_nothing_to_listen_on_is_refused(home: Home) -> None:
    done = serve(home, "--socket", "off", DIBS_GATEWAY_LISTEN=",")
    assert done.returncode == 80
    assert "[NO_LISTENER]" in done.stderr


def test_an_address_that_is_taken_is_reported(gateway: RunningGateway, home: Home) -> None:
    done = serve(home, "--listen", f"127.0.0.1:{gateway.port}", "--socket", "off")
    assert (done.returncode, "[ADDRESS_IN_USE]" in done.stderr) == (88, True)
    done = serve(home, "--listen", "127.0.0.1:0", "--socket", str(gateway.socket))
    assert (done.returncode, "[ADDRESS_IN_USE]" in done.stderr) == (88, True)
    assert gateway.ask("GET", "/health", unix=True).status == 200


def test_traces_without_their_package_are_refused(home: Home) -> None:
    pytest.importorskip("opentelemetry.trace", reason="the API alone is not there either")
    try:
        import opentelemetry.sdk.trace  # type: ignore[import-not-found,unused-ignore]  # noqa: F401
    except ImportError:
        done = serve(home, "--check", DIBS_GATEWAY_OTEL_ENDPOINT="http://127.0.0.1:4318")
        assert (done.returncode, "[OTEL_MISSING]" in done.stderr) == (80, True)
        assert "dibs[otel]" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_touches_no_sandbox_and_a_start_finds_it_again(
    start_gateway: Callable[..., RunningGateway], number: int
) -> None:
    gateway = start_gateway()
    ref = gateway.ask("POST", ROOT, {"gpu": 2, "command": ["sleep", "600"], "ttl": "1h"}).data["id"]
    before = gateway.sandbox(ref, "running")
    assert gateway.stop(number) == 0
    assert not gateway.socket.exists()
    gateway.start()
    assert gateway.ask("GET", f"{ROOT}/{ref}").data == before
    assert gateway.ask("POST", f"{ROOT}/{ref}/exec", {"command": ["echo", "here"]}).data["stdout"] == "here\n"


def test_the_queue_survives_a_restart(start_gateway: Callable[..., RunningGateway]) -> None:
    gateway = start_gateway()
    holder = gateway.ask("POST", ROOT, {"gpu": 8, "command": ["sleep", "600"]}).data["id"]
    gateway.sandbox(holder, "running")
    ref = gateway.ask("POST", ROOT, {"gpu": 8, "wait": "1h", "command": ["true"], "env": {"KEPT": "1"}}).data["id"]
    gateway.process.kill()
    gateway.stop()
    gateway.socket.unlink()
    gateway.start()
    assert gateway.ask("GET", f"{ROOT}/{ref}").data["state"] == "queued"
    gateway.ask("DELETE", f"{ROOT}/{holder}?grace=0s")
    assert gateway.sandbox(ref, "exited")["exit"]["code"] == 0


def test_a_stop_finishes_short_requests_and_ends_streams(start_gateway: Callable[..., RunningGateway]) -> None:
    gateway = start_gateway(settings='[gateway]\ndrain = "1h"\n')  # so that nothing is ended by force
    ref = gateway.ask("POST", ROOT, {"command": ["sleep", "600"]}).data["id"]
    gateway.sandbox(ref, "running")
    replies: list[Reply] = []

    def ask(path: str) -> None:
        replies.append(gateway.ask("GET", path))

    paths = [f"{ROOT}/{ref}/wait?timeout=500", f"{ROOT}/{ref}/logs?follow=true", "/api/v1/events"]
    threads = [threading.Thread(target=ask, args=(path,)) for path in paths]
    for thread in threads:
        thread.start()
    gateway.until(lambda: b'dibs_streams{kind="stream"} 2.0' in gateway.ask("GET", "/metrics").body)
    assert gateway.stop(timeout=60.0) == 0
    for thread in threads:
        thread.join(10)
    assert [reply.status for reply in replies] == [200, 200, 200]
    assert gateway.start().ask("GET", f"{ROOT}/{ref}").data["state"] == "running"


def test_no_secret_is_ever_written_to_the_log(start_gateway: Callable[..., RunningGateway]) -> None:
    gateway = start_gateway(env={"DIBS_GATEWAY_LOG_LEVEL": "debug"})
    token = gateway.make_token("ci")
    body = {"command": ["true"], "env": {"PASSWORD": "hunter2"}}
    gateway.ask("POST", ROOT, body, token=token)
    gateway.ask("GET", f"{ROOT}?label=key=hunter2", token=token)
    gateway.ask("GET", "/api/v1/whoami", token="dibs_not-a-token-at-all")
    gateway.ask("GET", "/v1/sandboxes", token=None, headers={"OPEN-SANDBOX-API-KEY": token})
    gateway.ask("GET", f"/api/v1/nothing?token={token}")
    gateway.stop()
    for secret in (token, gateway.token, "hunter2", "not-a-token-at-all"):
        assert secret not in gateway.log
    lines = [json.loads(line) for line in gateway.log.splitlines()]
    asked = next(line for line in lines if line.get("path") == ROOT and line["method"] == "POST")
    assert (asked["status"], asked["who"], len(asked["request_id"])) == (202, "ci", 16)


def test_the_metrics_say_who_has_which_device(served: RunningGateway) -> None:
    red = served.make_token("metrics", "--tenant", "red")
    ref = served.ask("POST", ROOT, {"gpu": 1, "command": ["sleep", "600"]}, token=red).data["id"]
    served.sandbox(ref, "running")
    lines = served.ask("GET", "/metrics").body.decode().splitlines()
    info = [line for line in lines if line.startswith("dibs_lease_info{")]
    assert len(info) == 1
    for part in ('device="gpu.nvidia.com/', 'uuid="GPU-', f'sandbox="{ref}"', 'tenant="red"', 'backend="local"'):
        assert part in info[0]
    assert 'dibs_devices{state="held"} 1.0' in lines
    assert 'dibs_devices{state="free"} 7.0' in lines
    assert 'dibs_leases{state="attached"} 1.0' in lines
    assert 'dibs_sandboxes{state="running"} 1.0' in lines
    assert "dibs_queue_length 0.0" in lines
    counted = 'dibs_http_requests_total{method="POST",route="/api/v1/sandboxes",status="202"} '
    assert any(line.startswith(counted) for line in lines)
    # Counted by the thread that has made it, after the ledger says that it runs.
    served.until(lambda: b'dibs_create_seconds_count{backend="local"' in served.ask("GET", "/metrics").body)
    for number in range(50):
        served.ask("GET", f"/api/v1/no/{number}")
    again = served.ask("GET", "/metrics").body.decode()
    assert "/api/v1/no/" not in again
    served.ask("DELETE", f"{ROOT}/{ref}?grace=0s")
