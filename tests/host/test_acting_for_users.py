"""The host service's backend: what a user asks for is done as that user, and root trusts none of it."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dibs.backends.local import cgroups
from dibs.backends.local.backend import LocalBackend
from dibs.backends.per_user.backend import HostBackend, acting_for
from dibs.backends.per_user.workers import Workers, workers_of
from dibs.backends.port import Exec, Exit, Handle, Limits, Output, Phase, Session, Workload
from dibs.errors import CommandFailed, DibsError, InvalidRequest, NotFound, Unsupported
from dibs.gateway.host_registry import HostRegistry
from dibs.home import Home
from dibs.ledger.store import new_id

from .conftest import OTHER, USER

pytestmark = pytest.mark.root
ENV = {"PATH": "/usr/bin:/bin"}


@pytest.fixture
def backend(host_home: Home) -> Iterator[HostBackend]:
    yield HostBackend(LocalBackend(host_home), host_home, USER)
    workers_of(host_home).close()


Make = Callable[..., Handle]


@pytest.fixture
def make(backend: HostBackend, host_home: Home, users_folder: Path) -> Iterator[Make]:
    made: list[Handle] = []

    def create(*command: str, owner: int = USER, start: bool = True, **more: object) -> Handle:
        sandbox_id = new_id("sb")
        fields = {"workdir": str(users_folder), "env": ENV, **more}
        workload = Workload(id=sandbox_id, name=sandbox_id, command=command, owner=owner, **fields)  # type: ignore[arg-type]
        folder = host_home.sandbox(sandbox_id)
        bound = backend if owner == USER else HostBackend(LocalBackend(host_home), host_home, owner)
        handle = bound.create(workload, bound.render(workload, folder), folder)
        made.append(handle)
        if start:
            bound.start(handle)
        return handle

    yield create
    for handle in made:
        backend.stop(handle, 0.0)
        backend.delete(handle)


def said(session: Session) -> tuple[str, Exit]:
    session.end_of_input()
    text = b""
    while True:
        for item in session.receive():
            if isinstance(item, Output):
                text += item.data
            else:
                session.close()
                return text.decode(), item


def run(backend: HostBackend, handle: Handle, *command: str, **more: object) -> tuple[str, int]:
    text, end = said(backend.exec(handle, Exec(command=command, **more)))  # type: ignore[arg-type]
    return text, end.code


def uid_of(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("Uid:")[2].split()[0])


def test_every_process_of_the_sandbox_is_the_callers(backend: HostBackend, make: Make) -> None:
    handle = make("sleep", "60")
    assert handle.keeper is not None
    assert handle.init is not None
    assert [uid_of(handle.keeper.pid), uid_of(handle.init.pid)] == [USER, USER]
    assert os.stat(handle.folder).st_uid == USER
    assert run(backend, handle, "id", "-u")[0] == f"{USER}\n"


def test_what_only_root_may_read_cannot_be_read(backend: HostBackend, make: Make, open_folder: Path) -> None:
    secret = open_folder / "secret"
    secret.write_text("root only")
    secret.chmod(0o600)
    assert run(backend, make("sleep", "60"), "cat", str(secret))[1] != 0


def test_a_working_folder_that_the_caller_cannot_enter_is_refused(make: Make, open_folder: Path) -> None:
    private = open_folder / "private" / "inner"
    private.mkdir(parents=True)
    private.parent.chmod(0o700)
    with pytest.raises(InvalidRequest) as refusal:
        make("true", workdir=str(private))
    assert refusal.value.problems[0].field == "workdir"


def test_a_session_is_handed_over_with_its_input_and_its_exit(backend: HostBackend, make: Make) -> None:
    handle = make("sleep", "60")
    session = backend.exec(handle, Exec(command=("sh", "-c", "read x; echo got $x; exit 3")))
    session.send(b"word\n")
    text, end = said(session)
    assert (text, end.code) == ("got word\n", 3)


def test_output_that_came_before_the_hand_over_is_not_lost(backend: HostBackend, make: Make) -> None:
    handle = make("sh", "-c", "seq 1 20000", start=False, interactive=True)
    session = backend.attach(handle)
    backend.start(handle)
    assert said(session)[0] == "".join(f"{n}\n" for n in range(1, 20001))


def test_limits_hold_for_an_ordinary_user(backend: HostBackend, make: Make) -> None:
    lacking = [name for name in ("memory", "pids") if not cgroups.can_limit(name).ok]
    if lacking:
        pytest.skip(f"this host cannot limit {lacking}")
    handle = make("sleep", "60", start=False, limits=Limits(memory_bytes=64 << 20, pids=20))
    assert backend.observe(handle).limits == {"memory_bytes": 64 << 20, "pids": 20}
    backend.start(handle)
    forks = "for i in $(seq 1 50); do sleep 20 & done; wait"
    assert "fork" in run(backend, handle, "sh", "-c", f"( {forks} ) 2>&1; true")[0].lower()


def test_memory_over_the_limit_ends_the_sandbox(backend: HostBackend, make: Make) -> None:
    if not cgroups.can_limit("memory").ok:
        pytest.skip("this host cannot limit memory")
    handle = make("sh", "-c", "exec tail /dev/zero", limits=Limits(memory_bytes=32 << 20))
    ended = backend.wait(handle, 60.0)
    assert ended.exit is not None
    assert ended.exit.reason == "out-of-memory"


def test_pause_and_resume(backend: HostBackend, make: Make) -> None:
    handle = make("sleep", "60")
    backend.pause(handle)
    assert backend.status(handle).phase is Phase.PAUSED
    backend.resume(handle)
    assert backend.survey([handle]) == {handle.sandbox_id: backend.status(handle)}


def test_files_go_in_and_out_as_the_user(backend: HostBackend, make: Make, users_folder: Path) -> None:
    handle = make("sleep", "60")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        info = tarfile.TarInfo("note")
        info.size = 5
        archive.addfile(info, io.BytesIO(b"hello"))
    backend.copy_in(handle, iter([buffer.getvalue()]), str(users_folder))
    assert (users_folder / "note").read_bytes() == b"hello"
    assert (users_folder / "note").stat().st_uid == USER
    out = b"".join(backend.copy_out(handle, f"{users_folder}/note"))
    with tarfile.open(fileobj=io.BytesIO(out)) as archive:
        assert archive.getnames() == ["note"]
    with pytest.raises(NotFound):
        backend.copy_out(handle, "/no/such/file")


def test_the_log_is_read_through_the_users_process(backend: HostBackend, make: Make) -> None:
    handle = make("sh", "-c", "echo one; echo two >&2")
    backend.wait(handle, 30.0)
    assert b"".join(record.data for record in backend.logs(handle)) == b"one\ntwo\n"
    assert b"".join(record.data for record in backend.logs(handle, follow=True)) == b"one\ntwo\n"


def test_a_followed_log_that_is_left_leaves_no_process(backend: HostBackend, make: Make, host_home: Home) -> None:
    handle = make("sh", "-c", "echo one; sleep 60")
    following = backend.logs(handle, follow=True)
    assert next(following).data == b"one\n"
    following.close()  # type: ignore[attr-defined]
    assert _count(workers_of(host_home)) <= 2


def _count(workers: Workers) -> int:
    return sum(workers._count.values())


def test_a_missing_command_is_reported_with_its_own_error(make: Make) -> None:
    with pytest.raises(CommandFailed) as failure:
        make("no-such-command")
    assert failure.value.status == 127


def test_nothing_is_left_after_deletion(backend: HostBackend, make: Make, host_home: Home) -> None:
    handle = make("sleep", "60", limits=Limits(pids=50) if cgroups.can_limit("pids").ok else Limits())
    backend.stop(handle, 0.0)
    backend.delete(handle)
    backend.delete(handle)
    assert not Path(handle.folder).exists()
    assert not any(os.path.exists(path) for path in handle.data["groups"].split("\n") if path)
    assert backend.status(handle).phase is Phase.ABSENT


def test_the_end_of_the_service_ends_what_was_not_started(backend: HostBackend, make: Make, host_home: Home) -> None:
    handle = make("sleep", "60", start=False)
    workers_of(host_home).close()  # as when the gateway is killed: every line ends
    ended = backend.wait(handle, 30.0)
    assert ended.phase in (Phase.EXITED, Phase.ABSENT)


def test_a_started_sandbox_outlives_the_users_process(backend: HostBackend, make: Make, host_home: Home) -> None:
    handle = make("sleep", "60")
    workers_of(host_home).close()
    assert backend.status(handle).phase is Phase.RUNNING


def test_roots_own_sandboxes_are_as_without_a_service(backend: HostBackend, make: Make, open_folder: Path) -> None:
    handle = make("sleep", "60", owner=0, workdir=str(open_folder))
    assert handle.init is not None
    assert uid_of(handle.init.pid) == 0
    text, _ = run(backend, handle, "sh", "-c", "grep CapEff /proc/self/status")
    assert text.split() == ["CapEff:", "0000000000000000"]


@pytest.mark.parametrize("who", [{"owner": -1}, {"owner": 0, "private": True}, {"private": True}])
def test_a_caller_who_is_no_user_of_the_host_gets_nothing(make: Make, who: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        make("true", **who)
    assert refusal.value.code == "NO_HOST_USER"


def test_only_the_local_backend_acts_for_users(host_home: Home) -> None:
    registry = HostRegistry(host_home, as_user=acting_for(host_home))
    assert isinstance(registry.get("local", USER), HostBackend)
    assert not isinstance(registry.get("fake", USER), HostBackend)


@pytest.mark.parametrize("engine", ["docker", "podman"])
def test_an_engine_which_would_run_it_as_root_is_for_root_alone(host_home: Home, engine: str) -> None:
    registry = HostRegistry(host_home, as_user=acting_for(host_home))
    with pytest.raises(Unsupported) as refusal:
        registry.get(engine, USER)
    assert refusal.value.code == "ENGINE_NOT_FOR_USERS"
    assert registry.get(engine, 0).name == engine


def test_a_users_link_in_its_folder_is_removed_not_followed(
    backend: HostBackend, make: Make, open_folder: Path
) -> None:
    precious = open_folder / "precious"
    precious.mkdir()
    (precious / "file").write_text("stays")
    handle = make("true")
    backend.wait(handle, 30.0)
    link = Path(handle.folder) / "link"
    link.symlink_to(precious)
    os.chown(link, USER, USER, follow_symlinks=False)
    backend.delete(handle)
    assert (precious / "file").read_text() == "stays"


@pytest.mark.parametrize(
    "forged",
    [
        {"folder": "/etc"},
        {"sandbox_id": "sb-other"},
        {"data": {"groups": "/sys/fs/cgroup/memory/dibs/somebody-elses"}},
        {"init": None},
    ],
)
def test_a_forged_handle_is_not_believed(
    backend: HostBackend, make: Make, monkeypatch: pytest.MonkeyPatch, forged: dict[str, object]
) -> None:
    from dibs.backends.per_user import backend as per_user

    genuine = per_user._read

    def read(value: msgspec.Raw, kind: type, uid: int) -> object:
        found = genuine(value, kind, uid)
        return msgspec.structs.replace(found, **forged) if kind is Handle else found

    monkeypatch.setattr(per_user, "_read", read)
    with pytest.raises(DibsError) as refusal:
        make("sleep", "60")
    assert refusal.value.code == "HELPER_LOST"


def test_another_users_process_cannot_reach_the_sandbox(backend: HostBackend, make: Make, users_folder: Path) -> None:
    mine = make("sleep", "60")
    theirs = make("sleep", "60", owner=OTHER, workdir="/tmp")
    assert run(backend, theirs, "ls", mine.folder)[1] != 0
    assert uid_of(theirs.init.pid) == OTHER  # type: ignore[union-attr]


def test_the_state_folder_is_hidden_in_the_sandbox(backend: HostBackend, make: Make, host_home: Home) -> None:
    handle = make("sleep", "60")
    assert run(backend, handle, "ls", handle.folder)[1] != 0


def test_root_and_user_backends_are_the_same_to_look_at(backend: HostBackend) -> None:
    missing = {name for name in dir(LocalBackend) if not name.startswith("_")} - set(dir(HostBackend))
    assert missing == {"holds_some"}  # a user's own process asks it of itself: it is no verb of a backend
