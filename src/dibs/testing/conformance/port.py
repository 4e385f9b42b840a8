"""What every backend does, in the terms of the port."""

from __future__ import annotations

import contextlib
import io
import select
import signal
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dibs.backends.port import (
    Backend,
    CopiesFiles,
    EnforcesLimits,
    Exec,
    ExecutesCommands,
    Expires,
    ForwardsPorts,
    GrantedDevice,
    Limits,
    MeasuresUsage,
    Output,
    Pauses,
    Phase,
    must,
    scheduler_of,
)
from dibs.cdi.spec import ContainerEdits, DeviceNode
from dibs.devices.model import CdiAttachment, DeviceId
from dibs.errors import CommandFailed, Conflict, DibsError, InvalidRequest, NotFound, Unsupported
from dibs.request.fields import ROWS
from dibs.testing.subject import PATIENCE, Collect, Subject
from dibs.workloads.files import pack, unpack
from dibs.workloads.receipt import differences

NODE = DeviceNode(path="/dev/simgpu0", host_path="/dev/null", type="c", major=1, minor=3)
DEVICE = GrantedDevice(
    DeviceId("sim/pool/0"), CdiAttachment("vendor.com/gpu=0", ContainerEdits(device_nodes=(NODE,))), simulated=True
)


def tar(name: str, data: bytes = b"data", **fields: Any) -> Iterator[bytes]:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        info = tarfile.TarInfo(name)
        info.size = len(data)
        for key, value in fields.items():
            setattr(info, key, value)
        archive.addfile(info, io.BytesIO(data))
    return iter([buffer.getvalue()])


# --- what it says of itself


def test_it_is_what_it_declares(subject: Subject) -> None:
    declared, backend = subject.factory.declaration, subject.backend
    assert declared.name == backend.name
    assert declared.scheduled == (scheduler_of(backend) is not None)
    assert [field for field in declared.column if field not in ROWS] == []
    probed = {field for field, cell in declared.column.items() if cell.probe}
    assert not probed or isinstance(backend, EnforcesLimits)
    assert all(cell.how for cell in declared.column.values())


@pytest.mark.parametrize("protocol", [ExecutesCommands, CopiesFiles, Pauses, Expires, MeasuresUsage, ForwardsPorts])
def test_what_it_does_not_have_is_refused_by_name(subject: Subject, protocol: type) -> None:
    backend: Backend = subject.backend
    if isinstance(backend, protocol):
        assert must(subject.backend, protocol) is backend
        return
    with pytest.raises(Unsupported, match=backend.name) as caught:
        must(backend, protocol)
    assert caught.value.problems[0].remedy


# --- before it runs


def test_render_changes_nothing(subject: Subject) -> None:
    workload = subject.workload("true")
    folder = subject.folder / "home" / "sandboxes" / workload.id
    one, two = subject.backend.render(workload, folder), subject.backend.render(workload, folder)
    assert one == two
    assert one.backend == subject.backend.name
    assert not folder.exists()


def test_what_is_expected_is_observed(subject: Subject) -> None:
    subject.needs("granted")
    workload = subject.workload("sleep", "1000", devices=(DEVICE,))
    folder = subject.folder / "home" / "sandboxes" / workload.id
    realisation = subject.backend.render(workload, folder)
    handle = subject.backend.create(workload, realisation, folder)
    subject.handles.append(handle)
    if not subject.backend.holds:
        subject.backend.start(handle)
    observed = subject.backend.observe(handle)
    assert [str(node) for node in observed.nodes] == ["/dev/simgpu0 c 1:3"]
    assert observed.nodes == realisation.expectation.nodes
    assert realisation.expectation.env.items() <= observed.env.items()
    assert workload.env.items() <= observed.env.items()
    assert observed.limits == realisation.expectation.limits
    assert differences(realisation.expectation, observed) == []


def test_limits_are_delivered_or_refused(subject: Subject) -> None:
    subject.has(EnforcesLimits)
    asked = Limits(cpu_millis=500, memory_bytes=64 << 20, pids=50)
    able = [subject.backend.can_limit(name) for name in ("cpu", "memory", "pids")]
    if all(capability.ok for capability in able):
        handle = subject.seen("sleep", "1000", limits=asked)
        assert subject.backend.observe(handle).limits == {"cpu_millis": 500, "memory_bytes": 64 << 20, "pids": 50}
        return
    assert all(capability.reason and capability.remedy for capability in able if not capability.ok)
    with pytest.raises(Unsupported) as caught:
        subject.create("true", limits=asked)
    assert {problem.code for problem in caught.value.problems} == {"LIMIT_NOT_ENFORCEABLE"}


def test_it_is_held_until_it_is_started(subject: Subject) -> None:
    handle = subject.create("sleep", "1000")
    assert subject.backend.status(handle).phase is Phase.HELD
    subject.backend.start(handle)
    assert subject.backend.status(handle).phase is Phase.RUNNING


def test_it_cannot_be_started_twice(subject: Subject) -> None:
    handle = subject.start("sleep", "1000")
    with pytest.raises(Conflict):
        subject.backend.start(handle)


def test_a_held_one_can_be_stopped_and_never_ran(subject: Subject) -> None:
    handle = subject.create("echo", "ran")
    subject.backend.stop(handle, 1)
    status = subject.backend.status(handle)
    assert status.exit is not None
    assert (status.phase, status.exit.reason) == (Phase.EXITED, "not-started")
    assert list(subject.backend.logs(handle)) == []


def test_a_missing_command_fails_the_start(subject: Subject) -> None:
    handle = subject.create("no-such-command-anywhere")
    with pytest.raises(CommandFailed) as caught:
        subject.backend.start(handle)
    assert caught.value.status == 127
    assert subject.backend.status(handle).phase in (Phase.EXITED, Phase.ABSENT)


def test_an_empty_command_is_refused(subject: Subject) -> None:
    with pytest.raises(InvalidRequest):
        subject.create("")


# --- how it ends


@pytest.mark.parametrize(("command", "code"), [("true", 0), ("false", 1)])
def test_its_exit_code_is_told(subject: Subject, command: str, code: int) -> None:
    _, status = subject.ended(command)
    assert status.exit is not None
    assert (status.exit.code, status.exit.reason) == (code, "exited")


def test_the_exit_is_still_known_to_a_later_look(subject: Subject) -> None:
    handle, status = subject.ended("false")
    assert subject.backend.status(handle) == status
    assert subject.backend.wait(handle, 0) == status


def test_stop_ends_it_with_the_reason(subject: Subject) -> None:
    handle = subject.start("sleep", "1000")
    subject.backend.stop(handle, 10)
    status = subject.backend.status(handle)
    assert status.exit is not None
    assert (status.phase, status.exit.reason, status.exit.code) == (Phase.EXITED, "stopped", 143)
    subject.backend.stop(handle, 10)
    assert subject.backend.status(handle) == status


def test_stop_without_grace_kills(subject: Subject) -> None:
    handle = subject.start("sleep", "1000")
    subject.backend.stop(handle, 0)
    status = subject.backend.status(handle)
    assert status.exit is not None
    assert (status.exit.reason, status.exit.code) == ("stopped", 143 if "kill" in subject.factory.differences else 137)


def test_waiting_has_an_end(subject: Subject) -> None:
    handle = subject.start("sleep", "1000")
    assert subject.backend.wait(handle, 0.01).phase is Phase.RUNNING


def test_delete_is_refused_while_it_lives_and_repeatable_after(subject: Subject) -> None:
    handle = subject.start("sleep", "1000")
    with pytest.raises(Conflict):
        subject.backend.delete(handle)
    subject.backend.stop(handle, 0)
    subject.backend.delete(handle)
    subject.backend.delete(handle)
    assert subject.backend.status(handle).phase is Phase.ABSENT


def test_observing_an_ended_one_is_an_error(subject: Subject) -> None:
    handle, _ = subject.ended("true")
    if not subject.backend.holds:  # the look that was taken while it started is given once
        with contextlib.suppress(Conflict):
            subject.backend.observe(handle)
    with pytest.raises(Conflict):
        subject.backend.observe(handle)


# --- talking


def test_the_log_has_what_it_said(subject: Subject) -> None:
    handle, _ = subject.ended("echo", "one", "two")
    records = list(subject.backend.logs(handle))
    assert b"".join(record.data for record in records) == b"one two\n"
    assert {record.stream for record in records} == {"stdout"}


def test_following_the_log_ends_with_it(subject: Subject) -> None:
    handle = subject.start("echo", "said")
    assert b"".join(record.data for record in subject.backend.logs(handle, follow=True)) == b"said\n"


def test_attached_before_the_start_nothing_is_missed(subject: Subject, collect: Collect) -> None:
    handle = subject.create("echo", "said")
    session = subject.keep(subject.backend.attach(handle))
    subject.backend.start(handle)
    out, err, ended = collect(session)
    assert (out, err, ended.code) == (b"said\n", b"", 0)


def test_input_goes_in_and_ends(subject: Subject, collect: Collect) -> None:
    handle = subject.start("cat", interactive=True)
    session = subject.keep(subject.backend.attach(handle))
    session.send(b"some ")
    session.send(b"input\n")
    session.end_of_input()
    out, _, ended = collect(session)
    assert (out, ended.code) == (b"some input\n", 0)


def test_input_of_one_that_has_none_is_a_conflict(subject: Subject) -> None:
    handle = subject.start("sleep", "1000")
    with pytest.raises(Conflict):
        subject.keep(subject.backend.attach(handle)).send(b"x")


def test_signals_arrive(subject: Subject, collect: Collect) -> None:
    handle = subject.start("sleep", "1000")
    session = subject.keep(subject.backend.attach(handle))
    session.signal(signal.SIGINT)
    ended = collect(session)[2]
    assert (ended.code, ended.reason, ended.signal) == (130, "signalled", 2)


def test_nothing_to_receive_is_an_empty_list(subject: Subject) -> None:
    handle = subject.start("sleep", "1000")
    assert subject.keep(subject.backend.attach(handle)).receive(0.01) == []


def test_a_session_can_be_waited_for_by_its_descriptor(subject: Subject) -> None:
    subject.needs("descriptor")
    handle = subject.start("cat", interactive=True)
    session = subject.keep(subject.backend.attach(handle))
    session.send(b"x\n")
    assert select.select([session.fileno()], [], [], PATIENCE)[0]
    assert session.receive(0) == [Output("stdout", b"x\n")]


def test_attaching_to_an_ended_one_is_a_conflict(subject: Subject) -> None:
    handle, _ = subject.ended("true")
    with pytest.raises(Conflict):
        subject.backend.attach(handle)


def test_exec_runs_a_further_command_with_its_own_end(subject: Subject, collect: Collect) -> None:
    subject.has(ExecutesCommands)
    handle = subject.start("sleep", "1000")
    session = subject.keep(subject.backend.exec(handle, Exec(command=("echo", "further"))))
    out, _, ended = collect(session)
    assert (out, ended.code) == (b"further\n", 0)
    assert collect(subject.keep(subject.backend.exec(handle, Exec(command=("false",)))))[2].code == 1
    assert subject.backend.status(handle).phase is Phase.RUNNING


def test_exec_has_the_workloads_environment_and_its_own(subject: Subject, collect: Collect) -> None:
    subject.has(ExecutesCommands)
    handle = subject.start("sleep", "1000")
    session = subject.keep(subject.backend.exec(handle, Exec(command=("env",), env={"MORE": "1"})))
    lines = collect(session)[0].split(b"\n")
    assert b"GREETING=hello" in lines
    assert b"MORE=1" in lines


def test_exec_of_a_missing_command_is_told(subject: Subject) -> None:
    subject.has(ExecutesCommands)
    handle = subject.start("sleep", "1000")
    with pytest.raises(CommandFailed) as caught:
        subject.backend.exec(handle, Exec(command=("no-such-command-anywhere",)))
    assert caught.value.status == 127


def test_exec_in_an_ended_or_paused_one_is_a_conflict(subject: Subject) -> None:
    subject.has(ExecutesCommands)
    handle = subject.start("sleep", "1000")
    backend = subject.backend
    if isinstance(backend, Pauses):
        backend.pause(handle)
        with pytest.raises(Conflict):
            subject.backend.exec(handle, Exec(command=("true",)))
    subject.backend.stop(handle, 0)
    with pytest.raises(Conflict):
        subject.backend.exec(handle, Exec(command=("true",)))


# --- pause


def test_pause_and_resume_can_be_repeated(subject: Subject) -> None:
    subject.has(Pauses)
    handle = subject.start("sleep", "1000")
    for _ in range(2):
        subject.backend.pause(handle)
        subject.backend.pause(handle)
        assert subject.backend.status(handle).phase is Phase.PAUSED
        subject.backend.resume(handle)
        subject.backend.resume(handle)
        assert subject.backend.status(handle).phase is Phase.RUNNING


def test_a_paused_one_can_be_stopped(subject: Subject) -> None:
    subject.has(Pauses)
    handle = subject.start("sleep", "1000")
    subject.backend.pause(handle)
    subject.backend.stop(handle, 10)
    assert subject.backend.status(handle).phase is Phase.EXITED


def test_an_ended_one_cannot_be_paused(subject: Subject) -> None:
    subject.has(Pauses)
    handle, _ = subject.ended("true")
    with pytest.raises(Conflict):
        subject.backend.pause(handle)
    with pytest.raises(Conflict):
        subject.backend.resume(handle)


# --- files


def test_a_file_goes_in_and_comes_out(subject: Subject) -> None:
    subject.has(CopiesFiles)
    handle = subject.start("sleep", "1000")
    subject.backend.copy_in(handle, tar("file", b"contents"), "/tmp")
    data = b"".join(subject.backend.copy_out(handle, "/tmp/file"))
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        assert archive.getnames() == ["file"]
        file = archive.extractfile("file")
        assert file is not None
        assert file.read() == b"contents"


@pytest.mark.parametrize("path", ["/proc", "/proc/1", "/sys", "/sys/kernel"])
def test_the_kernels_own_files_are_not_copied_and_not_left_out(subject: Subject, path: str) -> None:
    subject.has(CopiesFiles)
    subject.needs("shell")
    handle = subject.start("sleep", "1000")
    with pytest.raises(DibsError):
        list(subject.backend.copy_out(handle, path))


def test_what_is_copied_out_twice_stays_in_its_folder(subject: Subject, tmp_path: Path) -> None:
    """A link that leads in when it is made and out when something is written there."""
    subject.has(CopiesFiles, ExecutesCommands)
    subject.needs("shell")
    handle = subject.start("sleep", "1000")
    out, victim = tmp_path / "out", tmp_path / "victim"
    out.mkdir()
    victim.write_text("mine")
    deep = "c/1/2/3/4/5/6/7/8/9"
    first = f"mkdir -p /tmp/d/{deep}; cd /tmp/d; ln -s {deep} b; ln -s b/../../../victim z; ln -s /etc/passwd a"
    subject.say(handle, f"{first}; echo one > f; ln f g")
    assert "d/a" in unpack(subject.backend.copy_out(handle, "/tmp/d"), str(out), "d")
    assert (out / "d/a").readlink() == Path("/etc/passwd")
    assert (out / "d/f").samefile(out / "d/g")
    subject.say(handle, "cd /tmp/d; rm b z; ln -s c b; echo pwned > z")
    unpack(subject.backend.copy_out(handle, "/tmp/d"), str(out), "d")
    assert victim.read_text() == "mine"
    assert (out / "d/z").read_text() == "pwned\n"
    unpack(subject.backend.copy_out(handle, "/tmp/d/f"), str(out / "other"))
    assert (out / "other").read_text() == "one\n"


def test_absolute_links_go_in_and_come_out(subject: Subject, tmp_path: Path) -> None:
    subject.has(CopiesFiles, ExecutesCommands)
    subject.needs("shell")
    handle = subject.start("sleep", "1000")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "link").symlink_to("/usr/bin/env")
    (folder / "file").write_text("x")
    subject.backend.copy_in(handle, pack(str(folder)), "/tmp")
    assert subject.say(handle, "readlink /tmp/folder/link; cat /tmp/folder/file") == "/usr/bin/env\nx"
    subject.backend.copy_in(handle, pack(str(folder)), "/tmp")  # once more, over itself


def test_an_exec_whose_client_hangs_up_ends(subject: Subject) -> None:
    subject.has(ExecutesCommands)
    subject.needs("shell")
    handle = subject.start("sleep", "1000")
    session = subject.backend.exec(handle, Exec(command=("sh", "-c", "echo begun; exec sleep 4321")))
    while not any(isinstance(piece, Output) for piece in session.receive(60)):
        pass
    session.close()
    there = "n=0; for p in /proc/[0-9]*; do grep -q 4321 $p/cmdline 2>/dev/null && n=$((n+1)); done; echo $n"
    for _ in range(200):
        if subject.say(handle, there.replace("4321", "432[1]")).strip() == "0":
            return
        time.sleep(0.05)
    raise AssertionError("it still runs")


def test_a_missing_file_is_not_found(subject: Subject) -> None:
    subject.has(CopiesFiles)
    handle = subject.start("sleep", "1000")
    with pytest.raises(NotFound):
        list(subject.backend.copy_out(handle, "/tmp/none"))


@pytest.mark.parametrize(
    "fields",
    [
        {"name": "/absolute"},
        {"name": "../parent"},
        {"name": "link", "type": tarfile.SYMTYPE, "linkname": "../../x"},
        {"name": "hard", "type": tarfile.LNKTYPE, "linkname": "/etc/passwd"},
        {"name": "node", "type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 3},
    ],
    ids=lambda fields: str(fields["name"]),
)
def test_a_hostile_archive_is_refused(subject: Subject, fields: dict[str, Any]) -> None:
    subject.has(CopiesFiles)
    handle = subject.start("sleep", "1000")
    with pytest.raises(InvalidRequest) as caught:
        subject.backend.copy_in(handle, tar(data=b"", **fields), "/tmp")
    assert caught.value.code == "ARCHIVE_REFUSED"


def test_a_stream_that_is_no_archive_is_refused(subject: Subject) -> None:
    subject.has(CopiesFiles)
    handle = subject.start("sleep", "1000")
    with pytest.raises(InvalidRequest):
        subject.backend.copy_in(handle, iter([b"no archive at all" * 100]), "/tmp")


# --- with a shell


def test_both_streams_are_kept_apart(subject: Subject, collect: Collect) -> None:
    subject.needs("shell")
    subject.needs("streams")
    handle = subject.create("sh", "-c", "echo out; echo err >&2; exit 9")
    session = subject.keep(subject.backend.attach(handle))
    subject.backend.start(handle)
    out, err, ended = collect(session)
    assert (out, err, ended.code) == (b"out\n", b"err\n", 9)


def test_a_terminal_has_a_size(subject: Subject, collect: Collect) -> None:
    subject.delivers("tty")
    subject.needs("shell")
    handle = subject.create("sh", "-c", "read x; stty size", tty=True)
    session = subject.keep(subject.backend.attach(handle))
    subject.backend.start(handle)
    session.resize(33, 77)
    session.send(b"\n")
    assert b"33 77" in collect(session)[0]


def test_only_the_leased_nodes_are_inside(subject: Subject, collect: Collect) -> None:
    subject.needs("shell")
    subject.needs("granted")
    handle = subject.create("sh", "-c", "ls -d /dev/simgpu*", devices=(DEVICE,))
    session = subject.keep(subject.backend.attach(handle))
    subject.backend.start(handle)
    assert collect(session)[0] == b"/dev/simgpu0\n"


def test_its_time_to_live_ends_it(subject: Subject) -> None:
    subject.delivers("ttl")
    subject.needs("shell")
    handle = subject.start("sleep", "1000", ttl_seconds=0.1)
    status = subject.backend.wait(handle, PATIENCE)
    assert status.exit is not None
    assert status.exit.reason == "expired"
