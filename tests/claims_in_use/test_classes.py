"""The device classes: which devices each built-in one takes, and what files may add."""

from __future__ import annotations

import pytest
from hypothesis import given as given_values
from hypothesis import settings
from hypothesis import strategies as st

from dibs.cel.dra import DeviceView, compile_selector
from dibs.claims import DeviceClass, validate
from dibs.devices.classes import BUILT_IN, built_in, classes_of
from dibs.errors import InvalidRequest
from dibs.home import Home

from .cases import claim, given, solve, world

WORLDS = {"nvidia": "H100:2", "amd": "MI300X:2", "intel": "Max-1550:2"}
# What each class takes: vendors, whole cards, parts.
TAKES = {
    "gpu": (("nvidia", "amd", "intel"), True, False),
    "gpu.nvidia.com": (("nvidia",), True, False),
    "gpu.amd.com": (("amd",), True, False),
    "gpu.intel.com": (("intel",), True, False),
    "mig.nvidia.com": (("nvidia",), False, True),
    "part": (("nvidia", "amd", "intel"), False, True),
    "gpu-or-part": (("nvidia", "amd", "intel"), True, True),
    "simulated": (("nvidia", "amd", "intel"), True, True),
}


def test_every_built_in_class_is_tried() -> None:
    assert set(TAKES) == set(BUILT_IN)


@pytest.mark.parametrize("name", BUILT_IN)
@pytest.mark.parametrize("vendor", WORLDS)
@pytest.mark.parametrize("parts", [None, 4])
def test_a_class_takes_what_its_name_says(name: str, vendor: str, parts: int | None) -> None:
    inventory = world(WORLDS[vendor], parts)
    vendors, whole, cut = TAKES[name]
    expected = [
        device.name for device in inventory.devices if vendor in vendors and (whole if device.parent is None else cut)
    ]
    outcome = solve(inventory, claim(1, name))
    assert given(outcome) == (expected[:1] or None)
    selected = [
        v.device.rpartition("/")[2] for v in outcome.explanation.requests[0].fell if v.reason != "class-selector"
    ]
    if not expected:
        assert selected == []


@pytest.mark.parametrize("device_class", built_in(), ids=lambda one: str(one.metadata.name))
def test_a_built_in_class_is_valid_without_alpha_features(device_class: DeviceClass) -> None:
    assert validate(device_class) == []
    for selector in device_class.spec.selectors:
        assert selector.cel is not None
        compile_selector(selector.cel.expression, consumable_capacity=False, list_attributes=False)


@settings(max_examples=50)
@given_values(
    st.sampled_from(["gpu.nvidia.com", "gpu.example.com", "nic.example.com"]),
    st.dictionaries(
        st.sampled_from(["type", "sim.dibs/simulated", "sim.dibs/other", "x.com/type"]),
        st.booleans() | st.integers(-5, 5) | st.sampled_from(["gpu", "mig", ""]),
    ),
)
def test_no_device_makes_a_built_in_class_fail(driver: str, attributes: dict[str, bool | int | str]) -> None:
    view = DeviceView(driver, attributes, {})
    for expressions in BUILT_IN.values():
        for text in expressions:
            assert compile_selector(text).matches(view) in (True, False)


def test_a_device_without_a_type_is_a_gpu_if_its_driver_says_so() -> None:
    (text,) = BUILT_IN["gpu"]
    assert compile_selector(text).matches(DeviceView("gpu.example.com"))
    assert not compile_selector(text).matches(DeviceView("net.example.com"))


# -- classes in files


BIG = """\
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: big}
spec:
  selectors:
  - cel: {expression: 'device.capacity[device.driver].memory.compareTo(quantity("100Gi")) > 0'}
"""


def write(home: Home, **files: str) -> None:
    folder = home.config / "classes"
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text)


def test_without_files_there_are_the_built_in_classes(home: Home) -> None:
    assert [one.metadata.name for one in classes_of(home)] == list(BUILT_IN)
    write(home)
    assert [one.metadata.name for one in classes_of(home)] == list(BUILT_IN)


def test_a_file_adds_a_class(home: Home) -> None:
    write(home, big=BIG, small=BIG.replace("name: big", "name: small").replace("> 0", "< 0"))
    (home.config / "classes" / "notes.txt").write_text("not a class")
    classes = tuple(classes_of(home))
    assert [one.metadata.name for one in classes][len(BUILT_IN) :] == ["big", "small"]
    assert given(solve(world("H100:1,MI300X:1"), claim(1, "big"), classes=classes)) == ["gpu-1"]


def test_every_problem_of_every_file_is_reported_with_file_and_field(home: Home) -> None:
    write(
        home,
        a=BIG.replace("expression", "expresion"),
        b=BIG.replace("device.capacity", "devices.capacity"),
        c=BIG.replace("name: big", "name: gpu"),
        d="kind: [",
        e=BIG.replace("DeviceClass", "ResourceClaim").replace("  selectors:", "  devices: {}\n  x:"),
    )
    with pytest.raises(InvalidRequest) as caught:
        classes_of(home)
    text = str(caught.value)
    assert "a.yaml: DeviceClass big: spec.selectors[0].cel.expresion" in text
    assert "b.yaml: DeviceClass big: spec.selectors[0].cel.expression" in text
    assert "undeclared reference to 'devices'" in text
    assert 'c.yaml: metadata.name "gpu": this class is built in' in text
    assert "d.yaml: neither JSON nor YAML" in text
    assert "e.yaml: ResourceClaim big: spec.x" in text
    assert {problem.code for problem in caught.value.problems} == {"CLASS_FILE_INVALID"}


def test_only_classes_can_stand_in_the_folder(home: Home) -> None:
    write(home, a="{apiVersion: v1, kind: Node, metadata: {name: x}}")
    with pytest.raises(InvalidRequest, match="only device classes"):
        classes_of(home)


def test_a_class_in_two_files_is_refused(home: Home) -> None:
    write(home, a=BIG, b=BIG)
    with pytest.raises(InvalidRequest, match=r"a\.yaml, document 1 already"):
        classes_of(home)
