"""Timestamps and durations: exact to the nanosecond, within CEL's range.

A ``Timestamp`` is nanoseconds since 1970-01-01 UTC, a ``Duration`` a number of nanoseconds. Time zones come from the
system's database and are read only when an expression names one.
"""

import datetime as dt
import re
from collections.abc import Callable
from typing import Any, Final, final

from dibs.cel.declarations import Function, Library, Overload, method
from dibs.cel.errors import CelRuntimeError
from dibs.cel.types import BOOL, INT, STRING, opaque

SECOND: Final = 1_000_000_000
_UNITS: Final = {"h": 3600 * SECOND, "m": 60 * SECOND, "s": SECOND, "ms": 1_000_000, "us": 1000, "µs": 1000, "ns": 1}
_DURATION: Final = re.compile(r"([0-9]{0,20})(?:\.([0-9]{0,20}))?(ns|us|µs|ms|s|m|h)")
_TIMESTAMP: Final = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})T([0-9]{1,2}):([0-9]{2}):([0-9]{2})(?:[.,]([0-9]+))?"
    r"(?:Z|([+-])([0-9]{2}):([0-9]{2}))\Z"
)
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_FIRST: Final = -62135596800 * SECOND
_LAST: Final = 253402300800 * SECOND - 1
# Nanoseconds in 64 bits, as Go keeps a duration.
_LONGEST: Final = 2**63 - 1
_OFFSET: Final = re.compile(r"([+-]?)([0-9]{2}):([0-9]{2})\Z")


@final
class Duration:
    """A length of time."""

    __slots__ = ("nanos",)
    __cel_type__ = "google.protobuf.Duration"
    __cel_ordered__ = True
    __cel_format__ = True

    def __init__(self, nanos: int) -> None:
        if not -_LONGEST - 1 <= nanos <= _LONGEST:
            raise CelRuntimeError("duration overflow")
        self.nanos = nanos

    @property
    def __cel_zero__(self) -> bool:
        return self.nanos == 0

    def __eq__(self, other: object) -> bool:
        return self.nanos == other.nanos if isinstance(other, Duration) else NotImplemented

    def __lt__(self, other: "Duration") -> bool:
        return self.nanos < other.nanos

    def __gt__(self, other: "Duration") -> bool:
        return self.nanos > other.nanos

    def __hash__(self) -> int:
        return hash((Duration, self.nanos))

    def __str__(self) -> str:
        sign, size = ("-", -self.nanos) if self.nanos < 0 else ("", self.nanos)
        return f"{sign}{size // SECOND}{_fraction(size % SECOND)}s"


@final
class Timestamp:
    """A point in time."""

    __slots__ = ("nanos",)
    __cel_type__ = "google.protobuf.Timestamp"
    __cel_ordered__ = True
    __cel_format__ = True

    def __init__(self, nanos: int) -> None:
        if not _FIRST <= nanos <= _LAST:
            raise CelRuntimeError("timestamp overflow")
        self.nanos = nanos

    def at(self, zone: str | None) -> dt.datetime:
        """The date and time of day in a zone; UTC without one. Fractions of a second are left out."""
        moment = _EPOCH + dt.timedelta(seconds=self.nanos // SECOND)
        if zone is None:
            return moment
        try:
            return moment.astimezone(_zone(zone))
        except OverflowError:
            raise CelRuntimeError("timestamp overflow") from None

    def __eq__(self, other: object) -> bool:
        return self.nanos == other.nanos if isinstance(other, Timestamp) else NotImplemented

    def __lt__(self, other: "Timestamp") -> bool:
        return self.nanos < other.nanos

    def __gt__(self, other: "Timestamp") -> bool:
        return self.nanos > other.nanos

    def __hash__(self) -> int:
        return hash((Timestamp, self.nanos))

    def __str__(self) -> str:
        moment = self.at(None)
        return f"{moment.year:04d}-{moment:%m-%dT%H:%M:%S}{_fraction(self.nanos % SECOND)}Z"


def _fraction(nanos: int) -> str:
    return f".{nanos:09d}".rstrip("0") if nanos else ""


def _zone(name: str) -> dt.tzinfo:
    found = _OFFSET.match(name)
    if found:
        minutes = int(found[2]) * 60 + int(found[3])
        if minutes >= 24 * 60:
            raise CelRuntimeError(f"unknown time zone {name}")
        return dt.timezone(dt.timedelta(minutes=-minutes if found[1] == "-" else minutes))
    import zoneinfo

    try:
        return zoneinfo.ZoneInfo(name)
    except (ValueError, OSError, zoneinfo.ZoneInfoNotFoundError):
        raise CelRuntimeError(f"unknown time zone {name[:60]}") from None


def _parse_duration(text: str) -> Duration:
    body = text[1:] if text[:1] in ("+", "-") else text
    total = place = 0
    if body == "0":
        return Duration(0)
    while place < len(body) or not body:
        found = _DURATION.match(body, place)
        if found is None or not (found[1] or found[2]):
            raise CelRuntimeError(f"type conversion error from 'string' to 'duration': {text[:60]!r}")
        unit = _UNITS[found[3]]
        total += int(found[1] or "0") * unit
        if found[2]:
            total += int(found[2]) * unit // 10 ** len(found[2])
        place = found.end()
    return Duration(-total if text[0] == "-" else total)


def _parse_timestamp(text: str) -> Timestamp:
    found = _TIMESTAMP.match(text)
    if found is None:
        raise CelRuntimeError(f"type conversion error from 'string' to 'timestamp': {text[:60]!r}")
    try:
        moment = dt.datetime(*(int(part) for part in found.groups()[:6]), tzinfo=dt.UTC)  # type: ignore[misc, arg-type]
    except ValueError:
        raise CelRuntimeError(f"type conversion error from 'string' to 'timestamp': {text[:60]!r}") from None
    elapsed = moment - _EPOCH
    nanos = (elapsed.days * 86400 + elapsed.seconds) * SECOND + int((found[7] or "")[:9].ljust(9, "0"))
    if found[8]:
        if int(found[9]) > 24 or int(found[10]) > 60:
            raise CelRuntimeError(f"type conversion error from 'string' to 'timestamp': {text[:60]!r}")
        offset = (int(found[9]) * 60 + int(found[10])) * 60 * SECOND
        nanos += offset if found[8] == "-" else -offset
    return Timestamp(nanos)


def _difference(one: Timestamp, other: Timestamp) -> Duration:
    return Duration(one.nanos - other.nanos)


def _part(name: str, pick: Callable[[dt.datetime], int], *others: Overload) -> Function:
    def get(moment: Timestamp, zone: str | None = None) -> int:
        return pick(moment.at(zone))

    return Function(name, method((TIMESTAMP,), INT, get), method((TIMESTAMP, STRING), INT, get), *others)


def _length(unit: int) -> Overload:
    def get(length: Duration) -> int:
        return length.nanos // unit if length.nanos >= 0 else -(-length.nanos // unit)

    return method((DURATION,), INT, get, fails=False)


def _milliseconds() -> Function:
    def of_moment(moment: Timestamp, zone: str | None = None) -> int:
        if zone is not None:
            _zone(zone)
        return moment.nanos % SECOND // 1_000_000

    def of_length(length: Duration) -> int:
        size = abs(length.nanos) // 1_000_000
        return -size if length.nanos < 0 else size

    return Function(
        "getMilliseconds",
        method((TIMESTAMP,), INT, of_moment),
        method((TIMESTAMP, STRING), INT, of_moment),
        method((DURATION,), INT, of_length, fails=False),
    )


DURATION: Final = opaque("google.protobuf.Duration", Duration)
TIMESTAMP: Final = opaque("google.protobuf.Timestamp", Timestamp)


def _comparison(name: str, operator: str) -> Function:
    tests: dict[str, Callable[[Any, Any], bool]] = {
        "<": lambda a, b: a < b,
        "<=": lambda a, b: not a > b,
        ">": lambda a, b: a > b,
        ">=": lambda a, b: not a < b,
    }
    template = f"a.nanos {operator} b.nanos"
    return Function(
        name,
        *(
            Overload((kind, kind), BOOL, tests[operator], fails=False, template=template)
            for kind in (DURATION, TIMESTAMP)
        ),
    )


def times() -> Library:
    """The library."""
    hour, minute = 3600 * SECOND, 60 * SECOND
    return Library(
        "times",
        [
            Function(
                "duration",
                Overload((STRING,), DURATION, _parse_duration, fold=True),
                Overload((DURATION,), DURATION, lambda a: a, fails=False),
            ),
            Function(
                "timestamp",
                Overload((STRING,), TIMESTAMP, _parse_timestamp, fold=True),
                Overload((INT,), TIMESTAMP, lambda a: Timestamp(a * SECOND)),
                Overload((TIMESTAMP,), TIMESTAMP, lambda a: a, fails=False),
            ),
            Function(
                "int",
                Overload((TIMESTAMP,), INT, lambda a: a.nanos // SECOND, fails=False),
                Overload((DURATION,), INT, lambda a: a.nanos, fails=False),
            ),
            Function(
                "string",
                Overload((TIMESTAMP,), STRING, str, fails=False),
                Overload((DURATION,), STRING, str, fails=False),
            ),
            Function(
                "_+_",
                Overload((TIMESTAMP, DURATION), TIMESTAMP, lambda a, b: Timestamp(a.nanos + b.nanos)),
                Overload((DURATION, TIMESTAMP), TIMESTAMP, lambda a, b: Timestamp(a.nanos + b.nanos)),
                Overload((DURATION, DURATION), DURATION, lambda a, b: Duration(a.nanos + b.nanos)),
            ),
            Function(
                "_-_",
                Overload((TIMESTAMP, TIMESTAMP), DURATION, _difference),
                Overload((TIMESTAMP, DURATION), TIMESTAMP, lambda a, b: Timestamp(a.nanos - b.nanos)),
                Overload((DURATION, DURATION), DURATION, lambda a, b: Duration(a.nanos - b.nanos)),
            ),
            *(_comparison(f"_{operator}_", operator) for operator in ("<", "<=", ">", ">=")),
            _part("getFullYear", lambda a: a.year),
            _part("getMonth", lambda a: a.month - 1),
            _part("getDate", lambda a: a.day),
            _part("getDayOfMonth", lambda a: a.day - 1),
            _part("getDayOfWeek", lambda a: a.isoweekday() % 7),
            _part("getDayOfYear", lambda a: a.timetuple().tm_yday - 1),
            _part("getHours", lambda a: a.hour, _length(hour)),
            _part("getMinutes", lambda a: a.minute, _length(minute)),
            _part("getSeconds", lambda a: a.second, _length(SECOND)),
            _milliseconds(),
        ],
        types=(DURATION, TIMESTAMP),
    )
