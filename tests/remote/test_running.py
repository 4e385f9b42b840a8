"""`dibs run` over a gateway: the foreground, the queue, the terminal, and clients and gateways that die."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.gateway.conftest import RunningGateway
from tests.remote.serving import Served

from dibs.backends.port import Exit
from dibs.errors import DibsError
from dibs.home import Home
from dibs.remote.target import Target
from dibs.remote.workloads import RemoteWorkloads
from dibs.request.spec import parse_spec
from dibs.workloads.service import Workloads
from dibs.workloads.waiter import WaitNews


def popen(served: Served, *words: str, **more: object) -> subprocess.Popen[str]:
    return subprocess.Popen(  # type: ignore[call-overload,no-any-return]
        [sys.executable, "-m", "dibs", *words], env={**os.environ, "DIBS_URL": served.url}, text=True, **more
    )


def test_a_waiter_gets_news_is_queued_by_name_and_served(served: Served, remote: RemoteWorkloads) -> None:
    remote.create(parse_spec({"name": "holder", "gpu": "8", "command": ["sleep", "100"]}))
    news: list[WaitNews] = []
    seen: list[str] = []

    def told(one: WaitNews) -> None:
        if not news:
            with RemoteWorkloads(Target(served.url, "")) as other:
                seen.extend(ticket.username for ticket in other.queue())
                other.remove("holder", 0.0)
        news.append(one)

    row = remote.create(parse_spec({"gpu": "8", "wait": "60s", "command": ["sleep", "100"]}), on_wait=told)
    assert row.state == "running"
    assert "holder" in news[0].waits_for
    assert seen == [row.username]


def test_a_waiter_that_dies_leaves_the_queue(served: Served, remote: RemoteWorkloads) -> None:
    remote.create(parse_spec({"name": "holder", "gpu": "8", "command": ["sleep", "100"]}))
    child = popen(served, "run", "--gpu", "1", "--wait", "10m", "--", "true", stderr=subprocess.PIPE)
    assert child.stderr is not None
    assert "in the queue" in child.stderr.readline()
    assert len(remote.queue()) == 1
    child.kill()
    child.wait()
    child.stderr.close()
    for _ in range(600):
        if not remote.queue():
            break
        select.select([], [], [], 0.05)
    assert remote.queue() == []


def test_hanging_up_ends_what_ran_in_the_foreground(served: Served, remote: RemoteWorkloads) -> None:
    row, session = remote.launch(parse_spec({"gpu": "1", "command": ["sleep", "100"], "interactive": True}))
    session.close()
    assert remote.wait(row.id, 30.0).reason is not None
    assert remote.leases() == []


def test_the_devices_are_free_when_the_end_is_reported(remote: RemoteWorkloads) -> None:
    for _ in range(3):
        _, session = remote.launch(parse_spec({"gpu": "8", "command": ["true"]}))
        while not any(isinstance(item, Exit) for item in session.receive()):
            pass
        assert remote.leases() == []
        session.close()


def test_a_gateway_that_dies_is_told_as_a_lost_connection(served: Served) -> None:
    child = popen(
        served, "run", "--", "sh", "-c", "echo ready; sleep 100", stdout=subprocess.PIPE, stdin=subprocess.DEVNULL
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    os.kill(served.pid, signal.SIGKILL)
    assert child.wait(60) == 86  # the gateway cannot be reached; how the command ended is not known
    child.stdout.close()


def test_a_gateway_that_is_not_there_is_an_error_and_not_another_way(served: Served) -> None:
    remote = RemoteWorkloads(Target("unix:///no/such/socket", "DIBS_URL"))
    for call in (remote.sandboxes, lambda: remote.launch(parse_spec({"command": ["true"]}))):
        with pytest.raises(DibsError) as failure:
            call()
        assert failure.value.code == "GATEWAY_UNREACHABLE"


def talk(served: Served, *words: str) -> tuple[subprocess.Popen[bytes], int]:
    """dibs with a terminal; our side of it."""
    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-m", "dibs", *words],
        env={**os.environ, "DIBS_URL": served.url, "TERM": "dumb"},
        stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    return child, ours


def until(ours: int, words: bytes) -> bytes:
    text = b""
    while words not in text:
        assert select.select([ours], [], [], 60)[0], text
        text += os.read(ours, 4096)
    return text


def test_a_terminal_has_keys_a_size_and_ctrl_c(served: Served) -> None:
    import fcntl
    import struct
    import termios

    child, ours = talk(
        served, "run", "-t", "--", "sh", "-c", "stty size; trap 'echo caught; exit 9' INT; echo ready; cat"
    )
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 101, 0, 0))
    child.send_signal(signal.SIGWINCH)
    until(ours, b"ready")
    os.write(ours, b"typed\n")
    until(ours, b"typed\r\ntyped")
    os.write(ours, b"\x03")
    until(ours, b"caught")
    assert child.wait(60) == 9
    os.close(ours)


def test_what_a_killed_client_ran_leaves_nothing_behind(
    served: Served, remote: RemoteWorkloads, eight_gpus: Home
) -> None:
    children = [
        popen(served, "run", "--gpu", "1", "--", "sh", "-c", "echo ready; sleep 100", stdout=subprocess.PIPE)
        for _ in range(3)
    ]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    for child in children:
        child.kill()
        child.wait()
        assert child.stdout is not None
        child.stdout.close()
    for row in remote.sandboxes():
        remote.wait(row.id, 60.0)
    with Workloads(eight_gpus) as local:
        assert local.leases() == []


def test_many_at_once_get_different_devices(served: Served) -> None:
    found: list[str] = []
    lock = threading.Lock()

    def one() -> None:
        with RemoteWorkloads(Target(served.url, "")) as remote:
            spec = parse_spec({"gpu": "1", "wait": "60s", "command": ["sh", "-c", "ls /dev | grep simgpu; sleep 0.2"]})
            row, session = remote.launch(spec)
            text, done = b"", False
            while not done:
                for item in session.receive():
                    if isinstance(item, Exit):
                        done = True
                    else:
                        text += item.data
            session.close()
            with lock:
                found.append(f"{text.decode().strip()} {remote.sandbox(row.id).state}")

    threads = [threading.Thread(target=one) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert all(line.endswith("exited") and line.startswith("simgpu") for line in found), found


# -- remote clients ---------------------------------------------------------------------------------------------------


@pytest.fixture
def tcp_gateway(eight_gpus: Home, tmp_path: Path) -> Iterator[RunningGateway]:
    gateway = RunningGateway(eight_gpus, tmp_path).start()
    yield gateway
    gateway.stop()


def far(tcp_gateway: RunningGateway, token: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dibs", *words],
        env={**os.environ, "DIBS_URL": tcp_gateway.url, "DIBS_TOKEN": token, "MY_SECRET": "stays here"},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_a_remote_client_needs_a_token_which_is_never_shown(tcp_gateway: RunningGateway) -> None:
    refused = far(tcp_gateway, "dibs_not-a-token-of-this-gateway", "sandbox", "ls")
    assert refused.returncode == 80
    assert "TOKEN_UNKNOWN" in refused.stderr
    assert "dibs_not" not in refused.stderr + tcp_gateway.log
    refused = far(tcp_gateway, "dibs_not-a-token-of-this-gateway", "run", "--", "true")
    assert refused.returncode == 80
    assert far(tcp_gateway, "", "gpus").returncode == 80


def test_a_remote_run_uses_neither_our_folder_nor_our_variables(tcp_gateway: RunningGateway) -> None:
    token = tcp_gateway.token
    result = far(
        tcp_gateway,
        token,
        "run",
        "--gpu",
        "1",
        "-e",
        "ASKED=yes",
        "--",
        "sh",
        "-c",
        "pwd; echo $ASKED$MY_SECRET; exit 3",
    )
    assert (result.stdout, result.returncode) == ("/\nyes\n", 3), result.stderr
    refused = far(tcp_gateway, token, "run", "--mount", "/etc:/x", "--", "true")
    assert "MOUNT_NOT_ALLOWED" in refused.stderr
    data = json.loads(far(tcp_gateway, token, "sandbox", "ls", "-a", "-o", "json").stdout)
    assert [one["exit"]["code"] for one in data["sandboxes"]] == [3]
