"""Further commands in a container end with the client that asked for them, also if that is killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.engines.whole.house import House, until

from dibs.sandbox import Sandbox
from dibs.workloads.reconcile import handle_of


def runs_in(house: House, row: Sandbox, word: str) -> bool:
    """Whether a process of the container has this on its command line, looked at without dibs."""
    container = handle_of(row).data["container"]
    for entry in os.listdir("/proc"):
        try:
            groups = Path(f"/proc/{entry}/cgroup").read_text() if entry.isdigit() else ""
            if container in groups and word.encode() in Path(f"/proc/{entry}/cmdline").read_bytes():
                return True
        except OSError:
            continue
    return False


def test_a_command_whose_client_is_killed_does_not_run_on(house: House) -> None:
    row = house.create(command=["sleep", "1000"])
    words = [sys.executable, "-m", "dibs", "sandbox", "exec", row.id, "--", "sleep", "987654"]
    client = subprocess.Popen(words, env=house.env, cwd=house.work, stdin=subprocess.DEVNULL)
    until(lambda: runs_in(house, row, "987654"))
    client.kill()
    client.wait()
    until(lambda: not runs_in(house, row, "987654"), why="its client is gone")
    assert house.service.sandbox(row.id).live, "the sandbox itself goes on"


def test_a_guard_that_is_killed_is_replaced(house: House) -> None:
    row = house.create(command=["sleep", "1000"])
    script = f"""
import os, sys, time
from pathlib import Path
from dibs.backends.port import Exec
from dibs.workloads.service import Workloads
service = Workloads()
first = service.exec({row.id!r}, Exec(command=("sleep", "111222")))
(guard,) = [int(p) for p in os.listdir("/proc") if p.isdigit() and Path(f"/proc/{{p}}/stat").exists()
    and Path(f"/proc/{{p}}/stat").read_text().rpartition(")")[2].split()[1] == str(os.getpid())
    and "import exec_guard" in Path(f"/proc/{{p}}/cmdline").read_text()]
os.kill(guard, 9)
os.waitpid(guard, 0)
second = service.exec({row.id!r}, Exec(command=("sleep", "333444")))
print("up", flush=True)
time.sleep(1000)
"""
    client = subprocess.Popen([sys.executable, "-c", script], env=house.env, cwd=house.work, stdout=subprocess.PIPE)
    assert client.stdout is not None
    assert client.stdout.readline() == b"up\n"
    until(lambda: runs_in(house, row, "111222") and runs_in(house, row, "333444"))
    client.kill()
    client.wait()
    client.stdout.close()
    until(lambda: not runs_in(house, row, "111222") and not runs_in(house, row, "333444"))


def test_what_a_finished_command_has_left_behind_stays(house: House) -> None:
    row = house.create(command=["sleep", "1000"])
    assert house.exec(row.id, "true")[1].code == 0
    done = house.dibs(
        "sandbox", "exec", row.id, "--", "sh", "-c", "trap '' HUP; (sleep 555666; true) >/dev/null 2>&1 & echo up"
    )
    assert done.stdout == "up\n", done.stderr
    assert runs_in(house, row, "555666"), "what a command has left behind on purpose stays"
