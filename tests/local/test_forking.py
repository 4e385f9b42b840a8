"""The fork server of a long-lived process: it is shared, replaced, and gone with its owner."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import PIPE

import pytest
from tests.local.bench import ENV, PATIENCE, Bench, orphans_stay_unburied, text_until, to_the_end

from dibs.backends.local import fork_client, kernel
from dibs.backends.local.backend import LocalBackend
from dibs.backends.port import Exec, Phase


@pytest.fixture
def forked(make_folder: Callable[[], Path]) -> Iterator[Bench]:
    bench = Bench(make_folder(), long_lived=True)
    capability = bench.backend.available()
    if not capability.ok:
        pytest.skip(f"no bubblewrap here: {capability.reason}")
    yield bench
    bench.close()
    fork_client.end()


def server() -> int:
    found = fork_client._mine.zygote
    assert found is not None
    return found.pid


def test_many_threads_share_one(forked: Bench) -> None:
    handle = forked.start("sleep", "1000")
    pid = server()
    wrong: list[object] = []

    def work(number: int) -> None:
        for turn in range(5):
            word = f"{number} {turn} " * 2000
            session = forked.backend.exec(handle, Exec(command=("echo", word)))
            out, _, ended = to_the_end(session)
            session.close()
            if (out, ended.code) != (word + "\n", 0):
                wrong.append((number, turn, out[:100], ended))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert wrong == []
    assert server() == pid


def test_what_a_killed_enterer_leaves_does_not_hold_up_the_end(forked: Bench) -> None:
    handle = forked.start("sleep", "1000")
    with orphans_stay_unburied():
        session = forked.exec(handle, "sh", "-c", "echo ready; exec sleep 1000")
        assert text_until(session, "ready") == "ready\n"
        assert handle.keeper is not None
        [enterer] = set(kernel.children_of(server())) - {handle.keeper.pid}
        os.kill(enterer, signal.SIGKILL)
        ending = threading.Thread(target=forked.backend.stop, args=(handle, 0))
        ending.start()
        ending.join(PATIENCE)
        assert not ending.is_alive()
        session.close()


def test_one_that_was_killed_is_replaced_and_its_sandboxes_live_on(forked: Bench) -> None:
    handle = forked.start("sleep", "1000")
    first = server()
    os.kill(first, signal.SIGKILL)
    assert to_the_end(forked.exec(handle, "echo", "again"))[0] == "again\n"
    assert server() != first
    assert forked.backend.status(handle).phase is Phase.RUNNING


@pytest.mark.parametrize("end", ["killed", "left"])
def test_it_is_gone_with_its_owner(make_folder: Callable[[], Path], end: str) -> None:
    script = f"""
import os, select, signal, sys
from dibs.backends.local import fork_client
fork_client.start("enter")
print(fork_client._mine.zygote.pid, flush=True)
if os.fork() == 0:
    hung_up = select.poll()  # a child of the owner that outlives it, until the test lets it go, holds nothing up
    hung_up.register(0, 0)
    hung_up.poll()
    os._exit(0)
sys.stdin.readline()
os.kill(os.getpid(), signal.SIGKILL) if {end == "killed"} else None
"""
    with subprocess.Popen([sys.executable, "-c", script], stdin=PIPE, stdout=PIPE, text=True) as owner:
        assert owner.stdin is not None
        assert owner.stdout is not None
        fd = os.pidfd_open(int(owner.stdout.readline()))
        try:
            assert select.select([fd], [], [], 0)[0] == []
            owner.stdin.write("\n")
            owner.stdin.flush()
            owner.wait(PATIENCE)
            assert select.select([fd], [], [], PATIENCE)[0] == [fd]
        finally:
            os.close(fd)
            owner.stdin.close()


def test_no_process_has_a_descriptor_of_another_one(forked: Bench) -> None:
    forked.backend = LocalBackend(forked.home)
    alone = forked.start("sleep", "1000")
    forked.backend = LocalBackend(forked.home, long_lived=True)
    sleeping = [alone, *(forked.start("sleep", "1000") for _ in range(3))]
    sessions = [forked.exec(handle, "sleep", "1000") for handle in sleeping for _ in range(2)]
    counts = {
        handle.keeper.pid: len(os.listdir(f"/proc/{handle.keeper.pid}/fd")) for handle in sleeping if handle.keeper
    }
    assert len(set(counts.values())) == 1, counts
    handle = sleeping[-1]
    out = to_the_end(forked.exec(handle, "sh", "-c", "for f in /proc/self/fd/*; do readlink $f; done; true"))[0]
    assert all(line.startswith(("pipe:", "/dev/null", "/proc/")) for line in out.split())
    for session in sessions:
        session.signal(9)
        assert to_the_end(session)[2].code == 137


def test_a_shim_is_alone_in_its_session_and_shares_its_memory(forked: Bench) -> None:
    handle = forked.start("sleep", "1000")
    assert handle.keeper is not None
    assert os.getsid(handle.keeper.pid) not in (os.getsid(0), os.getsid(server()))
    text = Path(f"/proc/{handle.keeper.pid}/smaps_rollup").read_text()
    own = sum(int(text.partition(f"{name}:")[2].split()[0]) for name in ("Private_Clean", "Private_Dirty"))
    print(f"memory of a forked shim that it does not share: {own} kB")
    assert own < 6000


def test_what_the_owner_has_in_its_environment_is_not_inherited(forked: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    fork_client.end()
    monkeypatch.setenv("SECRET_OF_THE_OWNER", "x")
    handle = forked.start("env", env={**ENV, "A": "b"})
    assert forked.backend.wait(handle, PATIENCE).exit is not None
    assert "SECRET" not in forked.said(handle)
    assert b"SECRET" not in Path(f"/proc/{server()}/environ").read_bytes()


def children() -> set[int]:
    me = os.getpid()
    return {int(word) for word in Path(f"/proc/{me}/task/{me}/children").read_text().split()}


def test_no_child_is_left_to_wait_for(forked: Bench) -> None:
    before = children()
    handle = forked.start("sleep", "1000")
    for _ in range(5):
        to_the_end(forked.exec(handle, "true"))
    states = {pid: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in children() - before}
    assert "Z" not in states.values()
