"""Fields of a request that are one amount: the runtime is told it, and it is read back from the first process.

`local/plain_fields.py` and `engines/plain_fields.py` list those that they deliver; their declarations, renderings and
observations go through the list, so that a field of this kind needs one entry for each. An amount is only looked at
where it was asked for.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from dibs.errors import Problem
from dibs.request.fields import BY_NAME


def _unchanged(amount: int) -> int:
    return amount


class PlainField(msgspec.Struct, frozen=True):
    """How a backend delivers one of them.

    name      of the field in the table of fields
    how       its cell in the delivery table
    look      the amount that a process has, by its pid. Raises OSError
    planned   what will be seen for an amount that was asked for
    tell      by engine: puts the amount into the body of a creation
    check     why an amount cannot be had here, before anything is created; None: it can
    apply     sets it on the first process, by its pid, while the command is held back. Raises OSError
    """

    name: str
    how: str
    look: Callable[[int], int]
    planned: Callable[[int], int] = _unchanged
    tell: Mapping[str, Callable[[dict[str, Any], int], None]] = {}
    check: Callable[[int], Problem | None] | None = None
    apply: Callable[[int, int], None] | None = None


def shared_memory(pid: int) -> int:
    """The size of its /dev/shm. Raises OSError."""
    room = os.statvfs(f"/proc/{pid}/root/dev/shm")
    return room.f_blocks * room.f_frsize


def asked(fields: Iterable[PlainField], workload: Any) -> list[tuple[PlainField, int]]:
    """Those that a workload asks for, with the amount."""
    amounts = [(field, getattr(workload, BY_NAME[field.name].attribute)) for field in fields]
    return [(field, amount) for field, amount in amounts if amount is not None]


def expected(fields: Iterable[PlainField], workload: Any) -> dict[str, int]:
    """Limits that must be seen."""
    return {BY_NAME[field.name].attribute: field.planned(amount) for field, amount in asked(fields, workload)}


def wrong(fields: Iterable[PlainField], workload: Any) -> list[Problem]:
    """Every reason why an amount cannot be had."""
    found = [field.check(amount) for field, amount in asked(fields, workload) if field.check is not None]
    return [problem for problem in found if problem is not None]


def marks(fields: Iterable[PlainField], workload: Any) -> dict[str, str]:
    """What a handle has to remember, so that an observation knows which to look at."""
    return {field.name: "1" for field, _ in asked(fields, workload)}


def observed(fields: Iterable[PlainField], pid: int, names: Iterable[str]) -> dict[str, int]:
    """Limits that a process has, of those whose names a handle has remembered. Raises OSError."""
    wanted = set(names)
    return {BY_NAME[field.name].attribute: field.look(pid) for field in fields if field.name in wanted}
