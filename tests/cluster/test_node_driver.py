"""`dibs node` with a real kubelet and a real runtime: exactly the claimed devices, in the pod that has them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.node_driver import NVIDIA, NodeProcess
from tests.cluster.place import Place
from tests.cluster.world import request

from dibs.devices.model import Device
from dibs.devices.simulated import devices_of, load
from dibs.kube import client as kube
from dibs.kube import objects as core

DEVICES = ("sh", "-c", "cd /dev; ls -d simgpu* 2>/dev/null || true")

# Where `dibs node` kills itself, once: before or after one of the steps of preparing a claim or giving it back. A
# kubelet waits some 20 s before it asks again, so most of them are left to `make soak`; tests/node kills at every line.
POINTS = [
    ("before", "records.Records.write"),
    ("after", "records.Records.write"),
    ("before", "prepare.Preparer._write_spec"),
    ("after", "prepare.Preparer._write_spec"),
    ("after", "prepare.Preparer.prepare"),
    ("before", "records.Records.remove"),
    ("after", "records.Records.remove"),
]
SOAK = bool(os.environ.get("DIBS_SOAK"))


@pytest.fixture
def classes(place: Place) -> Iterator[None]:
    selector = {"cel": {"expression": f"device.driver == '{NVIDIA}'"}}
    place.cluster.create(kube.CLASSES, {"metadata": {"name": NVIDIA}, "spec": {"selectors": [selector]}})
    yield
    place.cluster.delete(kube.CLASSES, NVIDIA)


@pytest.fixture
def driver(place: Place, classes: None, tmp_path: Path) -> Iterator[NodeProcess]:
    """A DRA driver with four simulated cards on node-a."""
    found = NodeProcess(place, "node-a", tmp_path)
    found.start()
    yield found
    place.empty()
    place.until(lambda: not found.records(), "all claims are given back", found.said)
    assert not found.specs()
    found.clear()


def given(place: Place, pod: str) -> set[str]:
    """The device nodes that a pod's claim stands for."""
    results = place.claim_of(pod)["status"]["allocation"]["devices"]["results"]
    return {one["device"].replace("gpu-", "simgpu") for one in results}


def test_a_container_has_exactly_the_claimed_devices_and_one_without_a_claim_has_none(
    driver: NodeProcess, place: Place
) -> None:
    place.template("two", request(device_class=NVIDIA, count=2))
    place.pod("with", template="two")
    place.pod("without", node="node-a")
    place.phase("with")
    place.phase("without")
    nodes = place.exec("with", *DEVICES).split()
    assert set(nodes) == given(place, "with")
    assert len(nodes) == 2
    assert place.exec("without", *DEVICES) == ""
    place.exec("with", "sh", "-c", f"echo x > /dev/{nodes[0]}")
    place.delete("with")
    place.until(lambda: not driver.records() and not driver.specs(), "the claim is given back", driver.said)


def test_devices_are_published_with_what_dibs_knows_and_an_unhealthy_one_has_a_taint(
    driver: NodeProcess, place: Place
) -> None:
    devices: Any = driver.devices()
    assert sorted(devices) == ["gpu-0", "gpu-1", "gpu-2", "gpu-3"]
    assert devices["gpu-0"]["attributes"]["productName"]["string"].endswith("H100 80GB HBM3")
    assert devices["gpu-0"]["capacity"]["memory"]["value"] == "81559Mi"
    driver.simulate("4", unhealthy="2=Xid 79")
    place.until(lambda: "taints" in driver.devices()["gpu-2"], "the broken card has a taint", driver.said)
    taint: Any = driver.devices()["gpu-2"]["taints"]
    assert (taint[0]["key"], taint[0]["value"], taint[0]["effect"]) == ("dibs/unhealthy", "Xid-79", "NoSchedule")
    place.template("four", request(device_class=NVIDIA, count=4))
    place.pod("waits", template="four")
    place.until(lambda: "cannot allocate all claims" in place.story("waits"), "the scheduler refuses it")
    driver.simulate("4")
    place.phase("waits")
    assert set(place.exec("waits", *DEVICES).split()) == given(place, "waits")


def test_a_kubelet_that_is_restarted_finds_the_driver_again_and_gives_claims_back(
    driver: NodeProcess, place: Place
) -> None:
    place.template("one", request(device_class=NVIDIA))
    place.pod("before", template="one")
    place.phase("before")
    said = len(driver.said())
    place.running.command("stop kubelet@node-a")
    place.running.command("start kubelet@node-a")
    driver.await_line("registered", said)
    place.pod("after", template="one")
    place.phase("after")
    assert not set(place.exec("before", *DEVICES).split()) & set(place.exec("after", *DEVICES).split())
    place.delete("before")
    place.until(lambda: len(driver.records()) == 1, "its claim is given back", driver.said)


def test_a_driver_that_was_killed_still_knows_what_it_gave(driver: NodeProcess, place: Place) -> None:
    place.template("one", request(device_class=NVIDIA))
    place.pod("before", template="one")
    place.phase("before")
    driver.stop(signal.SIGKILL)
    place.cluster.delete(kube.PODS, "before", place.namespace, grace=0)  # nothing can be given back now
    driver.start()
    place.until(lambda: not driver.records() and not driver.specs(), "the claim is given back", driver.said)


@pytest.mark.parametrize(("when", "step"), POINTS if SOAK else [POINTS[2], POINTS[5]])
def test_a_kill_between_two_steps_loses_no_claim_and_leaves_nothing(
    place: Place, classes: None, tmp_path: Path, when: str, step: str
) -> None:
    driver = NodeProcess(place, "node-a", tmp_path, world="1").start(die=(when, step))
    place.template("one", request(device_class=NVIDIA))
    place.pod("user", template="one")
    unprepares = "remove" in step
    if unprepares:
        place.phase("user")
        place.cluster.delete(kube.PODS, "user", place.namespace, grace=0)
    assert driver.process is not None
    assert driver.process.wait() == -signal.SIGKILL
    driver.process = None
    driver.start()
    if not unprepares:
        place.phase("user")
        assert place.exec("user", *DEVICES) == "simgpu0\n"
        assert len(driver.records()) == len(driver.specs()) == 1
        place.delete("user")
    place.until(lambda: not driver.records() and not driver.specs(), "nothing is left", driver.said)
    # The only card can be had again: nothing of the dead process holds it.
    place.pod("next", template="one")
    place.phase("next")
    place.delete("next")
    place.until(lambda: not driver.records() and not driver.specs(), "nothing is left", driver.said)
    driver.clear()


def test_claims_share_a_card_by_its_memory(place: Place, classes: None, tmp_path: Path) -> None:
    driver = NodeProcess(place, "node-a", tmp_path, world="1")
    driver.simulate("1", shared=True)
    driver.start()
    place.template("half", request(device_class=NVIDIA, capacity={"requests": {"memory": "30Gi"}}))
    for name in ("first", "second", "third"):
        place.pod(name, template="half")
    running = [name for name in ("first", "second", "third") if _runs(place, name)]
    assert len(running) == 2
    for name in running:
        assert place.exec(name, *DEVICES) == "simgpu0\n"
    assert len(driver.records()) == 2
    place.empty()
    place.until(lambda: not driver.records() and not driver.specs(), "nothing is left", driver.said)
    driver.clear()


def test_parameters_that_the_driver_does_not_know_are_refused_in_words(driver: NodeProcess, place: Place) -> None:
    opaque = {"driver": NVIDIA, "parameters": {"sharing": {"strategy": "TimeSlicing"}}}
    place.template("tuned", request(device_class=NVIDIA), config=[{"opaque": opaque}])
    place.pod("tuned", template="tuned")
    place.until(lambda: "this driver knows no parameters" in place.story("tuned"), "the event says why")


def _runs(place: Place, name: str) -> bool:
    """Whether a pod comes to run, rather than be refused by the scheduler."""
    place.until(
        lambda: place.get(name)["status"].get("phase") == "Running" or "FailedScheduling" in place.story(name),
        f"{name} is decided about",
        lambda: place.story(name),
    )
    return bool(place.get(name)["status"]["phase"] == "Running")


def test_a_second_driver_waits_for_the_end_of_the_first(driver: NodeProcess, place: Place, tmp_path: Path) -> None:
    (tmp_path / "second").mkdir()
    second = NodeProcess(place, "node-a", tmp_path / "second")
    second.start(await_line="another dibs node runs on this node")
    said = len(second.said())
    driver.stop(signal.SIGKILL)
    second.await_line("registered", said)
    second.stop()
    driver.start()


def test_a_name_that_another_driver_publishes_under_is_left_to_it(place: Place, tmp_path: Path) -> None:
    node = place.running.nodes["node-a"]
    pool = {"name": "theirs", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": NVIDIA, "nodeName": node.name, "pool": pool, "devices": [{"name": "gpu-0"}]}
    place.cluster.create(kube.SLICES, {"metadata": {"name": "theirs"}, "spec": spec})
    driver = NodeProcess(place, "node-a", tmp_path)
    driver.start(await_line="another DRA driver publishes under this name on node-a")
    assert list(driver.devices()) == ["gpu-0"]
    driver.stop()
    driver.start("--driver", "gpu.dibs.example")
    place.until(lambda: len(driver.devices()) == 4, "its own name is free", driver.said)
    driver.clear()


def test_a_device_plugin_gives_exactly_the_devices_that_the_kubelet_chose(place: Place, tmp_path: Path) -> None:
    driver = NodeProcess(place, "node-b", tmp_path)
    driver.start("--device-plugin", "nvidia.com/gpu")
    place.until(lambda: _offered(place) == "4", "four cards are offered", driver.said)
    place.pod("with", limits={"nvidia.com/gpu": "2"})
    place.pod("without", node="node-b")
    status = place.phase("with")["status"]["containerStatuses"][0]["allocatedResourcesStatus"]
    place.phase("without")
    uuids = {one["resourceID"] for entry in status for one in entry["resources"]}
    numbers = {device.uuid: device.index for device in _world(driver)}
    assert {f"simgpu{numbers[one]}" for one in uuids} == set(place.exec("with", *DEVICES).split())
    assert len(uuids) == 2
    assert place.exec("without", *DEVICES) == ""
    assert not driver.devices(), "never both for the same devices"
    # A restarted kubelet forgets its plugins, and is told again.
    said = len(driver.said())
    place.running.command("stop kubelet@node-b")
    place.running.command("start kubelet@node-b")
    driver.await_line("registered", said)
    driver.simulate("4", unhealthy="3=Xid 79")
    place.until(lambda: _offered(place) == "3", "a broken card is not offered", driver.said)
    driver.stop()
    # What the plugin gave is still in use: as a DRA driver it would be offered a second time.
    with pytest.raises(AssertionError, match="would be offered twice"):
        driver.start()
    driver.stop()
    place.empty()
    driver.clear()


def _offered(place: Place) -> str:
    node = place.cluster.get(kube.NODES, "node-b", core.Node)
    return node.status.allocatable.get("nvidia.com/gpu", "")


def _world(driver: NodeProcess) -> tuple[Device, ...]:
    world = load(driver.home)
    assert world is not None
    return devices_of(world, driver.node.name)
