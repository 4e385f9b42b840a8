"""Training jobs as the ledger records them. Opened on a ledger; `workloads.jobs` is the only caller.

    queued → creating → running → complete
      ↑ └──────┴──────────┴──→ stopping → queued (again), suspended, complete or failed

`state` is what is, `wanted` is what its user wants: `run`, `suspend` or `remove`. One process drives a job (`owner`);
`fence` counts how often it has changed hands, and every verb of a driver names the number under which it drives. The
ledger does not know what is in `spec` and `status`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, NewType

import msgspec

from dibs.errors import Conflict, NotFound
from dibs.ledger.base import Beside
from dibs.ledger.database import Duplicate
from dibs.ledger.rows import decoded, encode, sealed, unsealed
from dibs.process import ProcessName
from dibs.sandbox import DAMAGE, damaged

JobId = NewType("JobId", str)
JobState = Literal["queued", "creating", "running", "stopping", "suspended", "complete", "failed"]
Wanted = Literal["run", "suspend", "remove"]


class JobRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """One job. `spec` and `status` are JSON. `attended`: it ends with the process that submitted it."""

    id: JobId
    name: str
    backend: str
    state: JobState
    wanted: Wanted
    uid: int
    username: str
    tenant: str
    owner: ProcessName
    spec: bytes
    status: bytes
    created_at: float
    fence: int = 0
    attended: bool = False
    version: int = 0
    ended_at: float | None = None

    @property
    def live(self) -> bool:
        return self.ended_at is None


class JobBook(Beside):
    """The verbs. Each is one transaction, or part of the one that is open."""

    @contextmanager
    def joined(self) -> Iterator[None]:
        """The transaction that is open, or one for the verbs in it."""
        with self._joined():
            yield

    def add(self, row: JobRow, *, alone: bool = False) -> None:
        """Enter a new job. Its name must be free among live jobs; with `alone` among those that have ended too."""
        with self._joined():
            self._db.require_room()
            if alone and self._rows(" AND tenant = :tenant AND name = :name", tenant=row.tenant, name=row.name):
                raise _taken(row.name)
            try:
                self._db.execute(
                    "INSERT INTO jobs (id, domain, name, backend, state, wanted, uid, username, tenant, owner, fence,"
                    " attended, spec, status, version, created_at) VALUES (:id, :domain, :name, :backend, :state,"
                    " :wanted, :uid, :username, :tenant, :owner, 0, :attended, :spec, :status, :version, :created_at)",
                    id=row.id, domain=self.host, name=row.name, backend=row.backend, state=row.state,
                    wanted=row.wanted, uid=row.uid, username=row.username, tenant=row.tenant,
                    owner=sealed(encode(row.owner)), attended=int(row.attended), spec=row.spec.decode(),
                    status=row.status.decode(), created_at=row.created_at, version=self._next(),
                )  # fmt: skip
            except Duplicate as error:
                raise _taken(row.name) from error
            self.tell(row, "job.submitted")

    def tell(self, row: JobRow, kind: str, detail: str = "") -> None:
        """Write down what has happened to a job; its tenant may read it."""
        with self._joined():
            self._db.execute(
                "INSERT INTO events (at, kind, sandbox_id, detail, tenant) VALUES (:at, :kind, :job, :detail, :tenant)",
                at=time.time(), kind=kind, job=row.id, detail=detail, tenant=row.tenant,
            )  # fmt: skip

    # -- a driver's ---------------------------------------------------------------------------------------------------

    def adopt(self, row: JobRow, owner: ProcessName) -> bool:
        """Take a job over from the process that `row` names, with its place in the queue. Of several who try, one gets
        True."""
        with self._joined():
            changed = self._db.execute(
                "UPDATE jobs SET owner = :new, fence = fence + 1, version = :version"
                " WHERE id = :id AND fence = :fence AND ended_at IS NULL",
                id=row.id, fence=row.fence, new=sealed(encode(owner)), version=self._next(),
            )  # fmt: skip
            if changed != 1:
                return False
            self._db.execute("UPDATE tickets SET owner = :new WHERE sandbox_id = :id", id=row.id, new=encode(owner))
            self.tell(row, "job.adopted", f"by process {owner.pid}")
        return True

    def move(self, row: JobRow, state: JobState, status: bytes, fence: int, *, ended: bool = False) -> None:
        """Record how far a job has come. Refused if another process drives it by now."""
        with self._joined():
            changed = self._db.execute(
                "UPDATE jobs SET state = :state, status = :status, version = :version,"
                " ended_at = CASE WHEN :ended = 1 THEN :now ELSE ended_at END"
                " WHERE id = :id AND fence = :fence AND ended_at IS NULL",
                id=row.id, state=state, status=status.decode(), fence=fence, ended=int(ended), now=time.time(),
                version=self._next(),
            )  # fmt: skip
            if changed != 1:
                raise Conflict("another process drives this job", field="job", value=row.name, code="JOB_TAKEN_OVER")
            if ended:
                self._db.execute("DELETE FROM tickets WHERE sandbox_id = :id", id=row.id)

    # -- a user's -----------------------------------------------------------------------------------------------------

    def want(self, row: JobRow, wanted: Wanted) -> None:
        """What its user wants of a live job. `remove` is final."""
        with self._joined():
            self._db.execute(
                "UPDATE jobs SET wanted = :wanted, version = :version"
                " WHERE id = :id AND wanted <> 'remove' AND wanted <> :wanted AND ended_at IS NULL",
                id=row.id, wanted=wanted, version=self._next(),
            )  # fmt: skip

    def replace_spec(self, row: JobRow, spec: bytes) -> None:
        """Other objects for a job that is suspended, and so runs nothing."""
        with self._joined():
            changed = self._db.execute(
                "UPDATE jobs SET spec = :spec, version = :version WHERE id = :id AND state = 'suspended'",
                id=row.id, spec=spec.decode(), version=self._next(),
            )  # fmt: skip
            if changed != 1:
                raise Conflict("the job is not suspended", field="job", value=row.name, code="WRONG_STATE")

    def replace_ended_spec(self, row: JobRow, spec: bytes) -> None:
        """What is kept of a job that has ended; in the transaction that ends it."""
        with self._joined():
            self._db.execute(
                "UPDATE jobs SET spec = :spec WHERE id = :id AND ended_at IS NOT NULL", id=row.id, spec=spec.decode()
            )

    def forget(self, job_id: str) -> None:
        """Drop an ended job from the books. Its events stay."""
        with self._joined():
            self._db.execute("DELETE FROM jobs WHERE id = :id AND ended_at IS NOT NULL", id=job_id)

    # -- finding them -------------------------------------------------------------------------------------------------

    def job(self, reference: str, *, tenant: str | None = None, uid: int | None = None) -> JobRow:
        """By id, else by name: the live one, else the newest. Names of `uid` come first. Raises NotFound."""
        rows = self._rows(" AND (id = :reference OR name = :reference)", reference=reference)
        rows = [row for row in rows if tenant is None or row.tenant == tenant]
        if not rows:
            raise NotFound(
                "there is no such job", field="job", value=reference, code="JOB_NOT_FOUND",
                remedy="`dibs train ls --all` shows what there is",
            )  # fmt: skip
        return max(rows, key=lambda row: (row.id == reference, row.uid == uid, row.live, row.created_at))

    def jobs(self, *, live_only: bool = False, tenant: str | None = None) -> list[JobRow]:
        """Oldest first. `tenant` None: all tenants'."""
        where = " AND ended_at IS NULL" if live_only else ""
        rows = self._rows(where)
        return [row for row in rows if tenant is None or row.tenant == tenant]

    def _next(self) -> int:
        return int(self._db.rows("SELECT COALESCE(max(version), 0) + 1 AS next FROM jobs")[0]["next"])

    def _rows(self, where: str, **values: Any) -> list[JobRow]:
        rows = self._db.rows(
            f"SELECT * FROM jobs WHERE domain = :domain{where} ORDER BY created_at, id",  # noqa: S608 - fixed text
            domain=self.host, **values,
        )  # fmt: skip
        return [_row(one) for one in rows]


def _row(row: Mapping[str, Any]) -> JobRow:
    try:
        return JobRow(
            JobId(row["id"]), row["name"], row["backend"], row["state"], row["wanted"], row["uid"], row["username"],
            row["tenant"],
            decoded(ProcessName, unsealed(row["owner"], f"owner of {row['id']}"), f"owner of {row['id']}"),
            str(row["spec"]).encode(), str(row["status"]).encode(), row["created_at"], row["fence"],
            bool(row["attended"]), row["version"], row["ended_at"],
        )  # fmt: skip
    except DAMAGE as error:
        raise damaged("jobs", error) from error


def _taken(name: str) -> Conflict:
    return Conflict(
        "a job of that name is there", field="name", value=name, code="NAME_TAKEN",
        remedy=f"take another name, or remove it with `dibs train rm {name}`",
    )  # fmt: skip
