"""The queue: tickets in order of arrival. A part of `store.Ledger`.

A ticket belongs to a waiting process, or to a queued sandbox of a gateway. `plan.devices` decides which is served next.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from dibs.doorbell import ring
from dibs.ledger.base import Books, new_id
from dibs.ledger.rows import Ticket, decoded, encode
from dibs.process import ProcessName, boot_id, boottime

ANSWER = 3.0  # seconds in which a called waiter must answer; else others are served first
RETURN = 30.0  # the same for a kept place: its client needs a service that is up again, and then comes back
_WOKEN = 2  # how many are woken when something was freed
_WAKEABLE = 16  # among how many they are looked for


class Tickets(Books):
    def enqueue(
        self,
        owner: ProcessName,
        uid: int,
        username: str,
        request: bytes,
        *,
        sandbox_id: str | None = None,
        tenant: str = "",
        wait_seconds: float | None = None,
        ticket: str = "",
        wake: str = "",
        kept: float = 0.0,
    ) -> str:
        """Take the last place. `wake`: the FIFO named after `ticket` on which the owner listens for its turn."""
        ticket = ticket or new_id("tk")
        self._db.execute(
            "INSERT INTO tickets (id, domain, uid, username, owner, request, created_at, sandbox_id, tenant, boot,"
            " deadline, wake, kept) VALUES (:id, :domain, :uid, :username, :owner, :request, :now, :sandbox, :tenant,"
            " :boot, :deadline, :wake, :kept)",
            id=ticket, domain=self.host, uid=uid, username=username, owner=encode(owner), request=request.decode(),
            now=time.time(), sandbox=sandbox_id, tenant=tenant, boot=boot_id(),
            deadline=None if wait_seconds is None else boottime() + wait_seconds, wake=wake, kept=kept,
        )  # fmt: skip
        self.note("queue.joined", sandbox_id=sandbox_id, detail=ticket)
        return ticket

    def tickets(self, limit: int | None = None) -> list[Ticket]:
        """Those who wait, or the first of them; first come first."""
        return [_ticket(row) for row in self._tickets("", limit)]

    def ticket(self, ticket: str) -> Ticket | None:
        """One of them; None if it does not wait any longer."""
        return next((_ticket(row) for row in self._tickets(" AND id = :id", id=ticket)), None)

    def place(self, ticket: str) -> tuple[int, int]:
        """How many wait up to and including this one, and how many in all."""
        rows = self._db.rows(
            "SELECT count(*) AS n, COALESCE(sum(CASE WHEN seq <= (SELECT seq FROM tickets WHERE id = :id) THEN 1 ELSE 0"
            " END), 0) AS place FROM tickets WHERE domain = :domain",
            id=ticket, domain=self.host,
        )  # fmt: skip
        return int(rows[0]["place"]), int(rows[0]["n"])

    def _tickets(self, where: str, limit: int | None = None, **values: Any) -> list[Mapping[str, Any]]:
        most = "" if limit is None else f" LIMIT {limit}"
        return self._db.rows(
            f"SELECT * FROM tickets WHERE domain = :domain{where} ORDER BY seq{most}",  # noqa: S608 - fixed text
            domain=self.host, **values,
        )  # fmt: skip

    def _wake_first(self) -> None:
        """Ring the first that wait in processes of their own. (A gateway looks after its tickets by itself.) The first
        calls all others that can be served; the second is there in case the first does not wake up."""
        now, woken = boottime(), 0
        for row in self._tickets(" AND wake <> ''", limit=_WAKEABLE):
            silent = row["called_at"] is not None and now - row["called_at"] > ANSWER
            if ring(row["wake"]) and not silent:
                woken += 1
            if woken == _WOKEN:
                return

    def call(self, tickets: Sequence[str]) -> None:
        """It is their turn, or might be: note since when each has not answered."""
        for ticket in tickets:
            self._db.execute(
                "UPDATE tickets SET called_at = :now WHERE id = :id AND called_at IS NULL", id=ticket, now=boottime()
            )

    def answer(self, ticket: str) -> None:
        """The holder of this ticket is alive."""
        self._db.execute("UPDATE tickets SET called_at = NULL WHERE id = :id AND called_at IS NOT NULL", id=ticket)

    def take_over(self, ticket: str, owner: ProcessName, wake: str) -> None:
        """The client of a kept place is back: another process waits for it now."""
        self._db.execute(
            "UPDATE tickets SET owner = :owner, wake = :wake, called_at = NULL WHERE id = :id",
            id=ticket, owner=encode(owner), wake=wake,
        )  # fmt: skip
        self.note("queue.resumed", detail=ticket)

    def dequeue(self, ticket: str, why: str) -> bool:
        """Give a place back. False if it was gone already."""
        if not self._db.execute("DELETE FROM tickets WHERE id = :id", id=ticket):
            return False
        self.note("queue.left", detail=f"{ticket}: {why}")
        self._freed()
        return True

    def _leave_queue(self, sandbox_id: str, why: str) -> None:
        """The ticket of a sandbox that waits no longer goes with it."""
        for row in self._db.rows("SELECT id FROM tickets WHERE sandbox_id = :id", id=sandbox_id):
            self._db.execute("DELETE FROM tickets WHERE id = :id", id=row["id"])
            self.note("queue.left", sandbox_id=sandbox_id, detail=f"{row['id']}: {why}")
            self._freed()


def _ticket(row: Mapping[str, Any]) -> Ticket:
    return Ticket(
        row["seq"], row["id"], row["username"], decoded(ProcessName, row["owner"], "ticket"),
        str(row["request"]).encode(), row["created_at"], row["sandbox_id"], row["tenant"], row["uid"], row["boot"],
        row["deadline"], row["wake"], row["called_at"], row["kept"],
    )  # fmt: skip
