"""A second copy of what lives, one small file for each sandbox, beside the ledger and outside of it.

    <state>/live/<sandbox id>     what the ledger must know to keep its devices booked

The ledger may be deleted, restored from an old copy, damaged or replaced while sandboxes live. So the handle, the
receipt and the devices of each are also written here, in the transaction that attaches it, and removed in the one that
ends it. Under the ledger's lock there is no record without a live row; where there is one, the ledger has forgotten
something: no device is booked until `workloads.adoption` has entered it again.

A part of `store.Ledger`. Whether what is recorded still runs is not known here.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from dibs.errors import BackendUnavailable, StateError
from dibs.home import Home
from dibs.ledger.rows import Lease, LeasedDevice, encode, sealed, unit_key, unsealed
from dibs.ledger.sandboxes import Sandboxes
from dibs.process import ProcessName
from dibs.receipt import Receipt
from dibs.sandbox import Exit, Handle, SandboxId, SandboxState, decoder


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """A sandbox with what it holds. Its `spec`, `handle` and `receipt` are text, as in the ledger."""

    row: dict[str, Any]
    leases: tuple[Lease, ...] = ()


# What is written down of a row: all that a later process needs. Pending values do not belong there.
_COLUMNS = (
    "id",
    "name",
    "backend",
    "uid",
    "username",
    "owner",
    "spec",
    "folder",
    "handle",
    "receipt",
    "simulated",
    "created_at",
    "started_at",
    "tenant",
    "labels",
    "annotations",
    "origin",
    "expires_at",
    "group_id",
    "rank",
)
_ADDED = {"group_id": "", "rank": 0}  # to what an older dibs wrote down  # fmt: skip


class Records(Sandboxes):
    home: Home

    # -- keeping them -------------------------------------------------------------------------------------------------

    def record_handle(self, sandbox_id: SandboxId, handle: Handle, fence: int | None = None) -> None:
        super().record_handle(sandbox_id, handle, fence)
        self._record(sandbox_id)

    def attach(
        self,
        sandbox_id: SandboxId,
        *,
        handle: Handle,
        receipt: Receipt,
        expires_at: float | None = None,
        fence: int | None = None,
    ) -> None:
        super().attach(sandbox_id, handle=handle, receipt=receipt, expires_at=expires_at, fence=fence)
        self._record(sandbox_id)

    def set_expiry(self, sandbox_id: SandboxId, at: float | None) -> None:
        super().set_expiry(sandbox_id, at)
        self._record(sandbox_id)

    def set_labels(self, sandbox_id: SandboxId, labels: Mapping[str, str]) -> None:
        super().set_labels(sandbox_id, labels)
        self._record(sandbox_id)

    def set_annotations(self, sandbox_id: SandboxId, annotations: Mapping[str, str]) -> None:
        super().set_annotations(sandbox_id, annotations)
        self._record(sandbox_id)

    def reopen(self, sandbox_id: SandboxId) -> bool:
        reopened = super().reopen(sandbox_id)
        if reopened:
            self._drop_record(sandbox_id)
        return reopened

    def end(self, sandbox_id: SandboxId, state: SandboxState, *, exit: Exit | None, reason: str) -> bool:  # noqa: A002
        first = super().end(sandbox_id, state, exit=exit, reason=reason)
        self._drop_record(sandbox_id)
        return first

    def _record(self, sandbox_id: SandboxId) -> None:
        rows = self._db.rows(
            f"SELECT {', '.join(_COLUMNS)} FROM sandboxes"  # noqa: S608 - names of ours
            " WHERE id = :id AND ended_at IS NULL AND handle IS NOT NULL AND domain = :domain",
            id=sandbox_id, domain=self.host,
        )  # fmt: skip
        if not rows:
            return  # it has ended, or is not made yet; or it is a cluster's, which knows what it has
        record = Record(dict(rows[0]), tuple(self.leases(sandbox_id=sandbox_id)))
        try:
            _write(self._records, sandbox_id, sealed(encode(record)).encode(), self.home)
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            raise StateError(
                f"what lives cannot be written down beside the ledger: {error.strerror}", field="DIBS_HOME",
                value=str(self._records), code="DISK_FULL" if full else "STATE_FOLDER_UNUSABLE",
                remedy="free some space; nothing was changed" if full else "check the permissions of the folder",
            ) from error  # fmt: skip

    def _drop_record(self, sandbox_id: str) -> None:
        try:
            os.unlink(self._records / sandbox_id)
        except FileNotFoundError:
            return  # it was never attached
        except OSError as error:
            raise self._unreadable(sandbox_id, error.strerror or str(error)) from error

    @cached_property
    def _records(self) -> Path:
        return self.home.state / "live"

    # -- what the ledger has forgotten --------------------------------------------------------------------------------

    def unknown(self) -> list[str]:
        """The ids of recorded sandboxes that do not live according to the ledger."""
        try:
            names = os.listdir(self._records)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._unreadable("", error.strerror or str(error)) from error
        if not names:
            return []
        known = self._db.rows(
            "SELECT id FROM sandboxes WHERE domain = :domain AND ended_at IS NULL AND handle IS NOT NULL",
            domain=self.host,
        )
        return sorted({name for name in names if not name.startswith(".")} - {row["id"] for row in known})

    def reserve(self, sandbox_id: SandboxId, devices: Sequence[LeasedDevice]) -> Lease:
        unknown = [] if self._verified else self.unknown()
        if unknown:
            raise BackendUnavailable(
                "sandboxes live that the ledger does not know, and may hold any device", field="ledger",
                value=", ".join(unknown[:5]), code="LEDGER_INCOMPLETE",
                remedy="run `dibs sandbox ls`: it enters them again, or says what to do",
            )  # fmt: skip
        return super().reserve(sandbox_id, devices)

    def recorded(self, sandbox_id: str) -> Record | None:
        """What is written down of a sandbox; None if nothing is. Raises StateError if it cannot be read."""
        try:
            return decoder(Record).decode(unsealed((self._records / sandbox_id).read_text(), sandbox_id))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unreadable(sandbox_id, error.strerror or str(error)) from error
        except (msgspec.DecodeError, ValueError, StateError) as error:
            raise self._unreadable(sandbox_id, str(error)) from error

    def restore(self, record: Record, *, state: str, started: bool) -> list[str]:
        """Enter a forgotten sandbox and its leases again; part of the caller's transaction. The devices that were
        given to another sandbox meanwhile.

        Unless its command is known to be `started`, a request that the ledger still has for it stays: the record is
        written before the commit, so a gateway killed in between may never have let the command go.
        """
        row = record.row
        sandbox_id = SandboxId(row["id"])
        try:
            decoder(ProcessName).decode(unsealed(row["owner"], "owner"))
            values = {name: row[name] for name in _COLUMNS if name not in _ADDED}
            values |= {name: row.get(name, other) for name, other in _ADDED.items()}
        except (KeyError, msgspec.DecodeError, StateError) as error:
            raise self._unreadable(sandbox_id, str(error)) from error
        live = self._db.rows(
            "SELECT id FROM sandboxes"
            " WHERE name = :name AND tenant = :tenant AND domain = :domain AND ended_at IS NULL",
            name=row["name"], tenant=row["tenant"], domain=self.host,
        )  # fmt: skip
        if any(other["id"] != sandbox_id for other in live):
            values["name"] = sandbox_id  # another has the name now
        columns = [*_COLUMNS, "domain", "state"]
        changes = ", ".join(f"{name} = excluded.{name}" for name in columns if name != "id")
        self._db.execute(
            f"INSERT INTO sandboxes ({', '.join(columns)}) VALUES ({', '.join(f':{name}' for name in columns)})"  # noqa: S608 - names of ours
            f" ON CONFLICT (id) DO UPDATE SET {changes}, ended_at = NULL, exit = NULL, reason = NULL",
            **values, domain=self.host, state=state,
        )  # fmt: skip
        if started:
            self.forget_pending(sandbox_id)
        lost = [device for lease in record.leases for device in self._restore_lease(lease)]
        detail = "the ledger did not know it" + (f"; others hold {', '.join(lost)} too" if lost else "")
        self.note("sandbox.restored", sandbox_id=sandbox_id, detail=detail)
        return lost

    def _restore_lease(self, lease: Lease) -> list[str]:
        lost = []
        self._db.execute(
            "INSERT INTO leases (id, sandbox_id, domain, state, devices, created_at, changed_at)"
            " VALUES (:id, :sandbox, :domain, 'attached', :devices, :created, :changed)"
            " ON CONFLICT (id) DO UPDATE SET state = 'attached', devices = excluded.devices",
            id=lease.id, sandbox=lease.sandbox_id, domain=self.host, devices=encode(lease.devices),
            created=lease.created_at, changed=lease.changed_at,
        )  # fmt: skip
        for table in ("lease_units", "lease_shares"):
            self._db.execute(f"DELETE FROM {table} WHERE lease_id = :lease", lease=lease.id)  # noqa: S608 - names of ours
        for device in lease.devices:
            if device.share is not None:
                self._share_again(lease, device)
                continue
            for unit in (*device.units, *device.marks):
                if not self._book(lease.id, unit_key(unit, simulated=device.simulated)):
                    lost.append(device.id)
        return list(dict.fromkeys(lost))

    def _share_again(self, lease: Lease, device: LeasedDevice) -> None:
        assert device.share is not None
        for name, amount in (device.share.consumed or {"": 0}).items():
            self._db.execute(
                "INSERT INTO lease_shares (lease_id, domain, device_id, share_id, capacity, amount, live)"
                " VALUES (:lease, :domain, :device, :share, :capacity, :amount, 1)",
                lease=lease.id, domain=self.host, device=unit_key(device.id, simulated=device.simulated),
                share=device.share.id, capacity=name, amount=str(amount),
            )  # fmt: skip

    def mark_unknown(self, sandbox_id: str) -> None:
        """A sandbox lives of which nothing is written down: no device is booked until it has ended."""
        _write(self._records, sandbox_id, b"", self.home)

    def drop_unknown(self, sandbox_id: str) -> None:
        """A recorded sandbox that the ledger does not know, and cannot learn of, is proved gone."""
        self._drop_record(sandbox_id)

    def _unreadable(self, sandbox_id: str, reason: str) -> StateError:
        path = self._records / sandbox_id
        return StateError(
            f"what is written down of a sandbox cannot be used: {reason}", field="sandbox",
            value=sandbox_id or str(path), code="SANDBOX_UNKNOWN",
            remedy=f"end its processes (grep -l DIBS_SANDBOX={sandbox_id} /proc/[0-9]*/environ), then remove {path}",
        )  # fmt: skip


def _write(folder: Path, name: str, data: bytes, home: Home) -> None:
    draft = f"{folder}/.{name}.{os.getpid()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = os.open(draft, flags, home.file_mode)
    except FileNotFoundError:
        home.make_folder(folder)
        fd = os.open(draft, flags, home.file_mode)
    try:
        os.fchmod(fd, home.file_mode)
        os.write(fd, data)
    except OSError:
        os.unlink(draft)
        raise
    finally:
        os.close(fd)
    os.rename(draft, f"{folder}/{name}")
