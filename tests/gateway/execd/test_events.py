"""Events of a command: lines, the empty line, the tail, and what is no text."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from dibs.gateway.execd import envfile, events
from dibs.gateway.execd.transfer import Replacer, disposition, ranged


def told(data: bytes) -> list[Any]:
    assert data == b"" or data.endswith(b"\n\n")
    return [msgspec.json.decode(frame) for frame in data.split(b"\n\n") if frame]


def texts(*pieces: bytes) -> list[str]:
    lines = events.Lines("stdout")
    data = b"".join(lines.feed(piece) for piece in pieces) + lines.feed(b"", final=True)
    return [one["text"] for one in told(data)]


def test_a_line_is_an_event_without_its_end() -> None:
    assert texts(b"one\ntw", b"o\n") == ["one", "two"]


def test_an_empty_line_is_told_as_its_end() -> None:
    assert texts(b"\n\na\n") == ["\n", "\n", "a"]


def test_a_carriage_return_ends_a_line_and_before_a_line_feed_it_is_a_part_of_that_end() -> None:
    assert texts(b"10%\r50%\r100%\ndone\r\n") == ["10%", "50%", "100%", "done"]
    assert texts(b"one\r", b"\ntwo\r", b"three") == ["one", "two", "three"]
    assert texts(b"a\r\r\nb\r\n\r\n") == ["a", "\n", "b", "\n"]


def test_a_progress_bar_is_reported_while_it_moves() -> None:
    lines = events.Lines("stdout")
    assert [one["text"] for one in told(lines.feed(b"10%\r"))] == ["10%"]


def test_an_unfinished_line_is_told_at_the_end() -> None:
    assert texts(b"a\nrest") == ["a", "rest"]


def test_a_character_may_come_in_pieces_and_a_broken_one_is_replaced() -> None:
    assert texts(b"\xc3", b"\xa9\n\xff\n") == ["é", "\ufffd"]


def test_an_endless_line_needs_no_endless_memory() -> None:
    lines = events.Lines("stdout")
    sizes = [len(one["text"]) for _ in range(5) for one in told(lines.feed(b"x" * events.LONGEST))]
    sizes += [len(one["text"]) for one in told(lines.feed(b"", final=True))]
    assert sum(sizes) == 5 * events.LONGEST
    assert max(sizes) <= events.LONGEST


@given(st.lists(st.binary(max_size=20)))
def test_pieces_do_not_matter(pieces: list[bytes]) -> None:
    assert texts(*pieces) == texts(b"".join(pieces))


def test_a_terminal_event_carries_the_exit_code_where_clients_look_for_it() -> None:
    (one,) = told(events.failed(3))
    assert (one["type"], one["error"]["ename"], one["error"]["evalue"]) == ("error", "CommandExecError", "3")
    (one,) = told(events.complete(1.5))
    assert (one["type"], one["execution_time"]) == ("execution_complete", 1500)


# --- the file of variables


@given(
    st.dictionaries(st.from_regex(r"[A-Za-z_][A-Za-z0-9_]*", fullmatch=True), st.text().filter(lambda s: "\0" not in s))
)
def test_what_a_client_writes_is_read_again(values: dict[str, str]) -> None:
    def entry(name: str, value: str) -> str:
        """As the SDK writes it."""
        if "'" not in value:
            return f"{name}='{value}'\n"
        for char, escape in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t")):
            value = value.replace(char, escape)
        return f'{name}="{value}"\n'

    readable = {name: value for name, value in values.items() if "'" not in value or "$" not in value}
    assert envfile.parse("".join(entry(*one) for one in readable.items())) == readable


def test_a_line_that_cannot_be_understood_is_passed_over() -> None:
    text = 'what is this\nA=1 # one\nexport B = two words\nC=\'open\nD=4\n#E=5\nF="$A ${B}\\$x"\nA=2\n'
    assert envfile.parse(text) == {"A": "2", "B": "two words", "D": "4", "F": "1 two words$x"}


# --- transfers


@given(st.binary(max_size=40), st.binary(min_size=1, max_size=3), st.binary(max_size=3), st.lists(st.integers(0, 40)))
def test_replacing_in_a_stream_is_replacing_in_the_whole(data: bytes, old: bytes, new: bytes, cuts: list[int]) -> None:
    replacer = Replacer(old, new)
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    out = b"".join(part for a, b in pairwise(places) for part in replacer.feed(data[a:b]))
    assert out + b"".join(replacer.feed(b"", final=True)) == data.replace(old, new)
    assert replacer.count == data.count(old)


def test_ranges() -> None:
    assert ranged("bytes=0-4", 10) == (0, 5)
    assert ranged("bytes=5-", 10) == (5, 5)
    assert ranged("bytes=-3", 10) == (7, 3)
    assert ranged("bytes=-30", 10) == (0, 10)
    assert ranged("bytes=8-100", 10) == (8, 2)
    assert ranged("bytes=1-2, 5-6", 10) == (1, 2)
    for wrong in ("bytes=10-", "bytes=5-4", "bytes=-", "bytes=-0", "lines=1-2", "bytes=a-b", "", "bytes=0-"):
        assert ranged(wrong, 0 if wrong == "bytes=0-" else 10) is None, wrong


def test_a_name_cannot_break_out_of_its_header() -> None:
    header = disposition('/a/x"\r\nSet-Cookie: a=b\udcff')
    assert b"\r" not in header
    assert b"\n" not in header
    assert header.count(b'"') == 2
    assert header.endswith(b"filename*=UTF-8''x%22%0D%0ASet-Cookie%3A%20a%3Db%FF")
