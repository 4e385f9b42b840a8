"""What a sandbox sees and can change of the host's files."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.local.bench import ENV, Bench

from dibs.backends.local import bubblewrap, rootfs
from dibs.backends.port import Mount
from dibs.errors import InvalidRequest


def test_what_is_written_outside_of_the_working_directory_is_gone(bench: Bench) -> None:
    place = "/etc" if os.getuid() == 0 else "/tmp"
    out = bench.sh(f"echo private > {place}/dibs-private && cat {place}/dibs-private; echo kept > kept")
    assert out == "private\n"
    assert not Path(f"{place}/dibs-private").exists()
    assert (bench.work / "kept").read_text() == "kept\n"


def test_a_file_of_the_host_is_not_changed_by_writing_to_it(bench: Bench) -> None:
    before = Path("/etc/passwd").read_text()
    bench.run("sh", "-c", "echo intruder >> /etc/passwd")
    bench.run("rm", "-f", "/etc/passwd")
    assert Path("/etc/passwd").read_text() == before


def test_tmp_and_run_are_its_own(bench: Bench, make_folder: Callable[[], Path]) -> None:
    make_folder()
    parts = bench.work.relative_to("/tmp").parts
    assert bench.sh("ls -A /tmp").split() == [parts[0]]  # only the way to the working directory
    assert bench.sh("ls -A /run") in ("", "systemd\n", "resolvconf\n", "NetworkManager\n", "connman\n")


def test_the_state_folder_is_out_of_sight(make_folder: Callable[[], Path]) -> None:
    folder = make_folder()
    bench = Bench(folder)
    secret = bench.home.state / "secret"
    secret.write_text("do not read")
    # The working directory is an ancestor of the state, so that it is in the middle of what is shown.
    script = f"ls -A {bench.home.state}; cat {secret}; echo x > {bench.home.state}/x"
    status, out, err = bench.run("sh", "-c", script, workdir=str(folder))
    assert out == ""
    assert "do not read" not in err
    assert status.exit is not None
    assert status.exit.code != 0
    assert not (bench.home.state / "x").exists()
    bench.close()


def test_the_state_folder_is_hidden_below_a_mount_too(bench: Bench) -> None:
    mount = Mount(str(bench.home.state.parent), "/mnt2" if os.getuid() == 0 else "/tmp/mnt", writable=True)
    assert bench.sh(f"ls -A {mount.target}/home", mounts=(mount,)) == ""


@pytest.mark.parametrize("workdir", ["/", "/proc", "/nonexistent", "relative"])
def test_an_unfit_working_directory_is_refused(bench: Bench, workdir: str) -> None:
    with pytest.raises(InvalidRequest, match="workdir"):
        bench.create("true", workdir=workdir)


def test_a_working_directory_in_the_state_folder_is_refused(bench: Bench) -> None:
    with pytest.raises(InvalidRequest, match="dibs' own state folder"):
        bench.create("true", workdir=str(bench.home.state))


def test_mounts_are_writable_only_if_they_say_so(bench: Bench, make_folder: Callable[[], Path]) -> None:
    one, two = make_folder(), make_folder()
    (one / "f").write_text("1")
    mounts = (Mount(str(one), "/tmp/one"), Mount(str(two), "/tmp/two", writable=True))
    handle = bench.create("sh", "-c", "cat /tmp/one/f; echo 2 > /tmp/two/f; echo 3 > /tmp/one/g", mounts=mounts)
    seen = {(mount.target, mount.mode) for mount in bench.backend.observe(handle).mounts}
    assert {("/tmp/one", "ro"), ("/tmp/two", "rw")} <= seen
    bench.backend.start(handle)
    bench.backend.wait(handle)
    assert bench.said(handle) == "1"
    assert (two / "f").read_text() == "2\n"
    assert not (one / "g").exists()


def test_a_device_cannot_be_smuggled_in_as_a_mount(bench: Bench) -> None:
    with pytest.raises(InvalidRequest, match="only folders, files and sockets"):
        bench.create("true", mounts=(Mount("/dev/zero", "/tmp/zero"),))


def test_all_wrong_fields_are_reported_together(bench: Bench) -> None:
    mounts = (Mount("/nonexistent", "/x"), Mount("/etc", "/"))
    with pytest.raises(InvalidRequest) as caught:
        bench.create("a\0b", workdir="/", mounts=mounts, env={"A=B": "c"})
    fields = sorted({problem.field for problem in caught.value.problems})
    assert fields == ["command", "env", "mounts", "workdir"]


def test_the_environment_is_exactly_what_was_planned(bench: Bench) -> None:
    env = {**ENV, "EMPTY": "", "BLANKS": "a b\tc\nd", "LD_LIBRARY_PATH": "/opt/x", "UMLAUT": "ä", "EQ": "a=b"}
    handle = bench.create("env", "-0", env=env)
    planned = {**env, "PWD": str(bench.work)}
    assert bench.backend.observe(handle).env == planned
    bench.backend.start(handle)
    bench.backend.wait(handle)
    got = dict(item.split("=", 1) for item in bench.said(handle).split("\0") if item)
    assert got == planned


def test_the_loader_of_the_host_does_not_obey_the_sandboxs_environment(bench: Bench) -> None:
    """LD_PRELOAD would otherwise run code in bubblewrap itself, outside of the sandbox."""
    trace = bench.work / "trace"
    env = {**ENV, "LD_DEBUG": "files", "LD_DEBUG_OUTPUT": str(trace)}
    handle = bench.create("true", env=env)
    assert list(bench.work.iterdir()) == []
    bench.backend.start(handle)
    bench.backend.wait(handle)
    assert [path.name for path in bench.work.iterdir()] == ["trace.2"]  # from inside, where the command is process 2


def test_the_observed_environment_is_that_of_the_command_once_it_runs(bench: Bench) -> None:
    handle = bench.start("sh", "-c", "echo ready; exec sleep 1000", env={**ENV, "A": "b"})
    bench.ready(handle)
    assert bench.backend.observe(handle).env["A"] == "b"


def test_a_folder_with_a_very_long_path_works(make_folder: Callable[[], Path]) -> None:
    deep = make_folder().joinpath(*["x" * 60] * 4)
    deep.mkdir(parents=True)
    bench = Bench(deep)
    handle = bench.start("cat", interactive=True)
    session = bench.attach(handle)
    session.send(b"far down\n")
    session.end_of_input()
    assert bench.backend.wait(handle, 60).exit is not None
    assert bench.said(handle) == "far down\n"
    bench.close()


def test_without_network_there_is_only_an_own_loopback(bench: Bench) -> None:
    def interfaces(text: str) -> list[str]:
        return [line.split(":")[0].strip() for line in text.splitlines()[2:]]

    assert interfaces(bench.sh("cat /proc/net/dev", network="none")) == ["lo"]
    assert interfaces(bench.sh("cat /proc/net/dev")) == interfaces(Path("/proc/net/dev").read_text())


# --- other roots


def busybox_root(folder: Path) -> Path:
    """A root with a shell and what it needs, from the host's own files."""
    root = folder / "root"
    for name in ("bin", "etc"):
        (root / name).mkdir(parents=True)
    for program in ("sh", "cat", "ls", "touch"):
        source = Path(f"/bin/{program}").resolve()
        (root / "bin" / program).write_bytes(source.read_bytes())
        (root / "bin" / program).chmod(0o755)
        _, text = bubblewrap.run(["/usr/bin/ldd", str(source)])
        for word in text.split():
            if word.startswith("/") and Path(word).exists():
                target = root / word.lstrip("/")
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(Path(word).read_bytes())
                target.chmod(0o755)
    (root / "etc" / "mark").write_text("of this root")
    return root


def test_a_root_folder_is_the_root_and_stays_unchanged(bench: Bench, make_folder: Callable[[], Path]) -> None:
    root = busybox_root(make_folder())
    out = bench.sh("cat /etc/mark; touch /etc/new && ls /etc", root=str(root), workdir="/work", env={"PATH": "/bin"})
    assert out.startswith("of this root")
    assert "new" in out.split()
    assert sorted(p.name for p in (root / "etc").iterdir()) == ["mark"]


def test_a_root_archive_is_unpacked_once(bench: Bench, make_folder: Callable[[], Path]) -> None:
    folder = make_folder()
    root = busybox_root(folder)
    archive = folder / "root.tar"
    with tarfile.open(archive, "w") as tar:
        tar.add(root, arcname=".")
    for _ in range(2):
        assert bench.sh("cat /etc/mark", root=str(archive), workdir="/", env={"PATH": "/bin"}) == "of this root"
    folders = [path for path in (bench.home.state / "roots").iterdir() if path.is_dir()]
    assert len(folders) == 1


def hostile(**fields: object) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        info = tarfile.TarInfo("x")
        for name, value in fields.items():
            setattr(info, name, value)
        tar.addfile(info)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "data",
    [
        hostile(name="../../escape"),
        hostile(name="/absolute"),
        hostile(name="node", type=tarfile.CHRTYPE, devmajor=1, devminor=3),
        hostile(name="hard", type=tarfile.LNKTYPE, linkname="../../etc/passwd"),
    ],
    ids=["parent", "absolute", "device", "hardlink"],
)
def test_a_hostile_root_archive_is_refused_and_leaves_nothing(
    bench: Bench, make_folder: Callable[[], Path], data: bytes
) -> None:
    archive = make_folder() / "root.tar"
    archive.write_bytes(data)
    with pytest.raises(InvalidRequest) as caught:
        bench.create("sh", root=str(archive), workdir="/")
    assert caught.value.code == "ROOT_ARCHIVE_REFUSED"
    assert [path for path in (bench.home.state / "roots").iterdir() if path.is_dir()] == []
    assert list(bench.home.sandboxes.iterdir()) == []


# --- the layout, as data


def test_a_folder_that_cannot_be_overlaid_becomes_read_only_and_is_reported() -> None:
    with open("/proc/self/mountinfo") as file:
        mounts = rootfs.mount_points(file.read())
    layout = rootfs.host_layout(mounts, frozenset(["/etc"]))
    where = layout.args.index("/etc")
    assert layout.args[where - 1] == "--ro-bind"
    assert any(note.startswith("/etc is read-only") for note in layout.notes)


def test_overlays_that_fail_are_found_one_by_one() -> None:
    layout = rootfs.Layout()
    for path in ("/etc", "/usr", "/var"):
        layout.overlay(path, path)
    assert rootfs.refused_overlays(layout, lambda args: "no" if "/usr" in args else "") == ["/usr"]
    assert rootfs.refused_overlays(layout, lambda _: "") == []


def test_blanks_in_mount_points_are_understood() -> None:
    line = "36 35 98:0 / /mnt/my\\040disk rw,noatime master:1 - ext4 /dev/root rw\n"
    assert rootfs.mount_points(line) == {"/mnt/my disk": "ext4"}


@pytest.mark.root
def test_what_comes_to_the_hosts_root_or_goes_is_so_in_the_next_sandbox(bench: Bench) -> None:
    """The host's root is looked at once, and again when it has changed."""
    path = Path(f"/dibs-test-{os.urandom(6).hex()}")

    def there() -> bool:
        return bench.sh(f"test -d {path} && echo yes || echo no") == "yes\n"

    assert not there()
    path.mkdir()
    try:
        assert there()
    finally:
        path.rmdir()
    assert not there()
