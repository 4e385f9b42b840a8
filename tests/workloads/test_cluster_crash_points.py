"""kill -9 of a gateway between any two steps of a delivery to a cluster: another one, on another host, finishes it.

Both see one ledger. The second cannot see the processes of the first: it goes by its silence.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.postgres import server
from tests.workloads.test_delegated import Hands

from dibs.backends.fake.cluster import FakeCluster
from dibs.home import Home
from dibs.settings import Settings
from dibs.workloads.registry import Registry
from dibs.workloads.service import Workloads

POINTS = [
    ("before", "ledger", "delegate"),
    ("before", "backend", "create"),
    ("after", "backend", "create"),
    ("before", "ledger", "record_handle"),
    ("after", "ledger", "record_handle"),
    ("after", "backend", "placement"),
    ("before", "ledger", "bind"),
    ("after", "ledger", "bind"),
    ("before", "backend", "start"),
    ("after", "backend", "start"),
    ("after", "backend", "observe"),
    ("before", "ledger", "attach"),
    ("after", "ledger", "attach"),
    ("before", "ledger", "forget_pending"),
]

SCRIPT = """
import os, signal, sys, threading
from dibs.backends.fake.scheduled import FakeClusterBackend
from dibs.ledger.store import Ledger
from dibs.request import parse_spec
from dibs.workloads.admission import Asking, admit_all
from dibs.workloads.dispatcher import Dispatcher
from dibs.workloads.service import Workloads
when, where, verb = sys.argv[1:4]
kind = FakeClusterBackend if where == "backend" else Ledger
real = getattr(kind, verb)
def deadly(*args, **kwargs):
    if when == "after":
        real(*args, **kwargs)
    os.kill(os.getpid(), signal.SIGKILL)
setattr(kind, verb, deadly)
hands = Dispatcher(Workloads, workers=1)
with Workloads() as service:
    spec = parse_spec({"gpu": 4, "name": "one", "backend": "fake-cluster", "command": ["sleep", "1000"]})
    hands.start()
    hands.submit(admit_all([Asking(workloads=service, spec=spec)])[0])
    threading.Event().wait()
"""


@pytest.fixture
def database() -> str:
    return server.shared().new_database()


@pytest.mark.parametrize(("when", "where", "verb"), POINTS)
def test_what_a_gateway_of_another_host_had_accepted_is_finished_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, database: str, when: str, where: str, verb: str
) -> None:
    cluster = FakeCluster.make(str(tmp_path / "cluster.db"), nodes=1, cards=4)
    common = {"DIBS_LEDGER": database, "DIBS_FAKE_CLUSTER": cluster.path}
    other = {"DIBS_HOST_ID": "the-other-host", "DIBS_BOOT_ID": "its-boot", "DIBS_HOME": str(tmp_path / "other")}
    for name, value in (common | other).items():
        monkeypatch.setenv(name, value)
    words = [sys.executable, "-c", SCRIPT, when, where, verb]
    result = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert result.returncode == -9, result.stderr
    for name in other:
        monkeypatch.delenv(name)
    home = Home(state=tmp_path / "home", config=tmp_path / "home" / "config").make()
    settings = Settings(ledger=database, fake_cluster=cluster.path)
    hands = Hands(lambda: Workloads(home, registry=Registry(home, settings)))
    service = hands.workloads
    try:
        if verb == "delegate":  # the answer was never given, so nothing was promised
            assert service.sandboxes() == []
            return
        for hands.now in (0.0, 16.0):
            hands.take_over()
            hands.drive()
        hands.dispatcher._forget_values(service)
        row = service.sandbox("one")
        assert row.state == "running", row.reason
        [lease] = service.leases()
        assert [device.id for device in lease.devices] == cluster.cards_of(row.id)
        assert len(lease.devices) == 4
        assert service.receipt("one").verdict == "delivered"
        assert [pod.starts for pod in cluster.pods()] == [1]
        service.remove("one", 0.0)
        assert service.leases() == []
        assert cluster.pods() == []
    finally:
        service.close()
