"""The queue: tickets of those who wait, first come first. A part of `store.Ledger`.

A ticket belongs to a process that waits, or to a queued sandbox of a gateway. It says nothing of who is served next:
the planner does.
"""

from __future__ import annotations

import time

import msgspec

from dibs.ledger.books import Books, new_id
from dibs.ledger.rows import Ticket, encode
from dibs.process import ProcessName

PROCESS = msgspec.json.Decoder(ProcessName)


class Tickets(Books):
    def enqueue(
        self, owner: ProcessName, uid: int, username: str, request: bytes, *, sandbox_id: str | None = None
    ) -> str:
        ticket = new_id("tk")
        self._db.execute(
            "INSERT INTO tickets (id, host, uid, username, owner, request, created_at, sandbox_id)"
            " VALUES (:id, :host, :uid, :username, :owner, :request, :now, :sandbox)",
            id=ticket, host=self.host, uid=uid, username=username, owner=encode(owner), request=request.decode(),
            now=time.time(), sandbox=sandbox_id,
        )  # fmt: skip
        self.note("queue.joined", sandbox_id=sandbox_id, detail=ticket)
        return ticket

    def tickets(self) -> list[Ticket]:
        """Those who wait, first come first."""
        rows = self._db.rows(
            "SELECT t.*, s.tenant FROM tickets t LEFT JOIN sandboxes s ON s.id = t.sandbox_id"
            " WHERE t.host = :host ORDER BY t.seq",
            host=self.host,
        )
        return [
            Ticket(
                row["seq"], row["id"], row["username"], PROCESS.decode(row["owner"]), row["request"].encode(),
                row["created_at"], row["sandbox_id"], row["tenant"] or "",
            )
            for row in rows
        ]  # fmt: skip

    def dequeue(self, ticket: str, why: str) -> None:
        if self._db.execute("DELETE FROM tickets WHERE id = :id", id=ticket):
            self.note("queue.left", detail=f"{ticket}: {why}")

    def _leave_queue(self, sandbox_id: str, why: str) -> None:
        """The ticket of a sandbox that waits no longer goes with it."""
        for row in self._db.rows("SELECT id FROM tickets WHERE sandbox_id = :id", id=sandbox_id):
            self._db.execute("DELETE FROM tickets WHERE id = :id", id=row["id"])
            self.note("queue.left", sandbox_id=sandbox_id, detail=f"{row['id']}: {why}")
