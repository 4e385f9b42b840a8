"""Each promise that was once broken has a test that holds it since: docs/broken-promises.md names tests that exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from typing import NamedTuple

import pytest

from .pages import ROOT

PAGE = ROOT / "docs" / "broken-promises.md"
FOUND = 110  # promises that were broken so far: no row goes away, a new finding makes it one more


class Row(NamedTuple):
    id: str
    promise: str
    broken: str
    tests: str


def rows() -> list[Row]:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| BP-")]
    return [Row(*(cell.strip() for cell in line.strip("|").split(" | "))) for line in lines]


@cache
def functions_of(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text())
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(node.name for node in functions if node.name.startswith("test_"))


def test_every_promise_has_its_row_once_and_in_order() -> None:
    assert [row.id for row in rows()] == [f"BP-{number:02}" for number in range(1, FOUND + 1)]


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.id)
def test_a_row_is_complete_and_its_tests_exist(row: Row) -> None:
    assert row.promise
    assert row.broken
    named = re.findall(r"`([^`]+)`", row.tests)
    assert named
    for test in named:
        path, mark, name = test.partition("::")
        assert mark, f"{test}: write path::name"
        assert path.startswith(("tests/", "src/dibs/testing/"))
        assert (ROOT / path).is_file(), f"{row.id}: there is no {path}"
        assert name in functions_of(path), f"{row.id}: there is no {name} in {path}"


def test_a_promise_is_listed_once() -> None:
    promises = [row.promise for row in rows()]
    assert len(promises) == len(set(promises))
