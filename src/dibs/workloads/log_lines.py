"""Logs for a person: whole lines, the last few of them, from a time on, each with its time.

`dibs logs` and the Kubeflow surface of the gateway use it. Without any of these options the records go out as they
are, byte for byte.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator

from dibs.backends.port import LogRecord

LONGEST = 1 << 20  # bytes of a line that are gathered; a longer one goes out in pieces


def lines(records: Iterable[LogRecord]) -> Iterator[LogRecord]:
    """Records cut into lines, with the time at which each began. An empty record (nothing was written) passes through.

    The rest of a line that is never ended comes last. A workload may write without ever ending a line: what is longer
    than `LONGEST` is not gathered, each piece has its own time.
    """
    begun: dict[str, tuple[float, bytearray]] = {}
    for record in records:
        if not record.data:
            yield record
            continue
        at, rest = begun.pop(record.stream, (record.at, bytearray()))
        *whole, last = record.data.split(b"\n")
        for line in whole:
            yield LogRecord(at, record.stream, bytes(rest) + line + b"\n")
            at, rest = record.at, bytearray()
        rest += last
        if len(rest) > LONGEST:
            yield LogRecord(at, record.stream, bytes(rest))
        elif rest:
            begun[record.stream] = (at, rest)
    for stream, (at, rest) in sorted(begun.items(), key=lambda item: item[1][0]):
        yield LogRecord(at, "stdout" if stream == "stdout" else "stderr", bytes(rest))


def since(records: Iterable[LogRecord], start: float) -> Iterator[LogRecord]:
    """Only what was written at `start` or later."""
    return (record for record in records if not record.data or record.at >= start)


def tail(records: Iterable[LogRecord], count: int, now: float) -> Iterator[LogRecord]:
    """The last `count` lines of what was written before `now`, and everything after that."""
    kept: deque[LogRecord] = deque(maxlen=count)
    flowing = False
    for record in records:
        if not flowing and record.data and record.at <= now:
            kept.append(record)
            continue
        if not flowing:
            flowing = True
            yield from kept
        yield record
    if not flowing:
        yield from kept


def stamped(records: Iterable[LogRecord]) -> Iterator[LogRecord]:
    """Each line behind its time, in UTC, to the millisecond. A line in pieces has one."""
    inside: set[str] = set()  # streams whose last record did not end its line
    for record in records:
        if not record.data:
            yield record
            continue
        if record.stream in inside:
            yield record
        else:
            whole = int(record.at)
            stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole)) + f".{int((record.at - whole) * 1000):03d}Z "
            yield LogRecord(record.at, record.stream, stamp.encode() + record.data)
        (inside.discard if record.data.endswith(b"\n") else inside.add)(record.stream)
