"""SQLite under the ledger: the way of every host that has a ledger of its own.

Opened by `ledger.store` alone. It goes through the standard library: loading SQLAlchemy takes longer than everything
else that `dibs run` does, so it and Alembic are loaded only when a ledger of an older dibs must be upgraded.

WAL lets many processes read while one writes; every write transaction is `BEGIN IMMEDIATE`, so that a process
that plans on what it has read is the only writer. No fsync per commit: after a power cut all workloads are gone anyway.
"""

from __future__ import annotations

import _thread
import errno
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from dibs.errors import Busy, StateError, not_utf8
from dibs.home import Home, check_private, make_private
from dibs.ledger import ballast
from dibs.ledger.database import PATIENCE, SCHEMA, Duplicate, schema_statements, too_new
from dibs.ledger.turns import Turns

# KiB of pages that a connection keeps; SQLite's own default is 2 MiB. A gateway has a connection per thread, up to 150,
# and each would come to keep that much as the ledger grows. The kernel has the pages in its cache anyway.
_CACHE = 256
_TURNS: dict[str, _thread.LockType] = {}  # by file; one process has few of them


class SqliteDatabase:
    """One connection. Not for sharing between threads."""

    def __init__(self, home: Home) -> None:
        self.path = home.ledger
        self._home = home
        self.on_replaced: Callable[[], None] | None = None
        self._turn = _TURNS.setdefault(str(self.path), _thread.allocate_lock())
        self._processes = Turns(self.path)
        self._open()

    def _open(self) -> None:
        path, home = self.path, self._home
        with explained(path):
            ballast.spend(home)
            make_private(path, home)  # SQLite gives the files beside it the same mode
            for beside in ("-wal", "-shm", "-journal"):
                check_private(path.with_name(path.name + beside), home)
            self._connection = sqlite3.connect(path, timeout=PATIENCE, isolation_level=None, check_same_thread=False)
        self._connection.row_factory = sqlite3.Row
        self._only_reads = False
        try:
            with explained(path):
                self._file = _identity(path)
                try:
                    self._prepare()
                except sqlite3.OperationalError:
                    if not ballast.is_full(home.state):
                        raise
                    self._read_only()
        except BaseException:
            self.close()
            raise

    def _read_only(self) -> None:
        """Without room for the files beside it, a ledger that no process has open can still be read."""
        self._connection.close()
        self._only_reads = True
        if _size(f"{self.path}-wal"):
            self._connection = _copied(self.path)
        else:
            self._connection = sqlite3.connect(
                f"{self.path.absolute().as_uri()}?immutable=1", uri=True, isolation_level=None, check_same_thread=False
            )
        self._connection.row_factory = sqlite3.Row
        if self._version() != SCHEMA:
            raise sqlite3.OperationalError("database or disk is full")

    def require_room(self) -> None:
        """Nothing new is entered on a full disk: what there is must be kept for reading and freeing."""
        if not ballast.keep(self._home):
            raise _translate(sqlite3.OperationalError("database or disk is full"), self.path)

    def _same_file(self) -> None:
        """If the file was deleted or replaced, ours is one that no other process sees: open the new one. The same
        once a disk that was full has room."""
        if self._connection.in_transaction:
            return
        replaced = _identity(self.path) != self._file
        if replaced or (self._only_reads and not ballast.is_full(self._home.state)):
            self._connection.close()
            self._open()
        if replaced and self.on_replaced is not None:
            self.on_replaced()

    def _prepare(self) -> None:
        self._connection.execute("PRAGMA foreign_keys = ON")
        self._connection.execute("PRAGMA synchronous = NORMAL")
        self._connection.execute(f"PRAGMA cache_size = -{_CACHE}")
        version = self._version()
        if version == SCHEMA:
            return
        if version > SCHEMA:
            raise too_new(version, str(self.path), "set DIBS_HOME to another folder")
        self._write_ahead()
        with self.write():
            version = self._version()  # another process may have been faster
            if version == 0 and not self._tables():
                for statement in schema_statements():
                    self._connection.execute(statement)
                self._connection.execute(f"PRAGMA user_version = {SCHEMA}")
                version = SCHEMA
        if version < SCHEMA:
            from dibs.ledger.migrations import upgrade_sqlite

            upgrade_sqlite(self.path)

    def _write_ahead(self) -> None:
        """SQLite does not wait for others when it changes the kind of journal, even if they only read for a moment."""
        until = time.monotonic() + PATIENCE
        while True:
            try:
                self._connection.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                    raise
            time.sleep(0.01)

    def _version(self) -> int:
        return int(self._connection.execute("PRAGMA user_version").fetchone()[0])

    def _tables(self) -> list[str]:
        return [row[0] for row in self._connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]

    @contextmanager
    def write(self) -> Iterator[None]:
        """A write transaction: all of it or nothing, with no other writer meanwhile.

        Threads of one process queue up at a lock of their own, processes at one on the state folder (`turns`): SQLite
        only asks again after ever longer pauses, so among many writers the unlucky ones would never get through.
        """
        self._same_file()
        if self._connection.in_transaction:
            with explained(self.path):
                self._connection.execute("BEGIN IMMEDIATE")  # one in another is a mistake of ours: it says so
        if not self._turn.acquire(timeout=PATIENCE):
            raise _translate(sqlite3.OperationalError("database is locked"), self.path)
        try:
            if not self._processes.take(PATIENCE):
                raise _translate(sqlite3.OperationalError("database is locked"), self.path)
            try:
                with explained(self.path):
                    ballast.spend(self._home)
                    self._connection.execute("BEGIN IMMEDIATE")
                try:
                    if _identity(self.path) != self._file:
                        raise _translate(sqlite3.OperationalError("locked: the file is being replaced"), self.path)
                    yield
                    with explained(self.path):
                        self._connection.execute("COMMIT")
                    if ballast.is_full(self._home.state):
                        # It is committed, whatever becomes of this: there may be no room for it until the ballast goes.
                        with suppress(sqlite3.OperationalError):
                            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                except BaseException:
                    if self._connection.in_transaction:  # a full disk may have rolled it back already
                        self._connection.execute("ROLLBACK")
                    raise
            finally:
                self._processes.give()
        finally:
            self._turn.release()

    @property
    def in_transaction(self) -> bool:
        return self._connection.in_transaction

    def execute(self, statement: str, **values: Any) -> int:
        """Run one statement; how many rows it changed."""
        self._same_file()
        with explained(self.path):
            return self._connection.execute(statement, values).rowcount

    def rows(self, statement: str, **values: Any) -> list[Mapping[str, Any]]:
        self._same_file()
        with explained(self.path):
            return [_Row(dict(row)) for row in self._connection.execute(statement, values)]

    def changes_by_others(self) -> int:
        """A number that differs when another process has committed something."""
        self._same_file()
        with explained(self.path):
            return int(self._connection.execute("PRAGMA data_version").fetchone()[0])

    def close(self) -> None:
        self._connection.close()
        ballast.save(self._home)
        self._processes.close()


class _Row(dict[str, Any]):
    """A column that is not there means a damaged schema: one flipped bit can rename one."""

    def __missing__(self, name: str) -> Any:
        words = f"malformed database schema: no column {name}"
        raise _translate(sqlite3.DatabaseError(words), Path("ledger.db"))


def _copied(path: Path) -> sqlite3.Connection:
    """A copy in memory, for reading. A killed process has left its last commits in the journal, and the index of a
    journal is a file, unless one process has the ledger alone: it has it for the time of the copy."""
    copy = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    with closing(sqlite3.connect(path, timeout=PATIENCE, isolation_level=None)) as alone:
        alone.execute("PRAGMA locking_mode = EXCLUSIVE")
        alone.backup(copy)
    copy.execute("PRAGMA query_only = ON")
    return copy


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def _identity(path: Path) -> tuple[int, int]:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return 0, 0
    return found.st_dev, found.st_ino


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """SQLite's errors, by what the user can do. Unique violations are facts for the caller: `Duplicate`."""
    try:
        yield
    except sqlite3.IntegrityError as error:
        if error.sqlite_errorcode in (sqlite3.SQLITE_CONSTRAINT_UNIQUE, sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY):
            raise Duplicate(str(error)) from error
        raise _translate(error, path) from error
    except sqlite3.DatabaseError as error:
        raise _translate(error, path) from error
    except UnicodeEncodeError as error:  # of a value that is looked for
        raise not_utf8(error) from error
    except UnicodeDecodeError as error:  # of SQLite's own words: it quotes a schema that is damaged
        raise _translate(sqlite3.DatabaseError(f"malformed database schema: {error}"), path) from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _full(path, error.strerror or "") from error
        raise StateError(
            f"the ledger cannot be used: {error.strerror}", field="ledger", value=str(path), code="LEDGER_UNUSABLE",
            remedy="check the permissions of the folder, or set DIBS_HOME to another one",
        ) from error  # fmt: skip


_KNOWN = (
    ("readonly", "LEDGER_READ_ONLY", "the ledger is read-only",
     "make it writable for you, or set DIBS_HOME to a folder of your own"),
    ("is full", "DISK_FULL", "the disk is full", "free some space; nothing was changed"),
    ("disk I/O error", "LEDGER_IO_ERROR", "the disk failed", "check the disk; nothing was changed"),
    ("not a database", "LEDGER_CORRUPT", "the file is not a ledger",
     "move the file away (`dibs doctor` says how); a new one is made, and what lives is entered in it"),
    ("malformed", "LEDGER_CORRUPT", "the ledger is damaged",
     "move the file away (`dibs doctor` says how); a new one is made, and what lives is entered in it"),
    ("unable to open", "LEDGER_UNUSABLE", "the ledger cannot be opened",
     "check the permissions of the folder, or set DIBS_HOME to another one"),
)  # fmt: skip


_PERHAPS_FULL = ("LEDGER_READ_ONLY", "LEDGER_IO_ERROR", "LEDGER_UNUSABLE")  # what SQLite calls it when it needs a file


def _full(path: Path, words: str) -> StateError:
    remedy = "free some space; nothing was changed"
    return StateError(f"the disk is full ({words})", field="ledger", value=str(path), code="DISK_FULL", remedy=remedy)


def _translate(error: sqlite3.DatabaseError, path: Path) -> StateError | Busy:
    words = str(error)
    if "locked" in words:
        return Busy(
            f"the ledger was busy for {PATIENCE:.0f} seconds", field="ledger", value=str(path), code="LEDGER_LOCKED",
            remedy="try again; if it stays so, find the process with `fuser -v` on that file",
        )  # fmt: skip
    for part, code, reason, remedy in _KNOWN:
        if part in words:
            if code in _PERHAPS_FULL and ballast.is_full(path.parent):
                return _full(path, words)
            return StateError(f"{reason} ({words})", field="ledger", value=str(path), code=code, remedy=remedy)
    return StateError(words, field="ledger", value=str(path), code="LEDGER_UNUSABLE", remedy="run `dibs doctor`")
