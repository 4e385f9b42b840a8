"""What goes over the wire to OpenSandbox's clients, field by field as they spell it.

Their parsers know no null: an optional field that is null breaks them. So every optional field here is left out when it
is unset, and there is no way to say null. Made by `views` and the routes; nothing here decides anything.
"""

from __future__ import annotations

import datetime as dt
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

State = Literal["Pending", "Running", "Paused", "Stopping", "Terminated", "Failed"]
STATES: tuple[State, ...] = ("Pending", "Running", "Paused", "Stopping", "Terminated", "Failed")


class Wire(msgspec.Struct, frozen=True, rename="camel"):
    """The base: lowerCamelCase, what is UNSET is left out by msgspec."""


class Status(Wire, frozen=True):
    state: str
    reason: str | UnsetType = UNSET
    message: str | UnsetType = UNSET
    last_transition_at: str | UnsetType = UNSET


class Image(Wire, frozen=True):
    uri: str


class Platform(Wire, frozen=True):
    os: str
    arch: str


class Sandbox(Wire, frozen=True):
    """One sandbox, in every answer that shows one. `entrypoint` must be there even when it is empty."""

    id: str
    status: Status
    created_at: str
    entrypoint: list[str]
    image: Image | UnsetType = UNSET
    snapshot_id: str | UnsetType = UNSET
    platform: Platform | UnsetType = UNSET
    metadata: dict[str, str] | UnsetType = UNSET
    extensions: dict[str, str] | UnsetType = UNSET
    expires_at: str | UnsetType = UNSET


class Pagination(msgspec.Struct, frozen=True, rename="camel"):
    """All five keys are needed, also when they are 0 or false."""

    page: int
    page_size: int
    total_items: int
    total_pages: int
    has_next_page: bool


class Sandboxes(msgspec.Struct, frozen=True):
    items: list[Sandbox]
    pagination: Pagination


class Renewed(Wire, frozen=True):
    expires_at: str


class Endpoint(Wire, frozen=True):
    """Where a port of a sandbox is reached: no scheme, and the headers to send with every request."""

    endpoint: str
    headers: dict[str, str]


class Diagnostic(msgspec.Struct, frozen=True, rename="camel"):
    sandbox_id: str
    kind: Literal["logs", "events"]
    scope: str
    delivery: Literal["inline"]
    content_type: str
    truncated: bool
    content: str
    content_length: int


class SnapshotStatus(Wire, frozen=True):
    state: str
    reason: str | UnsetType = UNSET
    message: str | UnsetType = UNSET


class Snapshot(Wire, frozen=True):
    id: str
    sandbox_id: str
    status: SnapshotStatus
    created_at: str
    name: str | UnsetType = UNSET


class Snapshots(msgspec.Struct, frozen=True):
    items: list[Snapshot]
    pagination: Pagination


class Problem(msgspec.Struct, frozen=True):
    """Every error: both keys, always."""

    code: str
    message: str


def moment(seconds: float) -> str:
    """Seconds since the epoch as RFC 3339 in UTC, to the millisecond."""
    at = dt.datetime.fromtimestamp(round(seconds, 3), dt.UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def encode(value: Any) -> bytes:
    return msgspec.json.encode(value)


def paged(page: int, page_size: int, total: int) -> Pagination:
    pages = -(-total // page_size)
    return Pagination(page, page_size, total, pages, page < pages)
