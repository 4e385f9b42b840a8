"""The tool that puts faults into the code: what it changes, what it chooses, and that it leaves the work tree alone."""

from __future__ import annotations

import subprocess
import textwrap
from pathlib import Path
from typing import Any

import pytest
from mutants import running
from mutants.__main__ import Work, report
from mutants.operators import mutations
from mutants.running import Bench, Fate, Outcome
from mutants.sampling import Mutant, Target, equivalents, sample, targets

ROOT = Path(__file__).parents[2]


def faults(code: str) -> list[str]:
    source = textwrap.dedent(code).encode()
    found = mutations(source)
    for one in found:
        compile(one.applied(source), "mutant", "exec")
    return [f"{one.before} → {one.after}" for one in found]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("x = a < b", ["a < b → (a <= b)"]),
        ("x = a is None", ["a is None → (a is not None)"]),
        ("x = a and b", ["a and b → (a or b)"]),
        ("x = not a", ["not a → (a)"]),
        ("x = a if b else c", ["a if b else c → (a if not b else c)"]),
        ("x = 3", ["3 → 4"]),
        ("x = True", ["True → False"]),
        ("def f(): return g(1)", ["return g(1) → return None", "1 → 2"]),
        ("def f(): return None", []),
        ("def f(): g()", ["g() → pass"]),
        ("def f():\n    for x in y:\n        continue", ["continue → break"]),
        ("def f(x: 'a < b' = None) -> int: pass", []),
        ("def f():\n    'a text'\n    raise Wrong('a', 1)", ["raise Wrong('a', 1) → pass"]),
        ("class A(B, frozen=True): pass", []),
    ],
)
def test_a_place_has_these_faults(code: str, expected: list[str]) -> None:
    assert faults(code) == expected


def test_the_same_seed_gives_the_same_sample_and_another_one_another() -> None:
    target = Target("src/dibs/plan/devices.py", (), 20)
    first = sample(ROOT, target, 1)
    assert len(first) == 20
    assert sample(ROOT, target, 1) == first
    assert sample(ROOT, target, 2) != first


def test_a_change_elsewhere_does_not_exchange_the_sample(tmp_path: Path) -> None:
    target = Target("module.py", (), 10)
    code = (ROOT / "src/dibs/plan/devices.py").read_text()
    (tmp_path / "module.py").write_text(code)
    before = [one.identity for one in sample(tmp_path, target, 1)]
    (tmp_path / "module.py").write_text('"""Another beginning."""\n\n' + code)
    assert [one.identity for one in sample(tmp_path, target, 1)] == before


def test_every_module_and_every_test_that_is_named_exists() -> None:
    for target in targets():
        assert (ROOT / target.module).is_file()
        for test in target.tests:
            assert (ROOT / test.partition("::")[0]).exists(), test


def test_every_fault_that_is_explained_can_still_be_made() -> None:
    """An explanation of code that is gone explains nothing."""
    made = {
        mutant.identity
        for target in targets()
        for mutant in sample(ROOT, Target(target.module, (), 10_000), 1)
    }  # fmt: skip
    assert set(equivalents()) <= made
    assert all(equivalents().values())


LOOP = """
def countdown(number):
    while number != 0:
        number = number - 1
    return number
"""


def a_fault(root: Path) -> Mutant:
    """One of a module in a repository of its own."""
    (root / "src").mkdir()
    (root / "src/countdown.py").write_text(LOOP)
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    return sample(root, Target("src/countdown.py", ("tests/test_countdown.py",), 1), 1)[0]


class Answers:
    """In place of `Server`: what the tests of a fault come to, one run after the other."""

    given: list[dict[str, Any]]

    def __init__(self, *_: object) -> None:
        self.tests = {"tests/test_countdown.py::test_it_ends": {"seconds": 0.1, "lines": []}}

    def covering(self, *_: object) -> list[str]:
        return list(self.tests)

    def limit(self, _tests: list[str]) -> float:
        return 0.0

    def ask(self, *_: object, **__: object) -> dict[str, Any]:
        return self.given.pop(0)

    def close(self) -> None:
        assert self.given == []


def tried(root: Path, monkeypatch: pytest.MonkeyPatch, *answers: dict[str, Any]) -> Outcome:
    fault = a_fault(root)
    monkeypatch.setattr(running, "Server", type("Told", (Answers,), {"given": list(answers)}))
    bench = Bench(root, root / "bench", [fault.target.module])
    outcome = bench.try_out(fault)
    bench.close()
    assert (root / "bench/tree/src/countdown.py").read_text() == LOOP
    return outcome


HUNG = {"fate": "hung", "in": "tests/test_countdown.py::test_it_ends"}
PASSED = {"fate": "passed"}


def test_a_fault_with_which_a_test_never_ends_is_told_with_that_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = tried(tmp_path, monkeypatch, HUNG, PASSED, HUNG)
    assert (outcome.fate, outcome.by) == ("hung", "tests/test_countdown.py::test_it_ends")


def test_a_test_that_was_slow_once_kills_no_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tried(tmp_path, monkeypatch, HUNG, PASSED, PASSED).fate == "survived"


def test_a_machine_that_is_too_busy_kills_no_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match="too busy to say whether this hangs"):
        tried(tmp_path, monkeypatch, HUNG, HUNG)


@pytest.mark.parametrize(
    ("fates", "known", "status", "said"),
    [
        (
            ["killed", "hung"],
            False,
            0,
            "2 of 2 killed (100.0 % of those that are not equivalent), 1 of them by the",
        ),
        (
            ["killed", "survived"],
            False,
            1,
            "1 of 2 killed (50.0 % of those that are not equivalent), 0 of them by the",
        ),
        (
            ["killed", "survived"],
            True,
            0,
            "1 of 2 killed (100.0 % of those that are not equivalent), 0 of them by the",
        ),
    ],
)
def test_the_report_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], fates: list[Fate], known: bool, status: int, said: str
) -> None:
    fault = a_fault(tmp_path)
    work = Work([], until=0.0)
    for fate in fates:
        work.done(Outcome(fault, fate, 1.0, "tests/test_countdown.py::test_it_ends"), None)
    assert report(work, {fault.identity: "it changes nothing"} if known else {}) == status
    out = capsys.readouterr().out
    assert f"mutants: {said}" in out
    assert ("killed by the time limit: src/countdown.py" in out) == ("hung" in fates)
