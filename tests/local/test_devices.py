"""What a sandbox has of the host's devices: exactly the leased ones."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.local.bench import Bench, granted, simulated

from dibs.backends.port import NodeFact
from dibs.cdi.spec import ContainerEdits, DeviceNode, IntelRdt, Mount, NetDevice
from dibs.errors import InvalidRequest, NotFound, Unsupported

NULL = (1, 3)
ZERO = (1, 5)


def test_only_the_leased_nodes_are_there(bench: Bench) -> None:
    handle = bench.create("true", devices=(simulated(0), simulated(3)))
    seen = bench.backend.observe(handle).nodes
    assert seen == (NodeFact("/dev/simgpu0", "c", *NULL), NodeFact("/dev/simgpu3", "c", *NULL))
    with_devices = bench.sh("ls /dev", devices=(simulated(0), simulated(3))).split()
    assert set(with_devices) - set(bench.sh("ls /dev").split()) == {"simgpu0", "simgpu3"}


def test_without_devices_there_are_none(bench: Bench) -> None:
    handle = bench.create("true")
    assert bench.backend.observe(handle).nodes == ()
    names = set(bench.sh("ls /dev").split())
    standard = {"core", "fd", "full", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin", "stdout", "tty"}
    assert names <= standard | {"urandom", "zero", "console"}


def test_a_leased_device_works(bench: Bench) -> None:
    node = DeviceNode(path="/dev/simgpu0", host_path="/dev/zero")
    device = granted("0", ContainerEdits(device_nodes=(node,)))
    assert bench.sh("head -c 4 /dev/simgpu0 | od -An -tx1", devices=(device,)).split() == ["00"] * 4


def test_a_node_in_a_folder_below_dev_is_seen(bench: Bench) -> None:
    node = DeviceNode(path="/dev/dri/by-path/card", host_path="/dev/zero")
    handle = bench.create("true", devices=(granted("0", ContainerEdits(device_nodes=(node,))),))
    assert bench.backend.observe(handle).nodes == (NodeFact("/dev/dri/by-path/card", "c", *ZERO),)


def test_another_node_can_neither_be_made_nor_reached(bench: Bench) -> None:
    script = """
    for where in /tmp /dev /dev/shm . /run; do mknod $where/n c 1 5 2>/dev/null && echo "made $where"; done
    ls -d /proc/1/root/dev/vda /proc/1/root/dev/kmsg /dev/kmsg /dev/mem 2>/dev/null
    mount -t devtmpfs none /tmp 2>/dev/null && echo mounted
    unshare -Ur true 2>/dev/null && echo unshared
    find / -xdev \\( -type c -o -type b \\) -path '/tmp/*' 2>/dev/null
    true"""
    assert bench.sh(script, devices=(simulated(0),)) == ""


@pytest.mark.root
def test_a_node_in_the_working_directory_cannot_be_opened(bench: Bench) -> None:
    os.mknod(bench.work / "zero", stat.S_IFCHR | 0o666, os.makedev(*ZERO))
    status, _, err = bench.run("head", "-c", "1", "zero")
    assert status.exit is not None
    assert status.exit.code == 1
    assert "Permission denied" in err


def test_a_node_given_by_numbers_alone_is_found_on_the_host(bench: Bench) -> None:
    node = DeviceNode(path="/dev/nosuchgpu", type="c", major=1, minor=5)
    handle = bench.create("true", devices=(granted("0", ContainerEdits(device_nodes=(node,))),))
    assert bench.backend.observe(handle).nodes == (NodeFact("/dev/nosuchgpu", "c", *ZERO),)


def test_numbers_that_no_node_of_the_host_has_are_refused(bench: Bench) -> None:
    node = DeviceNode(path="/dev/nosuchgpu", type="c", major=4000, minor=77)
    with pytest.raises(InvalidRequest, match="there is no such device node"):
        bench.create("true", devices=(granted("0", ContainerEdits(device_nodes=(node,))),))


def test_a_node_with_other_numbers_than_the_spec_is_refused(bench: Bench) -> None:
    node = DeviceNode(path="/dev/simgpu0", host_path="/dev/null", type="c", major=1, minor=9)
    with pytest.raises(InvalidRequest, match="the spec says 1:9, the host's node is 1:3"):
        bench.create("true", devices=(granted("0", ContainerEdits(device_nodes=(node,))),))


@pytest.mark.root
def test_a_device_that_vanishes_after_the_plan_leaves_nothing_behind(
    bench: Bench, make_folder: Callable[[], Path]
) -> None:
    host = make_folder() / "gpu"
    os.mknod(host, stat.S_IFCHR | 0o666, os.makedev(*NULL))
    node = DeviceNode(path="/dev/gpu0", host_path=str(host))
    workload = bench.workload("true", devices=(granted("0", ContainerEdits(device_nodes=(node,))),))
    folder = bench.home.sandbox(workload.id)
    realisation = bench.backend.render(workload, folder)
    host.unlink()
    with pytest.raises(NotFound, match="is gone") as caught:
        bench.backend.create(workload, realisation, folder)
    assert caught.value.code == "DEVICE_GONE"
    assert not folder.exists()


def test_all_problems_of_a_device_are_reported_together(bench: Bench) -> None:
    edits = ContainerEdits(
        additional_gids=(44,),
        intel_rdt=IntelRdt(clos_id="gold"),
        net_devices=(NetDevice("eth7", "rdma0"),),
        device_nodes=(DeviceNode(path="/dev/simgpu0", host_path="/dev/null", permissions="r"),),
        mounts=(Mount("/etc/hostname", "/x", options=("ro", "noexec")),),
    )
    with pytest.raises(Unsupported) as caught:
        bench.create("true", devices=(granted("0", edits),))
    fields = [problem.field.rpartition(".")[2] for problem in caught.value.problems]
    assert fields == ["additionalGids", "intelRdt", "netDevices", "deviceNodes", "mounts"]
    assert {problem.code for problem in caught.value.problems} == {"FIELD_NOT_SUPPORTED"}


def test_two_devices_that_want_the_same_path_are_refused(bench: Bench) -> None:
    other = granted("1", ContainerEdits(device_nodes=(DeviceNode(path="/dev/simgpu0", host_path="/dev/zero"),)))
    with pytest.raises(InvalidRequest, match="two devices want this path"):
        bench.create("true", devices=(simulated(0), other))


def test_the_edits_of_a_whole_spec_are_applied_once(bench: Bench) -> None:
    shared = ContainerEdits(device_nodes=(DeviceNode(path="/dev/simctl", host_path="/dev/zero"),))
    devices = tuple(
        granted(
            str(n),
            ContainerEdits(device_nodes=(DeviceNode(path=f"/dev/simgpu{n}", host_path="/dev/null"),)),
            spec="vendor.com/gpu",
            spec_edits=shared,
        )
        for n in range(2)
    )
    handle = bench.create("true", devices=devices)
    assert [node.path for node in bench.backend.observe(handle).nodes] == [
        "/dev/simctl",
        "/dev/simgpu0",
        "/dev/simgpu1",
    ]


def test_a_devices_files_are_mounted_as_it_says(bench: Bench, make_folder: Callable[[], Path]) -> None:
    folder = make_folder()
    (folder / "lib.so").write_text("library")
    (folder / "cache").mkdir()
    edits = ContainerEdits(
        mounts=(
            Mount(str(folder / "lib.so"), "/opt/vendor/lib.so", options=("ro", "nosuid", "nodev", "bind")),
            Mount(str(folder / "cache"), "/opt/vendor/cache", options=("rw", "rbind")),
        )
    )
    device = granted("0", edits)
    handle = bench.create("sh", "-c", "cat /opt/vendor/lib.so; echo x >/opt/vendor/cache/x; echo y >/opt/vendor/lib.so",
                          devices=(device,))  # fmt: skip
    seen = {(mount.target, mount.mode) for mount in bench.backend.observe(handle).mounts}
    assert {("/opt/vendor/lib.so", "ro"), ("/opt/vendor/cache", "rw")} <= seen
    bench.backend.start(handle)
    bench.backend.wait(handle)
    assert bench.said(handle) == "library"
    assert "Read-only" in bench.said(handle, "stderr")
    assert (folder / "cache" / "x").read_text() == "x\n"
