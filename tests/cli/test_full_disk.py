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
    home = tmp_path / "tiny"
    home.mkdir()
    env = {**os.environ, "DIBS_HOME": str(home), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    result = subprocess.run(
        [*UNSHARE, "sh", "-c", STEPS], env=env, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300
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
