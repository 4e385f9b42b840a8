"""PostgreSQL under the ledger: for several gateways on one ledger. Loaded only when its URL is configured.

Opened by `ledger.store` alone. As with SQLite there is one writer at a time: a write transaction begins with a lock of
the whole ledger, so that a process that plans on what it has read is the only writer, and events are committed in
the order of their numbers. The lock goes with its connection, so that of a killed process goes too. The unique index
on live units stays the proof: it would refuse a double booking without any lock.

The server may go away and come back. Meanwhile every verb says so; afterwards the next one works again. What was not
committed has not happened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import urlsplit

import psycopg
from psycopg import errors
from psycopg.rows import DictRow, dict_row

from dibs.errors import BackendUnavailable, Busy, DibsError, StateError
from dibs.ledger.database import PATIENCE, SCHEMA, Duplicate, schema_statements, too_new
from dibs.ledger.dialect import postgres_marks, postgres_schema

T = TypeVar("T")

_LOCK = "SELECT pg_advisory_xact_lock(1684628083)"  # any number, the same for all: "dibs" in ASCII
# Settings of the session: how long to wait for the lock, and how long a process that hangs may keep it.
_SESSION = (
    f"SET lock_timeout = '{PATIENCE:.0f}s'; SET idle_in_transaction_session_timeout = '{PATIENCE:.0f}s';"
    " SET client_encoding = 'UTF8'"
)
_ENCODINGS = ("UTF8", "SQL_ASCII")


class PostgresDatabase:
    """One connection, opened again when it was lost. Not for sharing between threads."""

    def __init__(self, url: str) -> None:
        self.where = _shown(url)
        self._url = url
        self._writing = False
        self._connection: psycopg.Connection[DictRow] | None = None
        try:
            self._prepare()
        except BaseException:
            self.close()
            raise

    # -- the connection -------------------------------------------------------------------------------------------

    def _connect(self) -> psycopg.Connection[DictRow]:
        with self._explained():
            connection = psycopg.connect(
                self._url, autocommit=True, row_factory=dict_row, connect_timeout=10, application_name="dibs",
                keepalives_idle=10, keepalives_interval=5, keepalives_count=3, tcp_user_timeout=30_000,
            )  # fmt: skip
            try:
                connection.execute(_SESSION)
            except BaseException:
                connection.close()
                raise
        return connection

    def _with_connection(self, work: Callable[[psycopg.Connection[DictRow]], T]) -> T:
        """Do something outside of a transaction, on a new connection if the idle one turns out to be lost."""
        kept = self._connection
        if kept is not None:
            try:
                with self._explained():
                    return work(kept)
            except BackendUnavailable:
                if self._connection is not None:
                    raise  # the connection is good, something else is not
        self._connection = self._connect()
        with self._explained():
            return work(self._connection)

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def close(self) -> None:
        self._drop()

    # -- the schema -----------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        version = self._version()
        if version > SCHEMA:
            raise too_new(version, self.where, "use another database")
        if version == SCHEMA:
            return
        with self.write():
            version = self._version()  # another process may have been faster
            if version == 0:
                self._make()
                version = SCHEMA
        if version < SCHEMA:
            from dibs.ledger.migrations import upgrade_postgres

            with self._explained():
                upgrade_postgres(lambda: psycopg.connect(self._url), _LOCK, self._version)

    def _make(self) -> None:
        encoding = self.rows("SELECT current_setting('server_encoding') AS name")[0]["name"]
        if encoding not in _ENCODINGS:
            raise StateError(
                f"the database keeps text as {encoding}, which cannot hold every name", field="ledger",
                value=self.where, code="LEDGER_UNUSABLE", remedy="make one with `createdb --encoding=UTF8`",
            )  # fmt: skip
        for statement in schema_statements():
            self.execute(postgres_schema(statement))
        self.execute("INSERT INTO settings (key, value) VALUES ('schema', :version)", version=str(SCHEMA))

    def _version(self) -> int:
        # Not to_regclass(): it answers from a cache that is stale when we have just waited for the lock.
        tables = self.rows(
            "SELECT tablename FROM pg_tables WHERE schemaname = ANY (current_schemas(false))"
            " AND tablename IN ('settings', 'sandboxes')"
        )
        names = {row["tablename"] for row in tables}
        if "settings" not in names:
            return 1 if names else 0  # the first schema had no settings
        rows = self.rows("SELECT value FROM settings WHERE key = 'schema'")
        if not rows:
            raise StateError(
                "the database has a table `settings` that is not dibs'", field="ledger", value=self.where,
                code="LEDGER_UNUSABLE", remedy="give dibs a database of its own",
            )  # fmt: skip
        return int(rows[0]["value"])

    # -- transactions and statements ------------------------------------------------------------------------------

    @contextmanager
    def write(self) -> Iterator[None]:
        """A write transaction: all of it or nothing, with no other writer meanwhile."""
        if self._writing:
            raise StateError("a transaction is open already", field="ledger", value=self.where, code="LEDGER_UNUSABLE")
        try:
            self._with_connection(lambda connection: connection.execute(f"BEGIN; {_LOCK}"))
            self._writing = True
            yield
            self._commit()
        except BaseException:
            self._roll_back()
            raise
        finally:
            self._writing = False

    def _commit(self) -> None:
        with self._explained():
            done = self._alive().execute("COMMIT").statusmessage
        if done != "COMMIT":  # PostgreSQL does not say more when a statement had failed and the transaction went on
            raise StateError("a statement of the transaction had failed: nothing was changed", field="ledger",
                             value=self.where, code="LEDGER_UNUSABLE")  # fmt: skip

    def _roll_back(self) -> None:
        """What went wrong is not hidden by a second error: without its connection a transaction is gone as well."""
        if self._connection is None:
            return
        try:
            self._connection.execute("ROLLBACK")
        except psycopg.Error:
            self._drop()

    def _alive(self) -> psycopg.Connection[DictRow]:
        if self._connection is None:
            raise self._unreachable("the connection was lost in the middle of a transaction: nothing was changed")
        return self._connection

    @property
    def in_transaction(self) -> bool:
        return self._writing

    def execute(self, statement: str, **values: Any) -> int:
        """Run one statement; how many rows it changed. Outside of a transaction it is one of its own."""
        if not self._writing:
            with self.write():
                return self.execute(statement, **values)
        with self._explained():
            return self._alive().execute(postgres_marks(statement), _clean(values)).rowcount

    def rows(self, statement: str, **values: Any) -> list[Mapping[str, Any]]:
        query, given = postgres_marks(statement), _clean(values)

        def work(connection: psycopg.Connection[DictRow]) -> list[Mapping[str, Any]]:
            return list(connection.execute(query, given).fetchall())

        if self._writing:
            with self._explained():
                return work(self._alive())
        return self._with_connection(work)

    def require_room(self) -> None:
        """The server says so by itself."""

    def changes_by_others(self) -> int:
        """The number of the last committed event. Whatever others wait for makes one, and they are committed in order:
        a sequence would count what is not committed yet, and a waiter would sleep through it."""
        return int(self.rows("SELECT COALESCE(max(seq), 0) AS n FROM events")[0]["n"])

    # -- errors ---------------------------------------------------------------------------------------------------

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """PostgreSQL's errors, by what the user can do. Unique violations are facts for the caller: `Duplicate`."""
        try:
            yield
        except errors.UniqueViolation as error:
            raise Duplicate(_words(error)) from error
        except psycopg.Error as error:
            if self._connection is not None and self._connection.closed:
                self._drop()  # closed by the other side; our descriptor is still there
            raise self._translate(error) from error

    def _translate(self, error: psycopg.Error) -> DibsError:
        words = _words(error)
        for kinds, code, reason, remedy in _KNOWN:
            if isinstance(error, kinds):
                return StateError(f"{reason} ({words})", field="ledger", value=self.where, code=code, remedy=remedy)
        if isinstance(error, (errors.LockNotAvailable, errors.DeadlockDetected)):
            return Busy(
                f"the ledger was busy for {PATIENCE:.0f} seconds", field="ledger", value=self.where,
                code="LEDGER_LOCKED", remedy="try again; if it stays so, look for a gateway that hangs",
            )  # fmt: skip
        if isinstance(
            error, (psycopg.OperationalError, psycopg.InterfaceError, errors.IdleInTransactionSessionTimeout)
        ):
            if any(part in words for part in _REFUSED):
                return StateError(
                    f"the database refuses us ({words})", field="ledger", value=self.where, code="LEDGER_UNUSABLE",
                    remedy="check the user, the password and the name of the database in the URL",
                )  # fmt: skip
            return self._unreachable(f"the database does not answer ({words})")
        return StateError(words, field="ledger", value=self.where, code="LEDGER_UNUSABLE", remedy="run `dibs doctor`")

    def _unreachable(self, reason: str) -> BackendUnavailable:
        return BackendUnavailable(
            reason, field="ledger", value=self.where, code="LEDGER_UNREACHABLE",
            remedy="try again when the PostgreSQL server is back; sandboxes that run are not touched",
        )  # fmt: skip


_KNOWN: tuple[tuple[tuple[type[psycopg.Error], ...], str, str, str], ...] = (
    ((errors.DiskFull,), "DISK_FULL", "the disk of the database is full", "free some space; nothing was changed"),
    ((errors.ReadOnlySqlTransaction,), "LEDGER_READ_ONLY", "the database is read-only",
     "use the URL of the primary server"),
    ((errors.InsufficientPrivilege,), "LEDGER_UNUSABLE", "the database user may not do that",
     "let the user of the URL own the database"),
    ((errors.IoError, errors.DataCorrupted, errors.IndexCorrupted), "LEDGER_IO_ERROR", "the database's disk failed",
     "check the PostgreSQL server; nothing was changed"),
)  # fmt: skip
_REFUSED = ("authentication failed", "does not exist", "no pg_hba.conf entry", "not permitted to log in",
            "no password supplied")  # fmt: skip


def _words(error: BaseException) -> str:
    return " ".join(str(error).split())


def _clean(values: dict[str, Any]) -> dict[str, Any]:
    """PostgreSQL's text cannot hold the character zero; nothing of ours is found by it, and no text loses more."""
    if any(isinstance(value, str) and "\0" in value for value in values.values()):
        return {name: value.replace("\0", "\ufffd") if isinstance(value, str) else value
                for name, value in values.items()}  # fmt: skip
    return values


def _shown(url: str) -> str:
    """The URL as it may be shown: without a password, and without options, which may hold one."""
    try:
        parts = urlsplit(url)
        if parts.scheme not in ("postgresql", "postgres"):
            raise ValueError(parts.scheme)
        host = f"{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}"
    except ValueError as error:
        raise StateError(
            "the URL of the ledger must be one of PostgreSQL", field="ledger", code="LEDGER_URL_INVALID",
            remedy="write it as postgresql://user@host:5432/database",
        ) from error  # fmt: skip
    return f"postgresql://{f'{parts.username}@' if parts.username else ''}{host}{parts.path}"
