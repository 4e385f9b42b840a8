"""Sandboxes in the ledger: their state transitions (see `dibs.sandbox`) and queries. A part of `store.Ledger`.

Each transition names the states that it may start from; the second of two concurrent callers gets a Conflict and
changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from dibs.errors import Conflict, NotFound
from dibs.ledger.leases import Leases
from dibs.ledger.rows import CLUSTER, decoded, encode, sealed, unsealed
from dibs.ledger.tickets import Tickets
from dibs.process import ProcessName
from dibs.receipt import Receipt
from dibs.sandbox import DAMAGE, Exit, Handle, Parts, Sandbox, SandboxId, SandboxState, Step, damaged, decoder

_STRINGS = dict[str, str]
LONGEST_REFERENCE = 128  # characters; names and ids are shorter
LONGEST_LABEL = 4096  # characters of key and value; labels are shorter
_UNKNOWN_REMEDY = "`dibs sandbox ls --all` shows what there is"


class Sandboxes(Leases, Tickets):
    # -- their life -------------------------------------------------------------------------------------------------

    def add_sandbox(self, row: Sandbox) -> None:
        """Enter a sandbox that is about to be created, or that waits for it. Its name must be free in its tenant."""
        self._db.require_room()
        added = self._db.execute(
            "INSERT INTO sandboxes (id, domain, name, backend, state, uid, username, owner, spec, folder, simulated,"
            " created_at, tenant, labels, annotations, pending, origin, expires_at, group_id, rank, seq)"
            " VALUES (:id, :domain, :name, :backend, :state, :uid, :username, :owner, :spec, :folder, :simulated,"
            " :created_at, :tenant, :labels, :annotations, :pending, :origin, :expires_at, :group, :rank,"
            " (SELECT COALESCE(max(seq), 0) + 1 FROM sandboxes WHERE domain = :domain)) ON CONFLICT DO NOTHING",
            id=row.id,
            domain=row.domain or self.host,
            name=row.name,
            backend=row.backend,
            state=row.state.value,
            uid=row.uid,
            username=row.username,
            owner=sealed(encode(row.owner)),
            spec=_json(row.parts.spec),
            folder=row.folder,
            simulated=int(row.simulated),
            created_at=row.created_at,
            tenant=row.tenant,
            labels=encode(row.labels),
            annotations=encode(row.annotations),
            pending=_json(row.parts.pending),
            origin=row.origin,
            expires_at=row.expires_at,
            group=row.group,
            rank=row.rank,
        )
        if added != 1:
            raise Conflict(
                "a sandbox of that name is alive", field="name", value=row.name, code="NAME_TAKEN",
                remedy=f"take another name, or remove it with `dibs sandbox rm {row.name}`",
            )  # fmt: skip
        self.note(f"sandbox.{row.state}", sandbox_id=row.id)

    def book_queued(self, sandbox_id: SandboxId) -> None:
        """A queued sandbox's turn has come: it is being created now, and leaves the queue."""
        self._move(
            sandbox_id,
            "UPDATE sandboxes SET state = 'creating' WHERE id = :id AND state = 'queued'",
            "the sandbox is no longer queued",
        )
        self._leave_queue(sandbox_id, "served")
        self.note("sandbox.creating", sandbox_id=sandbox_id)

    def record_handle(self, sandbox_id: SandboxId, handle: Handle, fence: int | None = None) -> None:
        """What is being created has a name on its backend already: a later reader of the row can look for it."""
        self._move(
            sandbox_id,
            "UPDATE sandboxes SET handle = :handle, step = 'created' WHERE id = :id AND state = 'creating'",
            "the sandbox is no longer being created",
            fence,
            handle=sealed(encode(handle)),
        )

    def tell_placement(self, sandbox_id: SandboxId, step: Step, waits_for: str, fence: int | None = None) -> None:
        """What the scheduler says of a sandbox that is being created. Told once for each thing that it says."""
        row = self.sandbox(sandbox_id)
        if (row.step, row.waits_for) == (step, waits_for):
            return
        self._move(
            sandbox_id,
            "UPDATE sandboxes SET step = :step, waits_for = :waits_for WHERE id = :id AND state = 'creating'",
            "the sandbox is no longer being created",
            fence,
            step=step.value, waits_for=waits_for,
        )  # fmt: skip
        if waits_for:
            self.note("sandbox.pending", sandbox_id=sandbox_id, detail=waits_for)

    def attach(
        self,
        sandbox_id: SandboxId,
        *,
        handle: Handle,
        receipt: Receipt,
        expires_at: float | None = None,
        fence: int | None = None,
    ) -> None:
        """The workload is ready and was seen to have what was planned. Only after this may its command run.

        Without `expires_at` an earlier one stays.
        """
        now = time.time()
        self._move(
            sandbox_id,
            "UPDATE sandboxes SET state = 'running', handle = :handle, receipt = :receipt, started_at = :now,"
            " step = 'proved', waits_for = '', expires_at = COALESCE(:expires, expires_at)"
            " WHERE id = :id AND state = 'creating'",
            "the sandbox is no longer being created",
            fence,
            handle=sealed(encode(handle)), receipt=encode(receipt), now=now, expires=expires_at,
        )  # fmt: skip
        self._db.execute(
            "UPDATE leases SET state = 'attached', changed_at = :now WHERE sandbox_id = :id AND state = 'reserved'",
            id=sandbox_id, now=now,
        )  # fmt: skip
        self.note("sandbox.running", sandbox_id=sandbox_id)

    def forget_pending(self, sandbox_id: SandboxId) -> None:
        """The command runs: the request's values are not needed any more, and go."""
        self._db.execute("UPDATE sandboxes SET pending = NULL, step = 'started' WHERE id = :id", id=sandbox_id)

    def reopen(self, sandbox_id: SandboxId) -> bool:
        """Attached, but its gateway died before the command was let go: it is made once more, on the same devices."""
        changed = self._db.execute(
            "UPDATE sandboxes SET state = 'creating', handle = NULL, receipt = NULL, started_at = NULL,"
            " step = 'booked', expires_at = NULL WHERE id = :id AND state = 'running' AND pending IS NOT NULL",
            id=sandbox_id,
        )
        if changed != 1:
            return False
        self._db.execute(
            "UPDATE leases SET state = 'reserved', changed_at = :now WHERE sandbox_id = :id AND state = 'attached'",
            id=sandbox_id, now=time.time(),
        )  # fmt: skip
        self.note("sandbox.creating", sandbox_id=sandbox_id, detail="once more: its gateway died before it was started")
        return True

    def _move(
        self, sandbox_id: SandboxId, statement: str, refusal: str, fence: int | None = None, **values: Any
    ) -> None:
        """`fence`: the number under which the caller delivers it; one that was taken over by another is refused."""
        if fence is not None:
            statement += " AND fence = :fence"
            values["fence"] = fence
        if self._db.execute(statement, id=sandbox_id, **values) != 1:
            raise Conflict(refusal, field="sandbox", value=sandbox_id)

    def set_state(self, sandbox_id: SandboxId, state: SandboxState, *, expected: Sequence[SandboxState]) -> None:
        """Move a live sandbox on, if it is where the caller believes it to be."""
        marks, values = _marks("e", expected)
        changed = self._db.execute(
            f"UPDATE sandboxes SET state = :state WHERE id = :id AND state IN ({marks})",  # noqa: S608 - marks are ours
            id=sandbox_id, state=state.value, **values,
        )  # fmt: skip
        if changed != 1:
            row = self.sandbox(sandbox_id)
            raise Conflict(
                f"the sandbox is {row.state}", field="sandbox", value=row.name, code="WRONG_STATE",
                remedy=f"this needs a sandbox that is {' or '.join(expected)}",
            )  # fmt: skip
        if state is SandboxState.STOPPING:
            self._db.execute(
                "UPDATE leases SET state = 'draining', changed_at = :now WHERE sandbox_id = :id AND state <> 'free'",
                id=sandbox_id, now=time.time(),
            )  # fmt: skip
        self.note(f"sandbox.{state}", sandbox_id=sandbox_id)

    def end(self, sandbox_id: SandboxId, state: SandboxState, *, exit: Exit | None, reason: str) -> bool:  # noqa: A002
        """The workload is proved gone: record how it ended, free its devices and its place in the queue. False if that
        was done before."""
        now = time.time()
        changed = self._db.execute(
            "UPDATE sandboxes SET state = :state, exit = :exit, reason = :reason, ended_at = :now, pending = NULL"
            " WHERE id = :id AND ended_at IS NULL",
            id=sandbox_id, state=state.value, exit=_json(exit), reason=reason, now=now,
        )  # fmt: skip
        if changed != 1:
            return False
        self._free(sandbox_id, now)
        self._leave_queue(sandbox_id, reason)
        self.note(f"sandbox.{state}", sandbox_id=sandbox_id, detail=reason)
        self._forget_events()
        return True

    def forget(self, sandbox_id: SandboxId) -> None:
        """Drop an ended sandbox from the books, with its commands and the key it was asked for. Its events stay, and
        what was made of it."""
        ended = self._db.rows("SELECT id FROM sandboxes WHERE id = :id AND ended_at IS NOT NULL", id=sandbox_id)
        if not ended:
            return
        self._forget_leases(sandbox_id)
        self._db.execute("DELETE FROM commands WHERE sandbox_id = :id", id=sandbox_id)
        self._db.execute("DELETE FROM idempotency WHERE sandbox_id = :id", id=sandbox_id)
        self.note("sandbox.removed", sandbox_id=sandbox_id)  # while it is known whose it was
        self._db.execute("DELETE FROM sandboxes WHERE id = :id", id=sandbox_id)

    # -- what may change while they live ------------------------------------------------------------------------------

    def keep_receipt(self, sandbox_id: SandboxId, receipt: Receipt) -> None:
        statement = "UPDATE sandboxes SET receipt = :receipt WHERE id = :id"
        self._db.execute(statement, id=sandbox_id, receipt=encode(receipt))

    def set_labels(self, sandbox_id: SandboxId, labels: Mapping[str, str]) -> None:
        """Put these labels in place of those it had."""
        self._set(sandbox_id, "UPDATE sandboxes SET labels = :value WHERE id = :id", encode(dict(labels)))
        self.note("sandbox.labelled", sandbox_id=sandbox_id)

    def set_annotations(self, sandbox_id: SandboxId, annotations: Mapping[str, str]) -> None:
        """Put these annotations in place of those it had."""
        self._set(sandbox_id, "UPDATE sandboxes SET annotations = :value WHERE id = :id", encode(dict(annotations)))

    def set_expiry(self, sandbox_id: SandboxId, at: float | None) -> None:
        """Change the end of its time to live; None: it has none. Only a live sandbox has one to change."""
        self._set(sandbox_id, "UPDATE sandboxes SET expires_at = :value WHERE id = :id AND ended_at IS NULL", at)
        self.note("sandbox.renewed", sandbox_id=sandbox_id)

    def _set(self, sandbox_id: SandboxId, statement: str, value: str | float | None) -> None:
        if self._db.execute(statement, id=sandbox_id, value=value) != 1:
            row = self.sandbox(sandbox_id)
            raise Conflict(f"the sandbox is {row.state}", field="sandbox", value=row.name, code="WRONG_STATE")

    def adopt(self, sandbox_id: SandboxId, old_owner: ProcessName | None, new_owner: ProcessName) -> bool:
        """Take a live sandbox over from a process that is gone, with its place in the queue. Of several who try, one
        gets True."""
        changed = self._db.execute(
            "UPDATE sandboxes SET owner = :new, fence = fence + 1"
            " WHERE id = :id AND owner IN (:old, :unsealed) AND ended_at IS NULL",
            id=sandbox_id, old=sealed(encode(old_owner)), unsealed=encode(old_owner), new=sealed(encode(new_owner)),
        )  # fmt: skip
        if changed != 1:
            return False
        self._db.execute("UPDATE tickets SET owner = :new WHERE sandbox_id = :id", id=sandbox_id, new=encode(new_owner))
        self.note("sandbox.adopted", sandbox_id=sandbox_id, detail=f"by process {new_owner.pid}")
        return True

    def beat(self, owner: ProcessName) -> None:
        """A sign of life of a process that delivers, for those on other hosts, who cannot see it."""
        self._db.execute(
            "INSERT INTO heartbeats (owner, beat, at) VALUES (:owner, 1, :now)"
            " ON CONFLICT (owner) DO UPDATE SET beat = heartbeats.beat + 1, at = excluded.at",
            owner=encode(owner), now=time.time(),
        )  # fmt: skip

    def beats(self) -> dict[ProcessName, int]:
        """The last sign of life of each; only that it changes means something."""
        rows = self._db.rows("SELECT owner, beat FROM heartbeats")
        return {decoded(ProcessName, row["owner"], "heartbeat"): row["beat"] for row in rows}

    def forget_beats(self, before: float) -> None:
        """Drop the signs of life that are older than this, by the wall clock."""
        self._db.execute("DELETE FROM heartbeats WHERE at < :before", before=before)

    # -- finding them -------------------------------------------------------------------------------------------------

    def sandboxes(
        self, *, live_only: bool = False, tenant: str | None = None, states: Sequence[str] | None = None
    ) -> list[Sandbox]:
        """Those of this host and of its clusters, oldest first. `tenant` None: all tenants'."""
        where, values = _filter(live_only=live_only, tenant=tenant, states=states)
        rows = self._db.rows(
            f"SELECT * FROM sandboxes WHERE {self._here()}{where} ORDER BY seq",  # noqa: S608 - fixed text
            **self._domains, **values,
        )  # fmt: skip
        return [_sandbox(row) for row in rows]

    def any_groups(self) -> bool:
        """Whether a member of any group lives. One look into an index where there is none."""
        statement = "SELECT 1 FROM sandboxes WHERE group_id <> '' AND ended_at IS NULL LIMIT 1"
        return bool(self._db.rows(statement))

    def group(self, group: str) -> list[Sandbox]:
        """The members of a group, alive or ended, by rank."""
        rows = self._db.rows(
            f"SELECT * FROM sandboxes WHERE group_id = :group AND {self._here()} ORDER BY rank",  # noqa: S608 - fixed text
            group=group, **self._domains,
        )  # fmt: skip
        return [_sandbox(row) for row in rows]

    def living(self) -> list[tuple[str, str]]:
        """Id and handle of every live sandbox of this host that has one: what a frequent look needs, and no more."""
        rows = self._db.rows(
            f"SELECT id, handle FROM sandboxes WHERE {self._here()} AND ended_at IS NULL AND handle IS NOT NULL",  # noqa: S608 - fixed text
            **self._domains,
        )
        return [(row["id"], unsealed(row["handle"], f"handle of {row['id']}")) for row in rows]

    def page(
        self,
        *,
        tenant: str | None = None,
        states: Sequence[str] | None = None,
        labels: Mapping[str, str] | None = None,
        live_only: bool = False,
        offset: int = 0,
        limit: int = 50,
        newest_first: bool = True,
    ) -> tuple[list[Sandbox], int]:
        """A part of those that pass the filters (all labels must be there), and how many pass."""
        where, values = _filter(live_only=live_only, tenant=tenant, states=states)
        order = "seq DESC" if newest_first else "seq"
        values |= self._domains
        if labels:
            return self._page_of_labelled(where, values, labels, order, offset, limit)
        total = self._db.rows(f"SELECT count(*) AS n FROM sandboxes WHERE {self._here()}{where}", **values)[0]["n"]  # noqa: S608 - fixed text
        rows = self._db.rows(
            f"SELECT * FROM sandboxes WHERE {self._here()}{where} ORDER BY {order} LIMIT :limit OFFSET :offset",  # noqa: S608 - fixed text
            limit=limit, offset=offset, **values,
        )  # fmt: skip
        return [_sandbox(row) for row in rows], int(total)

    def annotated(self, key: str, *, tenant: str | None = None) -> list[Sandbox]:
        """Ended sandboxes that a facade still shows: those that have this annotation."""
        where, values = _filter(live_only=False, tenant=tenant, states=None)
        rows = self._db.rows(
            f"SELECT * FROM sandboxes WHERE {self._here()}{where} AND ended_at IS NOT NULL"  # noqa: S608 - fixed text
            " AND annotations LIKE :key ESCAPE '!' ORDER BY seq",
            key="%" + _like(f"{encode(key)}:") + "%", **self._domains, **values,
        )  # fmt: skip
        return [row for row in map(_sandbox, rows) if key in row.annotations]

    def _page_of_labelled(
        self, where: str, values: dict[str, Any], labels: Mapping[str, str], order: str, offset: int, limit: int
    ) -> tuple[list[Sandbox], int]:
        """The text of the labels narrows the search in the database; that they are really there is looked up here."""
        wanted = dict(labels).items()
        if any(len(key) + len(value) > LONGEST_LABEL for key, value in wanted):
            return [], 0  # none can have it, and SQLite takes no pattern of that size
        for number, (key, value) in enumerate(wanted):
            where += f" AND labels LIKE :l{number} ESCAPE '!'"
            values[f"l{number}"] = "%" + _like(f"{encode(key)}:{encode(value)}") + "%"
        found = self._db.rows(
            f"SELECT id, labels FROM sandboxes WHERE {self._here()}{where} ORDER BY {order}",  # noqa: S608 - fixed text
            **values,
        )
        ids = [row["id"] for row in found if wanted <= decoder(_STRINGS).decode(row["labels"]).items()]
        chosen = ids[offset : offset + limit]
        if not chosen:
            return [], len(ids)
        marks, names = _marks("i", chosen)
        rows = self._db.rows(
            f"SELECT * FROM sandboxes WHERE id IN ({marks}) ORDER BY {order}",  # noqa: S608 - marks are ours
            **names,
        )
        return [_sandbox(row) for row in rows], len(ids)

    def ended_beyond(self, keep: int, limit: int = 100) -> list[Sandbox]:
        """Ended sandboxes that are not among the `keep` that ended last; not more than `limit` of them."""
        rows = self._db.rows(
            f"SELECT * FROM sandboxes WHERE {self._here()} AND ended_at IS NOT NULL"  # noqa: S608 - fixed text
            " ORDER BY ended_at DESC LIMIT :limit OFFSET :keep",
            **self._domains, limit=limit, keep=keep,
        )  # fmt: skip
        return [_sandbox(row) for row in rows]

    def sandbox(self, reference: str, *, tenant: str | None = None, uid: int | None = None) -> Sandbox:
        """By id, by the start of an id, or by name: the live one, else the newest that had it.

        A tenant finds its own only; another's is as unknown as one that never was. Without a tenant all are looked at,
        and a name that several tenants use now is the host's own. A name that several users of the host use now is
        that of the user `uid`; if `uid` has none of that name, it must be said as an id.
        """
        if len(reference) > LONGEST_REFERENCE or not reference.isascii():
            raise NotFound("there is no such sandbox", field="sandbox", value=reference[:64], remedy=_UNKNOWN_REMEDY)
        of = " AND tenant = :tenant" if tenant is not None else ""
        values: dict[str, Any] = {"ref": reference, **self._domains}
        if tenant is not None:
            values["tenant"] = tenant
        rows = self._db.rows(f"SELECT * FROM sandboxes WHERE id = :ref{of}", **values)  # noqa: S608 - fixed text
        if not rows:
            rows = self._db.rows(
                f"SELECT * FROM sandboxes WHERE {self._here()} AND name = :ref{of}"  # noqa: S608 - fixed text
                " ORDER BY uid <> :uid, ended_at IS NOT NULL, tenant <> '', seq DESC LIMIT 2",
                **values, uid=-1 if uid is None else uid,
            )  # fmt: skip
            if len(rows) == 2 and (
                rows[1]["ended_at"] is not None
                or rows[0]["tenant"] == "" != rows[1]["tenant"]
                or rows[0]["uid"] == uid != rows[1]["uid"]
            ):
                rows = rows[:1]
        if not rows and len(reference) >= 4 and reference.replace("-", "").isalnum():
            rows = self._db.rows(
                f"SELECT * FROM sandboxes WHERE {self._here()}{of} AND (id LIKE :start OR id LIKE :long) LIMIT 2",  # noqa: S608 - fixed text
                start=f"{reference}%", long=f"sb-{reference}%", **values,
            )  # fmt: skip
        if not rows:
            raise NotFound("there is no such sandbox", field="sandbox", value=reference, remedy=_UNKNOWN_REMEDY)
        if len(rows) > 1:
            remedy = "write more of the id"
            raise Conflict("several sandboxes are meant", field="sandbox", value=reference, remedy=remedy)
        return _sandbox(rows[0])


def _filter(*, live_only: bool, tenant: str | None, states: Sequence[str] | None) -> tuple[str, dict[str, Any]]:
    where, values = "", {}
    if live_only:
        where += " AND ended_at IS NULL"
    if tenant is not None:
        where += " AND tenant = :tenant"
        values["tenant"] = tenant
    if states is not None:
        marks, found = _marks("s", states)
        where += f" AND state IN ({marks})"
        values.update(found)
    return where, values


def _marks(prefix: str, values: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """Named marks for a list. An empty list has one that nothing equals: SQL knows no empty list."""
    if not values:
        return "NULL", {}
    names = {f"{prefix}{number}": value for number, value in enumerate(values)}
    return ", ".join(f":{name}" for name in names), names


def _like(text: str) -> str:
    """A text as LIKE takes it literally, with ! as the escape."""
    return text.replace("!", "!!").replace("%", "!%").replace("_", "!_")


def _json(part: object) -> str | None:
    """A part of a sandbox as it is kept: it is text already where it comes from a ledger."""
    return part if part is None or isinstance(part, str) else encode(part)


def _strings(text: str) -> dict[str, str]:
    return decoder(_STRINGS).decode(text) if text != "{}" else {}


def _sandbox(row: Any) -> Sandbox:
    try:
        return _whole(row)
    except DAMAGE as error:
        raise damaged(f"sandbox {row['id']}", error) from error


def _whole(row: Any) -> Sandbox:
    handle = row["handle"]
    return Sandbox(
        id=row["id"],
        name=row["name"],
        backend=row["backend"],
        state=SandboxState(row["state"]),
        uid=row["uid"],
        username=row["username"],
        owner=decoder(ProcessName).decode(unsealed(row["owner"], "owner")),
        folder=row["folder"],
        created_at=row["created_at"],
        parts=Parts(
            spec=row["spec"],
            handle=unsealed(handle, "handle") if handle is not None else None,
            receipt=row["receipt"],
            exit=row["exit"],
            pending=row["pending"],
        ),
        reason=row["reason"],
        simulated=bool(row["simulated"]),
        started_at=row["started_at"],
        ended_at=row["ended_at"],
        tenant=row["tenant"],
        labels=_strings(row["labels"]),
        annotations=_strings(row["annotations"]),
        origin=row["origin"],
        expires_at=row["expires_at"],
        domain=row["domain"] if row["domain"].startswith(CLUSTER) else "",
        step=Step(row["step"]),
        fence=row["fence"],
        waits_for=row["waits_for"],
        group=row["group_id"],
        rank=row["rank"],
    )
