"""Every place that starts a program leaves behind what this process has open."""

from __future__ import annotations

import ast
import os
from pathlib import Path

import dibs
from dibs.descriptors import closing

SOURCE = Path(dibs.__file__).parent
# It runs in a process of its own, which has closed everything when it began.
CLEAN = {"backends/local/enter.py"}
# The shim and what it forks: the same. A child of `cgroups` runs no program.
FORKS = {
    "backends/local/cgroups.py",
    "backends/local/uplink.py",
    "backends/local/enter.py", "backends/local/forker.py", "backends/local/shim.py", "backends/local/userns.py",
}  # fmt: skip


def _calls(name: str) -> dict[str, list[ast.Call]]:
    found: dict[str, list[ast.Call]] = {}
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in (f"os.{name}", f"subprocess.{name}"):
                found.setdefault(str(path.relative_to(SOURCE)), []).append(node)
    return found


def test_every_spawn_closes_what_is_inheritable() -> None:
    places = _calls("posix_spawn")
    assert {"backends/local/spawning.py", "backends/local/bubblewrap.py"} < set(places)
    for place in set(places) - CLEAN:
        assert "closing" in (SOURCE / place).read_text(), place


def test_only_programs_that_have_closed_everything_fork() -> None:
    for name in ("fork", "forkpty", "posix_spawnp", "system", "popen"):
        assert set(_calls(name)) <= (FORKS if name == "fork" else set())
    for place in ("enter", "forker", "shim"):
        assert "close_inherited(4)" in (SOURCE / f"backends/local/{place}.py").read_text()


def test_no_subprocess_keeps_descriptors_open() -> None:
    for name in ("run", "Popen"):
        for place, calls in _calls(name).items():
            for call in calls:
                assert "close_fds" not in {keyword.arg for keyword in call.keywords}, place


def test_what_is_inheritable_is_closed_and_nothing_else() -> None:
    inherited, kept = os.open("/", os.O_RDONLY), os.open("/", os.O_RDONLY)
    os.set_inheritable(inherited, True)
    try:
        found = closing()
        assert (os.POSIX_SPAWN_CLOSE, inherited) in found
        assert (os.POSIX_SPAWN_CLOSE, kept) not in found
        assert all(fd > 2 for _, fd in found)
        assert (os.POSIX_SPAWN_CLOSE, inherited) not in closing(inherited + 1)
    finally:
        os.close(inherited)
        os.close(kept)
