"""Mounts: each of them is there, in its place, or the request is refused."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.local.bench import PATIENCE, Bench

from dibs.backends import mounts
from dibs.backends.port import Handle, Mount
from dibs.errors import InvalidRequest
from dibs.workloads.receipt import differences

MakeFolder = Callable[[], Path]


def said(bench: Bench, handle: Handle) -> str:
    bench.backend.start(handle)
    bench.backend.wait(handle, PATIENCE)
    return bench.said(handle)


def named(make_folder: MakeFolder, *names: str) -> list[Path]:
    folders = [make_folder() for _ in names]
    for folder, name in zip(folders, names, strict=True):
        (folder / "name").write_text(f"{name}\n")
        (folder / "sub").mkdir()
    return folders


def test_a_mount_inside_another_is_there_in_any_order(bench: Bench, make_folder: MakeFolder) -> None:
    inner, outer = named(make_folder, "inner", "outer")
    mounts = (Mount(str(inner), "/srv/data/sub"), Mount(str(outer), "/srv/data"))
    handle = bench.create("cat", "/srv/data/sub/name", "/srv/data/name", mounts=mounts)
    assert said(bench, handle) == "inner\nouter\n"


@pytest.mark.parametrize("other", ["/srv/data", "/srv//data/", "/srv/./data"])
def test_two_mounts_on_one_target_are_refused(bench: Bench, make_folder: MakeFolder, other: str) -> None:
    one, two = named(make_folder, "one", "two")
    with pytest.raises(InvalidRequest, match="two mounts have this target") as caught:
        bench.create("true", mounts=(Mount(str(one), "/srv/data"), Mount(str(two), other)))
    assert str(one) in str(caught.value)
    assert str(two) in str(caught.value)


@pytest.mark.parametrize("target", ["/opt", "/etc", "/srv", "/run", "/srv/new/deep", "/lib/apt"])
def test_a_mount_is_verified_wherever_it_is(bench: Bench, make_folder: MakeFolder, target: str) -> None:
    _verify(bench, make_folder, target)


def test_a_target_in_a_folder_of_another_user_is_created_for_root_only(bench: Bench, make_folder: MakeFolder) -> None:
    target = "/lib/dibs-test"
    if os.getuid() == 0:
        _verify(bench, make_folder, target)
        return
    (folder,) = named(make_folder, "mounted")
    with pytest.raises(InvalidRequest) as caught:
        bench.create("true", mounts=(Mount(str(folder), target),))
    (problem,) = caught.value.problems
    assert (problem.code, problem.field, problem.value) == ("MOUNT_INVALID", "mounts", target)
    assert f"you cannot create it in {os.path.realpath('/lib')}" in problem.reason
    assert "/run" in problem.remedy


def _verify(bench: Bench, make_folder: MakeFolder, target: str) -> None:
    (folder,) = named(make_folder, "mounted")
    workload = bench.workload("cat", f"{target}/name", mounts=(Mount(str(folder), target),))
    realisation = bench.backend.render(workload, bench.home.sandbox(workload.id))
    handle = bench.backend.create(workload, realisation, bench.home.sandbox(workload.id))
    bench.handles.append(handle)
    seen = bench.backend.observe(handle)
    assert differences(realisation.expectation, seen) == []
    info = os.stat(folder)
    place = os.path.realpath(target)
    source = f"inode {info.st_ino} on {os.major(info.st_dev)}:{os.minor(info.st_dev)}"
    assert [(one.mode, one.source) for one in seen.mounts if one.target == place] == [("ro", source)]
    assert said(bench, handle) == "mounted\n"


def test_a_mount_above_the_working_directory_does_not_hide_it(bench: Bench, make_folder: MakeFolder) -> None:
    (folder,) = named(make_folder, "above")
    (bench.work / "own").write_text("own\n")
    mounts = (Mount(str(folder), str(bench.work.parent), writable=True),)
    handle = bench.create("sh", "-c", "pwd; cat own", mounts=mounts)
    assert bench.backend.observe(handle).process["workdir"] == str(bench.work)
    assert said(bench, handle) == f"{bench.work}\nown\n"


def test_a_read_only_mount_without_a_place_for_what_is_mounted_in_it_is_refused(
    bench: Bench, make_folder: MakeFolder
) -> None:
    (folder,) = named(make_folder, "above")
    with pytest.raises(InvalidRequest, match="has no place for"):
        bench.create("true", mounts=(Mount(str(folder), str(bench.work.parent)),))


def test_a_mount_on_the_working_directory_takes_its_place(bench: Bench, make_folder: MakeFolder) -> None:
    (folder,) = named(make_folder, "instead")
    handle = bench.create("cat", "name", mounts=(Mount(str(folder), str(bench.work)),))
    assert said(bench, handle) == "instead\n"


def test_the_working_directory_is_looked_for_in_the_sandbox(bench: Bench) -> None:
    handle = bench.create("sleep", "1000")
    assert bench.backend.observe(handle).process["workdir"] == str(bench.work)


def test_a_folder_that_the_host_has_read_only_cannot_be_mounted_writable(bench: Bench) -> None:
    with open("/proc/self/mountinfo") as file:
        points = [line.split(" ")[4] for line in file if "ro" in line.split(" ")[5].split(",")]
    point = next((one for one in points if os.path.isdir(one) and not one.startswith(("/proc", "/sys", "/dev"))), None)
    if point is None:
        pytest.skip("nothing is mounted read-only here")
    with pytest.raises(InvalidRequest, match="mounted read-only on this host"):
        bench.create("true", mounts=(Mount(point, "/srv/data", writable=True),))


def test_a_mount_in_a_folder_that_is_closed_to_this_user_is_told_as_one(make_folder: MakeFolder) -> None:
    """Not as a look that failed: such a mount was not asked for, and the receipt must say so."""
    closed = make_folder()
    (closed / "inner").mkdir()
    table = mounts.Table.of(mounts.read())
    entry = mounts.Entry("1", "0", next(iter(table.devices)), "/", f"{closed}/inner", "rw", "ext4", "rw")
    reader, writer = os.pipe()
    assert "inode" in mounts.source_of(os.getpid(), entry, table)
    closed.chmod(0)
    child = os.fork()
    if not child:  # root can look everywhere
        try:
            if not os.getuid():
                os.setuid(65534)
            os.write(writer, mounts.source_of(os.getpid(), entry, table).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader) as said:
        assert said.read() == f"ext4 on {entry.device}, in a folder that is closed to this user"
    os.waitpid(child, 0)
    closed.chmod(0o700)
