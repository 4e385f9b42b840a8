"""kill -9 between any two lines of a creation: no leak, no double booking, no unknown command."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from dibs.backends.port import Exec, Exit, Handle
from dibs.home import Home
from dibs.ledger.rows import encode
from dibs.process import myself
from dibs.request import parse_spec
from dibs.workloads.reconcile import handle_of
from dibs.workloads.service import Workloads

# Where the creating process kills itself: before or after one of these calls.
POINTS = [
    ("before", "backend", "render"),
    ("after", "backend", "render"),
    ("before", "ledger", "reserve"),
    ("after", "ledger", "reserve"),
    ("before", "backend", "finalise"),
    ("after", "backend", "finalise"),
    ("before", "backend", "create"),
    ("after", "backend", "create"),
    ("before", "backend", "observe"),
    ("after", "backend", "observe"),
    ("before", "ledger", "attach"),
    ("after", "ledger", "attach"),
    ("before", "backend", "attach"),
    ("after", "backend", "attach"),
    ("before", "backend", "start"),
    ("after", "backend", "start"),
]

SCRIPT = """
import os, signal, sys
from dibs.backends.local.backend import LocalBackend
from dibs.ledger.store import Ledger
from dibs.request import parse_spec
from dibs.workloads.service import Workloads
when, where, verb = sys.argv[1:4]
kind = LocalBackend if where == "backend" else Ledger
real = getattr(kind, verb)
def deadly(*args, **kwargs):
    if when == "after":
        real(*args, **kwargs)
    os.kill(os.getpid(), signal.SIGKILL)
setattr(kind, verb, deadly)
command = ["sh", "-c", "echo x >> ran; sleep 1000"]
Workloads().launch(parse_spec({"gpu": 8, "grace": "0s", "command": command}))
"""


@pytest.mark.parametrize(("when", "where", "verb"), POINTS)
def test_a_creator_that_dies_leaves_nothing_booked(
    eight_gpus: Home, tmp_path: Path, when: str, where: str, verb: str
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT, when, where, verb],
        cwd=work,
        env={**os.environ, "DIBS_HOME": str(eight_gpus.state)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == -9, result.stderr
    with Workloads(eight_gpus) as service:
        # All eight at once: it can only be had when nothing of the dead one is booked, and its command is gone.
        row = service.create(parse_spec({"gpu": 8, "wait": "60s", "workdir": str(work)}))
        assert [other.id for other in service.sandboxes()] == [row.id]
        service.remove(row.id, 0.0)
        assert service.leases() == []
    if (when, verb) != ("after", "start"):
        assert not (work / "ran").exists(), "the command must not have run before it was told to"


def test_a_sandbox_that_lives_is_adopted_by_the_next_dibs(service: Workloads) -> None:
    row = service.create(parse_spec({"gpu": 2}))
    with Workloads(service.home) as other:
        assert other.sandbox(row.id).state == "running"
        assert len(other.leases()) == 1
        session = other.exec(row.id, Exec(command=("true",)))
        assert [item.code for item in session.receive() if isinstance(item, Exit)] == [0]
        session.close()
        other.remove(row.id, 0.0)
        assert other.leases() == []


def test_after_a_reboot_everything_is_free(service: Workloads, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sandbox of another boot cannot be alive, whichever process has its pid now."""
    row = service.create(parse_spec({"gpu": 8}))
    service.stop(row.id, 0.0)
    old = service.sandbox(row.id)
    handle = handle_of(old)
    assert handle.keeper is not None
    earlier = msgspec.structs.replace(myself(), boot="an-earlier-boot")
    handle = msgspec.structs.replace(handle, keeper=earlier, init=earlier)
    db = service.ledger._db
    db.execute(
        "UPDATE sandboxes SET state = 'running', ended_at = NULL, exit = NULL, owner = :o, handle = :h",
        o=encode(earlier),
        h=encode(handle),
    )
    db.execute("UPDATE leases SET state = 'attached'")
    db.execute("UPDATE lease_units SET live = 1")
    (Path(handle.folder) / "exit.json").unlink(missing_ok=True)
    with Workloads(service.home) as rebooted:
        assert rebooted.leases() == []
        assert rebooted.sandbox(row.id).state == "failed"


def test_what_cannot_be_looked_at_stays_booked(service: Workloads) -> None:
    """A lease of another host, on a ledger that two hosts see, is none of our business."""
    row = service.create(parse_spec({"gpu": 1}))
    handle = handle_of(row)
    assert handle.keeper is not None
    elsewhere = msgspec.structs.replace(handle.keeper, pid_namespace=1)
    strange = encode(msgspec.structs.replace(handle, keeper=elsewhere, init=elsewhere))
    service.ledger._db.execute("UPDATE sandboxes SET handle = :h WHERE id = :id", h=strange, id=row.id)
    with Workloads(service.home) as other:
        assert len(other.leases()) == 1
    service.ledger._db.execute("UPDATE sandboxes SET handle = :h WHERE id = :id", h=encode(handle), id=row.id)


def test_a_clock_that_jumps_frees_nothing_and_ends_nothing(service: Workloads, monkeypatch: pytest.MonkeyPatch) -> None:
    row = service.create(parse_spec({"gpu": 1, "ttl": "1h"}))
    real = time.time
    for jump in (-1e9, 1e9):
        monkeypatch.setattr(time, "time", lambda jump=jump: real() + jump)
        with Workloads(service.home) as other:
            assert len(other.leases()) == 1
            assert not other.explain(parse_spec({"gpu": 8})).backends[0].ok
            assert other.expire(row.id).state == "running"
    monkeypatch.setattr(time, "time", real)
    assert service.sandbox(row.id).state == "running"


def test_giving_up_leaves_the_queue_at_once(service: Workloads) -> None:
    from dibs.errors import Timeout

    service.create(parse_spec({"gpu": 8}))
    with pytest.raises(Timeout):
        service.create(parse_spec({"gpu": 1, "wait": "50ms"}))
    assert service.queue() == []


def test_ended_sandboxes_are_forgotten_in_the_end(service: Workloads, monkeypatch: pytest.MonkeyPatch) -> None:
    from dibs.workloads import reconcile

    monkeypatch.setattr(reconcile, "KEEP_ENDED", 2)
    for number in range(4):
        row = service.create(parse_spec({"gpu": 1, "name": f"n{number}"}))
        service.stop(row.id, 0.0)
    assert [row.name for row in service.sandboxes(all=True)] == ["n2", "n3"]
    assert len(list(service.home.sandboxes.iterdir())) == 2


def test_a_handle_survives_being_written_and_read(service: Workloads) -> None:
    row = service.create(parse_spec({"gpu": 1}))
    handle = handle_of(service.sandbox(row.id))
    assert isinstance(handle, Handle)
    assert handle.keeper is not None
    assert handle.init is not None
