"""A Docker without CDI and with NVIDIA's own hook: `docker run --gpus`, as it was before CDI.

The hook is simulated, as the cards are: a program with its name, which makes the nodes of the cards that its variable
names. It stands on the PATH of dockerd, where dockerd looks for it when it starts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.engines import shared
from tests.engines.running import Engine
from tests.engines.whole.house import Card, House, own_cards

from dibs.devices.simulated import off
from dibs.errors import DeliveryMismatch

HOOK = """#!/bin/sh
# NVIDIA_VISIBLE_DEVICES is in the container's own configuration.
state=$(cat)
pid=$(echo "$state" | sed 's/.*"pid": *\\([0-9]*\\).*/\\1/')
bundle=$(echo "$state" | sed 's/.*"bundle": *"\\([^"]*\\)".*/\\1/')
config=$(tr -d '\\n' < $bundle/config.json)
root=$(echo "$config" | sed 's/.*"root": *{[^}]*"path": *"\\([^"]*\\)".*/\\1/')
asked=$(echo "$config" | sed 's/.*"NVIDIA_VISIBLE_DEVICES=\\([^"]*\\)".*/\\1/')
[ "$asked" = all ] && asked=0,1
for card in $(echo "$asked" | tr , ' '); do
    case $card in 0) node="NODE0" ;; 1) node="NODE1" ;; esac
    nsenter --target $pid --mount -- mknod $root$node
done
"""


@pytest.fixture
def legacy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    engine = shared.engine("docker", cdi_on=False)
    if isinstance(engine, str):
        pytest.skip(f"docker is not here: {engine}")
    write_hook(engine, 0, 1)
    engine.kill()
    engine.start()  # it looks for the hook when it starts
    house = House(engine, tmp_path / "home")
    monkeypatch.setenv("DIBS_HOME", str(house.home.state))
    monkeypatch.setenv("DIBS_CDI_DIRS", str(tmp_path / "cdi"))
    specs(tmp_path / "cdi", own_cards(engine, 2))
    off(house.home)
    yield house
    house.close()
    (engine.programs / "nvidia-container-runtime-hook").unlink()
    engine.kill()
    engine.start()


def write_hook(engine: Engine, first: int, second: int) -> None:
    """One that gives card `first` where 0 is asked for, and `second` for 1."""
    engine.programs.mkdir(exist_ok=True)
    program = engine.programs / "nvidia-container-runtime-hook"
    cards = own_cards(engine, 2)
    text = HOOK
    for asked, given in ((cards[0], cards[first]), (cards[1], cards[second])):
        text = text.replace(f"NODE{asked.name}", f"{asked.path('nvidia')} c {given.major} {given.minor}")
    program.write_text(text)
    program.chmod(0o755)


def specs(folder: Path, cards: list[Card]) -> None:
    """What dibs knows of the cards; the engine has CDI off."""
    folder.mkdir()
    devices = []
    for card in cards:
        node = {"path": card.path("nvidia"), "hostPath": card.source}
        devices.append({"name": card.name, "containerEdits": {"deviceNodes": [node]}})
    document = {
        "cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": devices,
        "containerEdits": {"env": ["NVIDIA_VISIBLE_DEVICES=void"]},
    }  # fmt: skip
    (folder / "nvidia.json").write_text(json.dumps(document))


def test_a_card_is_asked_for_by_its_exact_id_and_proved(legacy: House) -> None:
    row = legacy.create(device="nvidia.com/gpu=1", command=["sleep", "1000"])
    assert legacy.nodes(row) == [own_cards(legacy.engine, 2)[1].seen("nvidia")]
    [asked] = legacy.container(row)["HostConfig"]["DeviceRequests"]
    assert (asked["DeviceIDs"], asked["Count"], asked["Driver"]) == (["1"], 0, "nvidia")
    assert "by NVIDIA's request" in json.dumps(legacy.service.receipt(row.id).rendered)
    lines = legacy.service.receipt(row.id).lines
    assert {line.outcome for line in lines} == {"delivered"}
    assert legacy.exec(row.id, "sh", "-c", "echo $NVIDIA_VISIBLE_DEVICES")[0] == "1\n"
    other = legacy.create(gpu=1, command=["sleep", "1000"])
    assert legacy.nodes(other) == [own_cards(legacy.engine, 2)[0].seen("nvidia")]


def test_another_card_than_the_one_asked_for_is_no_delivery(legacy: House) -> None:
    write_hook(legacy.engine, 1, 0)
    with pytest.raises(DeliveryMismatch) as caught:
        legacy.create(device="nvidia.com/gpu=1", command=["sleep", "1000"])
    assert re.search("/dev/nvidia-[0-9]+-[01]", str(caught.value))
    assert legacy.free()


@pytest.mark.parametrize(
    ("request_", "held"),
    [
        ({"Count": -1}, {"0", "1"}),
        ({"Count": 1}, {"0"}),  # Docker takes the first ones
        ({"DeviceIDs": ["0"]}, {"0"}),
    ],
    ids=["all", "a count", "an id"],
)
def test_a_container_that_others_started_with_gpus_holds_its_cards(
    legacy: House, request_: dict[str, object], held: set[str]
) -> None:
    asked = {"Driver": "nvidia", "Capabilities": [["gpu"]], **request_}
    legacy.foreign("theirs", DeviceRequests=[asked])
    states = {name.rpartition("/")[2].removeprefix("gpu-"): state for name, (state, _) in legacy.states().items()}
    assert {name for name, state in states.items() if state == "external"} == held, states
