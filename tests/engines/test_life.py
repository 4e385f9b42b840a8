"""The life of real containers: images, fields, ends, files, signals, and what happens behind dibs' back."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import tarfile
import threading
import time
from pathlib import Path

import pytest
from tests.engines import images
from tests.engines.conftest import PATIENCE, Bench

from dibs.backends.port import Exec, Exit, Handle, Limits, Mount, Phase
from dibs.errors import BackendUnavailable, Conflict, DibsError, InvalidRequest, NotFound, Unsupported
from dibs.process import boottime


def ended(bench: Bench, handle: Handle) -> Exit:
    status = bench.backend.wait(handle, PATIENCE)
    assert status.exit is not None, status
    return status.exit


# --- images


def test_an_image_is_loaded_from_a_file_once(bench: Bench) -> None:
    path = str(images.saved(bench.engine.root, entrypoint=("echo", "entry")))
    assert bench.said("one", image=path) == "entry one\n"
    assert bench.said("two", image=path) == "entry two\n"
    assert len(list((bench.home.state / "images").iterdir())) >= 1


def test_a_plain_root_is_an_image_too(bench: Bench) -> None:
    assert bench.said("echo", "here", image=str(images.root_archive(bench.engine.root))) == "here\n"


def test_the_entrypoint_of_the_image_can_be_left_out_or_replaced(bench: Bench) -> None:
    path = str(images.saved(bench.engine.root, entrypoint=("echo", "entry")))
    assert bench.said("echo", "alone", image=path, entrypoint=()) == "alone\n"
    assert bench.said("x", image=path, entrypoint=("echo", "mine")) == "mine x\n"


def test_a_missing_image_without_a_registry_is_reported_and_nothing_is_left(bench: Bench) -> None:
    news: list[str] = []
    bench.backend.on_progress = news.append
    workload = bench.workload("true", image="registry.invalid/no/such:1")
    with pytest.raises(BackendUnavailable) as caught:
        bench.create(workload)
    assert caught.value.code == "REGISTRY_UNREACHABLE"
    assert "--image /path/to/image.tar" in str(caught.value)
    assert bench.engine.containers() == []
    assert not bench.home.sandbox(workload.id).exists()


def test_an_image_for_another_platform_is_refused(bench: Bench) -> None:
    other = "arm64" if os.uname().machine == "x86_64" else "amd64"
    path = str(images.saved(bench.engine.root, architecture=other))
    with pytest.raises(Unsupported) as caught:
        bench.create(bench.workload("true", image=path))
    assert caught.value.code == "PLATFORM_MISMATCH"
    with pytest.raises(DibsError):
        bench.create(bench.workload("true", platform=f"linux/{other}"))
    assert bench.engine.containers() == []


@pytest.mark.parametrize("data", [b"", b"no image at all" * 100], ids=["empty", "text"])
def test_a_file_that_is_no_image_is_refused(bench: Bench, tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x.tar").write_bytes(data)
    with pytest.raises(InvalidRequest) as caught:
        bench.create(bench.workload("true", image=str(tmp_path / "x.tar")))
    assert caught.value.code == "IMAGE_INVALID"


def test_what_an_engine_made_too_late_gives_way_to_the_same_sandbox_made_again(bench: Bench) -> None:
    """Its creator was killed meanwhile, and its successor looked for the container too early."""
    workload = bench.workload("sleep", "1000")
    bench.create(workload)
    handle, _ = bench.create(workload)
    bench.backend.start(handle)
    assert bench.backend.status(handle).phase is Phase.RUNNING
    with pytest.raises(Conflict) as caught:
        bench.create(workload)
    assert caught.value.code == "CONTAINER_EXISTS"
    assert bench.backend.status(handle).phase is Phase.RUNNING


# --- fields


def test_fields_arrive(bench: Bench) -> None:
    said = bench.said(
        "sh", "-c", "id -u; id -g; pwd; df -k /dev/shm | tail -1 | awk '{print $2}'; touch /x 2>&1; env",
        user="1000:1000", workdir="/tmp/deep/er", shm_bytes=4 << 20, read_only=True, env={"PATH": "/bin", "A": "b c"},
    )  # fmt: skip
    lines = said.splitlines()
    assert lines[:4] == ["1000", "1000", "/tmp/deep/er", "4096"]
    assert "Read-only file system" in lines[4]
    assert "A=b c" in lines


def test_without_a_working_folder_it_is_the_images_own(bench: Bench) -> None:
    assert bench.said("pwd", workdir="") == "/tmp\n"


def test_mounts_are_read_only_unless_asked(bench: Bench) -> None:
    for name in ("ro", "rw"):
        (bench.tmp / name).mkdir()
        (bench.tmp / name / "file").write_text(name)
    mounts = (Mount(str(bench.tmp / "ro"), "/ro"), Mount(str(bench.tmp / "rw"), "/rw", writable=True))
    handle, realisation = bench.create(bench.workload("sh", "-c", "touch /rw/new /ro/new; sleep 1000", mounts=mounts))
    bench.backend.start(handle)
    seen = bench.backend.observe(handle)
    assert [(one.target, one.mode) for one in seen.mounts] == [("/ro", "ro"), ("/rw", "rw")]
    assert realisation.expectation.mounts == seen.mounts
    deadline = time.monotonic() + PATIENCE
    while not (bench.tmp / "rw" / "new").exists():
        assert time.monotonic() < deadline
    assert not (bench.tmp / "ro" / "new").exists()


def test_a_mount_whose_source_is_missing_is_refused_before_it_is_made(bench: Bench) -> None:
    with pytest.raises(InvalidRequest) as caught:
        bench.create(bench.workload("true", mounts=(Mount("/no/such/place", "/m"),)))
    assert caught.value.code == "MOUNT_INVALID"


def test_the_container_is_labelled(bench: Bench) -> None:
    handle = bench.start("sleep", "1000", labels={"team": "blue"})
    found = next(one for one in bench.engine.containers() if f"dibs-{handle.sandbox_id}" in str(one["Names"]))
    labels = found["Labels"]
    assert isinstance(labels, dict)
    assert (labels["team"], labels["dibs.sandbox"]) == ("blue", handle.sandbox_id)


def test_an_unknown_user_is_reported_and_nothing_runs(bench: Bench) -> None:
    handle, _ = bench.create(bench.workload("true", user="nobody-at-all"))
    with pytest.raises(InvalidRequest) as caught:
        bench.backend.start(handle)
    assert caught.value.code == "USER_UNKNOWN"
    assert bench.engine.containers() == []


# --- ends


def test_out_of_memory_is_reported(bench: Bench) -> None:
    handle = bench.start("sh", "-c", "x=$(yes | head -c 200000000); echo", limits=Limits(memory_bytes=16 << 20))
    found = ended(bench, handle)
    assert (found.code, found.reason) in ((137, "out-of-memory"), (137, "signalled"))
    if bench.engine.kind == "docker":
        assert found.reason == "out-of-memory"


def test_one_killed_by_hand_has_ended_and_one_removed_by_hand_is_gone(bench: Bench) -> None:
    one, two = bench.start("sleep", "1000"), bench.start("sleep", "1000")
    prefix = bench.engine.prefix
    bench.engine.api("POST", f"{prefix}/containers/dibs-{one.sandbox_id}/kill?signal=SIGKILL")
    assert ended(bench, one).reason == "signalled"
    bench.engine.api("DELETE", f"{prefix}/containers/dibs-{two.sandbox_id}?force=true")
    assert bench.backend.status(two).phase is Phase.ABSENT
    assert bench.backend.survey([one, two])[two.sandbox_id].phase is Phase.ABSENT


def test_events_of_the_engine_are_heard(bench: Bench) -> None:
    heard: list[tuple[str, str]] = []
    news = threading.Condition()

    def on_change(sandbox: str, what: str) -> None:
        with news:
            heard.append((sandbox, what))
            news.notify_all()

    watch = bench.backend.watch(on_change)
    try:
        assert watch.listening.wait(PATIENCE)
        handle = bench.start("sleep", "1000")
        bench.engine.api("DELETE", f"{bench.engine.prefix}/containers/dibs-{handle.sandbox_id}?force=true")
        with news:
            assert news.wait_for(
                lambda: any(one == handle.sandbox_id and what in ("die", "died") for one, what in heard), PATIENCE
            ), heard
    finally:
        watch.close()


def test_when_the_one_attached_goes_away_the_workload_ends(bench: Bench) -> None:
    handle, _ = bench.create(bench.workload("sleep", "1000", foreground=True))
    session = bench.backend.attach(handle)
    bench.backend.start(handle)
    assert bench.backend.status(handle).phase is Phase.RUNNING
    session.close()
    assert ended(bench, handle).reason == "client-gone"


def test_a_killed_client_takes_its_workload_with_it(bench: Bench) -> None:
    workload = bench.workload("sleep", "1000", foreground=True)
    script = f"""
import sys, pathlib, msgspec
from dibs.backends.engines.{bench.engine.kind} import {type(bench.backend).__name__} as B
from dibs.backends.port import Workload
from dibs.home import Home
home = Home(pathlib.Path({str(bench.home.state)!r}), pathlib.Path({str(bench.home.config)!r}))
b = B(home, {str(bench.engine.socket)!r})
w = msgspec.json.decode(sys.stdin.buffer.read(), type=Workload)
f = pathlib.Path({str(bench.home.sandbox(workload.id))!r})
h = b.create(w, b.render(w, f), f)
s = b.attach(h); b.start(h); print("up", flush=True)
s.receive()
"""
    import msgspec

    handle = Handle(bench.backend.name, workload.id, str(bench.home.sandbox(workload.id)))
    bench.handles.append(handle)
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as client:
        assert client.stdin is not None
        assert client.stdout is not None
        client.stdin.write(msgspec.json.encode(workload))
        client.stdin.close()
        assert client.stdout.readline() == b"up\n"
        client.kill()
    assert ended(bench, handle).reason == "client-gone"


def test_an_overdue_one_is_known_even_without_its_keeper(bench: Bench) -> None:
    from dibs.backends.engines import ttl

    handle = bench.start("sleep", "1000", ttl_seconds=3600.0)
    keeper = ttl.keeper_of(Path(handle.folder))
    assert keeper is not None
    assert not bench.backend.overdue(handle)
    assert bench.backend.overdue(handle, boottime() + 3601)
    os.kill(keeper.pid, signal.SIGKILL)
    os.waitpid(keeper.pid, 0)
    bench.backend.set_expiry(handle, time.time() - 1)  # another one takes over
    assert ended(bench, handle).reason == "expired"


# --- the engine goes away


def test_while_the_engine_is_away_nothing_is_proved_and_after_it_all_is_known(bench: Bench) -> None:
    handle = bench.start("sleep", "1000")
    bench.engine.kill()
    assert bench.backend.status(handle).phase is Phase.UNKNOWN
    assert bench.backend.survey([handle])[handle.sandbox_id].phase is Phase.UNKNOWN
    with pytest.raises(BackendUnavailable):
        bench.backend.discard(handle)
    capability = bench.backend.available()
    assert not capability.ok
    assert "cannot be reached" in capability.reason
    assert capability.remedy
    bench.engine.start()
    assert bench.backend.available().ok  # an outage a moment ago refuses no request
    deadline = time.monotonic() + PATIENCE
    while bench.backend.status(handle).phase is Phase.UNKNOWN:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert bench.backend.status(handle).phase in (Phase.RUNNING, Phase.EXITED)
    bench.backend.stop(handle, 0)
    bench.backend.delete(handle)
    assert bench.backend.status(handle).phase is Phase.ABSENT


def test_without_an_engine_the_reason_and_the_remedy_are_reported(bench: Bench, tmp_path: Path) -> None:
    capability = type(bench.backend)(bench.home, f"{tmp_path}/none.sock").available()
    assert (capability.ok, "its socket is not there" in capability.reason) == (False, True)
    assert "systemctl start" in capability.remedy


# --- further commands


def test_signals_reach_further_commands(bench: Bench) -> None:
    handle = bench.start("sleep", "1000")
    session = bench.backend.exec(
        handle, Exec(command=("sh", "-c", "trap 'exit 7' USR1; echo up; while :; do sleep 0.05; done"))
    )
    bench.sessions.append(session)
    assert session.receive(PATIENCE)
    session.signal(signal.SIGUSR1)
    assert bench.collect(session)[2].code == 7


def test_signals_reach_further_commands_through_the_image_where_no_process_is_visible(bench: Bench) -> None:
    handle = bench.start("sleep", "1000")
    (Path(handle.folder) / "init").write_text("null")
    session = bench.backend.exec(handle, Exec(command=("sleep", "1000")))
    session.signal(signal.SIGTERM)
    assert bench.collect(session)[2].code == 143


def test_a_further_command_has_its_own_terminal_user_and_folder(bench: Bench) -> None:
    handle = bench.start("sleep", "1000")
    command = ("sh", "-c", "id -u; pwd; read x; stty size")
    session = bench.backend.exec(handle, Exec(command=command, tty=True, user="1000", workdir="/tmp"))
    session.resize(33, 77)
    session.send(b"\n")
    out = bench.collect(session)[0]
    assert out.split()[:2] == [b"1000", b"/tmp"]
    assert b"33 77" in out


# --- files and snapshots


def test_files_go_in_as_the_workloads_user(bench: Bench) -> None:
    handle = bench.start("sleep", "1000", user="1000:1000")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        info = tarfile.TarInfo("folder/file")
        info.size, info.mode, info.uid = 4, 0o4755, 0
        archive.addfile(info, io.BytesIO(b"data"))
    bench.backend.copy_in(handle, iter([buffer.getvalue()]), "/tmp")
    out = bench.collect(bench.backend.exec(handle, Exec(command=("stat", "-c", "%u:%g %a", "/tmp/folder/file"))))[0]
    assert out == b"1000:1000 755\n"
    with pytest.raises(NotFound):
        bench.backend.copy_in(handle, iter([buffer.getvalue()]), "/no/such/folder")


def test_a_snapshot_is_an_image_with_the_files(bench: Bench) -> None:
    handle = bench.start("sh", "-c", "echo kept > /kept; echo done; sleep 1000")
    for record in bench.backend.logs(handle, follow=True):
        if b"done" in record.data:
            break
    image = bench.backend.snapshot(handle, "localhost/dibs-snapshot:1")
    assert bench.said("cat", "/kept", image=image) == "kept\n"


def test_a_log_has_times_and_both_streams(bench: Bench) -> None:
    before = time.time() - 2
    handle = bench.start("sh", "-c", "echo out; echo err >&2")
    ended(bench, handle)
    records = list(bench.backend.logs(handle))
    assert {(one.stream, one.data) for one in records} == {("stdout", b"out\n"), ("stderr", b"err\n")}
    assert all(before < one.at < time.time() + 1 for one in records)
