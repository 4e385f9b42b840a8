"""Names: DNS labels, versions, addresses."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dibs.devices.model import Version
from dibs.devices.names import bus_id, device_name, driver_name, label, plain_index, pool_name, version

LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
cdi_names = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9_.:-]{0,90}[A-Za-z0-9])?", fullmatch=True)


@given(st.lists(cdi_names, min_size=2, max_size=6, unique=True), st.sampled_from(["gpu", "Net.Card", "c" * 63, "x_"]))
def test_two_names_never_get_the_same_label(names: list[str], cls: str) -> None:
    made = [device_name(cls, name) for name in names]
    assert len(set(made)) == len(made)
    assert all(LABEL.fullmatch(name) for name in made)


@pytest.mark.parametrize("pair", [("a:b", "a-b"), ("A", "a"), ("a.b", "a_b"), ("0:1", "0-1")])
def test_names_that_look_alike_stay_apart(pair: tuple[str, str]) -> None:
    assert device_name("gpu", pair[0]) != device_name("gpu", pair[1])


def test_a_name_that_ends_like_a_hash_cannot_take_a_hashed_names_place() -> None:
    hashed = device_name("gpu", "a:b")
    assert device_name("gpu", hashed.removeprefix("gpu-")) != hashed


def test_plain_names_stay_readable() -> None:
    assert device_name("gpu", "0") == "gpu-0"
    assert device_name("gpu", "0:1").startswith("gpu-0-1-x")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("580.95.05", "580.95.5"), ("9.0", "9.0.0"), ("13", "13.0.0"), ("6.16.6-rc1", "6.16.6"), ("", None), ("x", None)],
)
def test_versions_become_semver(text: str, expected: str | None) -> None:
    assert version(text) == (Version(expected) if expected else None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("00000000:1B:00.0", "0000:1b:00.0"),
        ("0000:1b:00.0", "0000:1b:00.0"),
        ("1b:00.1", "0000:1b:00.1"),
        ("00010000:01:00.0", "10000:01:00.0"),
    ],
)
def test_addresses_are_spelled_as_sysfs_does(text: str, expected: str) -> None:
    assert bus_id(text) == expected


@pytest.mark.parametrize("text", ["", "0000:1b:00", "0000:1b:00.9", "zz:00.0", "../../etc"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a PCI address"):
        bus_id(text)


def test_small_things() -> None:
    assert driver_name("nvidia.com/gpu") == "gpu.nvidia.com"
    assert label("My.Host_1-") == "my-host-1"
    assert LABEL.fullmatch(pool_name())
    assert (plain_index("10"), plain_index("01"), plain_index("1e3"), plain_index("٣")) == (10, None, None, None)
