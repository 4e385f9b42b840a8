"""Fixtures of the CDI tests, and the count of the conformance cases at the end of a run."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from dibs.cdi import Cache

_CONFORMANCE = "cdi/test_conformance.py::test_case_of_the_reference"
_outcomes: Counter[str] = Counter()

Tree = Mapping[str, Mapping[str, str] | None]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if _CONFORMANCE in report.nodeid and (report.when == "call" or report.skipped or report.failed):
        _outcomes[report.outcome] += 1
        _outcomes["rebuilt"] += report.passed and ("input", "rebuilt") in report.user_properties


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not os.environ.get("DIBS_CONFORMANCE_DATA"):
        terminalreporter.write_line("CDI conformance: not run, DIBS_CONFORMANCE_DATA is not set")
    elif _outcomes:
        total = sum(_outcomes[outcome] for outcome in ("passed", "failed", "skipped"))
        terminalreporter.write_line(
            f"CDI conformance: {_outcomes['passed']} of {total} cases pass "
            f"({_outcomes['rebuilt']} of them with an input taken back from the expectation), "
            f"{_outcomes['failed']} fail, {_outcomes['skipped']} excluded (reasons above)"
        )


@pytest.fixture
def spec_dirs(tmp_path: Path) -> Callable[[Tree], Cache]:
    """Writes `{"etc": {file: text}, "run": {...}}` and gives a cache over etc and run, in this order."""

    def make(tree: Tree) -> Cache:
        for directory in ("etc", "run"):
            (tmp_path / directory).mkdir(exist_ok=True)
            for name, text in (tree.get(directory) or {}).items():
                (tmp_path / directory / name).write_text(text)
        return Cache([tmp_path / "etc", tmp_path / "run"])

    return make


@pytest.fixture
def empty_host(tmp_path: Path) -> str:
    """A host root without any device."""
    root = tmp_path / "host"
    root.mkdir()
    return str(root)
