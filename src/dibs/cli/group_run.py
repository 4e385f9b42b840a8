"""`dibs run --nodes N`: the members of a group in one terminal, each line with the rank that wrote it.

`run` calls it where --nodes is given. How a group is made is in `workloads.groups`; here its output is shown, signals
are passed on to all members, and the others are ended when one fails.
"""

from __future__ import annotations

import gc
import select
import signal
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal

import click

from dibs.backends.port import Exit, Output
from dibs.cli.output import say, show_data
from dibs.cli.terminal import FORWARDED, IMPATIENT, write
from dibs.errors import Conflict, InvalidRequest, Problem, Unsupported

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import FrameType

    from dibs.backends.port import Session
    from dibs.cli.progress import Progress
    from dibs.request.spec import SandboxSpec
    from dibs.workloads.group_policy import Policy
    from dibs.workloads.groups import Group
    from dibs.workloads.service import Workloads

_LONGEST_LINE = 65_536  # bytes of a line that are kept until its end comes; a longer one is written in parts


def run_group(
    service: Workloads,
    spec: SandboxSpec,
    nodes: int,
    *,
    base_env: Mapping[str, str],
    progress: Progress,
    remark: Callable[[str], None] | None,
    on_failure: str | None,
    detach: bool,
    with_receipt: bool,
    output: str,
) -> int:
    """Make it, show what it writes, and give the exit code of the first member that failed; 0 if none did."""
    from dibs.workloads.groups import launch_group
    from dibs.workloads.service import Workloads as InProcess

    policy = _policy(on_failure)
    if not isinstance(service, InProcess):
        raise Unsupported(
            Problem(
                "GROUP_NOT_OVER_GATEWAY", "nodes", str(nodes), "a gateway makes single sandboxes only",
                "start each sandbox with a `dibs run` of its own, or run the group on a host without a gateway",
            )
        )  # fmt: skip
    try:
        group = launch_group(
            service, spec, nodes, base_env=base_env, foreground=not detach, policy=policy, on_wait=progress.waiting,
            on_note=remark,
        )  # fmt: skip
    finally:
        progress.done()
    if with_receipt:
        from dibs.cli.receipt import receipt_lines

        for member in group.members:
            say("\n".join(receipt_lines(service.receipt(member.row.id))))
    if not detach:
        gc.enable()
        return _Attendance(service, group, policy, grace=spec.grace_seconds, output=output, remark=remark).attend()
    if output == "table":
        click.echo("\n".join(member.row.name for member in group.members))
    else:
        show_data({"group": group.id, "members": [_data(service, member.row.id) for member in group.members]}, output)
    return 0


def _policy(said: str | None) -> Policy:
    if said in (None, "end"):
        return "end"
    if said == "continue":
        return "continue"
    raise InvalidRequest(Problem("GROUP_INVALID", "on-failure", said, "there is no such policy", "end or continue"))


class _Attendance:
    """The foreground of a group."""

    def __init__(
        self,
        service: Workloads,
        group: Group,
        policy: Policy,
        *,
        grace: float,
        output: str,
        remark: Callable[[str], None] | None,
    ) -> None:
        self._service = service
        self._group = group
        self._policy = policy
        self._grace = grace
        self._output = output
        self._remark = remark or (lambda _: None)
        self._live: dict[int, Session] = {
            member.row.rank: member.session for member in group.members if member.session is not None
        }
        self._begun: dict[tuple[int, Literal["stdout", "stderr"]], bytes] = {}  # lines that are not complete yet
        self._kept: dict[int, dict[str, list[bytes]]] = {
            member.row.rank: {"stdout": [], "stderr": []} for member in group.members
        }
        self._code = 0
        self._deadline: float | None = None  # when the rest is killed, once one has failed

    def attend(self) -> int:
        """Until all of them have ended."""
        with self._forwarding():
            while self._live:
                self._listen()
        # Not if that ends early: closing says that the commands may go on without us.
        for member in self._group.members:
            if member.session is not None:
                member.session.close()
        for (rank, stream), line in sorted(self._begun.items()):
            self._write(rank, stream, line)
        for member in self._group.members:
            self._service.settle(member.row.id)
        if self._output != "table":
            members = [self._described(member.row.id, member.row.rank) for member in self._group.members]
            show_data({"group": self._group.id, "members": members, "exit_code": self._code}, self._output)
        return self._code

    def _listen(self) -> None:
        timeout = None if self._deadline is None else max(0.0, self._deadline - time.monotonic())
        ready, _, _ = select.select([session.fileno() for session in self._live.values()], [], [], timeout)
        if timeout == 0.0:
            self._deadline = None
            for member in self._group.members:
                if member.row.rank in self._live:
                    self._service.stop(member.row.id, 0.0)
        for rank, session in list(self._live.items()):
            for item in session.receive(0) if session.fileno() in ready else ():
                if isinstance(item, Output):
                    self._show(rank, item)
                else:
                    self._ended(rank, item)

    def _ended(self, rank: int, ended: Exit) -> None:
        del self._live[rank]
        if ended.reason not in ("exited", "signalled", "stopped"):
            from dibs.workloads.reconcile import describe

            self._remark(f"rank {rank}: {describe(ended)}")
        if not ended.code or self._code:
            return
        self._code = ended.code
        if self._policy == "end" and self._live:
            self._remark(f"rank {rank} failed with exit code {ended.code}; ending the other {len(self._live)}")
            self._signal(signal.SIGTERM)
            self._deadline = time.monotonic() + self._grace

    def _signal(self, number: int) -> None:
        for session in list(self._live.values()):
            with suppress(Conflict):  # it has just ended, and its exit follows
                session.signal(number)

    @contextmanager
    def _forwarding(self) -> Iterator[None]:
        """Signals go to every member; impatience kills them."""
        interrupts = 0

        def forward(number: int, _frame: FrameType | None) -> None:
            nonlocal interrupts
            interrupts += number == signal.SIGINT
            self._signal(signal.SIGKILL if interrupts >= IMPATIENT else number)

        before = {number: signal.signal(number, forward) for number in FORWARDED}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _show(self, rank: int, item: Output) -> None:
        if self._output != "table":
            self._kept[rank][item.stream].append(item.data)
            return
        *lines, rest = (self._begun.pop((rank, item.stream), b"") + item.data).split(b"\n")
        for line in lines:
            self._write(rank, item.stream, line)
        if len(rest) > _LONGEST_LINE:
            self._write(rank, item.stream, rest)
        elif rest:
            self._begun[rank, item.stream] = rest

    def _write(self, rank: int, stream: Literal["stdout", "stderr"], line: bytes) -> None:
        width = len(str(len(self._group.members) - 1))
        write(Output(stream, b"[%*d] %s\n" % (width, rank, line)))

    def _described(self, sandbox_id: str, rank: int) -> dict[str, Any]:
        said = {name: b"".join(parts).decode(errors="backslashreplace") for name, parts in self._kept[rank].items()}
        return {**_data(self._service, sandbox_id), **said}


def _data(service: Workloads, sandbox_id: str) -> dict[str, Any]:
    from dibs.cli.sandbox import sandbox_data

    return sandbox_data(service, sandbox_id)
