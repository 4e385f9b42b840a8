"""Shared by the parts of the ledger: the open database, the domain of their rows, ids and events.

Each part (`sandboxes`, `leases`, `tickets`, `taints`) has the verbs of one noun; `store.Ledger` joins them. Parts that
only gateways need (`tokens`, `commands`, `idempotency`, `snapshots`, `objects`, `secrets`) are opened on a ledger.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from dibs.ledger.rows import Event
from dibs.sandbox import DAMAGE, damaged

if TYPE_CHECKING:
    from dibs.ledger.database import Database


KEEP_EVENTS = 50_000  # the newest ones; a sandbox makes about eight


def new_id(prefix: str) -> str:
    """Short enough to type, long enough not to meet: 48 random bits."""
    return f"{prefix}-{os.urandom(6).hex()}"


class Books:
    """One open database, seen from one host."""

    host: str  # the domain of this host: its devices are booked by this ledger
    clusters: tuple[str, ...] = ()  # the domains of clusters that are served from here, whose schedulers decide
    _db: Database
    _queue_moved = False
    _verified = False  # in the transaction that is open

    @contextmanager
    def writing(self) -> Iterator[None]:
        """One transaction around several verbs. No other writer meanwhile; on an exception nothing has happened.

        If it freed something that others may wait for, the first ones in the queue are woken after its end.
        """
        self._queue_moved = False
        with self._db.write():
            self._verified = False
            try:
                yield
            finally:
                self._verified = False
        if self._queue_moved:
            self._queue_moved = False
            self._wake_first()

    def any_jobs(self) -> bool:
        """Whether a training job is to be driven. One look into an index where there is none."""
        return bool(
            self._db.rows("SELECT 1 FROM jobs WHERE domain = :domain AND ended_at IS NULL LIMIT 1", domain=self.host)
        )

    def _freed(self) -> None:
        """Devices or a place in the queue have been given back in this transaction."""
        self._queue_moved = True

    def _wake_first(self) -> None:
        """`tickets` knows who that is."""

    @contextmanager
    def _joined(self) -> Iterator[None]:
        """The transaction that is open, or one of its own."""
        if self._db.in_transaction:
            yield
            return
        with self._db.write():
            yield

    def _here(self, column: str = "domain") -> str:
        """The condition that a row is of a domain that is seen from here. Its values are `_domains`."""
        if not self.clusters:
            return f"{column} = :domain"
        return f"{column} IN (:domain{''.join(f', :domain{number}' for number in range(len(self.clusters)))})"

    @property
    def _domains(self) -> dict[str, str]:
        return {"domain": self.host, **{f"domain{number}": name for number, name in enumerate(self.clusters)}}

    def note(self, kind: str, *, sandbox_id: str | None = None, lease_id: str | None = None, detail: str = "") -> None:
        """Write down what has happened. If it is about a sandbox, it is its tenant's to know, for ever."""
        self._db.execute(
            "INSERT INTO events (at, kind, sandbox_id, lease_id, detail, tenant)"
            " VALUES (:at, :kind, :sandbox, :lease, :detail, (SELECT tenant FROM sandboxes WHERE id = :sandbox))",
            at=time.time(), kind=kind, sandbox=sandbox_id, lease=lease_id, detail=detail,
        )  # fmt: skip

    def _forget_events(self) -> None:
        """Drop the oldest events beyond those that are kept. Without any it is one look into an index."""
        self._db.execute(
            "DELETE FROM events WHERE seq <= (SELECT COALESCE(max(seq), 0) FROM events) - :keep", keep=KEEP_EVENTS
        )

    def events(
        self, *, sandbox_id: str | None = None, after: int = 0, limit: int = 1000, tenant: str | None = None
    ) -> list[Event]:
        """What has happened, oldest first. A tenant sees what happened to sandboxes of its own, nothing else."""
        where = " AND sandbox_id = :sandbox" if sandbox_id else ""
        where += " AND tenant = :tenant" if tenant is not None else ""
        rows = self._db.rows(
            f"SELECT * FROM events WHERE seq > :after{where} ORDER BY seq LIMIT :limit",  # noqa: S608 - fixed text
            after=after, limit=limit, **_given(sandbox=sandbox_id, tenant=tenant),
        )  # fmt: skip
        try:
            return [msgspec.convert(row, Event) for row in rows]
        except DAMAGE as error:
            raise damaged("events", error) from error


class Beside(Books):
    """A part that is opened on a ledger, and shares its connection and its transactions."""

    def __init__(self, ledger: Books) -> None:
        self.host, self.clusters = ledger.host, ledger.clusters
        self._db = ledger._db  # noqa: SLF001 - of the same family


def _given(**values: str | None) -> dict[str, str]:
    return {name: value for name, value in values.items() if value is not None}
