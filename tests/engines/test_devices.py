"""Devices in real containers: exactly the leased ones, by name or as nodes, or a refusal before anything is made."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from tests.engines.conftest import Bench

from dibs.backends.engines.external import held
from dibs.backends.port import GrantedDevice
from dibs.cdi.spec import ContainerEdits, Device, DeviceNode, Hook, Spec
from dibs.devices.model import CdiAttachment, DeviceId
from dibs.errors import InvalidRequest, Unsupported

LIST = "ls /dev | grep -E 'simgpu|nvidia' | sort"
WriteSpec = Callable[..., None]


def granted(name: str, *nodes: DeviceNode, env: tuple[str, ...] = (), hooks: tuple[Hook, ...] = ()) -> GrantedDevice:
    edits = ContainerEdits(device_nodes=nodes, env=env, hooks=hooks)
    return GrantedDevice(DeviceId(f"test/pool/{name}"), CdiAttachment(f"nvidia.com/gpu={name}", edits, "test"))


def node(name: str) -> DeviceNode:
    return DeviceNode(path=f"/dev/{name}", type="c", major=1, minor=3)


def spec(*devices: GrantedDevice) -> Spec:
    entries = (
        Device(name=one.attachment.cdi_name.partition("=")[2], container_edits=one.attachment.edits) for one in devices
    )
    return Spec(kind="nvidia.com/gpu", devices=tuple(entries))


# --- exactly these


@pytest.mark.parametrize("chosen", [(0,), (2,), (1, 3), (0, 1, 2, 3)], ids=str)
def test_the_leased_devices_are_in_it_by_name_and_no_others(bench: Bench, chosen: tuple[int, ...]) -> None:
    world = bench.world("4")
    handle, realisation = bench.create(bench.workload("sleep", "1000", devices=tuple(world[i] for i in chosen)))
    bench.backend.start(handle)
    observed = bench.backend.observe(handle)
    assert realisation.native["devices"] == "by CDI name"
    assert [str(one) for one in observed.nodes] == [f"/dev/simgpu{i} c 1:3" for i in chosen]
    assert observed.nodes == realisation.expectation.nodes
    assert bench.said("sh", "-c", LIST, devices=tuple(world[i] for i in chosen)).split() == [
        f"simgpu{i}" for i in chosen
    ]


def test_without_devices_there_are_none(bench: Bench) -> None:
    bench.world("4")
    handle = bench.start("sleep", "1000")
    assert bench.backend.observe(handle).nodes == ()
    assert bench.said("sh", "-c", LIST) == ""


def test_a_part_of_a_card_has_its_own_node_beside_the_cards(bench: Bench) -> None:
    part = next(one for one in bench.world("1", partitions=2) if one.parent)
    handle = bench.start("sleep", "1000", devices=(part,))
    assert [one.path for one in bench.backend.observe(handle).nodes] == ["/dev/simgpu0", "/dev/simgpu0p0"]


@pytest.mark.parametrize("model", ["H100", "MI300X", "MAX1550"])
def test_every_vendors_cards_go_the_same_way(bench: Bench, model: str) -> None:
    from dibs.devices import catalogue

    if catalogue.find(model) is None:
        pytest.skip(f"{model} is not simulated")
    device = bench.world("1", model=model)[0]
    handle, realisation = bench.create(bench.workload("sleep", "1000", devices=(device,)))
    bench.backend.start(handle)
    assert realisation.native["devices"] == "by CDI name"
    assert [one.path for one in bench.backend.observe(handle).nodes] == ["/dev/simgpu0"]


def test_an_engine_that_does_not_read_the_spec_gets_the_nodes_and_the_receipt_says_so(stranger: Bench) -> None:
    device = stranger.world("2")[1]
    handle, realisation = stranger.create(stranger.workload("sleep", "1000", devices=(device,)))
    stranger.backend.start(handle)
    assert realisation.native["devices"] == "as nodes"
    assert any(
        note.startswith("passed as device nodes: the engine does not read") for note in realisation.native["notes"]
    )
    assert [str(one) for one in stranger.backend.observe(handle).nodes] == ["/dev/simgpu1 c 1:3"]


def test_a_command_that_ends_at_once_was_seen_or_is_on_record(bench: Bench) -> None:
    device = bench.world("2")[0]
    handle, realisation = bench.create(bench.workload("true", devices=(device,)))
    bench.backend.start(handle)
    bench.backend.wait(handle, 60)
    assert bench.backend.recorded(handle).nodes == realisation.expectation.nodes
    if bench.backend.name == "podman":  # which can be made to wait between the two
        assert bench.backend.observe(handle).nodes == realisation.expectation.nodes


# --- refused before anything is made


def test_a_name_that_means_other_nodes_to_the_engine_is_refused(bench: Bench, write_spec: WriteSpec) -> None:
    write_spec(bench.engine.etc_cdi, spec(granted("0", node("nvidia7"))))
    workload = msgspec.structs.replace(bench.workload("true"), devices=(granted("0", node("nvidia0")),))
    with pytest.raises(Unsupported) as caught:
        bench.create(workload)
    assert caught.value.code == "CDI_SPECS_DIFFER"
    assert bench.engine.containers() == []


def test_hooks_without_the_engines_own_spec_are_refused(bench: Bench) -> None:
    hook = Hook(hook_name="createContainer", path="/bin/true")
    device = granted("5", DeviceNode(path="/dev/nvidia5", host_path="/dev/null"), hooks=(hook,))
    with pytest.raises(Unsupported) as caught:
        bench.create(msgspec.structs.replace(bench.workload("true"), devices=(device,)))
    assert caught.value.code == "CDI_NAME_UNKNOWN"
    assert "folder that the engine reads" in str(caught.value)


def test_a_stale_spec_is_refused(bench: Bench) -> None:
    stale = DeviceNode(path="/dev/nvidia0", host_path="/dev/null", type="c", major=195, minor=0)
    gone = DeviceNode(path="/dev/nvidia1", host_path="/dev/no-such-node")
    workload = msgspec.structs.replace(bench.workload("true"), devices=(granted("0", stale), granted("1", gone)))
    with pytest.raises(InvalidRequest) as caught:
        bench.create(workload)
    assert [problem.code for problem in caught.value.problems] == ["DEVICE_CHANGED", "DEVICE_GONE"]


def test_a_device_of_the_engines_spec_needs_no_node_on_the_host(bench: Bench, write_spec: WriteSpec) -> None:
    devices = (granted("0", node("nvidia0")), granted("1", node("nvidia1")))
    write_spec(bench.engine.etc_cdi, spec(*devices))
    handle, realisation = bench.create(msgspec.structs.replace(bench.workload("sleep", "1000"), devices=devices[1:]))
    bench.backend.start(handle)
    assert realisation.native["devices"] == "by CDI name"
    assert [str(one) for one in bench.backend.observe(handle).nodes] == ["/dev/nvidia1 c 1:3"]


def test_sd_25_variables_of_two_specs_are_not_lost_to_the_last_one(bench: Bench, write_spec: WriteSpec) -> None:
    plain = DeviceNode(path="/dev/nvidia0", host_path="/dev/null")
    other = DeviceNode(path="/dev/nvidia1", host_path="/dev/null")
    devices = (granted("0", plain, env=("SEEN_DEVICES=0",)), granted("1", other, env=("SEEN_DEVICES=1",)))
    write_spec(bench.engine.etc_cdi, spec(*devices))
    workload = bench.workload("sleep", "1000", env={"PATH": "/bin", "SEEN_DEVICES": "0,1"})
    handle, realisation = bench.create(msgspec.structs.replace(workload, devices=devices))
    bench.backend.start(handle)
    assert bench.backend.observe(handle).env["SEEN_DEVICES"] == "0,1"
    assert "would keep only the last value" in realisation.native["notes"][0]


# --- CDI names that were asked for


def test_a_requested_cdi_name_is_passed_unchanged(bench: Bench, write_spec: WriteSpec) -> None:
    by_index, by_uuid = granted("0", node("nvidia0")), granted("GPU-1", node("nvidia0"))
    write_spec(bench.engine.etc_cdi, spec(by_index, by_uuid))
    workload = bench.workload("sleep", "1000", options={"cdi_devices": ["nvidia.com/gpu=0"]})
    _, realisation = bench.create(msgspec.structs.replace(workload, devices=(by_uuid,)))
    assert "nvidia.com/gpu=0" in str(realisation.native["create"])
    assert "nvidia.com/gpu=GPU-1" not in str(realisation.native["create"])


def test_a_cdi_name_of_another_device_is_refused(bench: Bench, write_spec: WriteSpec) -> None:
    zero, one = granted("0", node("nvidia0")), granted("1", node("nvidia1"))
    write_spec(bench.engine.etc_cdi, spec(zero, one))
    workload = bench.workload("true", options={"cdi_devices": ["nvidia.com/gpu=1"]})
    with pytest.raises(Unsupported, match="other nodes"):
        bench.create(msgspec.structs.replace(workload, devices=(zero,)))
    workload = bench.workload("true", options={"cdi_devices": ["nvidia.com/gpu=9"]})
    with pytest.raises(Unsupported) as caught:
        bench.create(msgspec.structs.replace(workload, devices=(zero,)))
    assert caught.value.code == "CDI_NAME_UNKNOWN"


# --- without CDI


def test_sd_44_without_cdi_a_device_goes_as_nodes_or_is_refused_before_it_is_made(old_docker: Bench) -> None:
    device = old_docker.world("1")[0]
    handle, realisation = old_docker.create(old_docker.workload("sleep", "1000", devices=(device,)))
    old_docker.backend.start(handle)
    assert realisation.native["notes"] == ["passed as device nodes: CDI is off in the engine"]
    assert [one.path for one in old_docker.backend.observe(handle).nodes] == ["/dev/simgpu0"]
    hook = Hook(hook_name="createContainer", path="/bin/true")
    real = granted("0", DeviceNode(path="/dev/nvidia0", host_path="/dev/null"), hooks=(hook,))
    before = len(old_docker.engine.containers())
    with pytest.raises(Unsupported, match="CDI is off"):
        old_docker.create(msgspec.structs.replace(old_docker.workload("true"), devices=(real,)))
    assert len(old_docker.engine.containers()) == before


# --- others' containers


def test_containers_that_others_started_hold_their_devices(bench: Bench) -> None:
    world = bench.world("4")
    ours = {bench.start("sleep", "1000", devices=(world[3],)).data["container"]}
    if bench.engine.kind == "docker":
        host: dict[str, object] = {
            "NetworkMode": "none",
            "DeviceRequests": [{"Driver": "cdi", "DeviceIDs": ["sim.dibs/gpu=1"]}],
            "Devices": [{"PathOnHost": "/dev/null", "PathInContainer": "/dev/simgpu2", "CgroupPermissions": "rwm"}],
        }
        body: dict[str, object] = {"Image": "localhost/dibs-test:1", "Cmd": ["sleep", "1000"], "HostConfig": host}
        status, answer = bench.engine.api("POST", "/v1.44/containers/create?name=stranger", json=body)
    else:
        devices = [{"path": "sim.dibs/gpu=1"}, {"path": "/dev/null:/dev/simgpu2:rwm"}]
        more: dict[str, object] = {"name": "stranger", "netns": {"nsmode": "none"}, "devices": devices}
        body = {"image": "localhost/dibs-test:1", "command": ["sleep", "1000"], **more}
        status, answer = bench.engine.api("POST", "/v4.0.0/libpod/containers/create", json=body)
    assert status == 201, answer
    assert bench.backend.external_holders(lambda: ours) == []
    assert bench.engine.api("POST", f"{bench.engine.prefix}/containers/stranger/start")[0] == 204
    found = held(bench.backend.external_holders(lambda: ours), world)
    assert {device: holder.name for device, holder in found.items()} == {
        world[1].id: "stranger",
        world[2].id: "stranger",
    }
