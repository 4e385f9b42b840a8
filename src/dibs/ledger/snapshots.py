"""Snapshots: images that were made of sandboxes, and outlive them. The gateway asks; the images are the backend's."""

from __future__ import annotations

import time
from typing import Any, Literal

import msgspec

from dibs.errors import Conflict, NotFound
from dibs.ledger.base import Beside, new_id
from dibs.ledger.rows import encode
from dibs.process import ProcessName, absent

_OWNER = msgspec.json.Decoder(ProcessName | None)
SnapshotState = Literal["creating", "ready", "failed"]


class SnapshotRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """One snapshot. `image` is what it is called, also while there is none yet."""

    id: str
    sandbox_id: str
    tenant: str
    name: str
    backend: str
    state: SnapshotState
    created_at: float
    image: str = ""
    reason: str = ""
    owner: ProcessName | None = None  # who makes it; None if that was not noted

    @property
    def abandoned(self) -> bool:
        """Whether its maker was killed, so that it is not being made any more."""
        return self.state == "creating" and (self.owner is None or absent(self.owner))


class Snapshots(Beside):
    def add(
        self, sandbox_id: str, *, tenant: str, name: str, backend: str, repository: str, owner: ProcessName
    ) -> SnapshotRow:
        """A snapshot that is about to be made, as an image of the repository."""
        key = new_id("snap")
        row = SnapshotRow(
            key, sandbox_id, tenant, name, backend, "creating", time.time(), f"{repository}:{key}", owner=owner
        )
        with self._joined():
            self._db.execute(
                "INSERT INTO snapshots"
                " (id, host, sandbox_id, tenant, name, backend, image, state, reason, created_at, owner)"
                " VALUES (:id, :host, :sandbox, :tenant, :name, :backend, :image, 'creating', '', :now, :owner)",
                id=row.id, host=self.host, sandbox=sandbox_id, tenant=tenant, name=name, backend=backend,
                image=row.image, now=row.created_at, owner=encode(owner),
            )  # fmt: skip
            self.note("snapshot.creating", sandbox_id=sandbox_id, detail=row.id)
        return row

    def adopt(self, row: SnapshotRow, owner: ProcessName) -> bool:
        """Go on with an abandoned one. Of several who try, one gets True."""
        with self._joined():
            changed = self._db.execute(
                "UPDATE snapshots SET owner = :new WHERE id = :id AND owner = :old AND state = 'creating'",
                id=row.id, old=encode(row.owner), new=encode(owner),
            )  # fmt: skip
            if changed:
                self.note("snapshot.adopted", sandbox_id=row.sandbox_id, detail=f"{row.id} by process {owner.pid}")
        return bool(changed)

    def ready(self, snapshot_id: str) -> None:
        self._settle(snapshot_id, "ready", "")

    def failed(self, snapshot_id: str, reason: str) -> None:
        self._settle(snapshot_id, "failed", reason)

    def _settle(self, snapshot_id: str, state: SnapshotState, reason: str) -> None:
        with self._joined():
            changed = self._db.execute(
                "UPDATE snapshots SET state = :state, reason = :reason WHERE id = :id AND state = 'creating'",
                id=snapshot_id, state=state, reason=reason,
            )  # fmt: skip
            row = self.find(snapshot_id)
            if changed != 1:
                raise Conflict(f"the snapshot is {row.state}", field="snapshot", value=snapshot_id, code="WRONG_STATE")
            self.note(f"snapshot.{state}", sandbox_id=row.sandbox_id, detail=row.id)

    def find(self, snapshot_id: str, *, tenant: str | None = None) -> SnapshotRow:
        """By id. Another tenant's is as unknown as one that never was."""
        rows = self._db.rows("SELECT * FROM snapshots WHERE id = :id", id=snapshot_id)
        if not rows or (tenant is not None and rows[0]["tenant"] != tenant):
            raise NotFound("there is no such snapshot", field="snapshot", value=snapshot_id, code="SNAPSHOT_NOT_FOUND")
        return _snapshot(rows[0])

    def of_image(self, image: str) -> SnapshotRow | None:
        """The snapshot of this host that has this image."""
        rows = self._db.rows(
            "SELECT * FROM snapshots WHERE host = :host AND image = :image", host=self.host, image=image
        )
        return _snapshot(rows[0]) if rows else None

    def list(
        self, *, tenant: str | None = None, sandbox_id: str | None = None, offset: int = 0, limit: int = 50
    ) -> tuple[list[SnapshotRow], int]:
        """A page of this host's, newest first, and how many there are."""
        where, values = "host = :host", {"host": self.host}
        if tenant is not None:
            where += " AND tenant = :tenant"
            values["tenant"] = tenant
        if sandbox_id is not None:
            where += " AND sandbox_id = :sandbox"
            values["sandbox"] = sandbox_id
        total = self._db.rows(f"SELECT count(*) AS n FROM snapshots WHERE {where}", **values)[0]["n"]  # noqa: S608 - fixed text
        rows = self._db.rows(
            f"SELECT * FROM snapshots WHERE {where} ORDER BY created_at DESC, id LIMIT :limit OFFSET :offset",  # noqa: S608 - fixed text
            limit=limit, offset=offset, **values,
        )  # fmt: skip
        return [_snapshot(row) for row in rows], int(total)

    def forget(self, snapshot_id: str) -> bool:
        """Drop it from the books; its image is gone. False if that was done before."""
        with self._joined():
            gone = self._db.execute("DELETE FROM snapshots WHERE id = :id", id=snapshot_id)
            if gone:
                self.note("snapshot.removed", detail=snapshot_id)
        return bool(gone)


def _snapshot(row: Any) -> SnapshotRow:
    return SnapshotRow(
        row["id"], row["sandbox_id"], row["tenant"], row["name"], row["backend"], row["state"], row["created_at"],
        row["image"], row["reason"], _OWNER.decode(row["owner"]),
    )  # fmt: skip
