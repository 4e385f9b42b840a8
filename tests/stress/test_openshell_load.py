"""A hundred of OpenShell's own clients for three minutes, while the gateway is killed and started again.

No card is given twice, by an oracle that knows nothing of the ledger; nothing is left over; no stream is left hanging;
the gateway does not grow. The full size runs with `make soak`; what runs otherwise is the same, smaller.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import random
import subprocess
import threading
import time
from pathlib import Path

import pytest

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # tests start processes while channels are open

from tests.gateway.conftest import RunningGateway
from tests.stress.load import Vital, kill_and_restart, percentile, vital
from tests.stress.shell_load import FULL, ORACLE, SHORT, VIOLATION, ShellLoad, Size, make_cards
from tests.stress.test_many_at_once import processes_of, settled

from dibs.home import Home
from openshell import SandboxClient

pytestmark = pytest.mark.stress

SIZE = FULL if os.environ.get("DIBS_SOAK") else SHORT
# Bytes that the gateway may have more at the end than after its warm-up. Its threads, each with a connection to the
# ledger, are there by then. Without kills it levels off: 116 MiB after 235 sandboxes, then 115 to 131 without a trend
# (131 after 1,438 and after 1,714, 122 after 1,968).
GROWTH = 16 << 20
MOST = 192 << 20  # bytes at any time
# Of a thread's connection to the ledger: the database, its log and their folder, and one that is replaced just then.
LEDGER = 4
# What an idle gateway may have open more after a load than before it, besides the ledger. Two were seen.
MORE_DESCRIPTORS = 4
SETTINGS = "[tenants.team-a]\n[tenants.team-b]\n"


def endpoint(home: Home) -> str:
    return (home.state / "openshell.address").read_text().strip().partition("://")[2]


def kill_often(gateway: RunningGateway, load: ShellLoad, size: Size, sizes: list[Vital]) -> None:
    """All kills in the first two thirds; then the sizes of the gateway that is left."""
    pause = size.seconds * 2 / 3 / size.kills
    for _ in range(size.kills):
        time.sleep(pause)
        load.down.begins(load.port)
        asyncio.run(kill_and_restart(gateway, load.down))
        load.down.ends(load.port)
    while gateway.process.poll() is None:
        try:
            sizes.append(vital(gateway.process.pid))
        except (FileNotFoundError, KeyError):
            return  # it has been stopped
        time.sleep(0.5)


def when_idle(pid: int, fresh: Vital) -> tuple[Vital, list[str]]:
    """What the gateway has when all clients are gone, and what it has open then. What is closed soon may go first."""
    end = time.monotonic() + 60.0
    while (found := vital(pid)).others > fresh.others + MORE_DESCRIPTORS and time.monotonic() < end:
        time.sleep(0.1)
    targets = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            targets.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
    return found, sorted(targets)


def free(card: Path) -> bool:
    with card.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def test_the_oracle_notices_a_card_that_is_given_twice(tmp_path: Path) -> None:
    make_cards(tmp_path, 1)
    card = tmp_path / "cards" / "card0"
    env = {**os.environ, "CARDS": str(card.parent)}
    words = ["sh", "-c", ORACLE.replace("/tmp/held", str(tmp_path / "held"))]
    with subprocess.Popen(words, env=env) as first:
        while free(card):
            assert first.poll() is None
            time.sleep(0.01)
        assert subprocess.run(words, env=env, check=False).returncode == VIOLATION
        first.kill()


def test_openshells_clients_and_a_gateway_that_is_killed(home: Home, tmp_path: Path) -> None:
    folder = tmp_path / "gateway"
    folder.mkdir()
    env = {"DIBS_CDI_DIRS": str(make_cards(tmp_path, SIZE.cards))}
    gateway = RunningGateway(home, folder, "--openshell", "127.0.0.1:0", settings=SETTINGS, env=env).start()
    gateway.flags = ("--openshell", endpoint(home))  # the same one again after a kill
    tokens = [gateway.make_token(f"client-{tenant}", "--tenant", tenant) for tenant in ("team-a", "team-b")]
    seed = random.SystemRandom().randrange(1 << 32)
    load = ShellLoad(endpoint(home), tokens, SIZE, seed)
    fresh = vital(gateway.process.pid)
    sizes: list[Vital] = []
    killing = threading.Thread(target=kill_often, args=(gateway, load, SIZE, sizes), daemon=True)
    began = time.monotonic()
    try:
        killing.start()
        load.run()
        took = time.monotonic() - began
        while not load.faults and not streams_have_ended(gateway):
            assert time.monotonic() - began < SIZE.seconds + 600, "streams are left"
            time.sleep(0.1)
        with SandboxClient(load.endpoint, bearer_token=gateway.token) as admin:
            left = [one.name for one in admin.list_all_for_all_workspaces()]
        idle, still_open = when_idle(gateway.process.pid, fresh)
    finally:
        print(f"\nseed {seed}\n" + "\n".join(load.faults[:20]))
        code = gateway.stop()
        killing.join()
    print(f"{load.served} sandboxes in {took:.0f} s: {SIZE}")
    print(f"streams {dict(load.streams)}; while it was away {dict(load.answers)}")
    for name, values in load.times.items():
        print(f"{name}: p50 {percentile(values, 0.5):.3f} s, p99 {percentile(values, 0.99):.3f} s")
    print("meanwhile", *(one.rss >> 20 for one in sizes[:: max(1, len(sizes) // 20)]), "MiB")
    print(f"before all of it {fresh}, idle again {idle}")
    print(f"after its last start {sizes[0]}, at the end {sizes[-1]}")
    assert load.faults == [], gateway.log[-6000:]
    assert left == []
    assert load.served >= SIZE.clients
    assert load.answers["UNAVAILABLE"] > 0  # the kills were noticed
    warm = sizes[len(sizes) // 4]
    assert sizes[-1].rss <= warm.rss + GROWTH
    assert max(one.rss for one in sizes) <= MOST
    assert idle.others <= fresh.others + MORE_DESCRIPTORS, still_open
    assert all(one.ledger <= LEDGER * one.threads for one in sizes)
    assert code == 0
    assert "Traceback" not in gateway.log, gateway.log[-6000:]
    settled(home)
    assert list(home.sandboxes.iterdir()) == []
    assert processes_of(home) == {}
    assert all(free(card) for card in (tmp_path / "cards").iterdir())


def streams_have_ended(gateway: RunningGateway) -> bool:
    return 'dibs_streams{kind="grpc"} 0.0' in gateway.ask("GET", "/metrics").body.decode()
