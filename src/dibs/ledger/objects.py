"""Named things that a facade keeps beside sandboxes: workspaces and templates of OpenShell's API, runtimes of jobs.

They are few and small, so they are values of the ledger (its table `settings`) and have no table of their own. The
ledger does not know what is in them. A kind, a tenant and a name are unique together.
"""

from __future__ import annotations

import time

import msgspec

from dibs.errors import Conflict
from dibs.ledger.base import Beside, new_id
from dibs.ledger.database import Duplicate
from dibs.ledger.rows import decoded, encode


class ObjectRow(msgspec.Struct, frozen=True, omit_defaults=True):
    id: str
    kind: str
    tenant: str
    name: str
    body: str
    created_at: float
    version: int = 1


class Objects(Beside):
    def add(self, kind: str, tenant: str, name: str, body: str) -> ObjectRow:
        """Keep a new one. Raises Conflict (NAME_TAKEN) if the name is in use."""
        row = ObjectRow(new_id("ob"), kind, tenant, name, body, time.time())
        try:
            with self._joined():
                self._db.execute(
                    "INSERT INTO settings (key, value) VALUES (:key, :value)",
                    key=_key(kind, tenant, name), value=encode(row),
                )  # fmt: skip
                self.note(f"{kind}.created", detail=name)
        except Duplicate as error:
            raise Conflict(
                f"a {kind} of that name is there", field="name", value=name, code="NAME_TAKEN",
                remedy="take another name, or delete it first",
            ) from error  # fmt: skip
        return row

    def find(self, kind: str, tenant: str, name: str) -> ObjectRow | None:
        rows = self._db.rows("SELECT value FROM settings WHERE key = :key", key=_key(kind, tenant, name))
        return decoded(ObjectRow, rows[0]["value"], "object") if rows else None

    def list(self, kind: str, tenant: str | None = None) -> list[ObjectRow]:
        """In the order of tenants and names; None: of all tenants."""
        start = f"object/{kind}/" if tenant is None else f"object/{kind}/{tenant}/"
        rows = self._db.rows("SELECT value FROM settings WHERE key LIKE :start", start=f"{start}%")
        return sorted(
            (decoded(ObjectRow, row["value"], "object") for row in rows), key=lambda row: (row.tenant, row.name)
        )

    def change(self, before: ObjectRow, body: str) -> ObjectRow:
        """Replace the body of one, if it is still as it was read. Raises Conflict (MODIFIED) if it is not."""
        row = msgspec.structs.replace(before, body=body, version=before.version + 1)
        with self._joined():
            done = self._db.execute(
                "UPDATE settings SET value = :value WHERE key = :key AND value = :before",
                value=encode(row), key=_key(row.kind, row.tenant, row.name), before=encode(before),
            )  # fmt: skip
            if not done:
                raise Conflict(
                    "it was changed or removed meanwhile", field="name", value=row.name, code="MODIFIED",
                    remedy="read it again, and change that",
                )  # fmt: skip
            self.note(f"{row.kind}.changed", detail=row.name)
        return row

    def remove(self, kind: str, tenant: str, name: str) -> bool:
        """Whether it was there."""
        with self._joined():
            gone = self._db.execute("DELETE FROM settings WHERE key = :key", key=_key(kind, tenant, name))
            if gone:
                self.note(f"{kind}.deleted", detail=name)
        return bool(gone)


def _key(kind: str, tenant: str, name: str) -> str:
    """No part has a slash, a percent sign or an underscore in it: they are names of this installation."""
    return f"object/{kind}/{tenant}/{name}"
