"""Lists: what a client may say in the query of one, and the part of the ledger that it then gets.

Ended sandboxes are history: they are listed when they are asked for by state. What was deleted is not listed at all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import unquote

import msgspec

from dibs.errors import InvalidRequest, Problem, quoted
from dibs.gateway.opensandbox import states, types, views
from dibs.ledger.rows import LeasedDevice
from dibs.sandbox import Sandbox
from dibs.workloads.service import Workloads

LARGEST_PAGE = 200
_DEFAULT_PAGE = 20
_LAST_PAGE = 1_000_000
_MOST_FILTERS = 50
_LIVE = ("queued", "creating", "running", "paused", "stopping")
_STEP = 500  # ended sandboxes that are read at a time


class Query(msgspec.Struct, frozen=True):
    states: tuple[str, ...] | None  # ours; None: not asked
    metadata: dict[str, str]
    page: int
    page_size: int

    @property
    def offset(self) -> int:
        return (self.page - 1) * self.page_size


def read_query(pairs: list[tuple[str, str]], *, known: tuple[str, ...] = ("state", "metadata")) -> Query:
    """From the decoded pairs of a query string, or InvalidRequest with every problem."""
    problems: list[Problem] = []
    values: dict[str, list[str]] = {}
    for name, value in pairs:
        values.setdefault(name, []).append(value)
    names = (*known, "page", "pageSize")
    for name, given in values.items():
        if name not in names:
            problems.append(
                Problem(
                    "UNKNOWN_PARAMETER", quoted(name)[1:-1], quoted(given[0])[1:-1], "there is no such parameter",
                    f"the known ones are {', '.join(names)}",
                )
            )  # fmt: skip
        elif name != "state" and len(given) > 1:
            problems.append(Problem("PARAMETER_INVALID", name, ", ".join(given), "it is given twice"))
    asked = states.ours(values["state"]) if values.get("state") else None
    metadata = _metadata(values.get("metadata", [""])[0], problems)
    page = _number(values, "page", 1, _LAST_PAGE, problems)
    size = _number(values, "pageSize", _DEFAULT_PAGE, LARGEST_PAGE, problems)
    if problems:
        raise InvalidRequest(problems)
    return Query(asked, metadata, page, size)


def _number(values: Mapping[str, list[str]], name: str, default: int, most: int, problems: list[Problem]) -> int:
    if name not in values:
        return default
    text = values[name][0]
    if not re.fullmatch(r"[0-9]{1,7}", text, re.ASCII) or not 1 <= int(text) <= most:
        reason = f"must be a whole number from 1 to {most}"
        problems.append(Problem("PARAMETER_INVALID", name, quoted(text)[1:-1], reason))
        return default
    return int(text)


def _metadata(text: str, problems: list[Problem]) -> dict[str, str]:
    """`k=v&k2=v2`, each side percent-encoded once more than the query around it.

    The npm SDK leaves that out. So a plus is a plus, and a percent sign that begins no code stands for itself.
    """
    found: dict[str, str] = {}
    parts = text.split("&", _MOST_FILTERS) if text else []
    for part in parts:
        left, equals, right = part.partition("=")
        key, value = unquote(left), unquote(right)
        if not equals or not key or len(parts) > _MOST_FILTERS:
            remedy = "write it as key=value&key2=value2, each side percent-encoded"
            reason = f"this is not a list of up to {_MOST_FILTERS} pairs"
            problems.append(Problem("PARAMETER_INVALID", "metadata", quoted(text)[1:-1], reason, remedy))
            return {}
        if found.get(key, value) != value:
            reason = f"{quoted(key)} cannot have two values at once"
            problems.append(Problem("PARAMETER_INVALID", "metadata", quoted(text)[1:-1], reason))
        found[key] = value
    return found


def sandboxes(workloads: Workloads, query: Query) -> types.Sandboxes:
    wanted = _LIVE if query.states is None else query.states
    ended = [state for state in wanted if state not in _LIVE]
    if not wanted:
        rows, total = [], 0
    elif ended:
        found = _not_deleted(workloads, wanted, query.metadata)
        rows, total = found[query.offset : query.offset + query.page_size], len(found)
    else:
        rows, total = workloads.page(states=wanted, labels=query.metadata, offset=query.offset, limit=query.page_size)
    booked: dict[str, list[LeasedDevice]] = {}
    if any(row.live and not row.proved for row in rows):
        for lease in workloads.leases():
            booked.setdefault(lease.sandbox_id, []).extend(lease.devices)
    places = _places(workloads) if any(row.state == "queued" for row in rows) else {}
    items = [views.sandbox(row, booked.get(row.id, ()), places.get(row.id, "")) for row in rows]
    return types.Sandboxes(items, types.paged(query.page, query.page_size, total))


def _not_deleted(workloads: Workloads, wanted: tuple[str, ...], labels: dict[str, str]) -> list[Sandbox]:
    found: list[Sandbox] = []
    offset = 0
    while True:
        rows, _ = workloads.page(states=wanted, labels=labels, offset=offset, limit=_STEP)
        found += [row for row in rows if views.DELETED not in row.annotations]
        if len(rows) < _STEP:
            return found
        offset += _STEP


def _places(workloads: Workloads) -> dict[str, str]:
    """Where the waiting ones stand; why they wait is told by a look at one of them."""
    queue = workloads.queue()
    return {
        ticket.sandbox_id: f"number {place} of {len(queue)} in the queue"
        for place, ticket in enumerate(queue, 1)
        if ticket.sandbox_id is not None
    }
