"""Groups on an engine: all or none, one terminal, and the others end when one fails."""

from __future__ import annotations

import json

import pytest
from tests.engines import images
from tests.engines.whole.house import House

from dibs.errors import DibsError
from dibs.workloads.groups import launch_group


def test_each_member_is_a_container_with_cards_of_its_own(house: House) -> None:
    group = launch_group(house.service, house.spec(command=["sleep", "1000"], gpu=2, name="job"), 2, foreground=False)
    rows = [member.row for member in group.members]
    held = [house.nodes(row) for row in rows]
    assert [row.name for row in rows] == ["job-0", "job-1"]
    assert [len(nodes) > 0 for nodes in held] == [True, True]
    assert not set(held[0]) & set(held[1])
    assert len({device.id for lease in house.service.leases() for device in lease.devices}) == 4
    for rank, row in enumerate(rows):
        env = house.container(row)["Config"]["Env"]
        assert {f"DIBS_GROUP={group.id}", f"DIBS_RANK={rank}", "DIBS_NODES=2"} <= set(env)
        house.service.remove(row.id, 0.0)
    assert house.service.leases() == []


def test_if_one_cannot_be_started_no_container_is_left(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    before = house.names()
    backend = house.service.registry.get(house.kind)
    real, started = backend.start, []

    def second_fails(handle: object) -> None:
        started.append(handle)
        if len(started) == 2:
            raise DibsError("it does not start", field="backend", value=house.kind)
        real(handle)  # type: ignore[arg-type]

    monkeypatch.setattr(backend, "start", second_fails)
    with pytest.raises(DibsError, match="it does not start"):
        launch_group(house.service, house.spec(command=["sleep", "1000"], gpu=2), 2, foreground=False)
    assert len(started) == 2
    assert (house.service.sandboxes(), house.service.leases(), house.names()) == ([], [], before)


def test_when_one_rank_fails_the_others_are_ended(house: House) -> None:
    command = "echo $DIBS_RANK; test $DIBS_RANK = 1 && exit 7; exec sleep 1000"
    result = house.dibs(
        "run", "-o", "json", "--backend", house.kind, "--image", images.REFERENCE, "--nodes", "2", "--gpu", "1",
        "--grace", "0.5s", "--", "sh", "-c", command,
    )  # fmt: skip
    assert result.returncode == 7, result.stderr
    members = json.loads(result.stdout)["members"]
    assert members[1]["stdout"] == "1\n"
    assert members[0]["exit"]["code"] in (137, 143)
    assert house.service.leases() == []
