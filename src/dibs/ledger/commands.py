"""Commands that run in the background of a sandbox: enough to find them again after the gateway was restarted.

The gateway's execd writes here. The truth about a command is in the sandbox (its pid file and its log, at the paths
that are kept here); the ledger only remembers what was last seen.
"""

from __future__ import annotations

from typing import Any

import msgspec

from dibs.errors import Conflict, NotFound
from dibs.ledger.base import Beside
from dibs.ledger.database import Duplicate

UNKNOWN = "there is no such command"


class CommandRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """One command. Paths are inside the sandbox; `detail` is JSON of the command's runner."""

    id: str
    sandbox_id: str
    command: str
    pid_path: str
    log_path: str
    started_at: float
    finished_at: float | None = None
    exit_code: int | None = None
    error: str | None = None
    detail: bytes = b"{}"

    @property
    def running(self) -> bool:
        return self.finished_at is None


class Commands(Beside):
    def add(self, row: CommandRow) -> None:
        """Remember a command that is about to be started."""
        try:
            self._db.execute(
                "INSERT INTO commands (id, sandbox_id, command, pid_path, log_path, detail, started_at, finished_at,"
                " exit_code, error) VALUES (:id, :sandbox, :command, :pid_path, :log_path, :detail, :started,"
                " :finished, :exit_code, :error)",
                id=row.id, sandbox=row.sandbox_id, command=row.command, pid_path=row.pid_path, log_path=row.log_path,
                detail=row.detail.decode(), started=row.started_at, finished=row.finished_at,
                exit_code=row.exit_code, error=row.error,
            )  # fmt: skip
        except Duplicate as error:
            raise Conflict("a command has that id", field="command", value=row.id) from error

    def find(self, command_id: str, *, sandbox_id: str | None = None) -> CommandRow:
        """By id; with `sandbox_id` only in that sandbox, so that an id of another opens nothing."""
        rows = self._db.rows("SELECT * FROM commands WHERE id = :id", id=command_id)
        if not rows or (sandbox_id is not None and rows[0]["sandbox_id"] != sandbox_id):
            raise NotFound(UNKNOWN, field="command", value=command_id, code="COMMAND_UNKNOWN")
        return _command(rows[0])

    def update(self, command_id: str, *, finished_at: float, exit_code: int | None, error: str | None = None) -> bool:
        """How a command ended. Only the first to say so is heard: False for the others."""
        changed = self._db.execute(
            "UPDATE commands SET finished_at = :finished, exit_code = :exit_code, error = :error"
            " WHERE id = :id AND finished_at IS NULL",
            id=command_id, finished=finished_at, exit_code=exit_code, error=error,
        )  # fmt: skip
        return changed == 1

    def set_detail(self, command_id: str, detail: bytes) -> None:
        self._db.execute("UPDATE commands SET detail = :detail WHERE id = :id", id=command_id, detail=detail.decode())

    def of_sandbox(self, sandbox_id: str) -> list[CommandRow]:
        """Those of one sandbox, oldest first."""
        rows = self._db.rows(
            "SELECT * FROM commands WHERE sandbox_id = :sandbox ORDER BY started_at, id", sandbox=sandbox_id
        )
        return [_command(row) for row in rows]


def _command(row: Any) -> CommandRow:
    return CommandRow(
        row["id"], row["sandbox_id"], row["command"], row["pid_path"], row["log_path"], row["started_at"],
        row["finished_at"], row["exit_code"], row["error"], row["detail"].encode(),
    )  # fmt: skip
