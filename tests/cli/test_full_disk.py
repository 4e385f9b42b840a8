"""On a full disk what is there can be read and freed; only making something new is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

UNSHARE = ["unshare", "-m"] if os.getuid() == 0 else ["unshare", "-rm"]
STEPS = r"""
set -u
mount -t tmpfs -o size=8m,mode=700 tmpfs "$DIBS_HOME" || exit 77
dibs gpus simulate 4 >/dev/null
dibs sandbox create --name one --gpu 2 -- sleep 1000
dibs sandbox create --name two --gpu 1 -- sleep 1000
dibs run --gpu 1 -- sleep 0.1 >/dev/null 2>&1
cat /dev/zero > "$DIBS_HOME/filler" 2>/dev/null
say() { echo "== $1"; shift; "$@" 2>&1; echo "-- $?"; }
say ls dibs sandbox ls
say gpus dibs gpus
say explain dibs explain --gpu 1
say run dibs run --gpu 1 -- true
say stop dibs sandbox stop one --grace 0s
cat /dev/zero >> "$DIBS_HOME/filler" 2>/dev/null
say again dibs sandbox ls
say rm dibs sandbox rm two --grace 0s
say free dibs gpus
say refused dibs run --gpu 1 -- true
rm "$DIBS_HOME/filler"
say room dibs run --gpu 4 -- true
"""


@pytest.fixture
def said(tmp_path: Path) -> dict[str, tuple[str, int]]:
    return run(STEPS, tmp_path)


def run(steps: str, tmp_path: Path) -> dict[str, tuple[str, int]]:
    home = tmp_path / "tiny"
    home.mkdir()
    env = {**os.environ, "DIBS_HOME": str(home), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    result = subprocess.run(
        [*UNSHARE, "sh", "-c", steps], env=env, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300
    )
    if result.returncode == 77:
        pytest.skip("no file system can be mounted here")
    found = {}
    for part in result.stdout.split("== ")[1:]:
        name, _, rest = part.partition("\n")
        text, _, code = rest.rpartition("-- ")
        found[name] = (text, int(code.split()[0]))
    assert found, result.stderr + result.stdout
    return found


def test_on_a_full_disk_reading_and_freeing_work_and_creating_is_refused(said: dict[str, tuple[str, int]]) -> None:
    assert {name: code for name, (_, code) in said.items()} == {
        "ls": 0, "gpus": 0, "explain": 0, "run": 91, "stop": 0,
        "again": 0, "rm": 0, "free": 0, "refused": 91, "room": 0,
    }, said  # fmt: skip
    assert "one" in said["ls"][0]
    assert "two" in said["ls"][0]
    for refused in ("run", "refused"):
        assert "DISK_FULL" in said[refused][0]
    assert "one" not in said["again"][0]
    assert "4 free" in said["free"][0]


UNTIL_NOTHING_IS_LEFT = r"""
set -u
mount -t tmpfs -o size=8m,mode=700 tmpfs "$DIBS_HOME" || exit 77
dibs gpus simulate 4 >/dev/null
dibs sandbox create --name one --gpu 2 -- sleep 1000
dibs sandbox create --name two --gpu 1 -- sh -c 'until [ -e go ]; do sleep 0.05; done'
python - "$DIBS_HOME/ledger.db" <<'KILLED'
import os, sqlite3, sys
ledger = sqlite3.connect(sys.argv[1], isolation_level=None)
ledger.execute("PRAGMA wal_autocheckpoint = 0")
ledger.execute("UPDATE sandboxes SET name = 'renamed' WHERE name = 'one'")
if LEAVES_A_JOURNAL:
    os.kill(os.getpid(), 9)
KILLED
touch go
for i in $(seq 100); do [ -e "$DIBS_HOME"/sandboxes/*/exit.json ] && break; sleep 0.1; done
for i in 1 2 3; do
    rm -f "$DIBS_HOME/ballast" "$DIBS_HOME/ledger.db-shm"
    cat /dev/zero >> "$DIBS_HOME/filler" 2>/dev/null
done
say() { echo "== $1"; shift; "$@" 2>&1; echo "-- $?"; }
say ls dibs sandbox ls
say gpus dibs gpus
say explain dibs explain --gpu 1
say doctor dibs doctor
say refused dibs run --gpu 1 -- true
rm "$DIBS_HOME/filler"
say room dibs gpus
dibs sandbox rm renamed two --grace 0s
"""


@pytest.mark.parametrize("journal", [True, False])
def test_without_any_room_a_ledger_is_read_though_nothing_can_be_recorded(journal: bool, tmp_path: Path) -> None:
    """Neither its own reserve is left nor the files beside it, and a sandbox has ended since."""
    said = run(UNTIL_NOTHING_IS_LEFT.replace("LEAVES_A_JOURNAL", str(journal)), tmp_path)
    assert {name: code for name, (_, code) in said.items()} == {
        "ls": 0, "gpus": 0, "explain": 0, "doctor": 1, "refused": 91, "room": 0,
    }, said  # fmt: skip
    assert "renamed" in said["ls"][0]
    assert "4 GPUs, 1 free" in said["gpus"][0], "what cannot be recorded stays booked"
    assert "its disk is full" in said["doctor"][0]
    assert "mv " not in said["doctor"][0], "a ledger that is only short of room is not moved away"
    assert "4 GPUs, 2 free" in said["room"][0]
