"""All sources joined: each piece of hardware once, with everything that is known of it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dibs.devices.inventory import look
from dibs.devices.merge_sources import CUT, NOT_SEEN
from dibs.devices.model import Version
from dibs.devices.names import ALL_OF_HOST
from dibs.devices.simulated import parse_world, simulate
from dibs.home import Home


def mig_card(host: Any, number: int, parts: int) -> dict[str, Any]:
    recorded = [host.part(part, part + 7) for part in range(parts)]
    card: dict[str, Any] = host.card(
        number, nvmlDeviceGetMigMode=(1, 1), nvmlDeviceGetMaxMigDeviceCount=7, parts=recorded
    )
    return card


def test_spec_library_and_bus_make_one_device(host: Any) -> None:
    host.nvidia_spec(2)
    host.pci("0000:1b:00.0", "pci0000:15", numa_node="0")
    host.pci("0000:1c:00.0", "pci0000:4b", numa_node="1")
    inventory = host.look(host.recorded([host.card(0), host.card(1)]))
    assert inventory.errors == ()
    assert not inventory.simulated
    card = host.named(inventory)["gpu-1"]
    assert card.source == "cdi+nvml+pci"
    assert card.model == "H100"
    assert card.memory == 85520809984
    assert card.attributes == {
        "type": "gpu",
        "index": 1,
        "uuid": host.uuids[1],
        "productName": "NVIDIA H100 80GB HBM3",
        "architecture": "Hopper",
        "cudaComputeCapability": Version("9.0.0"),
        "driverVersion": Version("580.95.5"),
        "resource.kubernetes.io/pcieRoot": "pci0000:4b",
        "resource.kubernetes.io/pciBusID": "0000:1c:00.0",
        "resource.kubernetes.io/numaNode": 1,
        "dibs/cdiName": f"nvidia.com/gpu={host.uuids[1]}",
    }
    for name in ("1", host.uuids[1], "nvidia.com/gpu=1", "0000:1c:00.0", card.id):
        assert inventory.find(name) == (card,)


def test_cards_are_joined_by_uuid_where_index_and_node_differ(host: Any) -> None:
    nodes = {host.uuids[0]: ["/dev/nvidia5"], "7": ["/dev/nvidia5"]}
    host.spec("n.json", "nvidia.com/gpu", nodes)
    (card,) = host.look(host.recorded([host.card(0, nvmlDeviceGetMinorNumber=5)])).devices
    assert (card.name, card.index, card.uuid) == ("gpu-5", 0, host.uuids[0])


def test_cards_are_joined_by_node_where_the_spec_has_no_uuids(host: Any) -> None:
    host.nvidia_spec(2, uuids=False)
    devices = host.named(host.look(host.recorded([host.card(1), host.card(0)])))
    assert {name: device.uuid for name, device in devices.items()} == {"gpu-0": host.uuids[0], "gpu-1": host.uuids[1]}
    assert all(device.source == "cdi+nvml" for device in devices.values())


def test_a_card_without_a_spec_is_attached_by_its_nodes(host: Any) -> None:
    host.nodes("/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm")
    (card,) = host.look(host.recorded([host.card(0)])).devices
    assert card.source == "nvml"
    assert card.cdi is not None
    assert card.cdi.cdi_name == f"nvidia.com/gpu={host.uuids[0]}"
    assert [node.path for node in card.cdi.edits.device_nodes] == ["/dev/nvidia0"]
    assert [node.path for node in card.cdi.spec_edits.device_nodes] == ["/dev/nvidiactl", "/dev/nvidia-uvm"]


def test_a_card_without_a_spec_and_without_a_node_says_why_it_cannot_be_attached(host: Any) -> None:
    (card,) = host.look(host.recorded([host.card(0)])).devices
    assert card.cdi is None
    assert card.unattachable == "/dev/nvidia0 does not exist; run nvidia-modprobe"


def test_a_card_that_the_driver_does_not_see_is_unhealthy(host: Any) -> None:
    host.nvidia_spec(2)
    devices = host.named(host.look(host.recorded([host.card(0)])))
    assert devices["gpu-0"].health.ok
    assert devices["gpu-1"].health.reason == NOT_SEEN


def test_without_an_answer_of_the_library_the_specs_still_count(host: Any) -> None:
    host.nvidia_spec(2)
    host.nodes("/dev/nvidiactl")
    inventory = host.look(host.recorded([], nvmlInit=host.fails(12)))
    assert [device.name for device in inventory.devices] == ["gpu-0", "gpu-1"]
    assert all(device.health.ok for device in inventory.devices)
    assert "NVML Shared Library Not Found" in inventory.errors[0].reason


def test_a_mismatched_driver_makes_all_its_cards_unhealthy(host: Any) -> None:
    host.nvidia_spec(1)
    host.spec("amd.json", "amd.com/gpu", {"0": ["/dev/dri/card9"]})
    host.nodes("/dev/nvidiactl")
    inventory = host.look(host.recorded([], nvmlInit=host.fails(18)))
    assert {device.vendor: device.health.ok for device in inventory.devices} == {"nvidia": False, "amd": True}
    assert "mismatch" in inventory.errors[0].reason


def test_a_lost_card_is_found_again_by_its_index(host: Any) -> None:
    host.nvidia_spec(2, uuids=False)
    inventory = host.look(host.recorded([host.card(0), host.card(1, nvmlDeviceGetHandleByIndex=host.fails(15))]))
    devices = host.named(inventory)
    assert set(devices) == {"gpu-0", "gpu-1"}
    assert devices["gpu-1"].health.reason == "NVML: GPU is lost"


def test_a_replaced_card_takes_the_place_of_the_one_in_a_stale_spec(host: Any) -> None:
    host.nvidia_spec(1)
    host.nodes("/dev/nvidia0")
    (card,) = host.look(host.recorded([host.card(0, nvmlDeviceGetUUID=host.uuids[9])])).devices
    assert card.uuid == host.uuids[9]
    assert card.name == "gpu-0"
    assert card.cdi is not None
    assert card.cdi.cdi_name == f"nvidia.com/gpu={host.uuids[9]}"


def test_parts_are_joined_with_their_spec(host: Any) -> None:
    host.nvidia_spec(2, parts=2)
    host.mig_minors(2)
    devices = host.named(host.look(host.recorded([mig_card(host, 0, 2), host.card(1)])))
    card = devices["gpu-0"]
    parts = [device for device in devices.values() if device.parent == card.id]
    assert [part.uuid for part in parts] == host.mig_uuids[:2]
    assert [part.attributes["profile"] for part in parts] == ["1g.10gb", "1g.10gb"]
    assert [part.memory for part in parts] == [10 << 30, 10 << 30]
    assert parts[0].attributes["parentUUID"] == host.uuids[0]
    assert parts[0].source == "cdi+nvml"
    assert sorted(card.units) == sorted(unit for part in parts for unit in part.units)
    assert (card.cdi, card.unattachable) == (None, CUT)
    assert devices["gpu-1"].cdi is not None


def test_parts_have_the_same_ids_and_units_whichever_source_sees_them(host: Any) -> None:
    host.mig_minors(2)
    library = host.recorded([mig_card(host, 0, 2)])
    host.nodes("/dev/nvidia0", *(f"/dev/nvidia-caps/nvidia-cap{cap}" for part in (0, 1) for cap in host.caps(part)))
    only_library = host.look(library)
    path = host.nvidia_spec(1, parts=2)
    both = host.look(library)
    only_spec = host.look()
    path.unlink()

    def booked(inventory: Any) -> dict[str, tuple[str, ...]]:
        return {device.id: device.booked_units for device in inventory.devices}

    assert len(booked(both)) == 3
    assert booked(only_library) == booked(both) == booked(only_spec)


def test_parts_without_a_spec_are_attached_by_card_and_capabilities(host: Any) -> None:
    host.mig_minors(1)
    caps = [f"/dev/nvidia-caps/nvidia-cap{cap}" for cap in host.caps(0)]
    host.nodes("/dev/nvidia0", *caps)
    devices = host.look(host.recorded([mig_card(host, 0, 1)])).devices
    part = next(device for device in devices if device.parent is not None)
    assert part.cdi is not None
    assert [node.path for node in part.cdi.edits.device_nodes] == ["/dev/nvidia0", *caps]


def test_parts_whose_nodes_are_unknown_say_so(host: Any) -> None:
    host.nodes("/dev/nvidia0")
    devices = host.look(host.recorded([mig_card(host, 0, 2)])).devices
    parts = [device for device in devices if device.parent is not None]
    assert len({part.units for part in parts}) == 2
    assert all(part.cdi is None and "mig-minors" in part.unattachable for part in parts)


def test_a_card_of_which_the_spec_has_parts_cannot_be_given_whole(host: Any) -> None:
    host.nvidia_spec(2, parts=2)
    devices = host.named(host.look())
    assert (devices["gpu-0"].cdi, devices["gpu-0"].unattachable) == (None, CUT)
    assert devices["gpu-1"].cdi is not None


def test_a_card_that_is_ready_to_be_cut_and_has_no_parts_cannot_be_given(host: Any) -> None:
    host.nvidia_spec(1)
    (card,) = host.look(host.recorded([mig_card(host, 0, 0)])).devices
    assert card.cdi is None
    assert "has none" in card.unattachable


def test_a_spec_with_parts_of_a_card_that_is_whole_again_is_stale(host: Any) -> None:
    host.nvidia_spec(1, parts=1)
    devices = host.named(host.look(host.recorded([host.card(0)])))
    assert devices["gpu-0"].cdi is not None
    part = next(device for device in devices.values() if device.parent is not None)
    assert part.health.reason == NOT_SEEN


def test_use_by_others_is_shown_on_card_and_part(host: Any) -> None:
    host.mig_minors(1)
    card = mig_card(host, 0, 1)
    running = [SimpleNamespace(pid=5)]
    card["nvmlDeviceGetComputeRunningProcesses"] = running
    card["parts"][0]["nvmlDeviceGetComputeRunningProcesses"] = running
    inventory = host.look(host.recorded([card]))
    assert [[use.pid for use in device.used_by] for device in inventory.devices] == [[5], [5]]
    assert all(device.used_by == () for device in host.look(host.recorded([card]), ours=(5,)).devices)


def test_on_wsl_there_is_one_device_however_many_cards(host: Any) -> None:
    host.nodes("/dev/dxg")
    host.spec("wsl.json", "nvidia.com/gpu", {"all": ["/dev/dxg"]})
    (device,) = host.look(host.recorded([host.card(0), host.card(1)])).devices
    assert device.model == f"{ALL_OF_HOST} (2)"
    assert device.attributes["cards"] == 2
    assert device.cdi is not None
    assert device.memory is None


def test_on_wsl_a_single_card_is_described(host: Any) -> None:
    host.nodes("/dev/dxg")
    (device,) = host.look(host.recorded([host.card(0, nvmlDeviceGetMinorNumber=host.fails(3))])).devices
    assert device.model == "H100"
    assert device.cdi is not None
    assert device.cdi.cdi_name == "nvidia.com/gpu=all"


def test_amd_cards_get_their_facts_from_the_bus(host: Any) -> None:
    host.spec("amd.json", "amd.com/gpu", {"0": ["/dev/kfd", "/dev/dri/card1", "/dev/dri/renderD129"]})
    host.pci(
        "0000:c1:00.0",
        "pci0000:c0",
        drm=("card1", "renderD129"),
        vendor="0x1002",
        device="0x74a1",
        numa_node="1",
        unique_id="e1a2b3",
        mem_info_vram_total="206141652992",
    )
    (card,) = host.look().devices
    assert card.source == "cdi+pci"
    assert (card.model, card.memory, card.uuid) == ("MI300X", 206141652992, "GPU-e1a2b3")
    assert card.attributes["resource.kubernetes.io/numaNode"] == 1
    assert card.attributes["productName"] == "AMD Instinct MI300X"


def test_a_bus_that_lies_is_an_error_and_the_card_stays(host: Any) -> None:
    host.nvidia_spec(1)
    host.pci("0000:1b:00.0", numa_node="x")
    inventory = host.look(host.recorded([host.card(0)]))
    assert len(inventory.devices) == 1
    assert inventory.errors[0].source == "pci"


def test_devices_are_ordered_as_a_person_counts(host: Any) -> None:
    host.nvidia_spec(12)
    assert [device.index for device in host.look().devices] == list(range(12))


def test_an_empty_host_has_nothing_and_no_errors(host: Any) -> None:
    inventory = host.look()
    assert (inventory.devices, inventory.errors) == ((), ())


def test_while_a_world_is_simulated_nothing_real_is_read(host: Any, tmp_path: Path) -> None:
    home = Home(state=tmp_path / "state", config=tmp_path / "config")
    host.nvidia_spec(2)
    (Path(host.specs) / "broken.json").write_text("{")

    def offered() -> Any:
        return look(home, started_by_dibs=lambda _: False, roots=host.roots, spec_dirs=(host.specs,))

    real = offered()
    assert (len(real.devices), len(real.errors), real.simulated) == (2, 1, False)
    simulate(home, parse_world("L4:3"))
    world = offered()
    assert (len(world.devices), world.errors, world.simulated) == (3, (), True)
    assert all(device.simulated for device in world.devices)


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture], max_examples=40)
@given(
    cards=st.integers(0, 4),
    seen=st.sets(st.integers(0, 4)),
    parts=st.integers(0, 3),
    uuids=st.booleans(),
    lost=st.booleans(),
)
def test_however_the_sources_disagree_ids_and_units_are_sound(
    host: Any, cards: int, seen: set[int], parts: int, uuids: bool, lost: bool
) -> None:
    for old in Path(host.specs).iterdir():
        old.unlink()
    if cards:
        host.nvidia_spec(cards, parts=parts, uuids=uuids)
    host.mig_minors(parts)
    recorded = [mig_card(host, 0, parts) if n == 0 and parts else host.card(n) for n in sorted(seen)]
    if lost and recorded:
        recorded[-1]["nvmlDeviceGetMemoryInfo"] = host.fails(15)
    devices = host.look(host.recorded(recorded)).devices
    assert len({device.id for device in devices}) == len(devices)
    known = [device.uuid for device in devices if device.uuid]
    assert len(known) == len(set(known))
    whole = [device for device in devices if device.parent is None]
    units = [unit for device in whole for unit in device.booked_units]
    assert len(units) == len(set(units))
    by_id = {device.id: device for device in devices}
    for device in devices:
        if device.parent is not None and device.parent in by_id:
            assert set(device.booked_units) <= set(by_id[device.parent].booked_units)


@pytest.mark.parametrize("broken", ["{", "[]"])
def test_a_damaged_world_never_shows_real_devices(host: Any, tmp_path: Path, broken: str) -> None:
    home = Home(state=tmp_path / "state", config=tmp_path / "config").make()
    home.simulated.write_text(broken)
    host.nvidia_spec(2)
    inventory = look(home, started_by_dibs=lambda _: False, roots=host.roots, spec_dirs=(host.specs,))
    assert inventory.devices == ()
    assert inventory.simulated
    assert inventory.errors
