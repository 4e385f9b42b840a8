"""The state folder has no room left, of bytes or of files: ends go on, and what cannot be noted is told by its code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

UNSHARE = ["unshare", "-m"] if os.getuid() == 0 else ["unshare", "-rm"]
STEPS = r"""
import json, os, sys
from pathlib import Path
from dibs.backends.engines import ttl, ttl_daemon
from dibs.backends.fake import FakeBackend
from dibs.backends.port import Handle
from dibs.errors import StateError
from dibs.home import Home
from dibs.workloads import orphans
from dibs.workloads.registry import Registry

what, state = sys.argv[1], Path(sys.argv[2])
if os.system(f"mount -t tmpfs -o size=256k,nr_inodes=64,mode=700 tmpfs {state}"):
    sys.exit(77)
home = Home(state=state, config=state / "config").make()
folders = [home.sandbox(name) for name in ("sb-1", "sb-2")]
for folder in folders:
    folder.mkdir(parents=True)
orphans.expect(home, Handle("fake", "sb-late", ""))
registry, removed = Registry(home), []
FakeBackend.discard = lambda self, handle: removed.append(handle.sandbox_id)

fillers = state / "fillers"
fillers.mkdir()
try:
    if what == "bytes":
        with open(fillers / "one", "wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
    for number in range(1000):
        (fillers / str(number)).touch()
except OSError:
    pass

said = {}
def step(name, function, *arguments):
    try:
        said[name] = function(*arguments)
    except StateError as error:
        said[name] = error.code
step("ask", ttl.ask_end, folders[0], "stopped")
step("keeper", ttl_daemon.record, str(folders[1]), "expired")
step("gone", lambda: ttl.note_gone(folders[0], "lost")[0])
step("write", ttl.write, folders[0], "init", "null")
step("expect", orphans.expect, home, Handle("fake", "sb-other", ""))
step("sweep", orphans.sweep, home, registry)
said["left"] = sorted(entry.name for folder in folders for entry in folder.iterdir())
said["removed"] = removed
for filler in fillers.iterdir():
    filler.unlink()
ttl.ask_end(folders[0], "stopped")
ttl_daemon.record(str(folders[1]), "expired")
said["heard"] = [(ttl.ending(folder) or [""])[0] for folder in folders]
print(json.dumps(said))
"""


@pytest.mark.parametrize("what", ["bytes", "files"])
def test_without_room_an_end_is_asked_for_all_the_same_and_a_note_that_is_needed_is_an_error(
    what: str, tmp_path: Path
) -> None:
    state = tmp_path / "tiny"
    state.mkdir()
    result = subprocess.run(
        [*UNSHARE, sys.executable, "-c", STEPS, what, str(state)], capture_output=True, text=True, check=False
    )
    if result.returncode == 77:
        pytest.skip("no file system can be mounted here")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout) == {
        "ask": None, "keeper": None, "gone": "lost", "write": "DISK_FULL", "expect": "DISK_FULL", "sweep": None,
        "left": [], "removed": ["sb-late"], "heard": ["stopped", "expired"],
    }  # fmt: skip
