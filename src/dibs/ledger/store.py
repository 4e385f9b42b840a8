"""The ledger's verbs. Each is one short transaction, or part of one that the caller has opened with `writing()`.

Called by `workloads` and the gateway. The ledger knows nothing about backends; the caller decides what is alive. The
verbs are in `records`, `sandboxes`, `leases`, `tickets`, `taints` and `base` (events); this class joins them.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

from dibs.errors import StateError
from dibs.home import Home
from dibs.ledger.base import new_id
from dibs.ledger.kernels import register
from dibs.ledger.records import Records
from dibs.ledger.sqlite import SqliteDatabase
from dibs.ledger.taints import Taints

if TYPE_CHECKING:
    from dibs.ledger.database import Database

__all__ = ["Ledger", "new_id"]


class Ledger(Records, Taints):
    """One open ledger, seen from one host.

    It is SQLite in the state folder, unless a URL of PostgreSQL is given (here or in DIBS_LEDGER): for several gateways
    on one ledger. "" is SQLite, whatever the environment says.

    `is_new`: this host was not known to it when it was opened, so it may know nothing of what lives.
    """

    is_new = False

    def __init__(self, home: Home, url: str | None = None, clusters: tuple[str, ...] = ()) -> None:
        """`clusters`: the domains of the clusters that are served from here."""
        self.home = home.make()
        self.clusters = clusters
        self._url = os.environ.get("DIBS_LEDGER", "") if url is None else url
        self._db  # noqa: B018  # opened now, so that what is wrong is told now

    if not TYPE_CHECKING:  # else a checker would believe every name

        def __getattr__(self, name: str) -> Database:
            """The database, opened when it is first needed, and again after a rest; then it is a plain attribute."""
            if name != "_db":
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            database = _open(self.home, self._url)
            try:
                self._register(database)
            except BaseException:
                database.close()
                raise
            self._db = database
            return database

    def _register(self, database: Database) -> None:
        self.host, new = register(database, self.home, in_file=not self._url)
        self.is_new = self.is_new or new
        if isinstance(database, SqliteDatabase):
            database.on_replaced = partial(self._register, database)

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if "_db" in self.__dict__:
            self._db.close()
            del self._db

    rest = close  # nothing is kept open while waiting; the next verb opens it again

    def changes_by_others(self) -> int:
        return self._db.changes_by_others()


def _open(home: Home, url: str) -> Database:
    if not url:
        return SqliteDatabase(home)
    try:
        from dibs.ledger.postgres import PostgresDatabase
    except ImportError as error:
        raise StateError(
            f"the ledger is on PostgreSQL, and its driver cannot be loaded ({error})", field="ledger",
            code="LEDGER_DRIVER_MISSING", remedy="install it with `pip install 'dibs[postgres]'`",
        ) from error  # fmt: skip
    return PostgresDatabase(url)
