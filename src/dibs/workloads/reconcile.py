"""Reconciliation of the ledger with the backends. Runs at every start, and in waiting processes.

A lease is freed only when its workload is proved gone:
- never attached, and its creator is gone: leftovers are removed (`discard`) and the booking is void. What an engine
  creates even later is removed then (`orphans`). A sandbox accepted by a gateway is left to the next gateway, which
  delivers it;
- attached: its keeper and its first process are both gone, or the backend proves that it ended. A sandbox that lost its
  keeper is ended, because it can no longer be controlled.
Live sandboxes that are missing from the ledger are entered again (`adoption`). Where absence cannot be proved (another
host, another pid namespace, an engine that does not answer), the lease stays booked.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

from dibs.backends.port import Exit, ExitReason, Handle, Phase, Status, scheduler_of, survey
from dibs.errors import BackendUnavailable, DibsError, NotFound, StateError
from dibs.ledger.store import Ledger
from dibs.process import absent
from dibs.sandbox import Sandbox, SandboxState
from dibs.workloads import adoption, orphans
from dibs.workloads.queue import drop_void
from dibs.workloads.registry import Registry

_FAILURES = (ExitReason.LOST, ExitReason.NOT_STARTED, ExitReason.OUT_OF_MEMORY)
KEEP_ENDED = 1_000  # how many ended sandboxes are remembered, with their receipts; older ones are forgotten


def handle_of(row: Sandbox) -> Handle:
    """What names it on its backend, also while it has no more than its id and folder there."""
    return row.handle or Handle(row.backend, row.id, row.folder)


def reconcile(ledger: Ledger, registry: Registry, only: Collection[str] | None = None) -> list[str]:
    """Free what is proved gone, drop the tickets of the dead. Returns the ids of the sandboxes that were ended.

    `only`: of all sandboxes, just these are looked at.
    """
    rows = ledger.sandboxes(live_only=True)
    ended = _compare(ledger, registry, [row for row in rows if only is None or row.id in only])
    if only is None:
        # After that, so that what the forgotten hold is no longer booked for those that are gone.
        forgotten = adoption.adopt(ledger, registry)
        if forgotten:
            rows = ledger.sandboxes(live_only=True)
            ended += _compare(ledger, registry, [row for row in rows if row.id in forgotten])
    if only is None:
        ended += _end_broken_groups(ledger, registry)
        orphans.sweep(registry.home, registry)
    drop_void(ledger)
    return ended


@contextmanager
def room_or_later() -> Iterator[None]:
    """For readers: on a full disk nothing can be recorded, so what has ended stays booked until there is
    room. What is booked can be read all the same."""
    try:
        yield
    except StateError as error:
        if error.code != "DISK_FULL":
            raise


def _end_broken_groups(ledger: Ledger, registry: Registry) -> list[str]:
    if not ledger.any_groups():
        return []
    from dibs.workloads import group_policy

    stopped = {row.id for row in group_policy.enforce(ledger, registry)}
    return _compare(ledger, registry, [row for row in ledger.sandboxes(live_only=True) if row.id in stopped])


def _compare(ledger: Ledger, registry: Registry, rows: list[Sandbox]) -> list[str]:
    ended: list[str] = []
    surveys = _surveys(rows, registry)
    for row in rows:
        status = _fate(ledger, row, registry, surveys)
        if status is not None and finish(ledger, registry, row, status):
            ended.append(row.id)
    return ended


def _surveys(rows: list[Sandbox], registry: Registry) -> dict[str, Status]:
    """The engines are asked once for all of theirs. One that does not answer proves nothing of its sandboxes."""
    found: dict[str, Status] = {}
    by_backend: dict[str, list[Handle]] = {}
    for row in rows:
        if row.created and row.state is not SandboxState.CREATING:
            handle = handle_of(row)
            if handle.keeper is None:
                by_backend.setdefault(row.backend, []).append(handle)
    for name, handles in by_backend.items():
        try:
            found |= survey(registry.get(name), handles)
        except BackendUnavailable:
            found |= {handle.sandbox_id: Status(Phase.UNKNOWN) for handle in handles}
    return found


def _fate(ledger: Ledger, row: Sandbox, registry: Registry, surveys: Mapping[str, Status]) -> Status | None:
    """How a live-looking sandbox ended; None if it lives, or if that cannot be told."""
    if row.state is SandboxState.QUEUED:
        return None
    if row.state is SandboxState.CREATING:
        return _fate_of_unfinished(ledger, row, registry)
    handle = handle_of(row)
    if handle.keeper is not None and not absent(handle.keeper):
        return None
    try:
        if handle.keeper is not None and handle.init is not None and not absent(handle.init):
            registry.get(row.backend, row.uid).stop(handle, 0.0)  # frozen or held back, else it had ended with its shim
        status = surveys.get(row.id) or registry.get(row.backend, row.uid).status(handle)
    except BackendUnavailable:
        return None  # not proved
    except StateError as error:
        if handle.keeper is None:
            raise
        # Another user's sandbox on a shared ledger: its processes are proved gone, how it ended we may not read.
        detail = f"how it ended is known to {row.username} only ({error.code})"
        return Status(Phase.ABSENT, Exit(1, ExitReason.LOST, detail=detail, at=time.time()))
    return status if status.phase in (Phase.EXITED, Phase.ABSENT) else None


def _fate_of_unfinished(ledger: Ledger, row: Sandbox, registry: Registry) -> Status | None:
    if row.origin or not row.orphaned:
        return None
    if adoption.restore_attached(ledger, registry, row.id):
        return None  # the ledger is an old copy: it was finished since
    backend = registry.get(row.backend, row.uid)
    if not backend.holds:
        try:
            backend.discard(handle_of(row))
        except BackendUnavailable:
            return None  # something of it may still be there
        if scheduler_of(backend) is None:
            try:
                orphans.expect(registry.home, handle_of(row))
            except StateError as error:
                if error.code != "DISK_FULL":
                    raise
                return None  # without that note nothing would look for it again: it stays booked until there is room
    return Status(Phase.ABSENT, Exit(1, ExitReason.NOT_STARTED, detail="its creator went away", at=time.time()))


def finish(ledger: Ledger, registry: Registry, row: Sandbox, status: Status) -> bool:
    """Record the end of a sandbox whose absence is proved. False if another was faster, or it is made once more."""
    result = status.exit or Exit(
        137, ExitReason.LOST, detail=status.detail or "it was killed from outside", at=time.time()
    )
    failed = result.reason in _FAILURES
    with ledger.writing():
        try:
            now = ledger.sandbox(row.id)
        except NotFound:
            return False
        if now.parts.handle != row.parts.handle:
            return False  # what was seen to be gone is not what it is now: it was made once more
        told = _why_not_started(now) if result.reason in (ExitReason.LOST, ExitReason.NOT_STARTED) else None
        if told is not None:
            result, reason = told, told.detail.splitlines()[0]
        elif now.accepted and result.reason is ExitReason.NOT_STARTED and ledger.reopen(row.id):
            return False  # a gateway had accepted it and died before the command was let go: the next one makes it
        else:
            reason = describe(result)
        if now.withdrawn and result.reason in (ExitReason.LOST, ExitReason.NOT_STARTED):
            from dibs.workloads.delivery import withdraw

            first = withdraw(ledger, row.id)  # its delivery has undone it, and has not recorded that yet
        else:
            ends = SandboxState.FAILED if failed else SandboxState.EXITED
            first = ledger.end(row.id, ends, exit=result, reason=reason)
        if first:
            _forget_old(ledger, registry)
    if first and not row.created:
        # Nothing of it is worth keeping; a leftover folder is a nuisance, not a leak of a device.
        try:
            registry.get(row.backend, row.uid).delete(handle_of(row))
        except (DibsError, OSError) as error:
            with ledger.writing():
                ledger.note("sandbox.leftover", sandbox_id=row.id, detail=str(error))
    return first


def _why_not_started(row: Sandbox) -> Exit | None:
    """What its delivery has written into the receipt, and is about to end it with: its files may be gone already."""
    receipt = row.receipt
    if receipt is None or receipt.verdict != "not started":
        return None
    error = DibsError(receipt.problems)
    return Exit(1, ExitReason.NOT_STARTED, detail=f"{error.code}: {error}", at=time.time())


def _forget_old(ledger: Ledger, registry: Registry) -> None:
    for row in ledger.ended_beyond(KEEP_ENDED):
        ledger.forget(row.id)
        try:
            registry.get(row.backend, row.uid).delete(handle_of(row))
        except (DibsError, OSError) as error:
            ledger.note("sandbox.leftover", sandbox_id=row.id, detail=str(error))


def describe(result: Exit) -> str:
    """How it ended, in one phrase."""
    words = {
        ExitReason.EXITED: f"exit code {result.code}",
        ExitReason.SIGNALLED: f"killed by signal {result.signal}",
        ExitReason.STOPPED: "stopped on request",
        ExitReason.EXPIRED: "its time to live was over",
        ExitReason.OUT_OF_MEMORY: "out of memory",
        ExitReason.CLIENT_GONE: "the terminal or client that ran it went away",
        ExitReason.LOST: "killed from outside",
        ExitReason.NOT_STARTED: "the command was never started",
    }
    text = words[result.reason]
    return f"{text} ({result.detail})" if result.detail else text
