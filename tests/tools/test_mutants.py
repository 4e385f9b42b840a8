"""The tool that puts faults into the code: what it changes, what it chooses, and that it leaves the work tree alone."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from mutants.operators import mutations
from mutants.sampling import Target, equivalents, sample, targets

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
