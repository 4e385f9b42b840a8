"""The use cases: create a sandbox, look after it, explain. Everything that `cli` and `sdk` do goes through here.

The order of a creation is the promise of dibs:
    1. everything that can be wrong is found and refused, nothing is changed
    2. one transaction: reconcile, plan, render, book
    3. create, with the command held back; look from outside; write the receipt
    4. one transaction: attached, with the handle and the receipt
    5. only now the command runs
A crash between any two lines leaves a booking that the next reconciliation proves void, or a sandbox that it adopts.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from dibs.backends.port import Backend, Exec, Exit, Handle, LogRecord, Phase, Session, Status
from dibs.devices.model import Device, Inventory
from dibs.errors import Conflict, DeliveryMismatch, DibsError, NotFound, Timeout
from dibs.home import Home, find_home
from dibs.ledger.rows import Event, Holder, Lease, LeasedDevice, SandboxId, SandboxRow, Share, Taint, Ticket, encode
from dibs.ledger.store import Ledger, new_id
from dibs.plan.explanation import Explanation
from dibs.plan.planner import Refusal, SharedUse, World, holder_of, plan_devices
from dibs.process import absent, myself, username
from dibs.request.model import Request
from dibs.request.spec import SandboxSpec
from dibs.workloads.explain import explain_request, usable_backends
from dibs.workloads.receipt import HIDDEN, Receipt, differences, write_receipt
from dibs.workloads.reconcile import finish, handle_of, reconcile
from dibs.workloads.registry import Registry
from dibs.workloads.rendering import Prepared, prepare
from dibs.workloads.waiting import Waiting, WaitNews

_RECEIPT = msgspec.json.Decoder(Receipt)
_EXIT = msgspec.json.Decoder(Exit)
_SETTLE = 5.0  # seconds that a keeper gets to go away after its workload has ended


class DeviceState(msgspec.Struct, frozen=True, omit_defaults=True):
    """A device and who has it, for tables."""

    device: Device
    state: str  # free, held, shared, external, unhealthy, tainted, unusable
    holder: Holder | None = None
    note: str = ""


class Workloads:
    """The service of one installation. Cheap to make; use it from one thread, or make one per thread."""

    def __init__(self, home: Home | None = None) -> None:
        self.home = home or find_home()
        self.registry = Registry(self.home)
        self._ledger: Ledger | None = None

    @property
    def ledger(self) -> Ledger:
        """The open ledger; opened, and compared with what is really there, on first use."""
        if self._ledger is None:
            self._ledger = Ledger(self.home)
            reconcile(self._ledger, self.registry)
        return self._ledger

    def close(self) -> None:
        if self._ledger is not None:
            self._ledger.close()
            self._ledger = None

    def __enter__(self) -> Workloads:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- looking ----------------------------------------------------------------------------------------------------

    def inventory(self) -> Inventory:
        from dibs.devices.inventory import look

        found = look(self.home, started_by_dibs=self.started_by_dibs())
        self._tell_of_health(found)
        return found

    def _tell_of_health(self, inventory: Inventory) -> None:
        """Those who hold a device that has broken are told, once."""
        broken: dict[str, str] = {
            device.id: device.health.reason for device in inventory.devices if not device.health.ok
        }
        if not broken:
            return
        for lease in self.ledger.leases():
            for device in lease.devices:
                if device.simulated != inventory.simulated or device.id not in broken:
                    continue
                detail = f"{device.id}: {broken[device.id]}"
                known = self.ledger.events(sandbox_id=lease.sandbox_id)
                if not any(event.kind == "lease.unhealthy" and event.detail == detail for event in known):
                    with self.ledger.writing():
                        self.ledger.note(
                            "lease.unhealthy", sandbox_id=lease.sandbox_id, lease_id=lease.id, detail=detail
                        )

    def started_by_dibs(self) -> Callable[[int], bool]:
        """Whether a process runs in one of our sandboxes: it is in the pid namespace of one."""
        mine: set[int] = set()
        for row in self.ledger.sandboxes(live_only=True):
            init = handle_of(row).init
            if init is not None and not absent(init):
                try:
                    mine.add(os.stat(f"/proc/{init.pid}/ns/pid").st_ino)
                except OSError:
                    continue  # it ended between the two looks, so nothing of it uses a card

        def started(pid: int) -> bool:
            try:
                return os.stat(f"/proc/{pid}/ns/pid").st_ino in mine
            except OSError:
                return False  # cannot be told: counted as somebody else's, the card is then not given away

        return started

    def devices(self) -> tuple[Inventory, list[DeviceState]]:
        inventory = self.inventory()
        world = self._world(inventory, ahead=None)
        return inventory, [_state(device, world) for device in inventory.devices]

    def taint(self, name: str, taint: Taint) -> Device:
        """Say that a device is not to be given away (or, with effect None, just say something about it)."""
        device = self._device(name)
        with self.ledger.writing():
            self.ledger.taint(device.id, msgspec.structs.replace(taint, username=username()))
        return device

    def untaint(self, name: str, key: str) -> int:
        """Take the taints of a key off a device, or all of them; how many there were."""
        device = self._device(name)
        with self.ledger.writing():
            return self.ledger.untaint(device.id, key)

    def _device(self, name: str) -> Device:
        found = self.inventory().find(name)
        if len(found) != 1:
            remedy = "`dibs gpus -o wide` shows all names"
            raise NotFound("no device, or several, answer to it", field="device", value=name, remedy=remedy)
        return found[0]

    def sandboxes(self, *, all: bool = False) -> list[SandboxRow]:  # noqa: A002
        return self.ledger.sandboxes(live_only=not all)

    def sandbox(self, reference: str) -> SandboxRow:
        return self.ledger.sandbox(reference)

    def leases(self, *, all: bool = False) -> list[Lease]:  # noqa: A002
        return self.ledger.leases(live_only=not all)

    def queue(self) -> list[Ticket]:
        return self.ledger.tickets()

    def events(self, reference: str | None = None) -> list[Event]:
        return self.ledger.events(sandbox_id=self.sandbox(reference).id if reference else None)

    def receipt(self, reference: str) -> Receipt:
        row = self.sandbox(reference)
        if row.receipt is None:
            raise NotFound(
                "there is no receipt: nothing was delivered", field="sandbox", value=row.name, code="NO_RECEIPT",
                remedy=f"it is {row.state}" + (f": {row.reason}" if row.reason else ""),
            )  # fmt: skip
        return _RECEIPT.decode(row.receipt)

    def explain(self, spec: SandboxSpec) -> Explanation:
        """What would happen, on each backend and to each device. Nothing is created."""
        inventory = self.inventory()
        world = self._world(inventory, ahead=None)
        return explain_request(spec, world, self.registry, queue_length=len(self.ledger.tickets()))

    def _world(self, inventory: Inventory, *, ahead: str | None) -> World:
        """What a plan depends on. `ahead`: our own ticket; who came before it is served first."""
        requests = []
        for ticket in self.ledger.tickets():
            if ticket.id == ahead:
                break
            requests.append(msgspec.json.decode(ticket.request, type=Request))
        leased, shares = self._leased(simulated=inventory.simulated)
        return World(
            inventory=inventory,
            holders=self.ledger.holders(),
            ahead=tuple(requests),
            now=time.time(),
            leased=leased,
            shares=shares,
            taints=self.ledger.taints(),
            node=os.uname().nodename,
            classes=self._classes,
        )

    def _leased(self, *, simulated: bool) -> tuple[dict[str, Holder], dict[str, SharedUse]]:
        """Who has which device whole, and who has shares of which."""
        whole: dict[str, Holder] = {}
        shares: dict[str, SharedUse] = {}
        for lease in self.ledger.leases():
            holder = Holder(
                lease.id, lease.sandbox_id, lease.sandbox_name, lease.username, lease.created_at, lease.state
            )
            for device in lease.devices:
                if device.simulated != simulated:
                    continue
                if device.share is None:
                    whole[device.id] = holder
                    continue
                before = shares.get(device.id, SharedUse({}, ()))
                sums = dict(before.consumed)
                for name, amount in device.share.consumed.items():
                    sums[name] = sums.get(name, 0) + amount
                shares[device.id] = SharedUse(sums, (*before.holders, holder))
        return whole, shares

    def _classes(self) -> Sequence[Any]:
        from dibs.devices.classes import classes_of

        return classes_of(self.home)

    # -- creating ---------------------------------------------------------------------------------------------------

    def create(
        self,
        spec: SandboxSpec,
        *,
        base_env: Mapping[str, str] | None = None,
        on_wait: Callable[[WaitNews], None] | None = None,
        on_note: Callable[[str], None] | None = None,
    ) -> SandboxRow:
        """A running sandbox with everything that was asked for, or a DibsError and nothing changed."""
        sandbox_id, _ = self._make(spec, base_env or {}, False, on_wait, on_note)
        return self.sandbox(sandbox_id)

    def launch(
        self,
        spec: SandboxSpec,
        *,
        base_env: Mapping[str, str] | None = None,
        on_wait: Callable[[WaitNews], None] | None = None,
        on_note: Callable[[str], None] | None = None,
    ) -> tuple[SandboxRow, Session]:
        """As `create`, for the foreground: attached before the command starts, and ended when we go away."""
        sandbox_id, session = self._make(spec, base_env or {}, True, on_wait, on_note)
        assert session is not None  # foreground
        return self.sandbox(sandbox_id), session

    def _make(
        self,
        spec: SandboxSpec,
        base_env: Mapping[str, str],
        foreground: bool,
        on_wait: Callable[[WaitNews], None] | None,
        on_note: Callable[[str], None] | None,
    ) -> tuple[SandboxId, Session | None]:
        backend = usable_backends(spec, self.registry)[0]
        sandbox_id = SandboxId(new_id("sb"))
        prepared = self._reserve(spec, backend, sandbox_id, base_env, foreground, on_wait)
        for note in prepared.notes:
            if on_note is not None:
                on_note(note)
        return sandbox_id, self._deliver(spec, backend, prepared)

    def _reserve(
        self,
        spec: SandboxSpec,
        backend: Backend,
        sandbox_id: SandboxId,
        base_env: Mapping[str, str],
        foreground: bool,
        on_wait: Callable[[WaitNews], None] | None,
    ) -> Prepared:
        inventory = self.inventory()
        with Waiting(self.ledger, self.registry, spec, on_wait) as waiting:
            while True:
                with self.ledger.writing():
                    decision = plan_devices(spec.resources, self._world(inventory, ahead=waiting.ticket))
                    if not isinstance(decision, Refusal):
                        prepared = prepare(
                            spec, backend, sandbox_id, decision, inventory, self.home, base_env, foreground
                        )
                        self._book(spec, backend, prepared)
                        waiting.served()
                        return prepared
                if spec.wait_seconds is None or not decision.waitable:
                    raise decision.to_error()
                waiting.wait(decision)
                inventory = self.inventory()

    def _book(self, spec: SandboxSpec, backend: Backend, prepared: Prepared) -> None:
        workload = prepared.workload
        self.ledger.add_sandbox(
            SandboxRow(
                id=SandboxId(workload.id),
                name=workload.name,
                backend=backend.name,
                state="creating",
                uid=os.getuid(),
                username=username(),
                owner=myself(),
                spec=encode(_without_values(spec)).encode(),
                folder=str(prepared.folder),
                created_at=time.time(),
                simulated=prepared.simulated,
            )
        )
        if prepared.devices:
            leased = [_leased(device, prepared.shares.get(device.id)) for device in prepared.devices]
            self.ledger.reserve(SandboxId(workload.id), leased)

    def _deliver(self, spec: SandboxSpec, backend: Backend, prepared: Prepared) -> Session | None:
        """Create, look, prove, start. In the foreground: attached before the start, so that no output is missed."""
        workload, realisation = prepared.workload, prepared.realisation
        row_id = SandboxId(workload.id)
        handle: Handle | None = None
        session: Session | None = None
        try:
            handle = backend.create(workload, realisation, prepared.folder)
            observed = backend.observe(handle)
            problems = differences(realisation.expectation, observed)
            receipt = write_receipt(
                spec, workload, prepared.devices, realisation, observed, problems,
                at=time.time(), simulated=prepared.simulated, notes=prepared.notes, told_env=prepared.told_env,
                shares=prepared.shares,
            )  # fmt: skip
            if problems:
                with self.ledger.writing():
                    self.ledger.keep_receipt(row_id, encode(receipt).encode())
                raise DeliveryMismatch(problems)
            with self.ledger.writing():
                self.ledger.attach(row_id, handle=encode(handle).encode(), receipt=encode(receipt).encode())
            if workload.foreground:
                session = backend.attach(handle)
            backend.start(handle)
        except BaseException as error:
            if session is not None:
                session.close()
            self._abandon(row_id, backend, handle, error)
            raise
        return session

    def _abandon(self, sandbox_id: SandboxId, backend: Backend, handle: Handle | None, error: BaseException) -> None:
        """Undo a creation that failed. The booking goes only when the workload is proved gone."""
        if handle is not None:
            backend.stop(handle, 0.0)
            status = backend.status(handle)
            if status.phase not in (Phase.EXITED, Phase.ABSENT):
                return  # not proved: the next reconciliation frees it
        code = error.code if isinstance(error, DibsError) else type(error).__name__
        result = Exit(1, "not-started", detail=f"{code}: {error}".splitlines()[0], at=time.time())
        with self.ledger.writing():
            self.ledger.end(sandbox_id, "failed", exit=encode(result).encode(), reason=result.detail)
        if handle is not None:
            backend.delete(handle)

    # -- looking after ----------------------------------------------------------------------------------------------

    def _live(self, reference: str, *states: str, owned: bool = True) -> tuple[SandboxRow, Backend, Handle]:
        row = self.sandbox(reference)
        if owned:
            self._mine(row)
        if states and row.state not in states:
            ended = f" ({row.reason})" if row.reason else ""
            raise Conflict(
                f"the sandbox is {row.state}{ended}", field="sandbox", value=row.name, code="WRONG_STATE",
                remedy=f"this needs one that is {' or '.join(states)}",
            )  # fmt: skip
        return row, self.registry.get(row.backend), handle_of(row)

    def _mine(self, row: SandboxRow) -> None:
        """On a shared ledger everybody sees everything, but only the owner (and root) may touch a sandbox."""
        if os.getuid() not in (0, row.uid):
            remedy = f"ask {row.username}, or root"
            raise Conflict(
                f"it belongs to {row.username}", field="sandbox", value=row.name, code="NOT_YOURS", remedy=remedy
            )

    def attach(self, reference: str) -> Session:
        _, backend, handle = self._live(reference, "running", "paused")
        return backend.attach(handle)

    def exec(self, reference: str, command: Exec) -> Session:
        _, backend, handle = self._live(reference, "running")
        return backend.exec(handle, command)

    def logs(self, reference: str, *, follow: bool = False) -> Iterator[LogRecord]:
        _, backend, handle = self._live(reference)
        return backend.logs(handle, follow=follow)

    def copy_in(self, reference: str, archive: Iterator[bytes], path: str) -> None:
        _, backend, handle = self._live(reference, "running")
        backend.copy_in(handle, archive, path)

    def copy_out(self, reference: str, path: str) -> Iterator[bytes]:
        _, backend, handle = self._live(reference, "running")
        return backend.copy_out(handle, path)

    def pause(self, reference: str) -> None:
        row, backend, handle = self._live(reference, "running")
        backend.pause(handle)
        with self.ledger.writing():
            self.ledger.set_state(row.id, "paused", expected=("running",))

    def resume(self, reference: str) -> None:
        row, backend, handle = self._live(reference, "paused")
        backend.resume(handle)
        with self.ledger.writing():
            self.ledger.set_state(row.id, "running", expected=("paused",))

    def stop(self, reference: str, grace_seconds: float | None = None) -> SandboxRow:
        """Ask, then force; the devices are free when this returns. Stopping an ended sandbox changes nothing."""
        row, backend, handle = self._live(reference)
        if not row.live:
            return row
        if row.handle is None:
            raise Conflict("the sandbox is still being created", field="sandbox", value=row.name, remedy="try again")
        if row.state != "stopping":
            with self.ledger.writing():
                self.ledger.set_state(row.id, "stopping", expected=("running", "paused"))
        grace = _spec(row).grace_seconds if grace_seconds is None else grace_seconds
        backend.stop(handle, grace)
        return self.settle(row.id)

    def wait(self, reference: str, timeout: float | None = None) -> SandboxRow:
        """Until the sandbox has ended. Raises Timeout if it has not by then; it runs on."""
        row, backend, handle = self._live(reference)
        if not row.live:
            return row
        status = backend.wait(handle, timeout)
        if status.phase not in (Phase.EXITED, Phase.ABSENT):
            raise Timeout("the sandbox still runs", field="sandbox", value=row.name, remedy="wait longer, or stop it")
        return self.settle(row.id)

    def settle(self, reference: str) -> SandboxRow:
        """After the end of a workload: see that it is really gone, then free its devices."""
        row, backend, handle = self._live(reference)
        deadline = time.monotonic() + _SETTLE
        pause = 0.001
        while row.live:
            status: Status = backend.status(handle)
            gone = status.phase in (Phase.EXITED, Phase.ABSENT)
            if gone and (handle.keeper is None or handle.keeper == myself() or absent(handle.keeper)):
                finish(self.ledger, self.registry, row, status)
                break
            if time.monotonic() > deadline:
                break  # not proved; a later reconciliation does it
            time.sleep(pause)
            pause = min(pause * 2, 0.05)
        return self.sandbox(row.id)

    def remove(self, reference: str, grace_seconds: float | None = None) -> SandboxRow:
        """Stop it if it runs, and remove its files. The receipt stays in the ledger."""
        row = self.stop(reference, grace_seconds)
        if row.live:
            raise Conflict("the sandbox does not end", field="sandbox", value=row.name, remedy="see `dibs doctor`")
        self.registry.get(row.backend).delete(handle_of(row))
        return row


def _without_values(spec: SandboxSpec) -> SandboxSpec:
    """What is kept of a request: the names of its variables, not their values."""
    return msgspec.structs.replace(spec, env=dict.fromkeys(spec.env, HIDDEN))


def exit_of(row: SandboxRow) -> Exit | None:
    return _EXIT.decode(row.exit) if row.exit else None


def _spec(row: SandboxRow) -> SandboxSpec:
    return msgspec.json.decode(row.spec, type=SandboxSpec)


def _leased(device: Device, share: Share | None) -> LeasedDevice:
    return LeasedDevice(
        device.id, device.model, device.uuid, device.index, device.memory, device.booked_units, device.simulated, share
    )


def _state(device: Device, world: World) -> DeviceState:
    holder = holder_of(device, world.holders)
    taints = ", ".join(map(str, world.taints.get(device.id, ())))
    if holder is not None:
        return DeviceState(device, "held", holder, note=taints)
    shared = world.shares.get(device.id)
    if shared is not None:
        names = ", ".join(f"{one.sandbox_name} ({one.username})" for one in shared.holders)
        return DeviceState(device, "shared", shared.holders[0], note=names)
    if not device.health.ok:
        return DeviceState(device, "unhealthy", note=device.health.reason)
    if any(taint.effect != "None" for taint in world.taints.get(device.id, ())):
        return DeviceState(device, "tainted", note=taints)
    if device.used_by:
        uses = ", ".join(f"{use.command} (pid {use.pid}, {use.user})" for use in device.used_by)
        return DeviceState(device, "external", note=uses)
    if device.attachment is None:
        return DeviceState(device, "unusable", note=device.unattachable)
    return DeviceState(device, "free", note=taints)
