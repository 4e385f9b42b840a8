"""A sandbox, and what can be asked of it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

SandboxState = Literal["queued", "creating", "running", "paused", "stopping", "exited", "failed"]
LIVE: tuple[str, ...] = ("queued", "creating", "running", "paused", "stopping")
ENDED: tuple[str, ...] = ("exited", "failed")

# `$` alone would let one line break at the end pass.
LabelName = Annotated[str, Meta(min_length=1, max_length=63, pattern=r"^[A-Za-z0-9._/-]+$(?!\n)")]
LabelValue = Annotated[str, Meta(max_length=1024, pattern=r"^[ -~]*$(?!\n)")]
Word = Annotated[str, Meta(max_length=131072, pattern=r"^[^\x00]*$")]
EnvName = Annotated[str, Meta(max_length=1024, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$(?!\n)")]
Path = Annotated[str, Meta(max_length=4096, pattern=r"^/[^\x00]*$")]
# At most 366 days: up to three parts of which none can be more than a third of that, or whole days.
_DAYS = r"([12][0-9]{2}|3[0-5][0-9]|36[0-6])d"
Duration = Annotated[
    str,
    Meta(
        max_length=32, pattern=rf"^(([0-9]{{1,7}}m?s|[0-9]{{1,5}}m|[0-9]{{1,3}}h|[0-9]{{1,2}}d){{1,3}}|{_DAYS})$(?!\n)"
    ),
]
TimeToLive = Annotated[  # not less than a second
    str,
    Meta(
        max_length=32,
        pattern=rf"^(([1-9][0-9]{{0,6}}s|[1-9][0-9]{{0,4}}m|[1-9][0-9]{{0,2}}h|[1-9][0-9]?d){{1,3}}|{_DAYS})$(?!\n)",
    ),
]
User = Annotated[str, Meta(max_length=64, pattern=r"^[0-9]{1,9}(:[0-9]{1,9})?$(?!\n)")]


class Exit(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a command ended. `code` is what a shell would show."""

    code: int
    reason: str = "exited"
    signal: int | None = None
    detail: str = ""
    at: float = 0.0


class Waiting(msgspec.Struct, frozen=True):
    """Where a queued sandbox stands, and what it waits for."""

    place: int
    length: int
    waits_for: str


class Sandbox(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A sandbox, alive or ended. `spec` is what was asked, with the values of its variables hidden."""

    id: str
    name: str
    state: SandboxState
    backend: str
    user: str
    uid: int
    request: dict[str, Any]
    spec: dict[str, Any]
    command: tuple[str, ...]
    labels: dict[str, str]
    devices: tuple[str, ...]
    created_at: float
    simulated: bool
    tenant: str = ""
    started_at: float | None = None
    ended_at: float | None = None
    expires_at: float | None = None
    exit: Exit | None = None
    reason: str | None = None
    waiting: Waiting | None = None


class SandboxPage(msgspec.Struct, frozen=True):
    """A part of the sandboxes, newest first; `total` is how many there are in all."""

    sandboxes: tuple[Sandbox, ...]
    page: int
    page_size: int
    total: int


class SandboxPatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What may change. A label that is null goes; `ttl` counts from now, null: it does not end by itself."""

    labels: dict[LabelName, LabelValue | None] | UnsetType = UNSET
    ttl: TimeToLive | UnsetType | None = UNSET


class ExecRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One more command. Without `timeout` it may take as long as it likes."""

    command: Annotated[tuple[Word, ...], Meta(min_length=1, max_length=4096)]
    env: dict[EnvName, Word] = {}
    workdir: Path | UnsetType = UNSET
    user: User | UnsetType = UNSET
    timeout: Duration | UnsetType = UNSET
    stdin: Annotated[str, Meta(max_length=1 << 20)] = ""
    tty: bool = False


class ExecResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """`stdout` and `stderr` as text; what is not UTF-8 is replaced. `truncated`: there was more than is shown."""

    exit_code: int
    stdout: str
    stderr: str
    reason: str = "exited"
    truncated: bool = False


class LogLine(msgspec.Struct, frozen=True):
    """A piece of output, as it came. `data` is base64."""

    at: float
    stream: Literal["stdout", "stderr"]
    data: bytes


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something that happened. `seq` grows; ask for what came after it."""

    seq: int
    at: float
    kind: str
    sandbox_id: str | None = None
    lease_id: str | None = None
    detail: str = ""


class Events(msgspec.Struct, frozen=True):
    events: tuple[Event, ...]
