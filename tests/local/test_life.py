"""From create to delete: what ends a sandbox, and what is left of it."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.local.bench import ENV, PATIENCE, Bench

from dibs.backends.local.backend import LocalBackend
from dibs.backends.local.shim_client import Connection
from dibs.backends.port import Handle, Phase
from dibs.errors import BackendUnavailable, CommandFailed, Conflict
from dibs.process import absent


def exit_code(bench: Bench, *command: str) -> tuple[int, str, int | None]:
    status, _, _ = bench.run(*command)
    assert status.phase is Phase.EXITED
    assert status.exit is not None
    return status.exit.code, status.exit.reason, status.exit.signal


def test_exit_codes_are_those_of_the_command(bench: Bench) -> None:
    assert exit_code(bench, "true") == (0, "exited", None)
    assert exit_code(bench, "sh", "-c", "exit 42") == (42, "exited", None)
    assert exit_code(bench, "sh", "-c", "kill -TERM $$") == (143, "signalled", 15)


def test_the_command_is_held_back_until_the_start(bench: Bench) -> None:
    handle = bench.create("touch", "ran")
    assert bench.backend.status(handle).phase is Phase.HELD
    bench.backend.observe(handle)
    assert not (bench.work / "ran").exists()
    bench.backend.start(handle)
    bench.backend.wait(handle, PATIENCE)
    assert (bench.work / "ran").exists()


def test_a_sandbox_is_started_once(bench: Bench) -> None:
    handle = bench.start("sleep", "1000")
    with pytest.raises(Conflict):
        bench.backend.start(handle)


def test_a_missing_command_is_found_before_it_would_run(bench: Bench) -> None:
    for command in ("no-such-command", "/usr/bin/no-such-command"):
        handle = bench.create(command)
        with pytest.raises(CommandFailed) as caught:
            bench.backend.start(handle)
        assert caught.value.status == 127
        status = bench.backend.status(handle)
        assert status.exit is not None
        assert (status.phase, status.exit.reason) == (Phase.EXITED, "not-started")


def test_a_file_that_is_no_program_is_distinguished_from_a_missing_one(bench: Bench) -> None:
    (bench.work / "text").write_text("hello")
    (bench.work / "script").write_text("#!/no/such/interpreter\n")
    (bench.work / "script").chmod(0o755)
    for name, reason in (("text", "not executable"), ("script", "interpreter"), ("/usr", "folder")):
        handle = bench.create(name if name.startswith("/") else f"./{name}")
        with pytest.raises(CommandFailed, match=reason) as caught:
            bench.backend.start(handle)
        assert caught.value.status == 126


def test_a_link_that_is_absolute_is_followed_inside_of_the_root(bench: Bench) -> None:
    (bench.work / "link").symlink_to("/bin/true")
    assert exit_code(bench, "./link")[0] == 0
    (bench.work / "loop").symlink_to("loop")
    with pytest.raises(CommandFailed):
        bench.start("./loop")


def test_its_time_to_live_ends_it(bench: Bench) -> None:
    handle = bench.start("sleep", "1000", ttl_seconds=0.2)
    status = bench.backend.wait(handle, PATIENCE)
    assert status.exit is not None
    assert (status.exit.reason, status.exit.code) == ("expired", 143)


def test_stop_asks_first(bench: Bench) -> None:
    script = "trap 'echo asked; exit 7' TERM; echo ready; while :; do sleep 0.05; done"
    handle = bench.start("sh", "-c", script)
    bench.ready(handle)
    bench.backend.stop(handle, 30.0)
    status = bench.backend.status(handle)
    assert status.exit is not None
    assert (status.exit.reason, status.exit.code) == ("stopped", 7)
    assert "asked" in bench.said(handle)


def test_stop_forces_what_does_not_listen(bench: Bench) -> None:
    handle = bench.start("sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.05; done")
    bench.ready(handle)
    bench.backend.stop(handle, 0.2)
    status = bench.backend.status(handle)
    assert status.exit is not None
    assert (status.exit.reason, status.exit.code) == ("stopped", 137)


def test_stopping_what_has_ended_changes_nothing(bench: Bench) -> None:
    handle = bench.start("true")
    before = bench.backend.wait(handle, PATIENCE)
    bench.backend.stop(handle, 1)
    assert bench.backend.status(handle) == before


def test_background_processes_end_with_the_command(bench: Bench) -> None:
    handle = bench.start("sh", "-c", "sleep 1000 & echo $!; setsid sleep 1000 & exit 0")
    bench.backend.wait(handle, PATIENCE)
    assert handle.init is not None
    assert absent(handle.init)


def test_killing_the_shim_kills_everything(bench: Bench) -> None:
    handle = bench.start("sh", "-c", "sleep 1000 & echo ready; wait")
    bench.ready(handle)
    assert handle.keeper is not None
    os.kill(handle.keeper.pid, signal.SIGKILL)
    status = bench.backend.wait(handle, PATIENCE)
    assert status.phase is Phase.ABSENT
    assert status.exit is not None
    assert status.exit.reason == "lost"


@pytest.mark.stress
def test_killing_the_shim_of_a_held_sandbox_never_lets_the_command_run(bench: Bench) -> None:
    for number in range(15):
        handle = bench.create("touch", f"ran{number}")
        assert handle.keeper is not None
        os.kill(handle.keeper.pid, signal.SIGKILL)
        assert bench.backend.wait(handle, PATIENCE).phase is Phase.ABSENT
    assert list(bench.work.iterdir()) == []


def test_a_held_command_does_not_run_even_without_its_guard(bench: Bench) -> None:
    handle = bench.create("touch", "ran")
    assert handle.keeper is not None
    assert handle.init is not None
    guard = int(Path(f"/proc/{handle.keeper.pid}/stat").read_text().rpartition(")")[2].split()[1])
    init = os.pidfd_open(handle.init.pid)
    os.kill(guard, signal.SIGSTOP)
    os.kill(handle.keeper.pid, signal.SIGKILL)
    # bubblewrap would take the end of the pipe for "go"; nothing must come of it, in far more time than a start takes.
    try:
        assert select.select([init], [], [], 0.5)[0] == []
    finally:
        os.kill(guard, signal.SIGCONT)
    assert select.select([init], [], [], PATIENCE)[0] == [init]
    os.close(init)
    assert list(bench.work.iterdir()) == []


def test_a_caller_that_dies_before_the_start_leaves_nothing_running(bench: Bench) -> None:
    workload = bench.workload("touch", "ran")
    folder = bench.home.sandbox(workload.id)
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        import msgspec

        handle = bench.backend.create(workload, bench.backend.render(workload, folder), folder)
        os.write(writing, msgspec.json.encode(handle))
        os.kill(os.getpid(), signal.SIGKILL)
    os.close(writing)
    import msgspec

    with os.fdopen(reading, "rb") as pipe:
        handle = msgspec.json.decode(pipe.read(), type=Handle)
    os.waitpid(pid, 0)
    status = bench.backend.wait(handle, PATIENCE)
    assert status.exit is not None
    assert (status.phase, status.exit.reason) == (Phase.EXITED, "not-started")
    assert list(bench.work.iterdir()) == []
    bench.backend.delete(handle)
    assert not folder.exists()


def test_a_sandbox_outlives_its_maker(bench: Bench) -> None:
    workload = bench.workload("sh", "-c", "read x; echo got $x", interactive=True)
    folder = bench.home.sandbox(workload.id)
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        import msgspec

        handle = bench.backend.create(workload, bench.backend.render(workload, folder), folder)
        bench.backend.start(handle)
        os.write(writing, msgspec.json.encode(handle))
        os._exit(0)
    os.close(writing)
    import msgspec

    with os.fdopen(reading, "rb") as pipe:
        handle = msgspec.json.decode(pipe.read(), type=Handle)
    os.waitpid(pid, 0)
    bench.handles.append(handle)
    other = LocalBackend(bench.home)
    assert other.status(handle).phase is Phase.RUNNING
    session = bench.attach(handle)
    session.send(b"it\n")
    assert other.wait(handle, PATIENCE).exit is not None
    assert bench.said(handle) == "got it\n"


def test_a_foreground_sandbox_ends_when_its_client_is_killed(bench: Bench) -> None:
    script = "trap 'echo hung up; exit 3' HUP; echo ready; while :; do sleep 0.05; done"
    handle = bench.create("sh", "-c", script, foreground=True)
    pid = os.fork()
    if pid == 0:
        session = bench.backend.attach(handle)
        os.kill(os.getpid(), signal.SIGSTOP)
        session.receive(PATIENCE)
        os._exit(0)
    os.waitpid(pid, os.WUNTRACED)
    bench.backend.start(handle)
    bench.ready(handle)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    status = bench.backend.wait(handle, PATIENCE)
    assert status.exit is not None
    assert (status.exit.reason, status.exit.code) == ("client-gone", 3)


def test_a_foreground_sandbox_whose_client_is_gone_before_the_start_ends(bench: Bench) -> None:
    handle = bench.create("sleep", "1000", foreground=True, grace_seconds=0.5)
    connection = Connection.to(Path(handle.folder))
    assert connection is not None
    assert connection.ask(b"H", [("mode", "attach")]) is not None
    connection.close()
    another = Connection.to(Path(handle.folder))  # once it is answered, the end of the first has been seen
    assert another is not None
    assert another.ask(b"Q") == {"phase": "held"}
    another.close()
    bench.backend.start(handle)
    ended = bench.backend.wait(handle, PATIENCE).exit
    assert ended is not None
    assert ended.reason == "client-gone"


def test_a_client_that_says_goodbye_leaves_a_foreground_sandbox_running(bench: Bench) -> None:
    handle = bench.create("sleep", "1000", foreground=True)
    session = bench.backend.attach(handle)
    bench.backend.start(handle)
    session.close()
    assert bench.backend.wait(handle, 0.05).phase is Phase.RUNNING


def test_waiting_for_a_time_gives_the_state_then(bench: Bench) -> None:
    handle = bench.start("sleep", "1000")
    assert bench.backend.wait(handle, 0.01).phase is Phase.RUNNING


def test_a_running_sandbox_is_not_deleted(bench: Bench) -> None:
    handle = bench.start("sleep", "1000")
    with pytest.raises(Conflict, match="stop it first"):
        bench.backend.delete(handle)


def test_delete_can_be_repeated(bench: Bench) -> None:
    handle = bench.start("true")
    bench.backend.wait(handle, PATIENCE)
    bench.backend.delete(handle)
    bench.backend.delete(handle)
    assert bench.backend.status(handle).phase is Phase.ABSENT


def test_a_sandbox_that_cannot_be_looked_at_is_an_error(bench: Bench) -> None:
    handle = bench.start("true")
    bench.backend.wait(handle, PATIENCE)
    with pytest.raises(Conflict, match="ended"):
        bench.backend.observe(handle)


def test_what_bubblewrap_says_is_in_the_error_and_nothing_is_left(bench: Bench) -> None:
    workload = bench.workload("true")
    folder = bench.home.sandbox(workload.id)
    realisation = bench.backend.render(workload, folder)
    realisation.native["args"] += ["--ro-bind", "/nonexistent-source", "/tmp/x"]
    with pytest.raises(BackendUnavailable, match="nonexistent-source") as caught:
        bench.backend.create(workload, realisation, folder)
    assert caught.value.code == "SANDBOX_SETUP_FAILED"
    assert not folder.exists()


def test_no_zombies_are_left_to_the_caller(bench: Bench) -> None:
    handle = bench.start("true")
    bench.backend.wait(handle, PATIENCE)
    me = os.getpid()
    children = Path(f"/proc/{me}/task/{me}/children").read_text().split()
    assert handle.keeper is not None
    assert str(handle.keeper.pid) not in children


def test_the_shim_is_small(bench: Bench) -> None:
    """Half as much again as an interpreter that does nothing, at most."""
    handle = bench.start("sleep", "1000")
    assert handle.keeper is not None
    pid = os.posix_spawn(
        sys.executable,
        ["python", "-I", "-S", "-c", "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"],
        {},
    )
    os.waitpid(pid, os.WUNTRACED)

    def resident(of: int) -> int:
        text = Path(f"/proc/{of}/status").read_text()
        return int(text.partition("VmRSS:")[2].split()[0])

    bare, shim = resident(pid), resident(handle.keeper.pid)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    print(f"resident: bare interpreter {bare} kB, shim {shim} kB")
    assert shim < 1.5 * bare


def test_the_shim_imports_nothing_of_dibs(bench: Bench, make_folder: Callable[[], Path]) -> None:
    handle = bench.start("sleep", "1000")
    assert handle.keeper is not None
    files = Path(f"/proc/{handle.keeper.pid}/maps").read_text()
    assert "msgspec" not in files
    environment = Path(f"/proc/{handle.keeper.pid}/environ").read_bytes()
    assert ENV["LANG"].encode() not in environment
