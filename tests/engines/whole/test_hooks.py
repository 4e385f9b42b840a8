"""Devices whose CDI spec has hooks, on engines: the engine runs them, and the receipt is held to what is there then."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.engines.whole.house import House, own_cards

from dibs.devices.simulated import off
from dibs.errors import DeliveryMismatch, DibsError

# The runtime tells a hook where the bundle is; the root of the container is named in there.
ROOT = (
    'b=$(sed \'s/.*"bundle": *"\\([^"]*\\)".*/\\1/\');'
    ' r=$(tr -d "\\n" < $b/config.json | sed \'s/.*"root": *{[^}]*"path": *"\\([^"]*\\)".*/\\1/\');'
)


@pytest.fixture
def cards(house: House, monkeypatch: pytest.MonkeyPatch) -> House:
    off(house.home)
    monkeypatch.setenv("DIBS_CDI_DIRS", str(house.engine.etc_cdi))
    return house


def spec(house: House, script: str) -> Path:
    """One card with a hook, and a file that the hook may write to."""
    hook = {"hookName": "createContainer", "path": "/bin/sh", "args": ["sh", "-c", script]}
    [card] = own_cards(house.engine, 1)
    node = {"path": card.path(), "hostPath": card.source}
    device = {"name": card.name, "containerEdits": {"deviceNodes": [node], "hooks": [hook]}}
    document = {"cdiVersion": "0.5.0", "kind": "vendor.example/gpu", "devices": [device]}
    (house.engine.etc_cdi / "vendor.json").write_text(json.dumps(document))
    return house.engine.folder / "hook-ran"


def test_a_hook_is_run_by_the_engine_once_for_each_container(cards: House) -> None:
    ran = spec(cards, f"cat > /dev/null; echo ran >> {cards.engine.folder}/hook-ran")
    ran.unlink(missing_ok=True)
    row = cards.create(device="vendor.example/gpu=0", command=["sleep", "1000"])
    assert cards.nodes(row) == [card.seen() for card in own_cards(cards.engine, 1)]
    assert ran.read_text() == "ran\n"
    assert {line.outcome for line in cards.service.receipt(row.id).lines} == {"delivered"}


def test_a_hook_that_fails_starts_no_command_and_frees_the_card(cards: House, tmp_path: Path) -> None:
    spec(cards, "cat > /dev/null; echo no licence >&2; exit 3")
    mark = cards.work / "command-ran"
    with pytest.raises(DibsError) as caught:
        cards.create(
            device="vendor.example/gpu=0", command=["touch", str(mark)], mounts=[f"{cards.work}:{cards.work}:rw"]
        )
    assert "hook" in str(caught.value)
    assert not mark.exists()
    assert cards.free()


def test_what_a_hook_adds_beyond_the_spec_is_no_delivery(cards: House) -> None:
    spec(cards, ROOT + "mknod $r/dev/extra c 1 5")
    with pytest.raises(DeliveryMismatch) as caught:
        cards.create(device="vendor.example/gpu=0", command=["sleep", "1000"])
    assert "/dev/extra" in str(caught.value)
    assert cards.free()
