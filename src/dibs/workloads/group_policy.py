"""What becomes of a group when one of its members fails: by default all of it ends.

`reconcile` enforces it where the process that made the group is gone, so at the next command or at the next look of a
gateway; a maker that is there does it itself. Either way members get the grace that they were promised. A member fails
by an exit code other than 0, by a signal, or by not being started.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from dibs.backends.port import Exit
from dibs.errors import DibsError
from dibs.ledger.store import Ledger
from dibs.request.spec import SandboxSpec
from dibs.sandbox import Sandbox, SandboxState
from dibs.workloads.identity import this_process
from dibs.workloads.registry import Registry

Policy = Literal["end", "continue"]
END: Policy = "end"
POLICY = "dibs.group/on-failure"  # the annotation of each member that says it
_EXIT = msgspec.json.Decoder(Exit)
_SPEC = msgspec.json.Decoder(SandboxSpec)


def failed(row: Sandbox) -> bool:
    """Whether a member has ended in a way that its group does not survive."""
    if row.live:
        return False
    return row.state is SandboxState.FAILED or row.exit is None or row.exit.code != 0


def to_be_ended(ledger: Ledger) -> list[Sandbox]:
    """The live members of this user's groups of which another has failed, and whose maker is not there to see to them.
    Other users' groups are theirs to end."""
    me = this_process()
    live = [row for row in ledger.sandboxes(live_only=True) if row.group and me.touches(row)]
    broken = {group: any(map(failed, ledger.group(group))) for group in {row.group for row in live}}
    return [
        row
        for row in live
        if broken[row.group] and row.annotations.get(POLICY, END) == END and row.created and row.orphaned
    ]


def enforce(ledger: Ledger, registry: Registry) -> list[Sandbox]:
    """Stop what is to be ended, all at once, and return what was stopped. The rest is tried again at the next look."""
    rows = to_be_ended(ledger)
    if not rows:
        return []
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(len(rows)) as threads:
        problems = list(threads.map(lambda row: _stop(row, registry), rows))
    for row, problem in zip(rows, problems, strict=True):
        if problem is not None:
            with ledger.writing():
                ledger.note("group.leftover", sandbox_id=row.id, detail=str(problem))
    return [row for row, problem in zip(rows, problems, strict=True) if problem is None]


def _stop(row: Sandbox, registry: Registry) -> DibsError | None:
    """In a thread of its own: it may take as long as the member's grace."""
    from dibs.workloads.reconcile import handle_of

    try:
        grace = row.spec.grace_seconds
        registry.get(row.backend, row.uid).stop(handle_of(row), grace)
    except DibsError as error:
        return error
    return None
