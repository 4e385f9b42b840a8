"""Runs the tests of a module against one fault after the other, in copies of the tree. The work tree is only read.

`Bench` is one copy; each has one fault at a time. The tests of a module run unchanged first: they must be green, and
what they run says which of them are tried first, and how long each takes. A fault counts as killed where the same test
fails twice with it: a busy machine may fail a test once. It counts as killed by the time limit where a test twice does
not end with it, if the same tests end within the same time without it.
"""

from __future__ import annotations

import contextlib
import json
import os
import py_compile
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

from mutants.sampling import Mutant, Target

Fate = Literal["killed", "hung", "survived"]
OPTIONS = ("-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "--hypothesis-seed=0", "--no-header", "--tb=line")
LONGEST = 1800.0  # seconds for all tests of a module without a fault


class Outcome(NamedTuple):
    mutant: Mutant
    fate: Fate
    seconds: float
    by: str = ""  # the test that noticed


class RedTests(Exception):
    """The tests of a module fail without any fault."""


class Server:
    """A pytest that has collected the tests of a module and runs them in forks (`mutants.loop`)."""

    def __init__(self, tree: Path, temp: Path, tests: tuple[str, ...], modules: list[str]) -> None:
        self.result = temp.with_suffix(".json")
        self.log = temp.with_suffix(".log")
        self._channel, theirs = socket.socketpair()
        with self.log.open("wb") as log, theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "pytest", *OPTIONS, "-p", "mutants.loop", f"--basetemp={temp}", *tests],
                cwd=tree,
                env=environment(tree, MUTANT_SOCKET=str(theirs.fileno())),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=[theirs.fileno()], start_new_session=True,
            )  # fmt: skip
        self._answers = self._channel.makefile("r")
        first = self.ask(None, LONGEST, trace=[str(tree / module) for module in modules])
        if first["fate"] != "passed":
            self.close()
            which = ", ".join(first.get("failed", [])) or first["fate"]
            raise RedTests(f"{' '.join(tests)}: {which}\n{self.log.read_text()[-3000:]}")
        self.tests: dict[str, Any] = first["tests"]
        self._load = first["loaded"]

    def ask(self, tests: list[str] | None, limit: float, **more: object) -> dict[str, Any]:
        asked = {"tests": tests, "limit": limit, "result": str(self.result), **more}
        if more.get("module"):
            asked["load"], self._load = self._load, []
        self._channel.sendall(json.dumps(asked).encode() + b"\n")
        line = self._answers.readline()
        if not line:
            raise RuntimeError(f"the tests cannot be run:\n{self.log.read_text()[-3000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def covering(self, path: Path, first: int, last: int) -> list[str]:
        """Tests that run these lines in their own process: those of the quickest file first."""
        chosen = [name for name, one in self.tests.items()
                  if any(where == str(path) and first <= line <= last for where, line in one["lines"])]  # fmt: skip
        files: dict[str, float] = {}
        for name in chosen:
            files[name.partition("::")[0]] = files.get(name.partition("::")[0], 0.0) + self.tests[name]["seconds"]
        return sorted(chosen, key=lambda name: (files[name.partition("::")[0]], name.partition("::")[0]))

    def limit(self, tests: list[str]) -> float:
        return 30.0 + 4 * float(sum(self.tests[name]["seconds"] for name in tests))

    def close(self) -> None:
        self._answers.close()
        self._channel.close()
        self._process.wait()


class Bench:
    def __init__(self, root: Path, folder: Path, modules: list[str]) -> None:
        self.tree = folder / "tree"
        self.temp = folder / "t"
        self.modules = modules
        self._serves: tuple[str, ...] = ()
        self._server: Server | None = None
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

    def try_out(self, mutant: Mutant) -> Outcome:
        server = self._serving(mutant.target)
        begun = time.monotonic()
        fate, by = self._fate(server, mutant)
        return Outcome(mutant, fate, time.monotonic() - begun, by)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
            self._clear()

    def _serving(self, target: Target) -> Server:
        if self._server is None or self._serves != target.tests:
            self.close()
            self._server, self._serves = Server(self.tree, self.temp, target.tests, self.modules), target.tests
            self._clear()
        return self._server

    def _fate(self, server: Server, mutant: Mutant) -> tuple[Fate, str]:
        path = self.tree / mutant.target.module
        fault = mutant.mutation
        quick = server.covering(path, fault.line, fault.line + fault.lines)
        for chosen in (quick, [name for name in server.tests if name not in set(quick)]):
            tests = chosen
            while tests:
                with self._faulty(path, mutant) as original:
                    said = self._ask(server, tests, str(path), original)
                    if said["fate"] == "fresh":
                        said, tests = self._fresh(mutant.target), list(server.tests)
                if said["fate"] in ("killed", "survived"):
                    return said["fate"], said["by"]
                if said["fate"] == "passed":
                    break
                if said["fate"] == "died":
                    return "killed", "the process of the tests ended"
                if said["fate"] == "hung":
                    without = server.ask(tests, server.limit(tests))
                    self._clear()
                    if without["fate"] != "passed":
                        raise RuntimeError(f"{mutant}: the machine is too busy to say whether this hangs: {without}")
                    if not said["in"]:
                        return "hung", ""
                by = said["in"] if said["fate"] == "hung" else said["failed"][0]
                with self._faulty(path, mutant) as original:
                    again = self._ask(server, [by], str(path), original)
                if again["fate"] != "passed":
                    return "hung" if again["fate"] == "hung" else "killed", by
                tests = tests[tests.index(by) + 1 :]  # it failed for another reason, or was slow
        return "survived", ""

    def _ask(self, server: Server, tests: list[str], module: str, original: str) -> dict[str, Any]:
        try:
            return server.ask(tests, server.limit(tests), module=module, original=original)
        finally:
            self._clear()

    @contextlib.contextmanager
    def _faulty(self, path: Path, mutant: Mutant) -> Iterator[str]:
        source = path.read_bytes()
        path.write_bytes(mutant.mutation.applied(source))
        try:
            yield source.decode()
        finally:
            path.write_bytes(source)

    def _fresh(self, target: Target) -> dict[str, str]:
        """In a process of its own: a fault in what a module does when it is imported. The fault is in the file."""
        assert self._server is not None
        limit = self._server.limit(list(self._server.tests)) + 60
        tests, by = target.tests, ""
        for _ in range(2):
            child = subprocess.Popen(
                [sys.executable, "-m", "pytest", *OPTIONS, f"--basetemp={self.temp}", *tests],
                cwd=self.tree, env=environment(self.tree), text=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            try:
                said, _ = child.communicate(timeout=limit)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                child.communicate()
                return {"fate": "hung", "in": ""}
            finally:
                self._clear()
            if child.returncode == 0:
                return {"fate": "survived", "by": ""}
            noticed = [line for line in said.splitlines() if line.startswith(("FAILED ", "ERROR "))]
            if not noticed:
                return {"fate": "killed", "by": "the process of the tests ended"}
            by = noticed[0].split(" - ")[0].split(" ", 1)[1]
            tests = (by,)
        return {"fate": "killed", "by": by}

    def _clear(self) -> None:
        """End what a broken dibs has left running: its command line or environment names a folder of this run."""
        token = f"{self.temp}/".encode()
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


def environment(tree: Path, **more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{tree / 'src'}:{tree}", **more}
