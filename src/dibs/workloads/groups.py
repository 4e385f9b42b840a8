"""Groups: several equal sandboxes, all or none. Booked in one transaction, created, proved and started together.

`dibs run --nodes N` makes one (`cli.group_run`). A member is a sandbox like any other, with a rank; it finds its place
in its environment:

    DIBS_GROUP    the id of the group          DIBS_RANK    its own number, from 0
    DIBS_NODES    how many members there are

A group queues as one request for the sum of its members' devices, so two groups never deadlock with half of theirs
each. If one member cannot be created, none is. `group_policy` decides what happens when a member fails later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from dibs.backends.port import Session, scheduler_of
from dibs.errors import InvalidRequest, Problem
from dibs.ledger.store import new_id
from dibs.request.model import ALL
from dibs.request.spec import SandboxSpec
from dibs.sandbox import Sandbox, SandboxId
from dibs.workloads.booking import Order, together
from dibs.workloads.delivery import Delivery, Run
from dibs.workloads.explain import choose
from dibs.workloads.group_policy import END, POLICY, Policy
from dibs.workloads.waiter import Waiting, WaitNews

if TYPE_CHECKING:
    from dibs.workloads.service import Workloads

LARGEST = 64  # members; more than one host has cards for
LONGEST_NAME = 63  # characters of the name of a sandbox


class Member(NamedTuple):
    """One sandbox of a group; in the foreground with a session."""

    row: Sandbox
    session: Session | None


class Group(NamedTuple):
    id: str
    members: tuple[Member, ...]


def check_group(spec: SandboxSpec, size: int) -> None:
    """Raises with everything that cannot be said of a group."""
    problems: list[Problem] = []

    def refuse(field: str, value: str, reason: str, remedy: str) -> None:
        problems.append(Problem("GROUP_INVALID", field, value, reason, remedy))

    request = spec.resources
    if not 1 <= size <= LARGEST:
        refuse("nodes", str(size), f"a group has 1 to {LARGEST} members", "ask for another number")
    longest = f"{spec.name}-{size - 1}"
    if spec.name and len(longest) > LONGEST_NAME:
        reason = f"its members are called {spec.name}-0 and so on, and a name has at most {LONGEST_NAME} characters"
        refuse("name", spec.name, reason, "give it a shorter name")
    if request.claim is not None:
        refuse("claim", "", "a claim says what one sandbox gets, and cannot be multiplied", "ask with --gpu")
    if request.devices and size > 1:
        reason = "a device belongs to one member, and this names it for all of them"
        refuse("device", ", ".join(request.devices), reason, "ask with --gpu")
    if any(selector.count == ALL for selector in request.gpus):
        refuse("gpu", "all", "all devices cannot be had by every member", "say how many each member gets")
    if spec.publish and size > 1:
        reason = "a port of the host leads to one sandbox"
        refuse("publish", ", ".join(map(str, spec.publish)), reason, "publish no ports of a group")
    for field, said in (("tty", spec.tty), ("interactive", spec.interactive)):
        if said:
            refuse(field, "true", "a group has no one at its terminal", "leave it out")
    if problems:
        raise InvalidRequest(problems)


def launch_group(
    workloads: Workloads,
    spec: SandboxSpec,
    size: int,
    *,
    foreground: bool = True,
    base_env: Mapping[str, str] | None = None,
    policy: Policy = END,
    on_wait: Callable[[WaitNews], None] | None = None,
    on_note: Callable[[str], None] | None = None,
) -> Group:
    """`size` running sandboxes, each with everything that `spec` asks for, or a DibsError and nothing changed.

    In the foreground each has a session, and ends when this process does.
    """
    check_group(spec, size)
    backend, spec = choose(spec, workloads.registry, workloads.identity.uid)
    if scheduler_of(backend) is not None:
        reason = "the scheduler of a cluster places sandboxes one by one, so a group could get half of its devices"
        remedy = "choose a backend of this host"
        raise InvalidRequest(Problem("GROUP_INVALID", "backend", backend.name, reason, remedy))
    group = new_id("gr")
    orders = [
        Order(
            spec=msgspec.structs.replace(spec, name=f"{spec.name or group}-{rank}"),
            backend=backend,
            sandbox_id=SandboxId(new_id("sb")),
            who=workloads.identity,
            base_env=base_env or {},
            foreground=foreground,
            annotations={POLICY: policy},
            group=group,
            rank=rank,
            group_env={"DIBS_GROUP": group, "DIBS_RANK": str(rank), "DIBS_NODES": str(size)},
        )
        for rank in range(size)
    ]
    whole = msgspec.structs.replace(spec, resources=together([spec.resources] * size))
    waiting = Waiting(workloads.ledger, workloads.registry, whole, workloads.identity, on_wait)
    booked = workloads.reserve(orders, waiting)
    for note in dict.fromkeys(note for one in booked for note in one.prepared.notes):
        if on_note is not None:
            on_note(note)
    runs = [Run(one.order, one.prepared) for one in booked]
    Delivery(workloads.home, workloads.ledger, workloads.registry).deliver_all(runs)
    return Group(group, tuple(Member(workloads.sandbox(run.order.sandbox_id), run.session) for run in runs))
