"""A CDI spec that is rewritten while a card is held: the same hardware is not given away under another name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dibs.errors import Busy, DibsError
from dibs.home import Home
from dibs.ledger.rows import LeasedDevice
from dibs.ledger.store import Ledger
from dibs.request import parse_spec
from dibs.sandbox import SandboxId
from dibs.workloads.service import Workloads

SLEEP = {"command": ["sleep", "1000"]}


def _write(folder: Path, **nodes: str) -> None:
    devices = [
        {"name": name, "containerEdits": {"deviceNodes": [{"path": f"/dev/card{name}", "hostPath": node}]}}
        for name, node in ((key.removeprefix("card"), node) for key, node in nodes.items())
    ]
    document = {"cdiVersion": "0.6.0", "kind": "example.com/gpu", "devices": devices}
    (folder / "example.json").write_text(json.dumps(document))


@pytest.fixture
def specs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cdi"
    folder.mkdir()
    monkeypatch.setenv("DIBS_CDI_DIRS", str(folder))
    monkeypatch.chdir(tmp_path)
    return folder


def test_a_node_that_is_held_is_not_given_away_under_another_name(home: Home, specs: Path) -> None:
    _write(specs, card0="/dev/null", card1="/dev/zero", card2="/dev/full")
    with Workloads(home) as service:
        held = service.create(parse_spec({"devices": ["example.com/gpu=0"], **SLEEP}))
        try:
            _write(specs, card0="/dev/zero", card1="/dev/null", card2="/dev/full")
            with Workloads(home) as later:
                with pytest.raises(DibsError) as caught:
                    later.create(parse_spec({"devices": ["example.com/gpu=1"], **SLEEP}))
                assert "its node c 1:3 is held as" in str(caught.value)
                assert "CDI spec was changed" in str(caught.value)
                states = {one.device.name: one.state for one in later.devices()[1]}
                assert sorted(states.values()) == ["free", "held", "unusable"]
                other = later.create(parse_spec({"devices": ["example.com/gpu=2"], **SLEEP}))
                later.remove(other.id, 0.0)
        finally:
            service.remove(held.id, 0.0)
    with Workloads(home) as free:
        row = free.create(parse_spec({"devices": ["example.com/gpu=1"], **SLEEP}))
        free.remove(row.id, 0.0)


def test_the_index_itself_forbids_two_bookings_of_one_node(home: Home) -> None:
    """A process that looked before the first booking and after the rewrite does not get it either."""
    from tests.ledger.books import book, sandbox

    with Ledger(home) as ledger:
        book(ledger, LeasedDevice("gpu-0", units=("gpu-0",), marks=("node:c 195:0",)))
        row = sandbox()
        with pytest.raises(Busy), ledger.writing():
            ledger.add_sandbox(row)
            ledger.reserve(SandboxId(row.id), [LeasedDevice("gpu-1", units=("gpu-1",), marks=("node:c 195:0",))])
