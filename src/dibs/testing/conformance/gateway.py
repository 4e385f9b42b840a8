"""What a gateway needs of every backend: expiry, usage, connections, surveys, users, and tidying up after others."""

from __future__ import annotations

import time
from typing import Any

import pytest

from dibs.backends.fake import FakeBackend
from dibs.backends.port import (
    EnforcesLimits,
    Exec,
    ExecutesCommands,
    Expires,
    ForwardsPorts,
    Handle,
    Limits,
    MeasuresUsage,
    Phase,
    Status,
    Surveys,
    TakesSnapshots,
    Usage,
    must,
)
from dibs.errors import Conflict, InvalidRequest, NotFound, Problem, Unsupported
from dibs.testing.subject import PATIENCE, Collect, Subject

LONG = 3600.0
SHORT = 1.5  # of a sandbox that is renewed before it ends: long enough for a busy machine to do so
# Whatever the root has; each echoes what it gets.
ECHO = """
if command -v python3 >/dev/null; then exec python3 -uc '
import socket
server = socket.create_server(("127.0.0.1", 8123)); print("ready")
while True:
    one, _ = server.accept()
    while data := one.recv(4096): one.sendall(data)
'; fi
nc -ll -p 8123 -e cat &
while ! grep -q :1FBB /proc/net/tcp /proc/net/tcp6; do :; done
echo ready; wait
"""


def now(subject: Subject) -> float:
    return subject.backend.now if isinstance(subject.backend, FakeBackend) else time.time()


def pass_time(subject: Subject, handle: Handle, seconds: float) -> Phase:
    """Let time go by, or less if it ends before; how it is then."""
    if isinstance(subject.backend, FakeBackend):
        subject.backend.advance(seconds)
    status: Status = subject.backend.wait(handle, seconds)
    return status.phase


def reason(subject: Subject, handle: Handle) -> str:
    status: Status = subject.backend.status(handle)
    assert status.exit is not None
    return status.exit.reason


# --- expiry


def test_a_renewal_postpones_the_end(subject: Subject) -> None:
    subject.has(Expires)
    handle = subject.start("sleep", "1000", ttl_seconds=SHORT)
    subject.backend.set_expiry(handle, now(subject) + LONG)
    assert pass_time(subject, handle, 1.5 * SHORT) is Phase.RUNNING


def test_without_an_expiry_it_does_not_end_by_itself(subject: Subject) -> None:
    subject.has(Expires)
    handle = subject.start("sleep", "1000", ttl_seconds=SHORT)
    subject.backend.set_expiry(handle, None)
    assert pass_time(subject, handle, 1.5 * SHORT) is Phase.RUNNING


def test_an_earlier_expiry_ends_it_then(subject: Subject) -> None:
    subject.has(Expires)
    handle = subject.start("sleep", "1000", ttl_seconds=LONG)
    subject.backend.set_expiry(handle, now(subject) + 0.05)
    assert pass_time(subject, handle, PATIENCE) is Phase.EXITED
    assert reason(subject, handle) == "expired"


def test_one_without_a_time_to_live_can_get_one(subject: Subject) -> None:
    subject.has(Expires)
    handle = subject.start("sleep", "1000")
    subject.backend.set_expiry(handle, now(subject) - 5)
    assert pass_time(subject, handle, PATIENCE) is Phase.EXITED
    assert reason(subject, handle) == "expired"


def test_an_ended_one_has_no_expiry(subject: Subject) -> None:
    subject.has(Expires)
    handle, _ = subject.ended("true")
    with pytest.raises(Conflict):
        subject.backend.set_expiry(handle, now(subject) + LONG)


# --- looking


def test_a_survey_tells_of_each_what_a_look_would(subject: Subject) -> None:
    subject.has(Surveys)
    running, (ended, _) = subject.start("sleep", "1000"), subject.ended("false")
    found = subject.backend.survey([running, ended])
    assert found == {one.sandbox_id: subject.backend.status(one) for one in (running, ended)}
    assert subject.backend.survey([]) == {}


def test_usage_is_measured_against_the_limits(subject: Subject) -> None:
    subject.has(EnforcesLimits, MeasuresUsage)
    if not all(subject.backend.can_limit(name).ok for name in ("cpu", "memory")):
        pytest.skip(f"{subject.factory.name}: limits cannot be enforced here")
    handle = subject.start("sleep", "1000", limits=Limits(cpu_millis=500, memory_bytes=64 << 20))
    usage = subject.backend.usage(handle)
    assert (usage.memory_limit, usage.cpus) == (64 << 20, 0.5)
    assert usage.cpu_seconds >= 0
    assert 0 <= usage.memory_bytes <= 64 << 20


def test_usage_without_limits_is_measured_against_the_host(subject: Subject) -> None:
    subject.has(MeasuresUsage)
    usage = subject.backend.usage(subject.start("sleep", "1000"))
    assert usage.memory_limit > 64 << 20
    assert usage.cpus >= 1


def test_what_is_used_is_seen(subject: Subject) -> None:
    subject.has(MeasuresUsage)
    subject.needs("shell")
    handle = subject.start("sh", "-c", "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; echo ready; exec sleep 1000")
    for record in subject.backend.logs(handle, follow=True):
        if record.data:
            break
    usage: Usage = subject.backend.usage(handle)
    assert usage.cpu_seconds > 0
    assert usage.memory_bytes > 0


def test_an_ended_one_uses_nothing_that_could_be_told(subject: Subject) -> None:
    subject.has(MeasuresUsage)
    handle, _ = subject.ended("true")
    with pytest.raises(Conflict):
        subject.backend.usage(handle)


# --- its ports


def test_a_port_on_which_nothing_listens_is_not_found(subject: Subject) -> None:
    subject.has(ForwardsPorts)
    handle = subject.start("sleep", "1000", network=subject.alone)
    with pytest.raises(NotFound):
        subject.backend.connect(handle, 8123)


def test_a_port_of_an_ended_one_is_a_conflict(subject: Subject) -> None:
    subject.has(ForwardsPorts)
    handle, _ = subject.ended("true")
    with pytest.raises(Conflict):
        subject.backend.connect(handle, 8123)


def test_a_connection_goes_to_its_own_loopback(subject: Subject) -> None:
    subject.has(ForwardsPorts)
    if isinstance(subject.backend, FakeBackend):
        handle = subject.start("sleep", "1000")

        def answer(end: Any) -> None:
            end.sendall(b"hello")
            end.close()

        subject.backend.listen(handle.sandbox_id, 8123, answer)
        with subject.backend.connect(handle, 8123) as connection:
            assert connection.recv(100) == b"hello"
        return
    subject.needs("shell")
    handle = subject.start("sh", "-c", ECHO, network=subject.alone)
    for record in subject.backend.logs(handle, follow=True):
        if b"ready" in record.data:
            break
    for _ in range(3):
        with subject.backend.connect(handle, 8123) as connection:
            connection.settimeout(PATIENCE)
            connection.sendall(b"hello")
            assert connection.recv(5) == b"hello"


# --- what others left


def test_a_held_one_can_be_discarded_by_its_name_alone(subject: Subject) -> None:
    handle = subject.create("echo", "ran")
    name = Handle(handle.backend, handle.sandbox_id, handle.folder)
    subject.backend.discard(name)
    subject.backend.discard(name)
    assert subject.backend.status(handle).phase is Phase.ABSENT


def test_what_was_never_made_can_be_discarded(subject: Subject) -> None:
    folder = subject.folder / "home" / "sandboxes" / "never-made"
    subject.backend.discard(Handle(subject.backend.name, "never-made", str(folder)))


# --- snapshots, users


def test_a_snapshot_is_an_image_or_refused_by_name(subject: Subject) -> None:
    handle = subject.start("sleep", "1000")
    if not isinstance(subject.backend, TakesSnapshots):
        with pytest.raises(Unsupported) as caught:
            must(subject.backend, TakesSnapshots)
        assert caught.value.code == "SNAPSHOT_UNSUPPORTED"
        return
    reference = subject.backend.snapshot(handle, f"dibs-test-{handle.sandbox_id}")
    assert reference
    subject.backend.remove_snapshot(reference)
    subject.backend.remove_snapshot(reference)  # what is gone stays gone


def test_a_further_command_runs_as_the_user_or_is_refused(subject: Subject, collect: Collect) -> None:
    subject.has(ExecutesCommands)
    handle = subject.start("sleep", "1000")
    command = ("true",) if "shell" in subject.factory.differences else ("id",)
    problems: tuple[Problem, ...] = ()
    try:
        session = subject.keep(subject.backend.exec(handle, Exec(command=command, user="1234:4321")))
    except InvalidRequest as error:
        problems = error.problems
    if problems:
        assert {(problem.code, problem.field) for problem in problems} == {("USER_NOT_MAPPED", "user")}
        assert all(problem.remedy for problem in problems)
        return
    out, _, ended = collect(session)
    assert ended.code == 0
    if command == ("id",):
        assert b"uid=1234" in out
        assert b"gid=4321" in out


@pytest.mark.parametrize("user", [":", "1:2:3", "1:", "-1"])
def test_a_user_that_is_none_is_refused(subject: Subject, user: str) -> None:
    subject.has(ExecutesCommands)
    handle = subject.start("sleep", "1000")
    with pytest.raises(InvalidRequest, match="user"):
        subject.backend.exec(handle, Exec(command=("true",), user=user))


# --- output of further commands


def test_much_output_comes_whole_and_in_order(subject: Subject, collect: Collect) -> None:
    subject.has(ExecutesCommands)
    subject.needs("shell")
    handle = subject.start("sleep", "1000")
    session = subject.keep(subject.backend.exec(handle, Exec(command=("seq", "1", "300000"))))
    out, err, ended = collect(session)
    assert (err, ended.code) == (b"", 0)
    assert out == b"".join(b"%d\n" % number for number in range(1, 300001))


def test_what_is_said_last_is_not_lost(subject: Subject, collect: Collect) -> None:
    subject.has(ExecutesCommands)
    subject.needs("shell")
    handle = subject.start("sleep", "1000")
    for _ in range(10):
        script = "head -c 50000 /dev/zero; echo last; echo end >&2; exit 3"
        out, err, ended = collect(subject.keep(subject.backend.exec(handle, Exec(command=("sh", "-c", script)))))
        assert (len(out), out[-5:], err, ended.code) == (50005, b"last\n", b"end\n", 3)
