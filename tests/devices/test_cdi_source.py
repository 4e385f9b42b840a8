"""Devices from CDI specs: one per piece of hardware, however many names it has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dibs.cdi.cache import Cache
from dibs.devices import cdi_source
from dibs.devices.cdi_source import devices_of, spec_dirs
from dibs.devices.model import Device, Inventory
from dibs.devices.names import ALL_OF_HOST


def found(host: Any) -> dict[str, Device]:
    return {device.name: device for device in cdi_source.read((host.specs,)).devices}


def test_index_uuid_and_all_are_one_device_per_card(host: Any) -> None:
    host.nvidia_spec(2)
    devices = found(host)
    assert set(devices) == {"gpu-0", "gpu-1"}
    first = devices["gpu-0"]
    assert first.driver == "gpu.nvidia.com"
    assert first.vendor == "nvidia"
    assert first.uuid == host.uuids[0]
    assert first.index == 0
    assert first.attributes["type"] == "gpu"


def test_a_card_is_attached_by_its_uuid_and_answers_to_all_its_names(host: Any) -> None:
    path = host.nvidia_spec(2)
    card = found(host)["gpu-1"]
    assert card.cdi is not None
    assert card.cdi.cdi_name == f"nvidia.com/gpu={host.uuids[1]}"
    assert card.cdi.spec == str(path)
    assert card.aliases == ("1", f"nvidia.com/gpu={host.uuids[1]}", "nvidia.com/gpu=1")
    assert [node.path for node in card.cdi.edits.device_nodes] == [
        "/dev/nvidia1",
        "/dev/dri/card1",
        "/dev/dri/renderD129",
    ]
    assert [node.path for node in card.cdi.spec_edits.device_nodes] == ["/dev/nvidiactl", "/dev/nvidia-uvm"]


def test_a_card_is_named_by_its_node_and_not_by_its_index(host: Any) -> None:
    host.spec("n.json", "nvidia.com/gpu", {"0": ["/dev/nvidia3"], "1": ["/dev/nvidia0"]})
    devices = found(host)
    assert (devices["gpu-3"].index, devices["gpu-0"].index) == (0, 1)


def test_common_nodes_do_not_make_two_cards_one(host: Any) -> None:
    shared = ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-modeset"]
    host.spec("n.json", "nvidia.com/gpu", {"0": ["/dev/nvidia0", *shared], "1": ["/dev/nvidia1", *shared]})
    assert {device.units for device in found(host).values()} == {()}


def test_what_counts_is_the_node_of_the_host_and_not_its_name_inside(host: Any) -> None:
    path = host.nvidia_spec(2)
    document = json.loads(path.read_text())
    for device in document["devices"]:
        for node in device["containerEdits"]["deviceNodes"]:
            node["hostPath"] = node["path"]
            node["path"] = "/dev/inside"
    path.write_text(json.dumps(document))
    assert set(found(host)) == {"gpu-0", "gpu-1"}


def test_parts_belong_to_the_card_whose_node_they_have(host: Any) -> None:
    host.nvidia_spec(2, parts=3)
    devices = found(host)
    parts = [device for device in devices.values() if device.attributes["type"] == "mig"]
    card = devices["gpu-0"]
    assert len(parts) == 3
    assert {part.parent for part in parts} == {card.id}
    assert sorted(card.units) == sorted(unit for part in parts for unit in part.units)
    assert len(set(card.units)) == 3
    assert devices["gpu-1"].units == ()
    assert [part.aliases[0] for part in parts] == ["0:0", "0:1", "0:2"]
    assert parts[1].uuid == host.mig_uuids[1]


def test_two_compute_instances_of_one_gpu_instance_can_be_held_apart(host: Any) -> None:
    cap = "/dev/nvidia-caps/nvidia-cap"
    nodes = {"0:0": ["/dev/nvidia0", f"{cap}12", f"{cap}13"], "0:1": ["/dev/nvidia0", f"{cap}12", f"{cap}14"]}
    host.spec("n.json", "nvidia.com/gpu", {"0": ["/dev/nvidia0"], **nodes})
    devices = found(host)
    assert set(devices["gpu-0-mig-13"].units).isdisjoint(devices["gpu-0-mig-14"].units)


def test_all_alone_stands_for_the_whole_host(host: Any) -> None:
    host.spec("wsl.json", "nvidia.com/gpu", {"all": ["/dev/dxg"]})
    (device,) = found(host).values()
    assert device.name == "gpu-all"
    assert device.model == ALL_OF_HOST
    assert device.cdi is not None
    assert device.cdi.cdi_name == "nvidia.com/gpu=all"


def test_a_jetson_has_its_one_card_and_not_all(host: Any) -> None:
    nodes = ["/dev/nvhost-ctrl-gpu", "/dev/nvmap"]
    host.spec("csv.json", "nvidia.com/gpu", {"0": nodes, "all": nodes})
    (device,) = found(host).values()
    assert (device.name, device.index, device.model) == ("gpu-0", 0, "")


def test_amd_cards_share_kfd_and_stay_apart(host: Any) -> None:
    devices = {str(n): ["/dev/kfd", f"/dev/dri/card{n + 1}", f"/dev/dri/renderD{129 + n}"] for n in range(2)}
    devices["all"] = sorted({node for nodes in devices.values() for node in nodes})
    host.spec("amd.json", "amd.com/gpu", devices)
    cards = found(host)
    assert set(cards) == {"gpu-0", "gpu-1"}
    assert {card.driver for card in cards.values()} == {"gpu.amd.com"}
    assert {card.units for card in cards.values()} == {()}


def test_intel_names_become_labels_and_keep_their_spelling(host: Any) -> None:
    host.spec("intel.yaml", "intel.com/gpu", {"0000-03-00-0-0x56c0": ["/dev/dri/card0", "/dev/dri/renderD128"]})
    (card,) = found(host).values()
    assert card.id.startswith("gpu.intel.com/")
    assert card.name == "gpu-0000-03-00-0-0x56c0"
    assert card.aliases == ("intel.com/gpu=0000-03-00-0-0x56c0",)


def test_other_classes_are_devices_but_no_gpus(host: Any) -> None:
    host.spec("nic.json", "acme.com/Net.Card", {"eth_0": ["/dev/uio0"]})
    (device,) = found(host).values()
    assert device.driver == "net.card.acme.com"
    assert device.attributes["type"] == "net-card"
    assert device.vendor == "acme"
    assert device.aliases == ("acme.com/Net.Card=eth_0",)


def test_the_same_nodes_in_two_kinds_are_one_device(host: Any) -> None:
    host.nvidia_spec(1)
    host.spec("extra.json", "acme.com/gpu", {"first": ["/dev/nvidia0", "/dev/dri/card0", "/dev/dri/renderD128"]})
    (card,) = found(host).values()
    assert card.driver == "gpu.nvidia.com"
    assert "acme.com/gpu=first" in card.aliases


def test_a_pair_of_cards_excludes_both_of_them(host: Any) -> None:
    host.spec(
        "n.json",
        "nvidia.com/gpu",
        {"0": ["/dev/nvidia0"], "1": ["/dev/nvidia1"], "2": ["/dev/nvidia2"], "pair": ["/dev/nvidia0", "/dev/nvidia1"]},
    )
    devices = found(host)
    pair = set(devices["gpu-pair"].booked_units)
    assert pair >= {*devices["gpu-0"].booked_units, *devices["gpu-1"].booked_units}
    assert pair.isdisjoint(devices["gpu-2"].booked_units)


@pytest.mark.parametrize("kind", ["k8s.gpu.nvidia.com/claim", "management.nvidia.com/gpu", "runtime.nvidia.com/gpu"])
def test_specs_of_other_tools_for_the_same_hardware_are_not_offered(host: Any, kind: str) -> None:
    host.spec("other.json", kind, {"x": ["/dev/nvidia0"]})
    assert found(host) == {}


def test_a_broken_spec_is_an_error_and_hides_nothing_else(host: Any) -> None:
    host.nvidia_spec(1)
    (Path(host.specs) / "broken.json").write_text("{")
    reading = cdi_source.read((host.specs,))
    assert [device.name for device in reading.devices] == ["gpu-0"]
    (error,) = reading.errors
    assert error.source == "cdi"
    assert "broken.json" in error.reason
    assert "broken.json" in error.remedy


def test_a_conflict_is_told_for_both_files(host: Any) -> None:
    for name in ("a.json", "b.json"):
        host.spec(name, "nvidia.com/gpu", {"0": ["/dev/nvidia0"]})
    reading = cdi_source.read((host.specs,))
    assert reading.devices == ()
    assert len(reading.errors) == 2
    assert all("conflict" in error.reason for error in reading.errors)


def test_a_folder_that_is_none_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (error,) = cdi_source.read((str(tmp_path / "file"),)).errors
    assert "cannot be listed" in error.reason


def test_a_spec_that_changes_is_seen_at_the_next_look(host: Any) -> None:
    path = host.nvidia_spec(1)
    assert set(found(host)) == {"gpu-0"}
    host.nvidia_spec(2)
    assert set(found(host)) == {"gpu-0", "gpu-1"}
    path.unlink()
    assert found(host) == {}


def test_the_folders_come_from_the_environment() -> None:
    assert spec_dirs({}) == ("/etc/cdi", "/var/run/cdi")
    assert spec_dirs({"DIBS_CDI_DIRS": "/a:/b:"}) == ("/a", "/b")


names = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9_.:-]{0,70}[A-Za-z0-9])?", fullmatch=True).filter(lambda n: n != "all")


@given(st.dictionaries(names, st.sets(st.integers(0, 5), min_size=1, max_size=3), min_size=1, max_size=8))
def test_whatever_a_spec_says_ids_are_unique_and_overlaps_exclude_each_other(spec: dict[str, set[int]]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        document = {
            "cdiVersion": "0.6.0",
            "kind": "acme.com/gpu",
            "devices": [
                {"name": name, "containerEdits": {"deviceNodes": [{"path": f"/dev/acme{n}"} for n in sorted(nodes)]}}
                for name, nodes in spec.items()
            ],
        }
        Path(folder, "acme.json").write_text(json.dumps(document))
        cache = Cache([folder])
        assert not cache.errors()
        devices = devices_of(cache, "box")
    inventory = Inventory(tuple(devices))
    assert len({device.id for device in devices}) == len(devices)
    nodes_of = {
        device.id: frozenset(node.path for node in device.cdi.edits.device_nodes)
        for device in devices
        if device.cdi is not None
    }
    assert set(nodes_of.values()) == {frozenset(f"/dev/acme{n}" for n in nodes) for nodes in spec.values()}
    for one in devices:
        assert len(one.name) <= 63
        assert one.name.replace("-", "").isalnum()
        for name in spec:
            qualified = f"acme.com/gpu={name}"
            assert len(inventory.find(qualified)) == 1
        for other in devices:
            if one is not other:
                overlap = bool(nodes_of[one.id] & nodes_of[other.id])
                shared = bool(set(one.booked_units) & set(other.booked_units))
                if overlap:
                    assert shared, (one, other)
                if len(nodes_of[one.id]) == len(nodes_of[other.id]) == 1:
                    assert not shared
