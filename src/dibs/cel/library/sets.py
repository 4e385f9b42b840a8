"""The sets library: lists looked at as sets."""

from typing import Any, Final

from dibs.cel.declarations import Function, Library, Overload
from dibs.cel.operators import contains
from dibs.cel.types import BOOL, list_of, parameter

T: Final = parameter("T")


def _contains(items: list[Any], wanted: list[Any]) -> bool:
    return all(contains(items, item) for item in wanted)


def _equivalent(one: list[Any], other: list[Any]) -> bool:
    return _contains(one, other) and _contains(other, one)


def _intersects(one: list[Any], other: list[Any]) -> bool:
    return any(contains(one, item) for item in other)


def sets() -> Library:
    """The library."""
    both = (list_of(T), list_of(T))
    return Library(
        "sets",
        [
            Function("sets.contains", Overload(both, BOOL, _contains, fails=False)),
            Function("sets.equivalent", Overload(both, BOOL, _equivalent, fails=False)),
            Function("sets.intersects", Overload(both, BOOL, _intersects, fails=False)),
        ],
    )
