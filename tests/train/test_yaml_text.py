"""The text of a snapshot: every YAML reader gives back what was written, in the same bytes each time."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as some

from dibs.train.yaml_text import dumped

TEXT = some.text(some.characters(exclude_categories=["Cs"]), max_size=20)
SCALARS = some.none() | some.booleans() | some.integers() | some.floats(allow_nan=False, allow_infinity=False) | TEXT
VALUES = some.recursive(
    SCALARS, lambda inner: some.lists(inner, max_size=4) | some.dictionaries(TEXT, inner, max_size=4), max_leaves=20
)


@given(some.dictionaries(TEXT, VALUES, min_size=1, max_size=5))
def test_what_is_written_is_read_back(value: dict[str, Any]) -> None:
    assert yaml.safe_load(dumped(value)) == value


@pytest.mark.parametrize(
    "word",
    ["yes", "No", "1", "1e3", "0x1f", "2026-11-18", "~", "null", "- a", "a: b", "#", "", " ", "=", "1_000", "12:30"],
)
def test_text_that_looks_like_something_else_stays_text(word: str) -> None:
    assert yaml.safe_load(dumped({"key": word, "list": [word, {word: [word]}]})) == {
        "key": word,
        "list": [word, {word: [word]}],
    }


def test_numbers_stay_numbers() -> None:
    value = {"list": [1e16, -2.5e-07, 1e22, 0.1, 3, -4, True, None]}
    assert yaml.safe_load(dumped(value)) == value


def test_the_order_of_keys_changes_nothing() -> None:
    assert dumped({"b": {"d": 1, "c": [{"y": 1, "x": []}]}, "a": {}}) == dumped(
        {"a": {}, "b": {"c": [{"x": [], "y": 1}], "d": 1}}
    )
