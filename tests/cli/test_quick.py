"""The reader of plain command lines: it reads what click reads, or leaves it to click."""

from __future__ import annotations

import importlib
import subprocess
import sys
from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dibs.cli import quick
from dibs.cli.clicked import command
from dibs.cli.verb import Verb
from dibs.cli.verbs import COMMANDS
from dibs.home import Home

from .conftest import Dibs


def declared(name: str) -> Verb:
    found = getattr(importlib.import_module(COMMANDS[name][0]), name)
    assert isinstance(found, Verb)
    return found


def as_click_reads(name: str, words: list[str]) -> dict[str, Any] | None:
    """None: a mistake, a question for help, or a member of the verb."""
    try:
        context = command(name, declared(name)).make_context(name, list(words), help_option_names=["-h", "--help"])
    except (click.ClickException, click.exceptions.Exit):
        return None
    return None if context.args or context._protected_args else context.params


VALUES = ["1", "", "-", "-1", "H100:2", "a=b", "--", "json", "table", "python", "-x", "é"]


def command_lines(name: str) -> st.SearchStrategy[list[str]]:
    names = sorted({spelled for option in declared(name).options for spelled in (*option.names, option.off) if spelled})
    short = [spelled + "1" for spelled in names if not spelled.startswith("--")]
    joined = st.tuples(st.sampled_from(names), st.sampled_from(VALUES)).map("=".join)
    word = st.one_of(
        st.sampled_from(names), st.sampled_from(VALUES), joined, st.sampled_from([*short, "--help", "--no"])
    )
    return st.lists(word, max_size=6)


@pytest.mark.parametrize("name", sorted(quick.VERBS))
@given(data=st.data())
def test_what_is_read_without_click_is_what_click_reads(name: str, data: st.DataObject) -> None:
    words = data.draw(command_lines(name))
    read = declared(name).read(words)
    if read is not None:
        assert read == as_click_reads(name, words)


@pytest.mark.parametrize(
    "words",
    [
        ["run", "--gpu", "1", "--", "true"], ["run", "--gpu", "H100:2", "--wait", "1h", "-q", "./train.sh", "-x"],
        ["run", "--gpus=all", "-e", "A=1", "-d", "python"], ["gpus"], ["gpus", "-o", "wide"],
        ["explain", "--gpu"], ["explain", "--gpu", "2", "-o", "json"],
    ],
)  # fmt: skip
def test_plain_command_lines_do_not_need_click(words: list[str]) -> None:
    read = declared(words[0]).read(words[1:])
    assert read is not None
    assert read == as_click_reads(words[0], words[1:])


UNUSED = ("click", "litestar", "typing_extensions", "platform", "urllib.parse", "textwrap", "msgspec.inspect")


@pytest.mark.parametrize("words", [["gpus"], ["explain", "--gpu", "1"]])
def test_what_a_plain_command_never_uses_is_not_loaded(eight_gpus: Home, words: list[str]) -> None:
    program = (
        "import os, sys\n"
        f"os._exit = lambda code: (print('loaded:', *(sys.modules.keys() & set({UNUSED!r}))),"
        " sys.stdout.flush(), sys.exit(code))\n"
        f"sys.argv = ['dibs', *{words!r}]\n"
        "from dibs.__main__ import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "loaded:"


def test_options_that_do_not_go_together_are_reported_with_the_usage(dibs: Dibs) -> None:
    result = dibs("gpus", "--cluster", "--watch")
    assert result.returncode == 2
    assert result.stderr.startswith("Usage: dibs gpus")
    assert "--cluster does not go together with --where or --watch" in result.stderr


def test_an_option_that_a_member_would_not_hear_is_refused(dibs: Dibs) -> None:
    result = dibs("gpus", "-o", "json", "simulate", "2")
    assert result.returncode == 2
    assert "--output does not go together with simulate" in result.stderr
