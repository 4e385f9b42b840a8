"""A plugin for pytest that keeps collected tests ready and runs them in forks: `running` asks, this answers.

Imports and collection cost seconds, most tests of the code that decides cost milliseconds. So one pytest process
collects the tests of a module, and then forks for each fault. The fork puts the fault into the functions that are
already imported (by their code objects; interpreters that a test starts read the changed file) and runs the tests that
it is told. A fault outside of functions cannot be put in that way: the answer is then "fresh".

Requests and answers are lines of JSON on the socket whose descriptor is MUTANT_SOCKET. Nothing here decides what a
result means.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import signal
import socket
import sys
import threading
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

Code = types.CodeType


class Lines:
    """Which lines of the modules in question each test runs, in this process."""

    def __init__(self, modules: list[str]) -> None:
        self.modules = set(modules)
        self.seen: set[tuple[str, int]] = set()

    def call(self, frame: types.FrameType, _event: str, _arg: object) -> Any:
        return self.line if frame.f_code.co_filename in self.modules else None

    def line(self, frame: types.FrameType, event: str, _arg: object) -> Any:
        if event == "line":
            self.seen.add((frame.f_code.co_filename, frame.f_lineno))
        return self.line

    def start(self) -> None:
        threading.settrace(self.call)
        sys.settrace(self.call)


class Loop:
    def __init__(self) -> None:
        self.failed: list[str] = []
        self.running: Path | None = None  # where the test that runs is written down, for one that never ends
        self.tests: dict[str, Any] = {}  # how long each took, and which lines it ran
        self.lines: Lines | None = None

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        if self.running is not None:
            self.running.write_text(nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)
        noted = self.tests.setdefault(report.nodeid, {"seconds": 0.0, "lines": []})
        noted["seconds"] += report.duration
        if self.lines is not None and report.when == "teardown":
            noted["lines"] = sorted(self.lines.seen)
            self.lines.seen = set()

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        every = {item.nodeid: item for item in session.items}
        with socket.socket(fileno=int(os.environ.pop("MUTANT_SOCKET"))) as channel:
            for line in channel.makefile("r"):
                asked = json.loads(line)
                for name in asked.get("load", []):
                    importlib.import_module(name)
                wanted = every if asked["tests"] is None else asked["tests"]
                session.items = [every[name] for name in wanted]
                channel.sendall(json.dumps(self._in_a_fork(session, asked)).encode() + b"\n")
        os._exit(0)  # what is asked is all there is: no summary of tests that ran elsewhere

    def _in_a_fork(self, session: pytest.Session, asked: dict[str, Any]) -> dict[str, Any]:
        result = Path(asked["result"])
        running = result.with_suffix(".running")
        result.unlink(missing_ok=True)
        running.unlink(missing_ok=True)
        begun = time.monotonic()
        pid = os.fork()
        if pid == 0:
            try:
                os.setsid()
                self.running = running
                result.write_text(json.dumps(self._run(session, asked)))
            finally:
                os._exit(0)
        while os.waitpid(pid, os.WNOHANG) == (0, 0):
            if time.monotonic() - begun > asked["limit"]:
                os.killpg(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                stuck = running.read_text() if running.exists() else ""
                return {"fate": "hung", "in": stuck, "seconds": time.monotonic() - begun}
            time.sleep(0.02)
        answer: dict[str, Any] = json.loads(result.read_text()) if result.exists() else {"fate": "died"}
        return {**answer, "seconds": time.monotonic() - begun}

    def _run(self, session: pytest.Session, asked: dict[str, Any]) -> dict[str, Any]:
        if asked.get("module") and not put_in(Path(asked["module"]), asked["original"]):
            return {"fate": "fresh"}
        if asked.get("trace"):
            self.lines = Lines(asked["trace"])
            self.lines.start()
        loop = session.config.pluginmanager.getplugin("main").pytest_runtestloop
        with contextlib.suppress(session.Failed, session.Interrupted, KeyboardInterrupt):
            loop(session)
        session._setupstate.teardown_exact(None)  # noqa: SLF001 - as pytest does when a session ends
        answer: dict[str, Any] = {"fate": "failed" if self.failed else "passed", "failed": self.failed}
        if asked.get("trace"):
            sys.settrace(None)
            answer |= {"tests": self.tests, "loaded": [name for name in sys.modules if name.split(".")[0] == "dibs"]}
        return answer


def put_in(module: Path, original: str) -> bool:
    """Give the functions of a module that is imported already the code that its file has now, if only they differ."""
    if not any(getattr(one, "__file__", None) == str(module) for one in list(sys.modules.values())):
        return True  # what is imported later is read from the file
    before = compile(original, str(module), "exec", dont_inherit=True)
    after = compile(module.read_bytes(), str(module), "exec", dont_inherit=True)
    old, new = list(_functions(before)), list(_functions(after))
    if [one.co_qualname for one in old] != [one.co_qualname for one in new] or _around(before) != _around(after):
        return False
    codes = {(was.co_qualname, was.co_firstlineno): becomes for was, becomes in zip(old, new, strict=True)}
    for function in [one for one in gc.get_objects() if isinstance(one, types.FunctionType)]:
        code = codes.get((function.__code__.co_qualname, function.__code__.co_firstlineno))
        if code is None or function.__code__.co_filename != str(module):
            continue
        if code.co_freevars != function.__code__.co_freevars:
            return False
        function.__code__ = code
    return True


def _inner(code: Code) -> Iterator[Code]:
    return (one for one in code.co_consts if isinstance(one, Code))


def _functions(code: Code) -> Iterator[Code]:
    """The functions of a module and of its classes; what they hold inside comes with them."""
    for one in _inner(code):
        if one.co_flags & 0x2:  # CO_NEWLOCALS: the body of a class has none
            yield one
        else:
            yield from _functions(one)


def _around(code: Code) -> object:
    """What a module or the body of a class does itself, without its line numbers."""
    held = [one for one in code.co_consts if not isinstance(one, Code)]
    classes = [_around(one) for one in _inner(code) if not one.co_flags & 0x2]
    return (code.co_code, [(type(one), one) for one in held], code.co_names, classes)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Loop(), "mutants-loop")
