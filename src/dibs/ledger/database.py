"""What the ledger needs of a database. `sqlite` and `postgres` provide it; no code above knows which one it is.

Statements use named parameters (`:name`) and the common subset of SQL. Both ways raise the same errors: `Duplicate`
for a key that is there already, else a DibsError that says what the user can do.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dibs.errors import StateError

SCHEMA = 7  # raise it with each migration; the newest file in migrations/versions has this number
PATIENCE = 60.0  # seconds to wait for another writer; 200 processes at once stay far below it

if TYPE_CHECKING:  # a type of the checker alone: to make it costs as much as to load half of the ledger
    from collections.abc import Mapping
    from contextlib import AbstractContextManager
    from typing import Any, Protocol

    class Database(Protocol):
        """One connection. Not for sharing between threads."""

        @property
        def in_transaction(self) -> bool: ...

        def write(self) -> AbstractContextManager[None]:
            """A write transaction: all of it or nothing, with no other writer meanwhile."""

        def execute(self, statement: str, **values: Any) -> int:
            """Run one statement; how many rows it changed."""

        def rows(self, statement: str, **values: Any) -> list[Mapping[str, Any]]: ...

        def require_room(self) -> None:
            """Raises StateError (DISK_FULL) where nothing new may be entered."""

        def changes_by_others(self) -> int:
            """A number that differs when another process has committed something that waiters care for."""

        def close(self) -> None: ...


class Duplicate(Exception):
    """A row with that key is there already. A fact for the caller, like a look that finds something."""


def schema_statements() -> list[str]:
    """What makes a new ledger."""
    return split_statements(Path(__file__).with_name("schema.sql").read_text())


def split_statements(script: str) -> list[str]:
    """The statements of a script without comments. Ours have no semicolons inside."""
    lines = (line for line in script.splitlines() if not line.lstrip().startswith("--"))
    return [statement.strip() for statement in "\n".join(lines).split(";") if statement.strip()]


def too_new(version: int, where: str, remedy: str) -> StateError:
    return StateError(
        f"the ledger was made by a newer dibs (schema {version}, this one knows {SCHEMA})",
        field="ledger",
        value=where,
        code="LEDGER_TOO_NEW",
        remedy=f"upgrade dibs, or {remedy}",
    )
