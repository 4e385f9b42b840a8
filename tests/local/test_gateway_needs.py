"""Ports, usage, leftovers, read-only roots, shared memory, and output that is read too late."""

from __future__ import annotations

import _socket
import fcntl
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.local.bench import PATIENCE, Bench, text_until, to_the_end

from dibs.backends.local import shim_client, usage, wire
from dibs.backends.port import Exit, ExitReason, Handle, Limits, Mount, Output, Phase
from dibs.errors import BackendUnavailable, InvalidRequest, NotFound, Unsupported
from dibs.process import absent
from dibs.workloads.receipt import differences

MIB = 1 << 20
LISTEN = """
import socket, sys
server = socket.create_server((sys.argv[1], int(sys.argv[2])), family=socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET)
print("ready", server.getsockname()[1], flush=True)
while True:
    one, _ = server.accept()
    one.sendall(b"from inside")
    one.close()
"""  # noqa: E501


def port_of(bench: Bench, handle: Handle) -> int:
    bench.ready(handle)
    return int(bench.said(handle).split()[1])


# --- ports


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_a_port_of_an_own_network_is_reached_and_only_from_there(bench: Bench, address: str) -> None:
    handle = bench.start("python3", "-c", LISTEN, address, "0", network="none")
    port = port_of(bench, handle)
    with bench.backend.connect(handle, port) as connection:
        connection.settimeout(PATIENCE)
        assert connection.recv(100) == b"from inside"
    other = bench.start("sleep", "1000", network="none")
    with pytest.raises(NotFound) as caught:
        bench.backend.connect(other, port)
    assert caught.value.code == "PORT_CLOSED"


def test_a_port_of_the_hosts_network_is_reached(bench: Bench) -> None:
    handle = bench.start("python3", "-c", LISTEN, "127.0.0.1", "0")
    with bench.backend.connect(handle, port_of(bench, handle)) as connection:
        connection.settimeout(PATIENCE)
        assert connection.recv(100) == b"from inside"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        with pytest.raises(NotFound):
            bench.backend.connect(handle, free.getsockname()[1])


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_a_number_that_is_no_port_is_refused(bench: Bench, port: int) -> None:
    with pytest.raises(InvalidRequest, match="port"):
        bench.backend.connect(bench.start("sleep", "1000"), port)


# --- usage


def test_memory_and_processor_time_of_a_group_are_reported(bench: Bench, limits: type[Limits]) -> None:
    script = "x=$(head -c 20000000 /dev/zero | tr '\\0' x); echo ready; exec 1>&-; while :; do :; done"
    handle = bench.start("sh", "-c", script, limits=limits(cpu_millis=1000, memory_bytes=128 * MIB, pids=50))
    bench.ready(handle)
    usage = bench.backend.usage(handle)
    assert usage.memory_limit == 128 * MIB
    assert usage.cpus == 1.0
    assert 15 * MIB < usage.memory_bytes < 128 * MIB
    before = usage.cpu_seconds
    while bench.backend.usage(handle).cpu_seconds <= before:
        pass  # it never stops; this ends as soon as the kernel has counted


def test_without_a_group_the_processes_are_counted(bench: Bench) -> None:
    script = "x=$(head -c 20000000 /dev/zero | tr '\\0' x); echo ready; read x"
    handle = bench.start("sh", "-c", script, interactive=True)
    bench.ready(handle)
    usage = bench.backend.usage(handle)
    assert usage.memory_bytes > 15 * MIB
    assert usage.cpu_seconds > 0
    assert usage.cpus == len(os.sched_getaffinity(0))
    assert usage.memory_limit == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGESIZE")


@pytest.mark.parametrize(
    "files",
    [
        {
            "cpu.stat": "usage_usec 2500000\nuser_usec 1\n",
            "memory.current": "3000",
            "memory.stat": "inactive_file 500\n",
        },
        {
            "cpuacct.usage": "2500000000",
            "memory.usage_in_bytes": "3000",
            "memory.stat": "inactive_file 1\ntotal_inactive_file 500\n",
        },
    ],
    ids=["version 2", "version 1"],
)
def test_the_files_of_both_versions_are_understood(tmp_path: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert usage._by_groups([str(tmp_path)]) == (2.5, 2500)


# --- leftovers


def test_what_a_killed_maker_left_is_discarded(bench: Bench) -> None:
    workload = bench.workload("touch", "ran", env={"PATH": "/bin", "DIBS_SANDBOX": "left-behind"})
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
        made = msgspec.json.decode(pipe.read(), type=Handle)
    os.waitpid(pid, 0)
    bench.backend.discard(Handle("local", workload.id, str(folder)))
    assert made.keeper is not None
    assert made.init is not None
    assert absent(made.init)
    assert not folder.exists()
    assert list(bench.work.iterdir()) == []


def test_discarding_ends_what_runs_and_removes_its_groups(bench: Bench, limits: type[Limits]) -> None:
    handle = bench.start("sleep", "1000", limits=limits(pids=20))
    bench.backend.discard(Handle("local", handle.sandbox_id, handle.folder))
    assert bench.backend.status(handle).phase is Phase.ABSENT
    assert not any(Path(group).exists() for group in handle.data["groups"].split("\n"))


def test_a_shim_that_comes_too_late_makes_nothing(bench: Bench) -> None:
    """Its folder is discarded after it was given its orders."""
    workload = bench.workload("touch", "ran")
    folder = bench.home.sandbox(workload.id)
    folder.mkdir()
    lock = os.open(folder, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)  # as `discard` has it
    waits = " -> FLOCK  ADVISORY  WRITE ", f":{os.fstat(lock).st_ino} "
    seen: list[str] = []

    def discard() -> None:
        while not seen and threading.main_thread().is_alive():
            lines = Path("/proc/locks").read_text().splitlines()
            seen.extend(line for line in lines if all(word in line for word in waits))
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
        os.close(lock)

    thread = threading.Thread(target=discard, daemon=True)
    thread.start()
    with pytest.raises(BackendUnavailable, match="was removed"):
        bench.backend.create(workload, bench.backend.render(workload, folder), folder)
    thread.join(PATIENCE)
    assert seen
    assert list(bench.work.iterdir()) == []
    assert not folder.exists()


# --- roots that cannot be written to, shared memory, fields of engines


def test_a_read_only_root_has_only_its_own_scratch_folders(bench: Bench, make_folder: Callable[[], Path]) -> None:
    shared = make_folder()
    places = "/etc /usr / /var /opt /tmp /run /dev/shm . /tmp/rw /tmp/ro"
    script = f"for p in {places}; do touch $p/x 2>/dev/null && echo $p; done"
    mounts = (Mount(str(shared), "/tmp/rw", writable=True), Mount(str(shared), "/tmp/ro"))
    handle = bench.create("sh", "-c", script, read_only=True, mounts=mounts)
    seen = bench.backend.observe(handle).mounts
    assert {("/", "ro"), ("/tmp/rw", "rw"), ("/tmp/ro", "ro")} <= {(one.target, one.mode) for one in seen}
    bench.backend.start(handle)
    bench.backend.wait(handle, PATIENCE)
    assert bench.said(handle).split() == ["/tmp", "/run", "/dev/shm", ".", "/tmp/rw"]


def test_a_read_only_root_folder(bench: Bench, make_folder: Callable[[], Path]) -> None:
    from tests.local.test_files import busybox_root

    root = busybox_root(make_folder())
    workload = bench.workload(
        "sh", "-c", "touch /etc/x /x /w/x; touch /tmp/x && ls /tmp", root=str(root), workdir="/w", env={"PATH": "/bin"},
        read_only=True,
    )  # fmt: skip
    folder = bench.home.sandbox(workload.id)
    realisation = bench.backend.render(workload, folder)
    assert ("/", "ro") in [(one.target, one.mode) for one in realisation.expectation.mounts]
    handle = bench.backend.create(workload, realisation, folder)
    bench.handles.append(handle)
    assert differences(realisation.expectation, bench.backend.observe(handle)) == []
    bench.backend.start(handle)
    bench.backend.wait(handle, PATIENCE)
    assert bench.said(handle) == "x\n"
    assert bench.said(handle, "stderr").count("Read-only file system") == 3


def test_shared_memory_has_the_size_that_was_asked_for(bench: Bench) -> None:
    workload = bench.workload("df", "-B1", "--output=size", "/dev/shm", shm_bytes=3 * MIB + 1)
    folder = bench.home.sandbox(workload.id)
    realisation = bench.backend.render(workload, folder)
    handle = bench.backend.create(workload, realisation, folder)
    bench.handles.append(handle)
    page = os.sysconf("SC_PAGESIZE")
    assert realisation.expectation.limits == {"shm_bytes": 3 * MIB + page}
    assert bench.backend.observe(handle).limits == realisation.expectation.limits
    bench.backend.start(handle)
    bench.backend.wait(handle, PATIENCE)
    assert bench.said(handle).split()[-1] == str(3 * MIB + page)


def test_what_only_an_engine_can_do_is_refused_all_at_once(bench: Bench) -> None:
    with pytest.raises(Unsupported) as caught:
        bench.create("true", entrypoint=("tini",), platform="linux/s390x", options={"runtime": "runsc"})
    assert sorted(problem.field for problem in caught.value.problems) == ["entrypoint", "local.runtime", "platform"]
    with pytest.raises(InvalidRequest, match="shm_size"):
        bench.create("true", shm_bytes=0)
    assert bench.sh("echo fine", entrypoint=(), platform=f"linux/{_machine()}") == "fine\n"


def _machine() -> str:
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)


# --- sessions


def test_a_signal_reaches_everything_that_a_further_command_started(bench: Bench) -> None:
    handle = bench.start("sleep", "1000")
    session = bench.exec(handle, "sh", "-c", "sleep 1000 & echo $!; sleep 1000 & echo $! ready; wait")
    pids = text_until(session, "ready").split()[:2]
    session.signal(9)
    assert to_the_end(session)[2] == Exit(137, ExitReason.SIGNALLED, 9)
    # Killed is not yet reaped: the sandbox's init does that in a moment.
    script = f"while kill -0 {pids[0]} 2>/dev/null || kill -0 {pids[1]} 2>/dev/null; do sleep 0.01; done; echo gone"
    assert to_the_end(bench.exec(handle, "sh", "-c", script))[0] == "gone\n"


def test_a_command_that_never_stops_talking_waits_for_its_reader(bench: Bench) -> None:
    handle = bench.start("sleep", "1000")
    session = bench.exec(handle, "sh", "-c", "echo $$ > /tmp/pid; exec yes 0123456789")
    poller = select.poll()
    poller.register(session.fileno(), select.POLLIN)
    for _ in range(20):
        poller.poll(PATIENCE * 1000)
        size = sum(len(piece.data) for piece in session.receive(0) if not isinstance(piece, Exit))
        assert size < 2 * MIB
    # No reader now: it writes until the buffers are full, then blocks.
    script = "while ! grep -q '^State:.S' /proc/$(cat /tmp/pid)/status; do :; done; echo stands"
    assert to_the_end(bench.exec(handle, "sh", "-c", script))[0] == "stands\n"
    session.signal(9)
    while True:
        pieces = session.receive(PATIENCE)
        assert pieces
        if isinstance(pieces[-1], Exit):
            break


def test_what_is_left_in_a_stream_at_the_end_has_an_end() -> None:
    """A background process may write forever, faster than we read; here it is /dev/zero."""
    code = """
import sys; sys.path.append(sys.argv[1])
import keeper, os
one = keeper.Keeper()
taken = []
one.emit = lambda stream, data: taken.append(len(data))
fd = os.open("/dev/zero", os.O_RDONLY)
one.poller.register(fd, 0)
one.outputs = {fd: 1}
one.drain()
print(sum(taken), one.outputs)
"""
    argv = [sys.executable, "-I", "-S", "-c", code, str(Path(wire.__file__).parent)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert done.stdout == "65536 {}\n"


def test_one_call_gives_no_more_than_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = _socket.socketpair()
    monkeypatch.setattr(shim_client, "ENOUGH", 1000)
    session = shim_client.ShimSession(shim_client.Connection(ours), {})
    for letter in (b"a", b"b", b"c"):
        theirs.sendall(wire.frame(b"O", letter * 60_000))
    for letter in (b"a", b"b", b"c"):
        assert select.select([session.fileno()], [], [], 0)[0]
        assert session.receive(0) == [Output("stdout", letter * 60_000)]
    theirs.close()
    session.close()


def test_a_writer_in_the_background_does_not_hold_up_the_end(bench: Bench) -> None:
    handle = bench.start("sleep", "1000")
    session = bench.exec(handle, "sh", "-c", "yes & echo started; exit 4")
    assert to_the_end(session)[2].code == 4
