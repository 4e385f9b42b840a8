"""kill -9 between the steps of a delivery on `fake`, for one sandbox and for a group: the next `dibs` gets every card.

What `fake` runs lives in the process that made it, so nothing may run on after the kill, and no lease may stay.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dibs.home import Home
from dibs.request import parse_spec
from dibs.workloads.service import Workloads

POINTS = [
    ("before", "ledger", "reserve"),
    ("after", "ledger", "reserve"),
    ("before", "backend", "create"),
    ("after", "backend", "create"),
    ("before", "backend", "observe"),
    ("after", "backend", "observe"),
    ("before", "ledger", "attach"),
    ("after", "ledger", "attach"),
    ("before", "backend", "start"),
    ("after", "backend", "start"),
]

SCRIPT = """
import itertools, os, signal, sys
from dibs.backends.fake.backend import FakeBackend
from dibs.ledger.store import Ledger
from dibs.request import parse_spec
from dibs.workloads.groups import launch_group
from dibs.workloads.service import Workloads
when, where, verb, members, count = *sys.argv[1:4], int(sys.argv[4]), int(sys.argv[5])
kind = FakeBackend if where == "backend" else Ledger
real, calls = getattr(kind, verb), itertools.count(1)
def deadly(*args, **kwargs):
    if next(calls) < count:
        return real(*args, **kwargs)
    if when == "after":
        real(*args, **kwargs)
    os.kill(os.getpid(), signal.SIGKILL)
setattr(kind, verb, deadly)
spec = parse_spec({"gpu": 8 // members, "grace": "0s", "backend": "fake", "command": ["sleep", "1000"]})
if members == 1:
    Workloads().launch(spec)
else:
    launch_group(Workloads(), spec, members, foreground=False)
"""


@pytest.mark.parametrize(("members", "count"), [(1, 1), (2, 1), (2, 2)], ids=["one", "first of two", "second of two"])
@pytest.mark.parametrize(("when", "where", "verb"), POINTS)
def test_a_killed_creator_on_fake_leaves_every_card_free(
    eight_gpus: Home, tmp_path: Path, when: str, where: str, verb: str, members: int, count: int
) -> None:
    words = [sys.executable, "-c", SCRIPT, when, where, verb, str(members), str(count)]
    env = {**os.environ, "DIBS_HOME": str(eight_gpus.state)}
    result = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert result.returncode == -9, result.stderr
    with Workloads(eight_gpus) as service:
        row = service.create(parse_spec({"gpu": 8, "wait": "60s", "backend": "fake", "command": ["sleep", "1000"]}))
        assert [other.id for other in service.sandboxes()] == [row.id]
        assert len(service.leases()) == 1
        service.remove(row.id, 0.0)
        assert service.leases() == []
