"""A variable or label that is given twice, with different values, is refused: one of the two would be lost."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from dibs.cli.main import dibs
from dibs.errors import DibsError, InvalidRequest
from dibs.request import parse_spec


def run(*words: str) -> BaseException | None:
    return CliRunner().invoke(dibs, [*words], standalone_mode=False).exception


@pytest.mark.parametrize(
    ("words", "field"),
    [
        (("run", "-e", "A=1", "-e", "A=2", "--", "true"), "env.A"),
        (("exec", "-e", "A=1", "-e", "A=2", "lab", "true"), "env.A"),
        (("run", "--label", "a=1", "--label", "a=2", "--", "true"), "label.a"),
    ],
)
def test_two_values_on_the_command_line_are_refused(words: tuple[str, ...], field: str) -> None:
    error = run(*words)
    assert isinstance(error, DibsError), error
    assert [problem.field for problem in error.problems] == [field]
    assert "given twice" in error.problems[0].reason


def test_two_values_in_a_list_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="given twice"):
        parse_spec({"env": ["A=1", "A=2"], "command": ["true"]})


def test_the_same_value_twice_loses_nothing() -> None:
    assert parse_spec({"env": ["A=1", "A=1"], "command": ["true"]}).env == {"A": "1"}
