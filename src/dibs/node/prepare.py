"""Claims on this node: from an allocation to the CDI names that the kubelet gives to the runtime, and back.

`kubelet` calls it for every pod that has a claim, more than once and after every restart; so each step can be repeated.
In order: the record, the CDI spec, the answer; and backwards the spec, then the record. After a kill between any two of
them the next call of either kind goes on. A device that another claim has is not prepared, whatever the allocation
says. What a claim asks for and this driver cannot do (parameters) is refused, not dropped.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from dibs.cdi.cache import Cache
from dibs.cdi.spec import Spec
from dibs.claims import taints
from dibs.claims.claim import DeviceToleration
from dibs.claims.identity import DeviceId
from dibs.errors import Busy, Conflict, DibsError, InvalidRequest, NotFound, Problem, Unhealthy
from dibs.kube.objects import Meta, View
from dibs.node import specs
from dibs.node.devices import Looked
from dibs.node.records import PreparedDevice, Record, Records

UID, NAMESPACE, NAME = "dibs/claim-uid", "dibs/claim-namespace", "dibs/claim-name"  # annotations of a claim's spec


# What is read of a claim; a field that a newer API server adds is no reason to refuse it.


class Result(View, frozen=True, kw_only=True):
    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool | None = None
    tolerations: tuple[DeviceToleration, ...] = ()
    share_id: str | None = msgspec.field(default=None, name="shareID")


class Opaque(View, frozen=True, kw_only=True):
    driver: str = ""


class Config(View, frozen=True, kw_only=True):
    source: str = ""
    opaque: Opaque | None = None


class Devices(View, frozen=True, kw_only=True):
    results: tuple[Result, ...] = ()
    config: tuple[Config, ...] = ()


class Allocation(View, frozen=True, kw_only=True):
    devices: Devices = Devices()


class Status(View, frozen=True, kw_only=True):
    allocation: Allocation | None = None


class Claim(View, frozen=True, kw_only=True):
    metadata: Meta = Meta()
    status: Status = Status()


Fetch = Callable[[str, str], Claim]  # namespace, name; raises a NotFound if there is none


class Preparer:
    """The claims of one driver."""

    def __init__(
        self,
        driver: str,
        records: Records,
        *,
        cdi_folder: Path,
        static: Cache,
        look: Callable[[], Looked],
        fetch: Fetch,
    ) -> None:
        self._driver = driver
        self._records = records
        self._folder = cdi_folder
        self._static = static
        self._look = look
        self._fetch = fetch
        self._lock = threading.Lock()  # over records and specs, never while the API server is asked

    def prepare(self, namespace: str, name: str, uid: str) -> tuple[PreparedDevice, ...]:
        """The devices of a claim, ready for its containers."""
        with self._lock:
            known = self._records.get(uid)
            if known is not None:
                self._write_spec(known)
                return known.devices
        results = self._results(namespace, name, uid)
        with self._lock:
            known = self._records.get(uid) or self._record(namespace, name, uid, results)
            self._write_spec(known)
            return known.devices

    def unprepare(self, uid: str) -> None:
        """Nothing of the claim is left on this node. It may never have been prepared."""
        with self._lock:
            specs.remove(specs.claim_file(self._folder, self._driver, uid))
            self._records.remove(uid)

    def restore(self) -> list[str]:
        """After a start: every prepared claim has its spec, and no other spec of ours is left. What was done."""
        done = []
        with self._lock:
            self._records.remove_drafts()
            specs.remove_drafts(self._folder, self._driver)
            records = self._records.all()
            for record in records.values():
                self._write_spec(record)
                done.append(f"{record.namespace}/{record.name} is prepared")
            for uid in specs.claims_with_files(self._folder, self._driver):
                if uid not in records:
                    # A record is written before its spec and removed after it: this claim was never answered for.
                    specs.remove(specs.claim_file(self._folder, self._driver, uid))
                    done.append(f"the spec of claim {uid} has no record: removed")
        return done

    @property
    def prepared(self) -> int:
        return len(self._records.all())

    # -- steps of `prepare`

    def _results(self, namespace: str, name: str, uid: str) -> tuple[Result, ...]:
        """What the scheduler allocated of this driver."""
        claim = self._fetch(namespace, name)
        where = f"{namespace}/{name}"
        if claim.metadata.uid != uid:
            raise Conflict(
                "another claim has this name now", field="claim", value=where, code="CLAIM_REPLACED",
                remedy="the pod that used the old one must be deleted",
            )  # fmt: skip
        if claim.status.allocation is None:
            raise Conflict("it is not allocated", field="claim", value=where, code="CLAIM_NOT_ALLOCATED")
        devices = claim.status.allocation.devices
        for config in devices.config:
            if config.opaque is not None and config.opaque.driver == self._driver:
                raise InvalidRequest(
                    f"this driver knows no parameters, and the {config.source} configuration has some",
                    field="devices.config", value=where, code="CONFIG_UNSUPPORTED",
                    remedy=f"remove the configuration for {self._driver} from the claim or its class",
                )  # fmt: skip
        results = tuple(one for one in devices.results if one.driver == self._driver)
        if not results:
            raise NotFound(f"nothing of {self._driver} is allocated", field="claim", value=where)
        return results

    def _record(self, namespace: str, name: str, uid: str, results: tuple[Result, ...]) -> Record:
        looked = self._look()
        self._check(looked, results)
        own = {}
        prepared = []
        self._static.refresh()
        for result in results:
            device = looked.by_id[DeviceId(result.driver, result.pool, result.device)]
            assert device.cdi is not None
            if specs.named(self._static, device):
                cdi = device.cdi.cdi_name
            else:
                entry = f"{uid}-{result.device}"
                own[entry] = device
                cdi = f"{specs.claim_kind(self._driver)}={entry}"
            prepared.append(
                PreparedDevice(
                    (result.request.partition("/")[0],),
                    result.pool,
                    result.device,
                    (cdi,),
                    share=result.share_id or "",
                    admin=bool(result.admin_access),
                    units=tuple(map(str, device.booked_units)),
                )
            )
        about = {UID: uid, NAMESPACE: namespace, NAME: name}
        spec = specs.spec_of(specs.claim_kind(self._driver), own, about) if own else None
        text = msgspec.json.encode(spec).decode() if spec is not None else ""
        record = Record(uid, namespace, name, tuple(prepared), text)
        self._records.write(record)
        return record

    def _check(self, looked: Looked, results: tuple[Result, ...]) -> None:
        """All that stands against preparing these devices, at once."""
        problems: list[Problem] = []
        kind: type[DibsError] = Busy
        holders = [(record, held) for record in self._records.all().values() for held in record.devices]
        for result in results:
            own = DeviceId(result.driver, result.pool, result.device)
            device = looked.by_id.get(own)
            if device is None:
                kind = NotFound
                reason = f"it is not on this node; {len(looked.by_id)} devices are"
                said = "; ".join(f"{one.source}: {one.reason}" for one in looked.errors)
                problems.append(Problem("DEVICE_NOT_FOUND", "device", str(own), reason, said))
                continue
            taint = taints.untolerated(taints.preventing(looked.taints.get(own, ())), result.tolerations)
            if taint is not None or device.cdi is None:
                kind = Unhealthy
                reason = device.health.reason or device.unattachable or f"it has the taint {taint and taint.key}"
                remedy = "repair it, or tolerate its taint"
                problems.append(Problem("DEVICES_UNHEALTHY", "device", str(own), reason, remedy))
            for record, held in holders:
                together = held.admin or result.admin_access or (held.share and result.share_id)
                if not together and not set(held.units).isdisjoint(device.booked_units):
                    reason = f"claim {record.namespace}/{record.name} still has {held.device} here"
                    remedy = "it is free when the pod of that claim has ended"
                    problems.append(Problem("DEVICES_BUSY", "device", str(own), reason, remedy))
        if problems:
            raise kind(problems)

    def _write_spec(self, record: Record) -> None:
        if record.spec:
            file = specs.claim_file(self._folder, self._driver, record.uid)
            specs.write(file, msgspec.json.decode(record.spec, type=Spec))


def claim_of(found: Any) -> Claim:
    return msgspec.convert(found, Claim)
