"""Lines of a log: cut at their ends, counted from the end, stamped."""

from __future__ import annotations

from collections.abc import Iterator

from dibs.backends.port import LogRecord
from dibs.workloads.log_lines import LONGEST, lines, since, stamped, tail

OUT, ERR = "stdout", "stderr"


def record(at: float, data: bytes, stream: str = OUT) -> LogRecord:
    return LogRecord(at, "stdout" if stream == OUT else "stderr", data)


def test_pieces_become_lines_with_the_time_at_which_each_began() -> None:
    found = list(lines([record(1, b"a"), record(2, b"b\nc\nd"), record(3, b"e")]))
    assert [(one.at, one.data) for one in found] == [(1, b"ab\n"), (2, b"c\n"), (2, b"de")]


def test_the_streams_do_not_mix() -> None:
    found = list(lines([record(1, b"ou"), record(2, b"err\n", ERR), record(3, b"t\n")]))
    assert [(one.stream, one.data) for one in found] == [(ERR, b"err\n"), (OUT, b"out\n")]


def test_the_last_lines_of_the_past_and_everything_after() -> None:
    past = [record(n, f"{n}\n".encode()) for n in range(5)]
    assert [one.data for one in tail(past, 2, now=10)] == [b"3\n", b"4\n"]
    assert [one.data for one in tail([*past, record(20, b"new\n")], 1, now=10)] == [b"4\n", b"new\n"]
    assert [one.data for one in tail([*past, record(0, b""), record(20, b"x")], 0, now=10)] == [b"", b"x"]


def test_only_what_was_written_since_then() -> None:
    assert [one.data for one in since([record(1, b"a"), record(2, b""), record(3, b"c")], 2)] == [b"", b"c"]


def test_a_stamp_stands_before_each_line() -> None:
    assert [one.data for one in stamped([record(0.25, b"a\n")])] == [b"1970-01-01T00:00:00.250Z a\n"]


def test_a_line_without_end_is_not_gathered() -> None:
    """It would cost its reader, which may be a gateway, the memory of all of it, and its square in time."""
    piece = b"x" * (64 << 10)
    endless = [record(n, piece) for n in range(100)]
    most, got = 0, 0
    for one in lines(endless_of(endless, read := [0])):
        most = max(most, read[0] - got)
        got += len(one.data)
    assert got == len(endless) * len(piece)
    assert most <= LONGEST + len(piece)


def endless_of(records: list[LogRecord], read: list[int]) -> Iterator[LogRecord]:
    for one in records:
        read[0] += len(one.data)
        yield one


def test_a_line_in_pieces_has_one_stamp() -> None:
    pieces = [record(0, b"a"), record(1, b"b", ERR), record(2, b"c\n"), record(3, b"d\n")]
    assert b"".join(one.data for one in stamped(pieces) if one.stream == OUT) == (
        b"1970-01-01T00:00:00.000Z ac\n1970-01-01T00:00:03.000Z d\n"
    )
