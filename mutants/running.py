"""Runs the tests of a module against one fault after the other, in copies of the tree. The work tree is only read.

`Bench` is one copy; each has one fault at a time. The tests of a module run unchanged first: they must be green, and
how long they take says when a run with a fault in it counts as hanging (which is noticed too).
"""

from __future__ import annotations

import os
import py_compile
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Literal, NamedTuple

from mutants.sampling import Mutant, Target

Fate = Literal["killed", "timed out", "survived"]


class Outcome(NamedTuple):
    mutant: Mutant
    fate: Fate
    seconds: float
    by: str = ""  # the first test that noticed


class Bench:
    def __init__(self, root: Path, folder: Path) -> None:
        self.tree = folder / "tree"
        self.temp = folder / "t"
        self._bases: dict[tuple[str, ...], float] = {}
        self.tree.mkdir(parents=True)
        listed = subprocess.run(
            ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            check=True, capture_output=True, text=True,
        ).stdout  # fmt: skip
        for name in filter(None, listed.split("\0")):
            if (root / name).is_file():
                (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(root / name, self.tree / name)
        for source in (self.tree / "src").rglob("*.py"):
            # Checked by content: a fault of the same length within the same second must not run as the code before it.
            py_compile.compile(str(source), invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH)

    def base(self, target: Target) -> float:
        """How long its tests take without a fault."""
        if target.tests not in self._bases:
            code, seconds, said = self._run(target, 1800.0)
            if code != 0:
                raise RuntimeError(f"the tests of {target.module} fail without any fault in it:\n{said[-3000:]}")
            self._bases[target.tests] = seconds
        return self._bases[target.tests]

    def try_out(self, mutant: Mutant) -> Outcome:
        limit = 30.0 + 4 * self.base(mutant.target)
        path = self.tree / mutant.target.module
        source = path.read_bytes()
        path.write_bytes(mutant.mutation.applied(source))
        try:
            code, seconds, said = self._run(mutant.target, limit)
        finally:
            path.write_bytes(source)
        if code is None:
            return Outcome(mutant, "timed out", seconds)
        if code == 0:
            return Outcome(mutant, "survived", seconds)
        noticed = [line for line in said.splitlines() if line.startswith(("FAILED ", "ERROR "))]
        return Outcome(mutant, "killed", seconds, noticed[0].split(" - ")[0].split(" ", 1)[1] if noticed else "")

    def _run(self, target: Target, limit: float) -> tuple[int | None, float, str]:
        begun = time.monotonic()
        child = subprocess.Popen(
            [
                sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist",
                "--hypothesis-seed=0", "--no-header", "--tb=line", f"--basetemp={self.temp}", *target.tests,
            ],
            cwd=self.tree,
            env={**os.environ, "PYTHONPATH": str(self.tree / "src")},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
        )  # fmt: skip
        try:
            said, _ = child.communicate(timeout=limit)
            return child.returncode, time.monotonic() - begun, said
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGINT)  # it clears up behind itself
            try:
                said, _ = child.communicate(timeout=20)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                said, _ = child.communicate()
            return None, time.monotonic() - begun, said
        finally:
            self._clear()

    def _clear(self) -> None:
        """End what a broken dibs has left running: its command line or environment names a folder of this run."""
        token = str(self.temp).encode()
        for entry in os.listdir("/proc"):
            if not entry.isdigit() or int(entry) == os.getpid():
                continue
            try:
                said = Path(f"/proc/{entry}/cmdline").read_bytes() + Path(f"/proc/{entry}/environ").read_bytes()
                if token in said:
                    os.kill(int(entry), signal.SIGKILL)
            except OSError:
                continue
        shutil.rmtree(self.temp, ignore_errors=True)
