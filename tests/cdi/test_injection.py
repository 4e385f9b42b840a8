"""Edits applied to an OCI spec: what replaces, what is added, what comes from the host, and all or nothing."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import pytest

from dibs.cdi import (
    ContainerEdits,
    DeviceNode,
    Hook,
    InjectError,
    IntelRdt,
    Mount,
    NetDevice,
    apply_edits,
    fill_device_node,
    fill_device_nodes,
    merge_edits,
    take_device_references,
)


def test_environment_replaces_in_place_and_appends_the_rest(empty_host: str) -> None:
    oci = {"process": {"env": ["A=1", "B=2", "FLAG"], "user": {"uid": 7}}}
    result = apply_edits(oci, ContainerEdits(env=("B=9", "C=3", "FLAG=x", "C=4")), host_root=empty_host)
    assert result["process"] == {"env": ["A=1", "B=9", "FLAG=x", "C=4"], "user": {"uid": 7}}


def test_device_node_replaces_the_one_of_the_same_path(empty_host: str) -> None:
    oci = {"linux": {"devices": [{"path": "/dev/a", "type": "b"}, {"path": "/dev/b", "type": "c"}]}}
    node = DeviceNode("/dev/a", type="c", major=5, minor=6, permissions="r", file_mode=0o600)
    result = apply_edits(oci, ContainerEdits(device_nodes=(node,)), host_root=empty_host)
    assert result["linux"]["devices"] == [
        {"path": "/dev/b", "type": "c"},
        {"path": "/dev/a", "type": "c", "major": 5, "minor": 6, "fileMode": 0o600},
    ]
    assert result["linux"]["resources"]["devices"] == [
        {"allow": True, "type": "c", "major": 5, "minor": 6, "access": "r"}
    ]


def test_permission_none_gives_a_rule_without_access(empty_host: str) -> None:
    node = DeviceNode("/dev/a", type="c", major=5, permissions="none")
    result = apply_edits({}, ContainerEdits(device_nodes=(node,)), host_root=empty_host)
    assert result["linux"]["resources"]["devices"] == [{"allow": True, "type": "c", "major": 5, "minor": 0}]


def test_pipe_gets_no_cgroup_rule(empty_host: str) -> None:
    result = apply_edits({}, ContainerEdits(device_nodes=(DeviceNode("/p", type="p"),)), host_root=empty_host)
    assert result == {"linux": {"devices": [{"path": "/p", "type": "p", "major": 0, "minor": 0}]}}


@pytest.mark.parametrize(
    ("user", "node", "expected"),
    [
        ({"uid": 1000, "gid": 100}, DeviceNode("/d", type="c", major=1), (1000, 100)),
        ({"uid": 1000, "gid": 100}, DeviceNode("/d", type="c", major=1, uid=0, gid=5), (0, 5)),
        ({"uid": 0, "gid": 0}, DeviceNode("/d", type="c", major=1), (None, None)),
    ],
)
def test_owner_of_a_node_is_the_process_user_unless_said(
    user: dict[str, int], node: DeviceNode, expected: tuple[int | None, int | None], empty_host: str
) -> None:
    result = apply_edits({"process": {"user": user}}, ContainerEdits(device_nodes=(node,)), host_root=empty_host)
    (device,) = result["linux"]["devices"]
    assert (device.get("uid"), device.get("gid")) == expected


def test_mounts_are_ordered_by_depth_and_replace_the_same_destination(empty_host: str) -> None:
    oci = {
        "mounts": [{"destination": "/a/b/c"}, {"destination": "/z"}, {"destination": "/a"}, {"destination": "/a/b/d"}]
    }
    mounts = (Mount("/host/a", "/a", "bind", ("ro",)), Mount("/host/x", "/x//y/"))
    result = apply_edits(oci, ContainerEdits(mounts=mounts), host_root=empty_host)
    assert result["mounts"] == [
        {"destination": "/z"},
        {"destination": "/a", "source": "/host/a", "type": "bind", "options": ["ro"]},
        {"destination": "/x//y/", "source": "/host/x"},
        {"destination": "/a/b/c"},
        {"destination": "/a/b/d"},
    ]


@pytest.mark.parametrize(
    ("options", "expected"),
    [(("ro", "bind"), ["ro", "bind", "idmap"]), (("rbind",), ["rbind", "ridmap"]), (("ro",), ["ro"]),
     (("bind", "ridmap"), ["bind", "ridmap"])],
)  # fmt: skip
def test_bind_mounts_are_mapped_in_a_user_namespace(
    options: tuple[str, ...], expected: list[str], empty_host: str
) -> None:
    edits = ContainerEdits(mounts=(Mount("/a", "/b", "", options),))
    mapped = apply_edits({"linux": {"namespaces": [{"type": "user"}]}}, edits, host_root=empty_host)
    assert mapped["mounts"][0]["options"] == expected
    plain = apply_edits({"linux": {"namespaces": [{"type": "pid"}]}}, edits, host_root=empty_host)
    assert plain["mounts"][0]["options"] == list(options)


def test_network_rdt_groups_and_hooks(empty_host: str) -> None:
    edits = ContainerEdits(
        net_devices=(NetDevice("eth1", "acme0"),),
        intel_rdt=IntelRdt("c", schemata=("L3:0=f",)),
        additional_gids=(0, 44, 44, 7),
        hooks=(Hook("poststop", "/h", ("h",), ("A=1",), 0),),
    )
    oci = {
        "hooks": {"poststop": [{"path": "/first"}]},
        "process": {"user": {"uid": 1, "additionalGids": [7]}},
        "linux": {"intelRdt": {"closID": "old", "l3CacheSchema": "x"}},
    }
    result = apply_edits(oci, edits, host_root=empty_host)
    assert result["linux"]["netDevices"] == {"eth1": {"name": "acme0"}}
    assert result["linux"]["intelRdt"] == {"closID": "c", "schemata": ["L3:0=f"]}
    assert result["process"]["user"] == {"uid": 1, "additionalGids": [7, 44]}
    hooks = [{"path": "/first"}, {"path": "/h", "args": ["h"], "env": ["A=1"], "timeout": 0}]
    assert result["hooks"] == {"poststop": hooks}


def test_merging_appends_without_removing_and_takes_the_last_rdt_setting() -> None:
    first = ContainerEdits(env=("A=1",), additional_gids=(1,), intel_rdt=IntelRdt("one"))
    second = ContainerEdits(env=("A=1",), additional_gids=(1, 2), intel_rdt=IntelRdt("two"))
    assert merge_edits([first, None, second, ContainerEdits()]) == ContainerEdits(
        env=("A=1", "A=1"), additional_gids=(1, 1, 2), intel_rdt=IntelRdt("two")
    )
    assert merge_edits([]).is_empty


def test_given_spec_is_never_changed(empty_host: str) -> None:
    oci: dict[str, Any] = {
        "process": {"env": ["A=1"], "user": {"uid": 1, "additionalGids": [1]}},
        "mounts": [{"destination": "/a/b"}, {"destination": "/a"}],
        "hooks": {"prestart": [{"path": "/x"}]},
        "linux": {"devices": [{"path": "/d"}], "resources": {"devices": []}, "netDevices": {}},
    }
    before = copy.deepcopy(oci)
    edits = ContainerEdits(
        env=("A=2",),
        device_nodes=(DeviceNode("/d", type="c", major=1),),
        net_devices=(NetDevice("a", "b"),),
        mounts=(Mount("/x", "/y"),),
        hooks=(Hook("prestart", "/y"),),
        intel_rdt=IntelRdt(),
        additional_gids=(9,),
    )
    result = apply_edits(oci, edits, host_root=empty_host)
    assert oci == before
    assert result != before


@pytest.mark.parametrize(
    ("oci", "edits", "place"),
    [
        ({"process": []}, ContainerEdits(env=("A=1",)), "process"),
        ({"process": {"env": "A"}}, ContainerEdits(env=("A=1",)), "process.env"),
        ({"linux": "x"}, ContainerEdits(intel_rdt=IntelRdt()), "linux"),
        ({"mounts": {}}, ContainerEdits(mounts=(Mount("/a", "/b"),)), "the spec.mounts"),
        ({"hooks": {"prestart": 1}}, ContainerEdits(hooks=(Hook("prestart", "/x"),)), "hooks.prestart"),
    ],
)
def test_oci_spec_of_the_wrong_shape_is_refused(
    oci: dict[str, Any], edits: ContainerEdits, place: str, empty_host: str
) -> None:
    with pytest.raises(InjectError) as caught:
        apply_edits(oci, edits, host_root=empty_host)
    assert caught.value.problems[0].where == place


def test_invalid_edits_are_refused_before_anything_is_applied(empty_host: str) -> None:
    twice = ContainerEdits(env=("X",), net_devices=(NetDevice("a", "b"), NetDevice("a", "c")))
    with pytest.raises(InjectError) as caught:
        apply_edits({}, twice, host_root=empty_host)
    assert len(caught.value.problems) == 2


# Filling from the host. /dev/null is 1:3 on every Linux; the root is injectable, so pipes and links are made.


def test_node_is_filled_from_the_host() -> None:
    filled = fill_device_node(DeviceNode("/dev/acme", host_path="/dev/null"))
    assert (filled.type, filled.major, filled.minor) == ("c", 1, 3)
    assert filled.file_mode == os.stat("/dev/null").st_mode & 0o7777


def test_described_node_is_believed_and_gets_only_its_mode_from_the_host() -> None:
    filled = fill_device_node(DeviceNode("/dev/acme", host_path="/dev/null", type="b", major=7, minor=8))
    assert (filled.type, filled.major, filled.minor) == ("b", 7, 8)
    assert filled.file_mode is not None


def test_described_node_may_be_missing_on_the_host(empty_host: str) -> None:
    filled = fill_device_node(DeviceNode("/dev/x", type="c", major=7), host_root=empty_host)
    assert (filled.host_path, filled.file_mode) == ("/dev/x", None)


def test_given_mode_is_kept() -> None:
    assert fill_device_node(DeviceNode("/dev/null", file_mode=0)).file_mode == 0


def test_declared_type_must_be_the_real_one() -> None:
    with pytest.raises(InjectError, match='"/dev/null" is declared as "b", but "/dev/null" is "c"'):
        fill_device_node(DeviceNode("/dev/null", type="b"))


def test_pipe_is_filled_from_the_host_root(empty_host: str) -> None:
    os.mkfifo(Path(empty_host) / "pipe", 0o640)
    filled = fill_device_node(DeviceNode("/pipe"), host_root=empty_host)
    assert (filled.type, filled.major, filled.minor, filled.file_mode) == ("p", 0, 0, 0o640)


def test_link_to_a_device_is_not_a_device(empty_host: str) -> None:
    (Path(empty_host) / "link").symlink_to("/dev/null")
    with pytest.raises(InjectError, match='host device "/link" cannot be used: not a device node'):
        fill_device_node(DeviceNode("/link"), host_root=empty_host)


def test_all_nodes_that_cannot_be_filled_are_reported_together(empty_host: str) -> None:
    edits = ContainerEdits(device_nodes=(DeviceNode("/a"), DeviceNode("/b", type="c", major=1), DeviceNode("/c")))
    with pytest.raises(InjectError) as caught:
        fill_device_nodes(edits, host_root=empty_host)
    assert [problem.where for problem in caught.value.problems] == ["deviceNodes[0]", "deviceNodes[2]"]
    assert 'host device "/a" cannot be used: No such file or directory' in str(caught.value)


def test_device_references_are_taken_out_of_an_oci_spec() -> None:
    oci = {"linux": {"devices": [{"path": "a.b/c=d"}, {"path": "/dev/null"}, "odd"]}}
    rest, names = take_device_references(oci)
    assert rest == {"linux": {"devices": [{"path": "/dev/null"}, "odd"]}}
    assert names == ["a.b/c=d"]
    assert len(oci["linux"]["devices"]) == 3
    assert take_device_references({}) == ({}, [])
