"""The port over a simulated cluster, whose scheduler chooses the devices. See `cluster`.

The core is tested against it for everything that a cluster does and a host does not: devices that are decided later,
elsewhere, by a scheduler. It is never chosen by `auto`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from dibs.backends.fake import rendering
from dibs.backends.fake.cluster import FakeCluster, Pod
from dibs.backends.port import (
    Capability,
    Exit,
    ExitReason,
    Handle,
    LogRecord,
    Network,
    NodeFact,
    Observation,
    Output,
    Phase,
    Placement,
    Realisation,
    Session,
    Status,
    Usage,
    Workload,
)
from dibs.errors import BackendUnavailable, Conflict, InvalidRequest, NotFound, Unsupported
from dibs.request.model import GpuSelector

_MAJOR = 195  # of the nodes that are seen in a pod
_LOOK = 0.02  # seconds between two looks of a waiter
_PHASES = {
    "pending": Phase.HELD, "bound": Phase.HELD, "running": Phase.RUNNING, "ended": Phase.EXITED, "refused": Phase.HELD,
}  # fmt: skip


class FakeClusterBackend:
    """See `dibs.backends.port.Backend` and `Scheduler`."""

    name = "fake-cluster"
    holds = False
    patience = 60.0

    def __init__(self, path: str) -> None:
        """`path`: the file of the cluster; "": there is none."""
        self.domain = f"cluster:{path}"
        self._path = path
        self.cluster = FakeCluster(path)

    def available(self) -> Capability:
        if not self._path:
            remedy = "set DIBS_FAKE_CLUSTER, or cluster under [fake] in the configuration"
            return Capability(ok=False, reason="no simulated cluster is configured", remedy=remedy)
        if not os.path.exists(self._path):
            return Capability(ok=False, reason=f"there is no simulated cluster at {self._path}")
        return Capability(ok=True)

    def can_limit(self, limit: Literal["cpu", "memory", "pids"]) -> Capability:  # noqa: ARG002
        return Capability(ok=True)

    def can_network(self, network: Network) -> Capability:  # noqa: ARG002
        return Capability(ok=True)

    def inspect_image(self, image: str) -> None:
        """There are no images."""

    def _reach(self) -> FakeCluster:
        if not self.available().ok:
            raise BackendUnavailable(self.available().reason, field="backend", value=self.name)
        return self.cluster

    def render(self, workload: Workload, folder: Path) -> Realisation:  # noqa: ARG002
        self._reach()
        problems = rendering.wrong(workload)
        if problems:
            raise InvalidRequest(problems)
        wanted = workload.delegated.flags() if workload.delegated is not None else ""
        return Realisation(
            self.name, {"command": list(workload.command), "claim": wanted}, rendering.expected(workload)
        )

    def finalise(self, workload: Workload, realisation: Realisation) -> Realisation:  # noqa: ARG002
        return realisation

    def outdated(self, realisation: Realisation) -> bool:  # noqa: ARG002
        return False

    def create(self, workload: Workload, realisation: Realisation, folder: Path) -> Handle:
        selectors: tuple[GpuSelector, ...] = workload.delegated.gpus if workload.delegated is not None else ()
        count = sum(int(one.count) for one in selectors)
        models = tuple(model for one in selectors for model in one.models)
        seen = msgspec.to_builtins(realisation.expectation)
        plain = {"command": list(workload.command), "env": workload.env, "ttl": workload.ttl_seconds, "seen": seen}
        self._reach().submit(workload.id, count, models, plain)
        return Handle(self.name, workload.id, str(folder))

    def placement(self, handle: Handle) -> Placement:
        found = self._reach().placement(handle.sandbox_id)
        if found is None:
            raise NotFound("the cluster does not have it any more", field="sandbox", value=handle.sandbox_id)
        return found

    def await_change(self, handle: Handle, timeout: float) -> None:  # noqa: ARG002
        time.sleep(timeout)

    def nodes(self, placement: Placement) -> tuple[NodeFact, ...]:
        return tuple(_node(int(device.id.rpartition("-")[2])) for device in placement.devices)

    def observe(self, handle: Handle) -> Observation:
        pod = self._find(handle)
        if pod.state != "running":
            raise Conflict(f"the pod is {pod.state}", field="sandbox", value=handle.sandbox_id, code="NOT_RUNNING")
        seen = msgspec.convert(pod.workload["seen"], Observation, strict=False)
        nodes = tuple(_node(number) for _, number in self.cluster.present(handle.sandbox_id))
        return msgspec.structs.replace(seen, nodes=nodes, origin={"": "API server"})

    def start(self, handle: Handle) -> None:
        pod = self._find(handle)
        command = [str(word) for word in pod.workload["command"]]
        word = os.path.basename(command[0])
        ended = {"true": 0, "false": 1, "echo": 0, "exit": int(command[1]) if word == "exit" else 0}.get(word)
        output = " ".join(command[1:]) + "\n" if word == "echo" else ""
        self.cluster.start(pod.id, output, ended, pod.workload["ttl"])

    def _find(self, handle: Handle) -> Pod:
        pod = self._reach().find(handle.sandbox_id)
        if pod is None:
            raise NotFound("there is no such pod", field="sandbox", value=handle.sandbox_id)
        return pod

    def status(self, handle: Handle) -> Status:
        pod = self._reach().find(handle.sandbox_id)
        return Status(Phase.ABSENT) if pod is None else Status(_PHASES[pod.state], pod.exit)

    def survey(self, handles: Sequence[Handle]) -> dict[str, Status]:
        pods = {pod.id: pod for pod in self._reach().pods()}
        return {
            one.sandbox_id: Status(_PHASES[pods[one.sandbox_id].state], pods[one.sandbox_id].exit)
            if one.sandbox_id in pods
            else Status(Phase.ABSENT)
            for one in handles
        }

    def wait(self, handle: Handle, timeout: float | None = None) -> Status:
        until = None if timeout is None else time.monotonic() + timeout
        while (status := self.status(handle)).phase not in (Phase.EXITED, Phase.ABSENT):
            if until is not None and time.monotonic() >= until:
                break
            time.sleep(_LOOK)
        return status

    def attach(self, handle: Handle) -> Session:
        return FakeClusterSession(self, handle)

    def logs(self, handle: Handle, *, follow: bool = False) -> Iterator[LogRecord]:
        if follow:
            self.wait(handle)
        pod = self._find(handle)
        if pod.output:
            yield LogRecord(pod.created, "stdout", pod.output.encode())

    def stop(self, handle: Handle, grace_seconds: float) -> None:
        pod = self._reach().find(handle.sandbox_id)
        if pod is not None and pod.exit is None:
            started = pod.state == "running"
            ended = Exit(143, ExitReason.STOPPED, 15) if grace_seconds > 0 else Exit(137, ExitReason.STOPPED, 9)
            self.cluster.end(pod.id, ended if started else Exit(137, ExitReason.NOT_STARTED, 9))

    def delete(self, handle: Handle) -> None:
        pod = self._reach().find(handle.sandbox_id)
        if pod is not None and pod.exit is None:
            raise Conflict(f"the pod is {pod.state}", code="STILL_RUNNING", value=handle.sandbox_id)
        self.cluster.delete(handle.sandbox_id)

    def discard(self, handle: Handle) -> None:
        self._reach().delete(handle.sandbox_id)

    def set_expiry(self, handle: Handle, at: float | None) -> None:
        self._find(handle)
        self.cluster.expire_at(handle.sandbox_id, at)

    def usage(self, handle: Handle) -> Usage:
        self._find(handle)
        return Usage(0.0, 0, 64 << 30, 8.0)


class FakeClusterSession:
    """See `Session` in the port: what the command writes comes with its end."""

    def __init__(self, backend: FakeClusterBackend, handle: Handle) -> None:
        self._backend = backend
        self._handle = handle
        self._told = False

    def fileno(self) -> int:
        raise Unsupported("a fake session has no descriptor", field="fileno", remedy="call receive with a timeout")

    def send(self, data: bytes) -> None:  # noqa: ARG002
        raise Conflict("the workload was started without input", code="INPUT_CLOSED")

    def end_of_input(self) -> None:
        return None

    def signal(self, number: int) -> None:
        self._backend.cluster.end(self._handle.sandbox_id, Exit(128 + number, ExitReason.SIGNALLED, number))

    def resize(self, rows: int, columns: int) -> None:  # noqa: ARG002
        return None

    def receive(self, timeout: float | None = None) -> list[Output | Exit]:
        status = self._backend.wait(self._handle, timeout)
        if status.phase not in (Phase.EXITED, Phase.ABSENT):
            return []
        ended = status.exit or Exit(137, ExitReason.LOST, 9)
        if self._told or status.phase is Phase.ABSENT:
            return [ended]
        self._told = True
        records = self._backend.logs(self._handle)
        return [*(Output(record.stream, record.data) for record in records), ended]

    def close(self) -> None:
        return None


def _node(number: int) -> NodeFact:
    return NodeFact(f"/dev/nvidia{number}", "c", _MAJOR, number)
