"""Attach, exec and logs."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.local.bench import ENV, PATIENCE, Bench, orphans_stay_unburied, text_until, to_the_end

from dibs.backends.local import backend as backend_module
from dibs.backends.local import cgroups
from dibs.backends.local.logfile import Log
from dibs.backends.local.logs import Reader
from dibs.backends.local.shim_client import ShimSession
from dibs.backends.port import Exec, Exit, ExitReason, Limits, Output, Phase
from dibs.errors import CommandFailed, Conflict, InvalidRequest, NotFound

ORDINARY = (1 << 31) - 1  # real-time signals may be ignored by the parent of the tests

# --- attach


def test_both_streams_and_the_exit_arrive(bench: Bench) -> None:
    handle = bench.create("sh", "-c", "echo out; echo err >&2; exit 5")
    session = bench.attach(handle)
    bench.backend.start(handle)
    out, err, ended = to_the_end(session)
    assert (out, err, ended.code, ended.reason) == ("out\n", "err\n", 5, "exited")
    assert session.receive(0) == [ended]


def test_input_reaches_the_command(bench: Bench) -> None:
    handle = bench.start("sh", "-c", "read a; echo got $a; cat; echo end", interactive=True)
    session = bench.attach(handle)
    session.send(b"one\ntwo\n")
    session.end_of_input()
    assert to_the_end(session)[0] == "got one\ntwo\nend\n"


def test_much_data_goes_through_unharmed_in_both_directions(bench: Bench) -> None:
    data = os.urandom(6 << 20)
    handle = bench.start("cat", interactive=True, foreground=True)
    session = bench.attach(handle)

    def feed() -> None:
        session.send(data)
        session.end_of_input()

    # One thread: `send` must take in what comes meanwhile, or both sides would wait for each other.
    feed()
    got = b""
    while True:
        pieces = session.receive(PATIENCE)
        assert pieces
        for piece in pieces:
            if isinstance(piece, Exit):
                assert piece.code == 0
                assert got == data
                return
            got += piece.data


def test_a_command_without_input_sees_its_end_at_once(bench: Bench) -> None:
    handle = bench.start("sh", "-c", "cat; echo over; exec sleep 1000")
    bench.ready(handle, "over")
    with pytest.raises(Conflict, match="without input"):
        bench.attach(handle).send(b"x")


def test_several_clients_see_the_same_and_a_late_one_what_comes_then(bench: Bench) -> None:
    handle = bench.start("sh", "-c", "while read x; do echo $x; done", interactive=True)
    one = bench.attach(handle)
    one.send(b"first\n")
    assert text_until(one, "first") == "first\n"
    two = bench.attach(handle)
    one.send(b"second\n")
    assert text_until(one, "second") == "second\n"
    assert text_until(two, "second") == "second\n"
    two.close()
    one.end_of_input()
    assert to_the_end(one)[2].code == 0


def test_a_report_of_what_was_read_does_not_end_the_wait_for_output(bench: Bench) -> None:
    os.mkfifo(bench.work / "go")
    handle = bench.start("sh", "-c", "read x; read go < go; echo $x", interactive=True)
    session = bench.attach(handle)
    assert isinstance(session, ShimSession)
    assert session.count_input()
    session.send(b"word\n")
    assert select.select([session.fileno()], [], [], PATIENCE)[0]  # nothing but the report can have come yet
    with open(bench.work / "go", "w") as file:
        file.write("go\n")
        file.flush()
        assert session.receive(PATIENCE)[0] == Output("stdout", b"word\n")
    assert session.taken == 5


def test_only_a_client_that_asks_is_told_what_was_read(bench: Bench) -> None:
    os.mkfifo(bench.work / "go")
    handle = bench.start("sh", "-c", "read x; read go < go; echo $x", interactive=True)
    silent, asking = bench.attach(handle), bench.attach(handle)  # in the order in which they would be told
    assert isinstance(asking, ShimSession)
    assert asking.count_input()
    asking.send(b"word\n")
    assert select.select([asking.fileno()], [], [], PATIENCE)[0]
    assert not select.select([silent.fileno()], [], [], 0)[0]
    (bench.work / "go").write_text("go\n")
    assert text_until(silent, "word") == "word\n"


def test_signals_are_forwarded(bench: Bench) -> None:
    handle = bench.start("sh", "-c", "trap 'echo usr1' USR1; echo ready; while :; do sleep 0.05; done")
    bench.ready(handle)
    session = bench.attach(handle)
    session.signal(signal.SIGUSR1)
    text_until(session, "usr1")
    session.signal(signal.SIGKILL)
    ended = to_the_end(session)[2]
    assert (ended.code, ended.reason, ended.signal) == (137, "signalled", 9)


def test_attaching_to_what_has_ended_is_a_conflict(bench: Bench) -> None:
    handle = bench.start("true")
    bench.backend.wait(handle, PATIENCE)
    with pytest.raises(Conflict, match="exited"):
        bench.backend.attach(handle)


def test_signals_that_the_shim_ignores_are_not_ignored_by_the_command(bench: Bench) -> None:
    out = bench.sh("grep -E '^Sig(Ign|Blk)' /proc/self/status")
    masks = [int(line.split()[1], 16) & ORDINARY for line in out.splitlines()]
    assert masks == [0, 0]


def test_no_descriptor_of_the_shim_is_left_to_the_command(bench: Bench) -> None:
    out = bench.sh("for f in /proc/self/fd/*; do readlink $f; done; true")
    others = [line for line in out.split() if not line.startswith(("pipe:", "/dev/null", "/proc/"))]
    assert others == []
    assert len([line for line in out.split() if line.startswith("pipe:")]) <= 3


# --- terminals


def test_a_terminal_is_one(bench: Bench) -> None:
    handle = bench.start("sh", "-c", "test -t 0 && test -t 1 && test -t 2 && echo yes; stty size", tty=True)
    assert bench.backend.wait(handle, PATIENCE).exit is not None
    assert bench.said(handle) == "yes\r\n24 80\r\n"


def test_a_terminals_size_follows(bench: Bench) -> None:
    handle = bench.start("bash", "-c", "trap 'stty size' WINCH; echo ready; while :; do sleep 0.05; done", tty=True)
    session = bench.attach(handle)
    bench.ready(handle)
    session.resize(50, 132)
    text_until(session, "50 132")


def test_the_terminal_of_a_further_command_has_its_size_from_the_first_moment(bench: Bench) -> None:
    handle = bench.start("sleep", "1000")
    command = Exec(command=("stty", "size"), env=ENV, tty=True, size=(33, 101))
    session = bench.backend.exec(handle, command)
    assert to_the_end(session)[0] == "33 101\r\n"
    session.close()


def test_a_terminal_has_no_extra_device_nodes(bench: Bench) -> None:
    assert bench.backend.observe(bench.create("true", tty=True)).nodes == ()


def test_the_interrupt_key_reaches_a_command_that_handles_it(bench: Bench) -> None:
    handle = bench.start("sh", "-c", "trap 'echo interrupted' INT; echo ready; while :; do sleep 0.05; done", tty=True)
    session = bench.attach(handle)
    bench.ready(handle)
    for _ in range(2):
        session.send(b"\x03")
        text_until(session, "interrupted")
    assert bench.backend.status(handle).phase is Phase.RUNNING


def test_the_interrupt_key_ends_a_command_that_does_not(bench: Bench) -> None:
    handle = bench.start("sh", "-c", "echo ready; exec sleep 1000", tty=True)
    session = bench.attach(handle)
    bench.ready(handle)
    session.send(b"\x03")
    ended = to_the_end(session)[2]
    assert (ended.code, ended.reason) == (130, "signalled")


def test_keys_are_plain_bytes_in_raw_mode(bench: Bench) -> None:
    handle = bench.start("sh", "-c", "stty raw -echo; echo ready; head -c 3 | od -An -tx1", tty=True)
    session = bench.attach(handle)
    bench.ready(handle)
    session.send(b"a\x03b")
    assert "61 03 62" in to_the_end(session)[0]


def test_a_shell_on_a_terminal_has_job_control(bench: Bench) -> None:
    handle = bench.create("bash", "--norc", "-i", tty=True, env={**ENV, "PS1": "$ "})
    session = bench.attach(handle)
    bench.backend.start(handle)
    text_until(session, "$ ")
    session.send(b"(echo sta''rted; exec sleep 1000)\n")
    text_until(session, "started")
    seen = ""
    for _ in range(30):
        # A key that comes while the shell is just handing the terminal over to its child reaches neither of them, on
        # any terminal; a person then presses it again.
        session.send(b"\x03")
        session.send(b"echo still $((40+2))\n")
        pieces = session.receive(2.0)
        while pieces:
            seen += "".join(piece.data.decode() for piece in pieces if isinstance(piece, Output))
            assert not any(isinstance(piece, Exit) for piece in pieces), seen
            pieces = [] if "still 42" in seen else session.receive(2.0)
        if "still 42" in seen:
            break
    assert "still 42" in seen
    assert "no job control" not in seen
    session.send(b"exit 4\n")
    assert to_the_end(session)[2].code == 4


def test_end_of_input_on_a_terminal_is_its_key(bench: Bench) -> None:
    handle = bench.start("cat", tty=True)
    session = bench.attach(handle)
    session.send(b"line\n")
    text_until(session, "line")
    session.end_of_input()
    assert to_the_end(session)[2].code == 0


# --- exec


def test_exec_runs_in_the_same_sandbox(bench: Bench) -> None:
    handle = bench.start("sh", "-c", "echo mark > /tmp/mark; echo ready; exec sleep 1000", network="none")
    bench.ready(handle)
    script = "cat /tmp/mark; pwd; cat /proc/2/comm; ls /sys/class/net >/dev/null; wc -l < /proc/net/dev"
    out, err, ended = to_the_end(bench.exec(handle, "sh", "-c", script))
    assert (out.split(), err, ended.code) == (["mark", str(bench.work), "sleep", "3"], "", 0)


def test_exec_has_exact_exit_codes(bench: Bench) -> None:
    handle = bench.start("sleep", "1000")
    assert to_the_end(bench.exec(handle, "sh", "-c", "exit 200"))[2] == Exit(200, ExitReason.EXITED)
    assert to_the_end(bench.exec(handle, "sh", "-c", "kill -9 $$"))[2] == Exit(137, ExitReason.SIGNALLED, 9)


def test_exec_has_input_environment_and_folder(bench: Bench) -> None:
    handle = bench.start("sleep", "1000", env={**ENV, "A": "main", "LD_LIBRARY_PATH": "/x"})
    session = bench.exec(handle, "sh", "-c", "cat; echo $A $B $LD_LIBRARY_PATH; pwd", env={"B": "exec"}, workdir="/usr")
    session.send(b"input\n")
    session.end_of_input()
    assert to_the_end(session)[0] == "input\nmain exec /x\n/usr\n"


def test_exec_has_no_powers(bench: Bench) -> None:
    handle = bench.start("sleep", "1000")
    out = to_the_end(bench.exec(handle, "grep", "-E", "^(Cap|NoNewPrivs|Sig(Ign|Blk))", "/proc/self/status"))[0]
    values = dict(line.split() for line in out.splitlines())
    assert values.pop("NoNewPrivs:") == "1"
    assert {int(value, 16) & ORDINARY for name, value in values.items() if name.startswith("Sig")} == {0}
    assert {value for name, value in values.items() if name.startswith("Cap")} == {"0" * 16}
    script = "mknod /tmp/n c 1 5; mount -t tmpfs x /mnt; unshare -U true; echo $?"
    assert to_the_end(bench.exec(handle, "sh", "-c", script))[0] != "0\n"


def test_a_missing_command_of_exec_is_reported(bench: Bench) -> None:
    handle = bench.start("sleep", "1000")
    (bench.work / "text").write_text("x")
    with pytest.raises(CommandFailed) as caught:
        bench.exec(handle, "no-such-command")
    assert caught.value.status == 127
    with pytest.raises(CommandFailed) as caught:
        bench.exec(handle, "./text")
    assert caught.value.status == 126
    with pytest.raises(InvalidRequest, match="working directory"):
        bench.exec(handle, "true", workdir="/nonexistent")


def test_exec_on_a_terminal(bench: Bench) -> None:
    handle = bench.start("sleep", "1000")
    session = bench.exec(handle, "sh", "-c", "test -t 0 && echo yes; read x; stty size", tty=True)
    text_until(session, "yes")
    session.resize(10, 20)
    session.send(b"\n")
    out, _, ended = to_the_end(session)
    assert "10 20" in out
    assert ended.code == 0


def test_signals_of_an_exec_session_reach_its_command(bench: Bench) -> None:
    handle = bench.start("sleep", "1000")
    session = bench.exec(handle, "sleep", "1000")
    session.signal(signal.SIGTERM)
    assert to_the_end(session)[2] == Exit(143, ExitReason.SIGNALLED, 15)
    assert bench.backend.status(handle).phase is Phase.RUNNING


def test_closing_an_exec_session_hangs_its_command_up(bench: Bench) -> None:
    handle = bench.start("sleep", "1000")
    os.mkfifo(bench.work / "told")
    # The shell remarks on its killed child; its stderr is gone by then.
    script = "exec 2>/dev/null; trap 'echo hung up > told; exit' HUP; echo ready; while :; do sleep 0.05; done"
    session = bench.exec(handle, "sh", "-c", script)
    text_until(session, "ready")
    session.close()
    assert (bench.work / "told").read_text() == "hung up\n"


def test_a_sandbox_ends_on_a_host_that_reaps_no_orphans(bench: Bench) -> None:
    handle = bench.start("sleep", "1000")
    with orphans_stay_unburied():
        bench.exec(handle, "sleep", "1000").close()
        ending = threading.Thread(target=bench.backend.stop, args=(handle, 0))
        ending.start()
        ending.join(PATIENCE)
        assert not ending.is_alive()


def test_what_exec_started_ends_with_the_sandbox(bench: Bench) -> None:
    handle = bench.start("sleep", "1000")
    session = bench.exec(handle, "sleep", "1000")
    bench.backend.stop(handle, 0)
    assert to_the_end(session)[2].code == 137


@pytest.mark.parametrize("end", ["ended", "held", "paused"])
def test_exec_needs_a_running_sandbox(bench: Bench, end: str) -> None:
    handle = bench.create("sleep", "1000")
    if end != "held":
        bench.backend.start(handle)
    if end == "ended":
        bench.backend.stop(handle, 0)
    if end == "paused":
        bench.backend.pause(handle)
    with pytest.raises(Conflict):
        bench.backend.exec(handle, Exec(command=("true",)))


# --- pause


def test_a_paused_sandbox_stands_still_and_goes_on(bench: Bench) -> None:
    handle = bench.start("sh", "-c", "while read x; do echo $x; done", interactive=True)
    session = bench.attach(handle)
    bench.backend.pause(handle)
    assert bench.backend.status(handle).phase is Phase.PAUSED
    session.send(b"later\n")
    assert session.receive(0.3) == []
    bench.backend.resume(handle)
    text_until(session, "later")
    bench.backend.pause(handle)
    bench.backend.pause(handle)
    bench.backend.stop(handle, 30)
    ended = bench.backend.status(handle).exit
    assert ended is not None
    assert ended.code == 143


def test_a_sandbox_with_an_unreaped_process_can_be_paused(bench: Bench) -> None:
    """Its parent never waits for it, so it stays as a zombie."""
    handle = bench.start("sh", "-c", "(echo ready; exec true) & exec sleep 1000")
    bench.ready(handle)
    assert handle.init is not None
    while "Z" not in states_inside(handle.init.pid):
        pass
    bench.backend.pause(handle)
    assert bench.backend.status(handle).phase is Phase.PAUSED
    bench.backend.resume(handle)
    assert bench.backend.status(handle).phase is Phase.RUNNING


def test_without_a_freezer_every_process_is_stopped(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    real = cgroups.make

    def make(sandbox_id: str, limits: Limits, keeper: Callable[[], int]) -> cgroups.Group:
        group = real(sandbox_id, limits, keeper)
        return cgroups.Group(group.folders, "", group.oom)

    monkeypatch.setattr(cgroups, "make", make)
    handle = bench.start("sh", "-c", "(echo ready; while :; do :; done) & while :; do sleep 0.01; done")
    bench.ready(handle)
    bench.backend.pause(handle)
    assert handle.init is not None
    states = states_inside(handle.init.pid)
    assert len(states) >= 2
    assert set(states) <= {"T", "Z", "D"}  # D: a parent that waits for its stopped child
    bench.backend.resume(handle)
    assert bench.backend.status(handle).phase is Phase.RUNNING


def states_inside(init: int) -> list[str]:
    return [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in inside(init)]


def inside(init: int) -> Iterator[int]:
    space = os.stat(f"/proc/{init}/ns/pid").st_ino
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != init:
            try:
                if os.stat(f"/proc/{name}/ns/pid").st_ino == space:
                    yield int(name)
            except OSError:
                continue


# --- logs


def test_logs_are_in_order_with_time_and_stream(bench: Bench) -> None:
    handle = bench.start("sh", "-c", "echo a; read x; echo b >&2; read x; echo c", interactive=True)
    session = bench.attach(handle)
    bench.ready(handle, "a")
    session.send(b"\n")
    bench.ready(handle, "b")
    session.send(b"\n")
    bench.backend.wait(handle, PATIENCE)
    records = list(bench.backend.logs(handle))
    assert [(r.stream, r.data) for r in records] == [("stdout", b"a\n"), ("stderr", b"b\n"), ("stdout", b"c\n")]
    assert [r.at for r in records] == sorted(r.at for r in records)


def test_following_gives_everything_until_the_end(bench: Bench) -> None:
    handle = bench.start("sh", "-c", "for i in $(seq 500); do echo line $i; done")
    text = b"".join(record.data for record in bench.backend.logs(handle, follow=True)).decode()
    assert text.split("\n")[:-1] == [f"line {i}" for i in range(1, 501)]


def test_logs_of_a_deleted_sandbox_are_not_found(bench: Bench) -> None:
    handle = bench.start("true")
    bench.backend.wait(handle, PATIENCE)
    bench.backend.delete(handle)
    with pytest.raises(NotFound):
        bench.backend.logs(handle)


def test_a_long_log_keeps_its_end(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend_module, "LOG_LIMIT", 100_000)
    handle = bench.start("sh", "-c", "seq 100000")
    bench.backend.wait(handle, PATIENCE)
    text = bench.said(handle)
    assert text.endswith("99999\n100000\n")
    assert 50_000 < len(text) <= 200_000
    files = sorted(path.name for path in Path(handle.folder).glob("log*"))
    assert files == ["log", "log.1"]


def test_a_reader_follows_a_rotation(tmp_path: Path) -> None:
    def record(text: str) -> bytes:
        return (0).to_bytes(8, "big") + b"\1" + len(text).to_bytes(4, "big") + text.encode()

    reader = Reader(tmp_path)
    assert list(reader.records()) == []
    (tmp_path / "log").write_bytes(record("a") + record("b")[:-1])
    assert [r.data for r in reader.records()] == [b"a"]
    with (tmp_path / "log").open("ab") as file:
        file.write(b"b")
    (tmp_path / "log").rename(tmp_path / "log.1")
    (tmp_path / "log").write_bytes(record("c"))
    assert [r.data for r in reader.records()] == [b"b", b"c"]
    reader.close()


@pytest.mark.root
def test_a_full_disk_costs_log_but_never_the_workload(make_folder: Callable[[], Path]) -> None:
    folder = make_folder()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "dibs-test", str(folder)], check=True)
    try:
        bench = Bench(folder)
        work = make_folder()
        handle = bench.start("sh", "-c", "seq 200000; echo done > done; exit 7", workdir=str(work))
        status = bench.backend.wait(handle, PATIENCE)
        assert (work / "done").read_text() == "done\n"
        assert status.exit is not None
        assert (status.exit.code, status.exit.reason) == (7, "exited")
        assert "were not logged: no space left on device" in status.exit.detail
        assert bench.said(handle).startswith("1\n2\n3\n")
        bench.close()
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.root
def test_after_a_full_disk_the_log_goes_on_and_tells_the_loss(make_folder: Callable[[], Path]) -> None:
    folder = make_folder()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "dibs-test", str(folder)], check=True)
    try:
        filler = folder / "filler"
        filler.write_bytes(b"x" * 40_000)
        here = os.open(folder, os.O_RDONLY)
        log = Log(here, 1 << 20)
        for number in range(10):
            log.append(1, b"%d" % number * 5000)
        assert log.lost > 0
        filler.unlink()
        log.append(1, b"after")
        reader = Reader(folder)
        records = [record.data for record in reader.records()]
        reader.close()
        os.close(log.fd)
        os.close(here)
    finally:
        subprocess.run(["umount", str(folder)], check=True)
    assert records[-1] == b"after"
    assert records[-2].startswith(b"[dibs: ")
    assert b"bytes of output were not logged: no space left on device" in records[-2]
    assert records[0] == b"0" * 5000


def test_many_followers_at_once_do_not_disturb_each_other(bench: Bench) -> None:
    handle = bench.start("sh", "-c", "read x; seq 2000", interactive=True)
    texts: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: texts.append(b"".join(r.data for r in bench.backend.logs(handle, follow=True))))
        for _ in range(5)
    ]
    for thread in threads:
        thread.start()
    bench.attach(handle).send(b"\n")
    for thread in threads:
        thread.join(PATIENCE)
    assert len(texts) == 5
    assert set(texts) == {"".join(f"{i}\n" for i in range(1, 2001)).encode()}
