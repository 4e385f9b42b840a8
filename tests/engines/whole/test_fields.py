"""Every field of a request in a real container: as asked, seen from outside or from within, or refused."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from tests.engines import images
from tests.engines.whole.house import House, conversation

from dibs.errors import BackendUnavailable, CommandFailed, DibsError, InvalidRequest, NotFound, Unsupported

# --- limits that hold


def test_a_process_over_its_memory_limit_is_killed(house: House) -> None:
    greedy = "x=0123456789abcdef; while true; do x=$x$x; done"
    _, result = house.run("sh", "-c", greedy, memory="16Mi", gpu=1)
    assert (result.code, result.reason) in ((137, "out-of-memory"), (137, "signalled"), (137, "exited"))
    assert not house.service.leases()


def test_more_processes_than_the_limit_are_refused_by_the_kernel(house: House) -> None:
    many = "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do sleep 100 & done; echo all"
    said, result = house.run("sh", "-c", many, pids=8)
    assert "all" not in said.split()
    assert result.code != 0


@pytest.mark.parametrize(
    ("asked", "seen"),
    [
        ({"cpu": "1500m"}, {"cpu_millis": 1500}),
        ({"memory": "48Mi"}, {"memory_bytes": 48 << 20}),
        ({"pids": 17}, {"pids": 17}),
    ],
    ids=["cpu", "memory", "pids"],
)
def test_limits_are_read_back_from_the_kernel(house: House, asked: dict[str, object], seen: dict[str, int]) -> None:
    row = house.create(**asked)
    observed = house.service.receipt(row.id).observed.limits
    assert {name: observed[name] for name in seen} == seen
    assert house.service.usage(row.id).memory_bytes > 0


def test_a_limit_that_the_engine_will_not_set_is_refused_with_its_words(house: House) -> None:
    with pytest.raises(DibsError) as caught:
        house.create(memory="1Mi", gpu=1)
    assert caught.value.code in ("LIMIT_INVALID", "ENGINE_FAILED", "COMMAND_FAILED", "ENGINE_LIMITED"), caught.value
    assert house.free()


# --- what the command finds


def test_shared_memory_has_the_asked_size(house: House) -> None:
    row = house.create(shm="3Mi")
    found = os.statvfs(f"/proc/{house.pid(row)}/root/dev/shm")
    assert found.f_blocks * found.f_frsize == 3 << 20


def test_variables_arrive_and_the_images_own_stay(house: House) -> None:
    said, _ = house.run("sh", "-c", 'echo "$FROM_IMAGE,$A,$HOST_SECRET"', env={"A": "one two"})
    assert said == "1,one two,\n"


def test_a_variable_that_dibs_sets_itself_cannot_be_asked_for(house: House) -> None:
    with pytest.raises(InvalidRequest):
        house.create(env={"CUDA_VISIBLE_DEVICES": "all"}, gpu=1)


def test_the_working_directory_is_the_images_or_the_asked_one(house: House) -> None:
    assert house.run("pwd")[0] == "/tmp\n"
    assert house.run("pwd", workdir="/etc")[0] == "/etc\n"
    assert house.run("pwd", workdir="/made/here")[0] == "/made/here\n"


@pytest.mark.parametrize(("user", "ids"), [("1000", "1000 "), ("1000:1001", "1000 1001"), ("worker", "1000 1000")])
def test_it_runs_as_the_asked_user(house: House, user: str, ids: str) -> None:
    said, _ = house.run("sh", "-c", "echo $(id -u) $(id -g)", user=user)
    assert said.startswith(ids)


def test_a_user_that_the_image_does_not_know_is_refused(house: House) -> None:
    with pytest.raises(DibsError) as caught:
        house.create(user="nobody-here", gpu=1)
    assert caught.value.code == "USER_UNKNOWN"
    assert house.free()


def test_an_entrypoint_replaces_the_images_and_an_empty_one_takes_it_away(house: House) -> None:
    house.engine.api(
        "POST", f"{house.engine.prefix}/images/load",
        body=images.saved(house.engine.root, entrypoint=("echo", "entry")).read_bytes(),
    )  # fmt: skip
    image = "localhost/dibs-test-entry:1"
    assert house.run("one", image=image)[0] == "entry one\n"
    assert house.run("one", image=image, entrypoint=["echo", "mine:"])[0] == "mine: one\n"
    assert house.run("echo", "alone", image=image, entrypoint=[])[0] == "alone\n"


def test_without_a_network_there_is_only_loopback_and_with_the_hosts_the_same_as_the_engine(house: House) -> None:
    inside = house.create(network="none")
    lines = Path(f"/proc/{house.pid(inside)}/net/dev").read_text().splitlines()[2:]
    assert [line.split(":")[0].strip() for line in lines] == ["lo"]
    shared = house.create(network="host")
    # Not that of the engine's process: Podman goes into containers with threads of its own, and may stay there.
    assert os.stat(f"/proc/{house.pid(shared)}/ns/net").st_ino == os.stat(house.engine.network()).st_ino


def test_a_read_only_root_cannot_be_written_to(house: House) -> None:
    said, result = house.run("sh", "-c", "echo x > /etc/x", read_only=True)
    assert "ead-only" in said
    assert result.code != 0
    writable = "for folder in /tmp /run /dev/shm; do echo x > $folder/x || exit 1; done"
    assert house.run("sh", "-c", writable, read_only=True)[1].code == 0
    assert house.run("sh", "-c", "echo x > /etc/x")[1].code == 0


def test_mounts_are_there_read_only_unless_asked_otherwise(house: House, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "file").write_text("seen\n")
    said, _ = house.run("sh", "-c", "cat /data/file; echo x > /data/new", mounts=[f"{folder}:/data"])
    assert "seen\n" in said  # between two streams there is no order
    assert "Read-only file system" in said
    assert not (folder / "new").exists()
    house.run("sh", "-c", "echo x > /data/new", mounts=[f"{folder}:/data:rw"])
    assert (folder / "new").read_text() == "x\n"


def test_a_mount_of_what_is_not_there_makes_no_container(house: House) -> None:
    with pytest.raises(InvalidRequest, match="no such file or folder"):
        house.create(mounts=["/not/here:/data"], gpu=1)
    assert house.free()


def test_labels_are_on_the_container_too(house: House) -> None:
    row = house.create(labels={"team": "blue"}, name="labelled")
    labels = house.container(row)["Config"]["Labels"]
    assert labels["team"] == "blue"
    assert labels["dibs.sandbox"] == row.id


def test_a_root_is_no_image_and_is_refused(house: House) -> None:
    with pytest.raises(InvalidRequest):
        house.create(root="/srv/root")
    with pytest.raises(Unsupported, match="say image"):
        house.create(root="/srv/root", image="")


@pytest.mark.parametrize("command", ["no-such-command", "/etc/passwd"])
def test_a_command_that_cannot_be_executed_is_reported_before_anything_counts_as_running(
    house: House, command: str
) -> None:
    with pytest.raises(CommandFailed):
        house.create(command=[command], gpu=1)
    assert house.free()


# --- images


def test_a_missing_image_is_reported_in_bounded_time_without_a_registry(house: House) -> None:
    began = time.monotonic()
    with pytest.raises(DibsError) as caught:
        house.create(image="registry.invalid/no/such:1", gpu=1)
    assert isinstance(caught.value, BackendUnavailable | NotFound), caught.value
    assert caught.value.code in ("REGISTRY_UNREACHABLE", "IMAGE_NOT_FOUND")
    assert "--image /path/to/image.tar" in str(caught.value)
    assert time.monotonic() - began < 60
    assert house.free()


def test_an_image_in_a_file_is_loaded_once(house: House, tmp_path: Path) -> None:
    saved = images.saved(house.engine.root)
    assert house.run("cat", "/etc/passwd", image=str(saved))[0].startswith("root:")
    root = images.root_archive(house.engine.root)
    assert house.run("/bin/busybox", "echo", "from a root", image=str(root))[0] == "from a root\n"


def test_a_file_that_is_no_image_is_refused_before_anything_is_booked(house: House, tmp_path: Path) -> None:
    (tmp_path / "not.tar").write_text("hello")
    for path in (tmp_path / "not.tar", tmp_path / "missing.tar"):
        with pytest.raises(InvalidRequest) as caught:
            house.create(image=str(path), gpu=1)
        assert caught.value.code == "IMAGE_INVALID"
    assert house.service.sandboxes(all=True) == []


def test_an_image_for_another_platform_is_refused(house: House) -> None:
    other = "arm64" if os.uname().machine == "x86_64" else "amd64"
    body = images.saved(house.engine.root, architecture=other).read_bytes()
    assert house.engine.api("POST", f"{house.engine.prefix}/images/load", body=body)[0] == 200
    with pytest.raises(Unsupported) as caught:
        house.create(image=f"localhost/dibs-test-{other}:1", gpu=1)
    assert caught.value.code == "PLATFORM_MISMATCH"
    assert house.free()


# --- terminals and input


def test_what_is_sent_to_it_is_read(house: House) -> None:
    row, session = house.service.launch(house.spec(command=["cat"], interactive=True))
    session.send(b"line\n")
    session.end_of_input()
    said, result = conversation(session)
    session.close()
    assert (said, result.code) == ("line\n", 0)
    house.service.settle(row.id)


def test_a_terminal_is_a_terminal(house: House) -> None:
    row, session = house.service.launch(
        house.spec(command=["sh", "-c", "test -t 0 && stty size"], tty=True, interactive=True)
    )
    said, result = conversation(session)
    session.close()
    assert result.code == 0, said
    house.service.settle(row.id)


@pytest.mark.parametrize("number", [2, 15])
def test_a_signal_reaches_the_command(house: House, number: int) -> None:
    name = {2: "INT", 15: "TERM"}[number]
    script = f"trap 'echo caught; exit 7' {name}; echo ready; while true; do sleep 0.05; done"
    row, session = house.service.launch(house.spec(command=["sh", "-c", script]))
    pieces: list[object] = []
    while not any(getattr(piece, "data", b"") == b"ready\n" for piece in pieces):
        pieces += session.receive(60)
    session.signal(number)
    said, result = conversation(session)
    session.close()
    assert (said, result.code) == ("caught\n", 7)
    house.service.settle(row.id)
