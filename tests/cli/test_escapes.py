"""Untrusted text cannot send escape sequences to the terminal."""

from __future__ import annotations

import io
import json
import sqlite3
from typing import Any

import pytest
import yaml
from tests.cli.conftest import Dibs

from dibs.cli import output
from dibs.errors import BackendUnavailable, Problem
from dibs.home import Home

HOSTILE = {
    "CSI": "\x1b[2J\x1b[1;1H",
    "OSC title": "\x1b]0;pwned\x07",
    "OSC clipboard": "\x1b]52;c;cHduZWQ=\x1b\\",
    "DCS": "\x1bP$qm\x1b\\",
    "APC": "\x1b_payload\x1b\\",
    "C1 CSI": "\x9b31m",
    "C1 OSC": "\x9d0;pwned\x9c",
    "bidi": "\u202egnp.exe\u2066",
    "carriage return": "good\rbad",
    "backspace": "good\b\b\b\bbad",
    "delete": "\x7f",
    "zero width": "a\u200bb\ufeff",
    "surrogate": "\udcff",
}
FORBIDDEN = [chr(number) for number in (*range(0x20), *range(0x7F, 0xA0)) if number != 10]
FORBIDDEN += list("\u200b\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufeff")


def harmless(text: str) -> bool:
    return not any(char in text for char in FORBIDDEN)


@pytest.fixture(params=list(HOSTILE.values()), ids=list(HOSTILE))
def text(request: pytest.FixtureRequest) -> str:
    return f"before {request.param} after"


def test_tables_and_messages_show_escapes_instead_of_obeying_them(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    output.show(output.table(["NAME", "END"], [["lab", text], [("x" + text, "red"), "y"]]))
    output.show([f"{text}\n"])
    output.say(text)
    output.fail(BackendUnavailable([Problem("ENGINE_FAILED", f"field{text}", text, text, f"remedy {text}")]))
    found = capsys.readouterr()
    assert harmless(found.out), found.out
    assert harmless(found.err), found.err
    assert found.out.count("before") == 3
    assert "after" in found.err


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_data_means_the_same_and_is_harmless(text: str, form: str) -> None:
    if "\udcff" in text:
        pytest.skip("no text of a data format")
    shown = output.as_text({"reason": text}, form)
    assert harmless(shown), shown
    read: Any = json.loads(shown) if form == "json" else yaml.safe_load(shown)
    assert read == {"reason": text}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_our_own_colours_stay_on_a_terminal(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    shown = output.clean(output.paint(text, "red", terminal) + text, terminal)
    assert shown.startswith("\033[31mbefore")
    assert harmless(shown.replace("\033[31m", "").replace("\033[0m", "")), shown


def test_a_forged_end_of_a_sandbox_is_harmless(home: Home, dibs: Dibs, text: str, way: str) -> None:
    if way != "in process" or "\udcff" in text:
        pytest.skip("the words are put into the ledger by hand, once")
    assert dibs("run", "--name", "lab", "--", "true").returncode == 0
    with sqlite3.connect(home.ledger) as ledger:
        ledger.execute("UPDATE sandboxes SET reason = ?", (text,))
    for words in (("ls", "--all"), ("show", "lab"), ("ls", "--all", "-o", "json"), ("show", "lab", "-o", "yaml")):
        found = dibs("sandbox", *words)
        assert found.returncode == 0, found.stderr
        assert harmless(found.stdout), found.stdout
        assert "before" in found.stdout
