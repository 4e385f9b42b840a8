"""The book of commands: what was started, and what became of it.

Background commands are written into the ledger, so that they are known after a restart of the gateway and on every
other gateway of the same ledger; commands in the foreground live and die with their connection and are remembered
here for a while.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

import msgspec

from dibs.errors import NotFound

if TYPE_CHECKING:
    from dibs.gateway.threads import Pool
    from dibs.workloads.service import Workloads

KEPT = 4096  # commands that are remembered after their end; arbitrary


class Record(msgspec.Struct):
    """A command. `folder` is where its files are inside the sandbox, for one in the background."""

    id: str
    sandbox_id: str
    content: str
    started_at: float
    folder: str = ""
    user: str = ""
    finished_at: float | None = None
    exit_code: int | None = None
    error: str = ""

    @property
    def background(self) -> bool:
        return bool(self.folder)


def unknown(command_id: str) -> NotFound:
    return NotFound("there is no such command", field="command", value=command_id, code="CONTEXT_NOT_FOUND")


class CommandBook:
    """One per gateway."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._known: OrderedDict[str, Record] = OrderedDict()

    def remember(self, record: Record) -> None:
        """Of a command in the foreground, or one that was just looked up."""
        self._known[record.id] = record
        self._known.move_to_end(record.id)
        while len(self._known) > KEPT:
            self._known.popitem(last=False)

    async def add(self, record: Record) -> None:
        """A background command, before its id is given out."""
        await self._pool.call(_add, record)
        self.remember(record)

    async def finish(self, record: Record) -> None:
        """It has ended; said once."""
        self.remember(record)
        if record.background:
            await self._pool.call(_finish, record)

    async def find(self, sandbox_id: str, command_id: str) -> Record:
        """A command of this sandbox. One of another sandbox is unknown."""
        record = self._known.get(command_id)
        if record is None:
            record = await self._pool.call(_find, sandbox_id, command_id)
            if record is not None:
                self.remember(record)
        if record is None or record.sandbox_id != sandbox_id:
            raise unknown(command_id)
        return record


def _add(workloads: Workloads, record: Record) -> None:
    from dibs.ledger.commands import CommandRow, Commands

    folder = record.folder
    detail = msgspec.json.encode({"user": record.user, "folder": folder})
    row = CommandRow(
        record.id, record.sandbox_id, record.content, f"{folder}/pid", f"{folder}/log", record.started_at, detail=detail
    )
    with workloads.ledger.writing():
        Commands(workloads.ledger).add(row)


def _finish(workloads: Workloads, record: Record) -> None:
    from dibs.ledger.commands import Commands

    assert record.finished_at is not None
    with workloads.ledger.writing():
        Commands(workloads.ledger).update(
            record.id, finished_at=record.finished_at, exit_code=record.exit_code, error=record.error or None
        )


def _find(workloads: Workloads, sandbox_id: str, command_id: str) -> Record | None:
    from dibs.ledger.commands import Commands

    try:
        row = Commands(workloads.ledger).find(command_id, sandbox_id=sandbox_id)
    except NotFound:
        return None
    detail = msgspec.json.decode(row.detail, type=dict[str, str])
    return Record(
        row.id, row.sandbox_id, row.command, row.started_at, detail["folder"], detail["user"], row.finished_at,
        row.exit_code, row.error or "",
    )  # fmt: skip
