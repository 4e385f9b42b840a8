"""Waiting in processes of their own: woken when it is their turn, passed over while stopped, forgotten when gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from dibs.devices.simulated import parse_world, simulate
from dibs.errors import NotFound
from dibs.ledger.store import Ledger
from dibs.ledger.tickets import Tickets
from dibs.process import boottime, myself
from dibs.request.spec import parse_spec
from dibs.workloads.reconcile import handle_of
from dibs.workloads.service import Workloads

PATIENCE = 90.0  # seconds until something that must happen counts as not happening; the machine may be busy
NAMESPACED = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="makes a pid namespace as root")


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


class Waiter:
    """A `dibs run --wait` in a process of its own."""

    def __init__(
        self, service: Workloads, folder: Path, name: str, *, gpu: str, wait: str, under: tuple[str, ...]
    ) -> None:
        self.ran = folder / name
        command = (sys.executable, "-m", "dibs", "run", "-q", "--no-tty", "--gpu", gpu, "--wait", wait)
        known = {ticket.id for ticket in service.queue()}
        self.process = subprocess.Popen(
            [*under, *command, "--", "touch", str(self.ran)], cwd=folder, stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE, env={**os.environ, "DIBS_HOME": str(service.home.state)},
        )  # fmt: skip
        self.ticket = ""

        def joined() -> bool:
            self.ticket = next((ticket.id for ticket in service.queue() if ticket.id not in known), "")
            return bool(self.ticket)

        until(joined, f"{name} takes a place in the queue")

    def end(self) -> tuple[int, str]:
        _, errors = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, errors.decode()


Join = Callable[..., Waiter]


@pytest.fixture
def join(service: Workloads, tmp_path: Path) -> Iterator[Join]:
    started: list[Waiter] = []

    def start(name: str, *, gpu: str = "8", wait: str = "1h", under: tuple[str, ...] = ()) -> Waiter:
        started.append(Waiter(service, tmp_path / "work", name, gpu=gpu, wait=wait, under=under))
        return started[-1]

    yield start
    for waiter in started:
        waiter.process.kill()
        waiter.process.communicate()


def asleep(pid: int) -> bool:
    """It has nothing of the ledger open."""
    names = (os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd"))
    return not any("ledger.db" in name for name in names)


def test_a_waiter_keeps_no_ledger_open_and_no_further_process(service: Workloads, join: Join) -> None:
    service.create(parse_spec({"gpu": 8, "name": "holder"}))
    first, second = join("first"), join("second")
    for waiter in (first, second):
        pid = waiter.process.pid
        until(lambda pid=pid: asleep(pid), "it sleeps")  # type: ignore[misc]
        until(lambda pid=pid: Path(f"/proc/{pid}/task/{pid}/children").read_text() == "", "nothing runs beside it")  # type: ignore[misc]


def test_those_who_wait_are_served_in_their_order(service: Workloads, join: Join) -> None:
    service.create(parse_spec({"gpu": 8, "name": "holder"}))
    waiters = [join(f"number-{place}") for place in range(3)]
    assert [ticket.id for ticket in service.queue()] == [waiter.ticket for waiter in waiters]
    service.remove("holder", 0.0)
    assert [waiter.end() for waiter in waiters] == [(0, "")] * 3
    times = [waiter.ran.stat().st_mtime_ns for waiter in waiters]
    assert times == sorted(times)
    assert service.queue() == []
    assert os.listdir(service.home.queue) == []


IN_ANOTHER_TIME = ("unshare", *(() if os.getuid() == 0 else ("-r",)), "--time", "--boottime", "10000", "--fork")
LOOK = """
import os, sys
from dibs.backends.engines.ttl_daemon import has_ended
from dibs.backends.port import Exec
from dibs.errors import DibsError
from dibs.home import find_home
from dibs.process import boottime
from dibs.workloads.service import Workloads

with Workloads(find_home()) as service:
    try:
        service.exec("holder", Exec(command=("true",)))
        ran = "ran"
    except DibsError as error:
        ran = error.code
    print(ran, boottime(), has_ended(sys.argv[1]), *(ticket.id for ticket in service.queue()))
"""


def test_who_looks_with_another_clock_sees_the_same_processes(service: Workloads, join: Join, tmp_path: Path) -> None:
    """In a time namespace every process has another start, and the machine another age."""
    if subprocess.run([*IN_ANOTHER_TIME, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no time namespace can be made here")
    holder = service.create(parse_spec({"gpu": 8, "name": "holder"}))
    waiter = join("first")
    (tmp_path / "init").write_bytes(msgspec.json.encode(handle_of(holder).init))
    looked = subprocess.run(
        [*IN_ANOTHER_TIME, sys.executable, "-c", LOOK, str(tmp_path)], check=True, capture_output=True, text=True,
        env={**os.environ, "DIBS_HOME": str(service.home.state)},
    )  # fmt: skip
    ran, age, ended, *tickets = looked.stdout.split()
    # An ordinary user has another clock only in a user namespace, from which no process outside can be looked into.
    assert ran == ("ran" if os.getuid() == 0 else "OBSERVATION_FAILED")
    assert float(age) <= boottime()
    assert ended == "False"
    assert tickets == [waiter.ticket]
    service.remove("holder", 0.0)
    assert waiter.end() == (0, "")


def test_a_wake_up_that_was_lost_is_made_up_for(
    service: Workloads, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one who freed the devices was killed right after it had written that down."""
    service.create(parse_spec({"gpu": 8, "name": "holder"}))
    first, second = join("first"), join("second")
    monkeypatch.setattr(Tickets, "_wake_first", lambda _: None)
    service.remove("holder", 0.0)
    assert first.end() == (0, "")
    assert second.end() == (0, "")


def test_a_killed_head_of_the_queue_does_not_block_it(service: Workloads, join: Join) -> None:
    service.create(parse_spec({"gpu": 8, "name": "holder"}))
    waiters = [join(f"number-{place}") for place in range(4)]
    for waiter in waiters[:3]:
        waiter.process.kill()
    service.remove("holder", 0.0)
    assert waiters[3].end() == (0, "")
    until(lambda: Workloads(service.home).queue() == [], "the places of the dead are given back")


@needs_root
def test_a_waiter_that_was_killed_in_another_pid_namespace_leaves_the_queue(service: Workloads, join: Join) -> None:
    service.create(parse_spec({"gpu": 7, "name": "holder"}))
    waiter = join("elsewhere", gpu="2", under=NAMESPACED)
    waiter.process.kill()
    waiter.process.wait()

    def forgotten() -> bool:
        with Workloads(service.home) as another:
            return another.queue() == []

    until(forgotten, "its place is given back")
    service.create(parse_spec({"gpu": 1}))


@needs_root
@pytest.mark.skipif(os.stat("/proc/self/ns/pid").st_ino != 0xEFFFFFFC, reason="does not run in the first pid namespace")
def test_a_holder_that_was_killed_in_another_pid_namespace_holds_nothing(service: Workloads, tmp_path: Path) -> None:
    command = (sys.executable, "-m", "dibs", "run", "-q", "--no-tty", "--gpu", "8", "--", "sleep", "1000")
    holder = subprocess.Popen([*NAMESPACED, *command], cwd=tmp_path / "work", stdin=subprocess.DEVNULL)

    def held() -> list[str]:
        with Workloads(service.home) as another:
            return [row.state for row in another.sandboxes()]

    try:
        until(lambda: held() == ["running"], "it runs, and is not taken for gone")
    finally:
        holder.kill()
        holder.wait()
    until(lambda: held() == [], "its cards are free again")


@needs_root
def test_a_waiter_in_another_pid_namespace_keeps_its_place(service: Workloads, join: Join) -> None:
    service.create(parse_spec({"gpu": 8, "name": "holder"}))
    waiter = join("elsewhere", under=NAMESPACED)
    with Workloads(service.home) as another:
        assert [ticket.id for ticket in another.queue()] == [waiter.ticket]
    service.remove("holder", 0.0)
    assert waiter.end() == (0, "")


def test_a_stopped_waiter_is_passed_over_and_served_when_it_comes_back(service: Workloads, join: Join) -> None:
    service.create(parse_spec({"gpu": 8, "name": "holder"}))
    stopped, behind = join("stopped"), join("behind")
    os.kill(stopped.process.pid, signal.SIGSTOP)
    service.remove("holder", 0.0)
    assert behind.end() == (0, "")
    assert not stopped.ran.exists()
    assert [ticket.id for ticket in service.queue()] == [stopped.ticket]
    os.kill(stopped.process.pid, signal.SIGCONT)
    assert stopped.end() == (0, "")


def test_a_stopped_waiter_is_passed_over_though_it_could_not_be_served(service: Workloads, join: Join) -> None:
    """It keeps devices for itself that others could have, and is not there to take them."""
    service.create(parse_spec({"gpu": 4, "name": "holder"}))
    stopped = join("stopped")
    os.kill(stopped.process.pid, signal.SIGSTOP)
    assert join("behind", gpu="4").end() == (0, "")
    os.kill(stopped.process.pid, signal.SIGCONT)
    service.remove("holder", 0.0)
    assert stopped.end() == (0, "")


def test_a_stopped_waiter_is_not_served_after_its_time(service: Workloads, join: Join) -> None:
    service.create(parse_spec({"gpu": 8, "name": "holder"}))
    stopped = join("stopped", wait="2s")
    os.kill(stopped.process.pid, signal.SIGSTOP)
    (ticket,) = service.queue()
    assert ticket.deadline is not None
    deadline = ticket.deadline
    until(lambda: boottime() > deadline, "its time is over")
    service.remove("holder", 0.0)
    service.create(parse_spec({"gpu": 8}))  # not held up by it
    os.kill(stopped.process.pid, signal.SIGCONT)
    code, errors = stopped.end()
    assert (code, "WAIT_TIMEOUT" in errors) == (90, True)
    assert not stopped.ran.exists()
    assert service.queue() == []


def test_devices_that_the_first_cannot_use_go_to_one_that_can(service: Workloads, join: Join) -> None:
    """A freed device wakes the first two tickets only; they ring those that can be served."""
    simulate(service.home, parse_world("H100:2,L4:1"))
    service.create(parse_spec({"gpu": "H100:2", "name": "stays"}))
    service.create(parse_spec({"gpu": "L4", "name": "goes"}))
    first = [join(f"large-{number}", gpu="H100:2") for number in range(4)]
    last = join("small", gpu="L4")
    service.remove("goes", 0.0)
    assert last.end() == (0, "")
    assert [ticket.id for ticket in service.queue()] == [waiter.ticket for waiter in first]


def test_a_removed_ticket_ends_its_waiter(service: Workloads, join: Join) -> None:
    service.create(parse_spec({"gpu": 8, "name": "holder"}))
    first, second = join("first"), join("second")
    service.remove_ticket(first.ticket)
    code, errors = first.end()
    assert (code, "TICKET_REMOVED" in errors) == (88, True)
    assert [ticket.id for ticket in service.queue()] == [second.ticket]
    with pytest.raises(NotFound):
        service.remove_ticket(first.ticket)


def test_a_clock_that_is_set_moves_no_deadline(service: Workloads, monkeypatch: pytest.MonkeyPatch) -> None:
    with service.ledger.writing():
        ticket = service.ledger.enqueue(myself(), 0, "anna", b"{}", wait_seconds=60.0)
    monkeypatch.setattr(time, "time", lambda: 4e9)
    with Workloads(service.home) as another:
        assert [one.id for one in another.queue()] == [ticket]


def test_a_ledger_that_rests_is_opened_again_by_the_next_verb(service: Workloads) -> None:
    ledger = Ledger(service.home)
    ledger.rest()
    assert ledger.tickets() == []
    ledger.close()
