"""Restarts of the host service while people use it: no run ends, no output is lost, no place in the queue is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from .conftest import OTHER, PLACE, USER
from .test_service import Service

pytestmark = pytest.mark.root
RESTARTS = 20 if os.environ.get("DIBS_SOAK") else 3
# Echoes what it reads with a number, so that what is lost or comes twice in either direction is seen.
ECHO = "n=0; while read -r x; do n=$((n+1)); echo $n $x; done; echo end; exit 7"


class Restarted(Service):
    """Whose clients are ended with the test, whatever came of it."""

    def __init__(self, root: Path) -> None:
        self.clients: list[subprocess.Popen[str]] = []
        super().__init__(root)

    def run(self, uid: int, *words: str) -> subprocess.Popen[str]:
        who = {"user": uid, "group": uid, "extra_groups": []}
        child: subprocess.Popen[str] = subprocess.Popen(  # type: ignore[call-overload]
            [sys.executable, "-m", "dibs", "run", *words], env=self.env(uid), cwd=self.root / f"home-{uid}", text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **who,
        )  # fmt: skip
        self.clients.append(child)
        return child

    def end_clients(self) -> None:
        for child in self.clients:
            child.kill()
            child.wait()
            for pipe in (child.stdin, child.stdout, child.stderr):
                assert pipe is not None
                pipe.close()


@pytest.fixture
def service() -> Iterator[Restarted]:
    with tempfile.TemporaryDirectory(prefix="dibs-host-", dir=PLACE) as folder:
        root = Path(folder)
        root.chmod(0o755)
        one = Restarted(root)
        try:
            yield one
        finally:
            one.end_clients()
            one.stop()
        assert "a defect" not in (root / "log").read_text()


def restart(service: Restarted, number: int) -> None:
    service.stop(number)
    service.start()


def queue(service: Restarted) -> list[tuple[str, float]]:
    found = json.loads(service.dibs(0, "queue", "-o", "json").stdout)["queue"]
    return [(one["ticket"], one["since"]) for one in found]


def await_queue(service: Restarted, length: int) -> list[tuple[str, float]]:
    until = time.monotonic() + 60
    while len(found := queue(service)) != length:
        assert time.monotonic() < until, found
        time.sleep(0.2)
    return found


def test_restarts_end_no_run_and_lose_no_place(service: Restarted) -> None:
    runs = [service.run(uid, "--gpu", "2", "--", "sh", "-c", ECHO) for uid in (USER, OTHER)]

    def say(number: int) -> None:
        for run in runs:
            assert run.stdin is not None
            assert run.stdout is not None
            run.stdin.write(f"line-{number}\n")
            run.stdin.flush()
            assert run.stdout.readline() == f"{number} line-{number}\n"

    say(1)
    waiters = []
    for uid in (OTHER, USER, OTHER):
        waiters.append(service.run(uid, "--gpu", "4", "--wait", "10m", "--", "date", "+%s%N"))
        await_queue(service, len(waiters))
    before = queue(service)
    for number in range(RESTARTS):
        restart(service, signal.SIGKILL if number % 2 else signal.SIGTERM)
        say(number + 2)
        assert queue(service) == before
        assert [one.poll() for one in (*runs, *waiters)] == [None] * 5
    for run in runs:
        assert run.stdin is not None
        run.stdin.close()
        assert run.stdout is not None
        assert (run.stdout.read(), run.wait(60)) == ("end\n", 7)
    served = []
    for waiter in waiters:
        out, err = waiter.communicate(timeout=120)
        assert waiter.returncode == 0, err
        served.append(int(out))
    assert served == sorted(served)


def test_a_command_that_ends_while_the_service_is_away_keeps_its_exit_code_and_output(service: Restarted) -> None:
    run = service.run(USER, "--gpu", "4", "--", "sh", "-c", "echo ready; read x; echo bye; exit 3")
    assert run.stdout is not None
    assert run.stdout.readline() == "ready\n"
    service.stop(signal.SIGKILL)
    try:
        assert run.stdin is not None
        run.stdin.write("x\n")
        run.stdin.flush()
        assert run.stdout.readline() == "bye\n"
    finally:
        service.start()
    out, err = run.communicate(timeout=60)
    assert (run.returncode, out) == (3, ""), err
    assert service.dibs(OTHER, "run", "--gpu", "4", "--wait", "60s", "--", "true").returncode == 0


def test_a_client_that_dies_while_the_service_is_away_leaves_nothing_running(service: Restarted) -> None:
    run = service.run(USER, "--gpu", "4", "--", "sh", "-c", "echo ready; sleep 1000")
    assert run.stdout is not None
    assert run.stdout.readline() == "ready\n"
    service.stop(signal.SIGKILL)
    run.kill()
    run.wait()
    service.start()
    assert service.dibs(OTHER, "run", "--gpu", "4", "--wait", "60s", "--", "true").returncode == 0


def test_a_run_that_is_asked_for_while_the_service_is_away_waits_for_it(service: Restarted) -> None:
    service.stop()
    run = service.run(USER, "--gpu", "1", "--", "echo", "made")
    assert run.stderr is not None
    assert "the host service is away" in run.stderr.readline()
    service.start()
    out, err = run.communicate(timeout=60)
    assert (run.returncode, out) == (0, "made\n"), err
