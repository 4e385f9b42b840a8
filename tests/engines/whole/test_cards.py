"""Cards in real containers: those that were asked for, and no others, whatever the spelling."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.engines.whole.house import House, nodes_of, own_cards, vendor_spec

from dibs.devices import simulated
from dibs.errors import Busy, DeliveryMismatch, InvalidRequest, NoMatch, NotFound, Unsupported

MIXED = "H100:2,L4:2"


@pytest.mark.parametrize(
    ("asked", "cards"),
    [
        ({"gpu": 1}, [0]),
        ({"gpu": 3}, [0, 1, 2]),
        ({"gpu": "L4:1"}, [2]),
        ({"gpu": ["L4:1", "H100:1"]}, [0, 2]),
        ({"gpu": "all"}, [0, 1, 2, 3]),
        ({"device": "gpu-3"}, [3]),
        ({"gpu": "80GB..:1"}, [0]),
        ({"gpu": 1, "where": "device.attributes['gpu.nvidia.com'].productName.contains('L4')"}, [2]),
        ({"gpu": "T4,L4:2"}, [2, 3]),
    ],
    ids=["count", "three", "model", "two models", "all", "exact", "memory", "CEL", "alternatives"],
)
def test_exactly_the_asked_cards_are_in_the_container(house: House, asked: dict[str, Any], cards: list[int]) -> None:
    house.world(MIXED)
    row = house.create(**asked)
    assert house.nodes(row) == [f"simgpu{card} c 1:3" for card in cards]
    receipt = house.service.receipt(row.id)
    assert receipt.verdict == "delivered"
    assert receipt.rendered["devices"] == "by CDI name"
    assert [device.id.rpartition("/")[2] for device in receipt.devices] == [f"gpu-{card}" for card in cards]
    assert house.exec(row.id, "sh", "-c", "ls /dev | grep simgpu")[0].split() == [f"simgpu{card}" for card in cards]


def test_real_nodes_keep_their_numbers_and_the_others_stay_outside(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulated.off(house.home)
    monkeypatch.setenv("DIBS_CDI_DIRS", str(house.engine.etc_cdi))
    cards = own_cards(house.engine, 3)
    vendor_spec(house.engine, cards)
    first = house.create(device="vendor.example/gpu=1")
    assert house.nodes(first) == [cards[1].seen()]
    second = house.create(gpu="all")
    assert house.nodes(second) == [cards[0].seen(), cards[2].seen()]


def test_a_claim_with_alternatives_takes_the_first_that_can_be_had(house: House, tmp_path: Path) -> None:
    house.world(MIXED)
    two = {"name": "big", "deviceClassName": "gpu", "count": 3, "selectors": []}
    first = "device.attributes['gpu.nvidia.com'].productName.contains('H100')"
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "either"},
        "spec": {
            "devices": {
                "requests": [
                    {
                        "name": "gpus",
                        "firstAvailable": [
                            {**two, "selectors": [{"cel": {"expression": first}}]},
                            {"name": "small", "deviceClassName": "gpu", "count": 1},
                        ],
                    }
                ]
            }
        },
    }
    (tmp_path / "claim.yaml").write_text(json.dumps(claim))
    done = house.dibs(
        "run", "--backend", house.kind, "--image", "localhost/dibs-test:1", "--claim", str(tmp_path / "claim.yaml"),
        "--", "sh", "-c", "ls /dev | grep -c simgpu",
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr


def test_a_claim_with_cel_is_solved_and_seen(house: House) -> None:
    house.world(MIXED)
    expression = "device.attributes['gpu.nvidia.com'].productName.contains('L4')"
    request = {
        "name": "gpus",
        "exactly": {"deviceClassName": "gpu", "count": 2, "selectors": [{"cel": {"expression": expression}}]},
    }
    row = house.create(claim={"devices": {"requests": [request]}})
    assert house.nodes(row) == ["simgpu2 c 1:3", "simgpu3 c 1:3"]


def test_an_engine_that_does_not_know_the_names_gets_the_nodes(outsider: House) -> None:
    row = outsider.create(gpu=2)
    receipt = outsider.service.receipt(row.id)
    assert receipt.rendered["devices"] == "as nodes"
    assert outsider.nodes(row) == ["simgpu0 c 1:3", "simgpu1 c 1:3"]


def test_a_part_of_a_card_is_booked_against_the_whole(house: House) -> None:
    house.world("1", partitions=2)
    row = house.create(device=next(name for name in house.states() if name != "gpu-0"))
    assert house.nodes(row) == ["simgpu0 c 1:3", "simgpu0p0 c 1:3"]
    with pytest.raises(Busy):
        house.create(device="gpu-0")


def test_what_is_not_there_is_refused_and_leaves_no_container(house: House) -> None:
    for asked in ({"gpu": 5}, {"gpu": "B200:1"}, {"device": "gpu-9"}):
        with pytest.raises((NoMatch, NotFound)):
            house.create(**asked)
    assert house.engine.containers() == []
    assert house.service.sandboxes(all=True) == []


# --- options of one engine


def test_requested_cdi_names_are_used_exactly(house: House) -> None:
    row = house.create(gpu=2, **{house.kind: {"cdi_devices": ["sim.dibs/gpu=1", "sim.dibs/gpu=3"]}})
    assert house.nodes(row) == ["simgpu1 c 1:3", "simgpu3 c 1:3"]
    with pytest.raises(Busy):
        house.create(gpu=1, **{house.kind: {"cdi_devices": ["sim.dibs/gpu=3"]}})


@pytest.mark.parametrize(
    ("mapping", "code"),
    [
        ({"gpu": 1, "@": {"cdi_devices": ["sim.dibs/gpu=1", "sim.dibs/gpu=2"]}}, "BACKEND_OPTION_INVALID"),
        ({"@": {"cdi_devices": ["sim.dibs/gpu=1"]}}, "BACKEND_OPTION_INVALID"),
        ({"gpu": 1, "@": {"gpus": "all"}}, "UNKNOWN_FIELD"),
    ],
    ids=["another number", "no request", "unknown key"],
)
def test_sd_17_a_conflicting_option_is_refused(house: House, mapping: dict[str, Any], code: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        house.create(**{house.kind if key == "@" else key: value for key, value in mapping.items()})
    assert code in [problem.code for problem in caught.value.problems]
    assert house.engine.containers() == []


def test_sd_17_an_option_for_another_engine_is_refused(house: House) -> None:
    other = "podman" if house.kind == "docker" else "docker"
    with pytest.raises(Unsupported) as caught:
        house.create(gpu=1, **{other: {"cdi_devices": ["sim.dibs/gpu=1"]}})
    assert [problem.code for problem in caught.value.problems] == ["OPTION_FOR_ANOTHER_BACKEND"]


# --- a spec that changes behind dibs' back


def test_a_spec_that_changes_between_plan_and_start_ends_the_container(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine's spec then means another node: the container is killed, nothing stays booked, the receipt says it."""
    from dibs.backends.engines.backend import EngineBackend

    real = EngineBackend.start
    kept: list[str] = []

    def behind_the_back(backend: Any, handle: Any) -> None:
        spec = next(iter((house.home.state / "cdi").iterdir()))
        spec.write_text(spec.read_text().replace("/dev/simgpu0", "/dev/simgpu7"))
        if house.kind == "docker":  # it has looked already, or notices a moment later
            house.engine.kill()
            house.engine.start()
        kept.append(handle.sandbox_id)
        real(backend, handle)

    monkeypatch.setattr(EngineBackend, "start", behind_the_back)
    with pytest.raises(DeliveryMismatch) as caught:
        house.create(gpu=1, command=["sleep", "1000"])
    assert "/dev/simgpu7" in str(caught.value)
    assert house.free()
    receipt = house.service.receipt(kept[0])
    assert receipt.verdict == "mismatch"
    assert [line.outcome for line in receipt.lines if line.field == "devices"] == ["mismatch"]


def test_a_command_too_short_to_be_looked_at_is_never_called_delivered_without_a_look(house: House) -> None:
    for _ in range(3):
        said, result = house.run("true", gpu=1)
        assert (said, result.code) == ("", 0)
    for row in house.service.sandboxes(all=True):
        receipt = house.service.receipt(row.id)
        seen = [str(node) for node in receipt.observed.nodes]
        assert (receipt.verdict, seen) in (("delivered", ["/dev/simgpu0 c 1:3"]), ("not observed", []))
    assert not house.service.leases()


# --- the catalogue, where it speaks of engines


def test_sd_10_two_sandboxes_never_get_the_same_card(house: House) -> None:
    rows = [house.create(gpu=1) for _ in range(4)]
    assert sorted(node for row in rows for node in house.nodes(row)) == [f"simgpu{n} c 1:3" for n in range(4)]


def test_sd_11_one_too_many_is_refused_with_the_holder(house: House) -> None:
    house.create(gpu=4, name="greedy")
    with pytest.raises(Busy, match="held by greedy"):
        house.create(gpu=1)
    assert len(house.engine.containers()) == 1


def test_sd_12_an_unparsable_limit_makes_no_container(house: House) -> None:
    with pytest.raises(InvalidRequest):
        house.create(memory="lots", cpu="many")
    assert house.engine.containers() == []


def test_sd_21_the_receipt_says_what_was_seen_in_the_container(house: House) -> None:
    row = house.create(gpu="H100:2")
    receipt = house.service.receipt(row.id)
    assert [f"/dev/{node}" for node in house.nodes(row)] == [str(node) for node in receipt.observed.nodes]
    house.service.remove(row.id, 0.0)
    assert house.service.receipt(row.id) == receipt


def test_sd_22_a_request_is_never_swallowed_by_an_imitated_api(house: House) -> None:
    """Podman's Docker API drops device requests; dibs speaks the engine's own, and looks."""
    row = house.create(gpu=1)
    assert house.nodes(row) == ["simgpu0 c 1:3"]
    assert str(house.service.receipt(row.id).rendered["engine"]).startswith(f"{house.kind} ")


def test_sd_23_devices_are_looked_at_in_the_container_itself(house: House) -> None:
    row = house.create(gpu=1)
    assert nodes_of(house.pid(row)) == ["simgpu0 c 1:3"]
    assert [str(node) for node in house.service.receipt(row.id).observed.nodes] == ["/dev/simgpu0 c 1:3"]


def test_sd_24_a_count_is_a_count(house: House) -> None:
    assert house.nodes(house.create(gpu="1")) == ["simgpu0 c 1:3"]


def test_sd_25_variables_of_two_cards_are_one_list(house: House) -> None:
    row = house.create(gpu=2)
    with open(f"/proc/{house.pid(row)}/environ", "rb") as file:
        env = dict(line.split(b"=", 1) for line in file.read().split(b"\0") if b"=" in line)
    assert env[b"CUDA_VISIBLE_DEVICES"].count(b"GPU-") == 2
    assert env[b"DIBS_GPU_COUNT"] == b"2"


def test_sd_40_limits_and_cards_of_one_request_arrive_together(house: House) -> None:
    row = house.create(gpu=2, cpu="500m", memory="64Mi", pids=64)
    receipt = house.service.receipt(row.id)
    assert receipt.observed.limits == {"cpu_millis": 500, "memory_bytes": 64 << 20, "pids": 64}
    assert len(house.nodes(row)) == 2


def test_sd_42_nothing_asked_means_nothing_seen(house: House) -> None:
    row = house.create()
    assert house.nodes(row) == []
    assert house.service.receipt(row.id).observed.env["NVIDIA_VISIBLE_DEVICES"] == "void"


def test_sd_43_all_is_a_list_before_and_after(house: House) -> None:
    house.create(gpu=1)
    plan = next(one for one in house.service.explain(house.spec(gpu="all")).backends if one.backend == house.kind)
    row = house.create(gpu="all")
    assert [one.rpartition("/")[2] for one in plan.devices] == ["gpu-1", "gpu-2", "gpu-3"]
    assert house.nodes(row) == [f"simgpu{card} c 1:3" for card in (1, 2, 3)]


def test_sd_45_a_stale_spec_makes_no_container(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    simulated.off(house.home)
    monkeypatch.setenv("DIBS_CDI_DIRS", str(house.engine.etc_cdi))
    [card] = own_cards(house.engine, 1)
    vendor_spec(house.engine, [card])
    file = house.engine.etc_cdi / "vendor.json"
    file.write_text(file.read_text().replace(f'"minor": {card.minor}', f'"minor": {card.minor + 99}'))
    with pytest.raises((InvalidRequest, Unsupported)) as caught:
        house.create(device="vendor.example/gpu=0")
    assert f"{card.major}:{card.minor + 99}" in str(caught.value)
    assert card.numbers in str(caught.value)
    assert house.engine.containers() == []


def test_sd_48_simulated_cards_say_so_in_the_container_too(house: House) -> None:
    row = house.create(gpu=1)
    assert house.service.receipt(row.id).simulated
    assert house.exec(row.id, "sh", "-c", "echo $DIBS_SIMULATED")[0] == "1\n"
