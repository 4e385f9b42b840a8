"""Claims on a node: what is prepared, what is refused and why, what survives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from dibs.cdi.cache import Cache
from dibs.cdi.spec import ContainerEdits, DeviceNode, Spec
from dibs.cdi.spec import Device as SpecDevice
from dibs.cdi.store import at_minimum_version, write_file
from dibs.devices.simulated import parse_world
from dibs.errors import Busy, Conflict, DibsError, InvalidRequest, NotFound, StateError, Unhealthy
from dibs.home import Home
from dibs.node.devices import Source
from dibs.node.prepare import Claim, Preparer, claim_of
from dibs.node.records import Records

DRIVER = "gpu.nvidia.com"


class Lab:
    """Claims by name, and a preparer over a simulated world."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cdi = folder / "cdi"
        self.cdi.mkdir()
        self.world: dict[str, Any] = {"count_or_spec": "2", "model": "H100"}
        self.claims: dict[str, Claim] = {}

    @property
    def preparer(self) -> Preparer:
        home = Home(state=self.folder, config=self.folder)
        looked = Source("node-a", home, world=parse_world(**self.world)).look()
        return Preparer(
            DRIVER, Records(self.folder / "claims"), cdi_folder=self.cdi, static=Cache([str(self.cdi)]),
            look=lambda: looked, fetch=lambda namespace, name: self.claims[name],
        )  # fmt: skip

    def claim(self, name: str, *devices: str, config: tuple[Any, ...] = (), driver: str = DRIVER, **more: Any) -> str:
        """Allocated, with these devices; its uid."""
        uid = f"uid-{name}"
        results = [{"request": "gpu", "driver": driver, "pool": "node-a", "device": one, **more} for one in devices]
        allocation = {"devices": {"results": results, "config": list(config)}}
        self.claims[name] = claim_of({"metadata": {"uid": uid}, "status": {"allocation": allocation}})
        return uid

    def prepare(self, name: str, *devices: str, **more: Any) -> Any:
        return self.preparer.prepare("default", name, self.claim(name, *devices, **more))


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


def test_a_simulated_device_gets_a_spec_of_its_claim_and_names_its_request(lab: Lab) -> None:
    (one,) = lab.prepare("mine", "gpu-1", request="gpu/large")
    assert one.requests == ("gpu",), "a kubelet knows requests, not their alternatives"
    assert one.cdi == (f"k8s.{DRIVER}/claim=uid-mine-gpu-1",)
    (file,) = lab.cdi.glob("*.json")
    spec = msgspec.json.decode(file.read_bytes(), type=Spec)
    assert [node.path for node in spec.devices[0].container_edits.device_nodes] == ["/dev/simgpu1"]


def test_a_device_that_a_spec_of_the_node_names_is_given_by_that_name(lab: Lab) -> None:
    edits = ContainerEdits(device_nodes=(DeviceNode(path="/dev/null"),))
    spec = at_minimum_version(Spec(kind="sim.dibs/gpu", devices=(SpecDevice(name="0", container_edits=edits),)))
    write_file(spec, str(lab.cdi / "static.json"), overwrite=True)
    (one,) = lab.prepare("mine", "gpu-0")
    assert one.cdi == ("sim.dibs/gpu=0",)
    assert [file.name for file in lab.cdi.iterdir()] == ["static.json"]


@pytest.mark.parametrize(
    ("held", "wanted"),
    [("gpu-0", "gpu-0"), ("gpu-0", "gpu-0-part-1"), ("gpu-0-part-1", "gpu-0")],
)
def test_a_device_that_another_claim_has_is_refused_also_as_a_part_of_a_card(lab: Lab, held: str, wanted: str) -> None:
    lab.world["partitions"] = 2
    lab.prepare("first", held)
    with pytest.raises(Busy) as refused:
        lab.prepare("second", wanted)
    assert f"claim default/first still has {held} here" in str(refused.value)
    lab.preparer.unprepare("uid-first")
    assert lab.prepare("second", wanted)


def test_parts_of_one_card_do_not_exclude_each_other(lab: Lab) -> None:
    lab.world["partitions"] = 2
    assert lab.prepare("first", "gpu-0-part-0")
    assert lab.prepare("second", "gpu-0-part-1")


def test_shares_go_together_and_an_administrator_sees_all_but_a_whole_card_goes_with_no_share(lab: Lab) -> None:
    lab.world["shared"] = True
    (one,) = lab.prepare("first", "gpu-0", shareID="a")
    assert one.share == "a"
    assert lab.prepare("second", "gpu-0", shareID="b")
    assert lab.prepare("admin", "gpu-0", adminAccess=True)
    with pytest.raises(Busy):
        lab.prepare("whole", "gpu-0")


def test_an_unhealthy_device_is_refused_unless_its_taint_is_tolerated(lab: Lab) -> None:
    lab.world["unhealthy"] = "1=Xid 79"
    with pytest.raises(Unhealthy) as refused:
        lab.prepare("mine", "gpu-1")
    assert "Xid 79" in str(refused.value)
    assert lab.prepare("brave", "gpu-1", tolerations=[{"key": "dibs/unhealthy", "operator": "Exists"}])


def test_all_problems_of_a_claim_are_reported_together_and_nothing_is_written(lab: Lab) -> None:
    lab.world["unhealthy"] = "1=Xid 79"
    with pytest.raises(DibsError) as refused:
        lab.prepare("mine", "gpu-1", "gpu-7")
    assert "Xid 79" in str(refused.value)
    assert "gpu-7" in str(refused.value)
    assert not list(lab.cdi.iterdir())
    assert not lab.preparer.prepared


def test_a_claim_that_is_not_what_the_kubelet_means_is_refused(lab: Lab) -> None:
    lab.claim("mine", "gpu-0")
    with pytest.raises(Conflict, match="another claim has this name now"):
        lab.preparer.prepare("default", "mine", "uid-old")
    lab.claims["mine"] = claim_of({"metadata": {"uid": "uid-mine"}})
    with pytest.raises(Conflict, match="not allocated"):
        lab.preparer.prepare("default", "mine", "uid-mine")
    with pytest.raises(NotFound, match=r"nothing of gpu\.nvidia\.com is allocated"):
        lab.prepare("other", "gpu-0", driver="gpu.amd.com")


def test_parameters_for_this_driver_are_refused_and_those_for_others_are_theirs(lab: Lab) -> None:
    with pytest.raises(InvalidRequest, match="knows no parameters"):
        lab.prepare("mine", "gpu-0", config=({"source": "FromClaim", "opaque": {"driver": DRIVER, "parameters": {}}},))
    assert lab.prepare("other", "gpu-0", config=({"source": "FromClass", "opaque": {"driver": "gpu.amd.com"}},))


def test_a_damaged_record_is_an_error_and_never_not_prepared(lab: Lab) -> None:
    lab.prepare("first", "gpu-0")
    (file,) = (lab.folder / "claims").iterdir()
    file.write_text("{")
    with pytest.raises(StateError) as refused:
        lab.prepare("second", "gpu-0")
    assert "drain the node" in str(refused.value.problems[0].remedy)


def test_a_spec_that_was_removed_by_hand_is_back_after_a_restart_and_one_without_a_record_is_removed(lab: Lab) -> None:
    lab.prepare("mine", "gpu-0")
    (file,) = lab.cdi.iterdir()
    stray = file.with_name(file.name.replace("uid-mine", "uid-stray"))
    file.rename(stray)
    said = lab.preparer.restore()
    assert [one.name for one in lab.cdi.iterdir()] == [file.name]
    assert said == ["default/mine is prepared", "the spec of claim uid-stray has no record: removed"]


@pytest.mark.parametrize("uid", ["", "../escape", "a/b"])
def test_a_uid_that_is_none_touches_no_file(lab: Lab, uid: str) -> None:
    with pytest.raises(DibsError):
        Records(lab.folder / "claims").remove(uid)
