"""The pod of a sandbox, as the API server shows it, and what that means in the terms of the port.

Pure. The backend reads a `SandboxPod` from the API server or from its watch; here it becomes a phase, an exit, or the
words for why it does not run yet.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

import msgspec

from dibs.backends.port import Exit, ExitReason, Phase, Status
from dibs.kube.objects import ClaimStatus, Condition, ExtendedClaimStatus, Meta, View
from dibs.kube.render import CONTAINER, GATE, SANDBOX, TTL

EXPIRES = "dibs.dev/expires-at"  # annotation: seconds since the epoch, or never; in place of the time to live
NEVER = "never"
ENDED_BY = "dibs.dev/ended-by"  # annotation: why dibs ended it, an Exit reason
MANAGED = "app.kubernetes.io/managed-by=dibs"

_GIVEN_UP = frozenset(("InvalidImageName",))  # everything else may be put right while it waits
_STARTING = frozenset(("", "ContainerCreating", "PodInitializing"))
_NOT_STARTED = frozenset(("StartError", "ContainerCannotRun"))
_MISSING = ("executable file not found", "no such file or directory")


class SandboxMeta(Meta, frozen=True, kw_only=True):
    finalizers: tuple[str, ...] = ()
    deletion_grace_period_seconds: int | None = None


class Gate(View, frozen=True, kw_only=True):
    name: str = ""


class EnvironmentVariable(View, frozen=True, kw_only=True):
    name: str = ""


class VolumeMount(View, frozen=True, kw_only=True):
    name: str = ""
    mount_path: str = ""
    read_only: bool = False


class SandboxContainer(View, frozen=True, kw_only=True):
    name: str = ""
    env: tuple[EnvironmentVariable, ...] = ()
    volume_mounts: tuple[VolumeMount, ...] = ()
    tty: bool = False
    stdin: bool = False
    resources: dict[str, Any] = {}  # noqa: RUF012 - msgspec copies it


class SandboxPodSpec(View, frozen=True, kw_only=True):
    node_name: str = ""
    scheduling_gates: tuple[Gate, ...] = ()
    containers: tuple[SandboxContainer, ...] = ()
    active_deadline_seconds: int | None = None
    security_context: dict[str, Any] = {}  # noqa: RUF012 - msgspec copies it


class Waiting(View, frozen=True, kw_only=True):
    reason: str = ""
    message: str = ""


class Running(View, frozen=True, kw_only=True):
    started_at: str | None = None


class Terminated(View, frozen=True, kw_only=True):
    exit_code: int = 0
    signal: int = 0
    reason: str = ""
    message: str = ""
    started_at: str | None = None
    finished_at: str | None = None


class State(View, frozen=True, kw_only=True):
    waiting: Waiting | None = None
    running: Running | None = None
    terminated: Terminated | None = None


class ResourceHealth(View, frozen=True, kw_only=True):
    resource_id: str = msgspec.field(default="", name="resourceID")
    health: str = ""


class AllocatedResource(View, frozen=True, kw_only=True):
    name: str = ""  # nvidia.com/gpu, or claim:NAME/REQUEST
    resources: tuple[ResourceHealth, ...] = ()


class SandboxContainerStatus(View, frozen=True, kw_only=True):
    name: str = ""
    state: State = State()
    last_state: State = State()
    restart_count: int = 0
    allocated_resources_status: tuple[AllocatedResource, ...] = ()


class SandboxPodStatus(View, frozen=True, kw_only=True):
    phase: str = ""
    reason: str = ""
    message: str = ""
    conditions: tuple[Condition, ...] = ()
    container_statuses: tuple[SandboxContainerStatus, ...] = ()
    resource_claim_statuses: tuple[ClaimStatus, ...] = ()
    extended_resource_claim_status: ExtendedClaimStatus | None = None


class SandboxPod(View, frozen=True, kw_only=True):
    """The parts of a pod that the backend looks at. A watched sandbox costs one of these."""

    metadata: SandboxMeta = SandboxMeta()
    spec: SandboxPodSpec = SandboxPodSpec()
    status: SandboxPodStatus = SandboxPodStatus()

    @property
    def sandbox(self) -> str:
        return self.metadata.labels.get(SANDBOX, "")

    @property
    def gated(self) -> bool:
        return any(gate.name == GATE for gate in self.spec.scheduling_gates)

    @property
    def container(self) -> SandboxContainerStatus | None:
        return next((one for one in self.status.container_statuses if one.name == CONTAINER), None)

    @property
    def main(self) -> SandboxContainer:
        return next((one for one in self.spec.containers if one.name == CONTAINER), SandboxContainer())

    @property
    def terminated(self) -> Terminated | None:
        return self.container.state.terminated if self.container is not None else None

    @property
    def runs(self) -> bool:
        return self.container is not None and self.container.state.running is not None

    @property
    def expires(self) -> float | None:
        """When dibs has to end it, in seconds since the epoch."""
        found = self.metadata.annotations.get(EXPIRES, "")
        if found:
            return None if found == NEVER else float(found)
        ttl = self.metadata.annotations.get(TTL, "")
        started = self.container.state.running if self.container is not None else None
        return seconds(started.started_at) + float(ttl) if ttl and started is not None else None


def status_of(pod: SandboxPod | None) -> Status:
    """The phase of a sandbox; None: it is proved that there is no such pod."""
    if pod is None:
        return Status(Phase.ABSENT)
    ended = exit_of(pod)
    if ended is not None:
        return Status(Phase.EXITED, ended)
    if pod.runs:
        return Status(Phase.RUNNING)
    return Status(Phase.HELD, detail=waits_for(pod))


def exit_of(pod: SandboxPod) -> Exit | None:
    """How it ended; None if it has not."""
    done = pod.terminated
    deleted = pod.metadata.deletion_timestamp is not None
    if done is None:
        if pod.status.phase in ("Failed", "Succeeded"):
            if pod.runs:  # its node is gone: how it ended is not known
                return Exit(137, ExitReason.LOST, 9, detail=_said(pod) or _disrupted(pod), at=_deleted_at(pod))
            # Evicted, or refused by its node, before it ran.
            reason = ExitReason.EXPIRED if pod.status.reason == "DeadlineExceeded" else ExitReason.NOT_STARTED
            said = _said(pod) or _disrupted(pod)
            return Exit(137 if reason == ExitReason.EXPIRED else 1, reason, detail=said, at=_deleted_at(pod))
        if deleted and (pod.gated or not pod.spec.node_name):
            return Exit(137, ExitReason.NOT_STARTED, 9, at=_deleted_at(pod))
        return None
    number = done.signal or (done.exit_code - 128 if 128 < done.exit_code <= 192 else None) or None
    at = seconds(done.finished_at)
    if done.reason in _NOT_STARTED:
        return Exit(126, ExitReason.NOT_STARTED, detail=done.message, at=at)
    if done.reason == "OOMKilled":
        return Exit(done.exit_code, ExitReason.OUT_OF_MEMORY, number, at=at)
    if pod.status.reason == "DeadlineExceeded":
        return Exit(done.exit_code, ExitReason.EXPIRED, number, at=at)
    by = pod.metadata.annotations.get(ENDED_BY, "")
    if by:
        return Exit(done.exit_code, ExitReason(by), number, at=at)
    disrupted = _disrupted(pod)
    if deleted or pod.status.reason or disrupted:
        words = _said(pod) or disrupted
        return Exit(done.exit_code, ExitReason.LOST, number, words or "the pod was deleted, and not by dibs", at)
    return Exit(done.exit_code, ExitReason.SIGNALLED if number else ExitReason.EXITED, number, at=at)


def waits_for(pod: SandboxPod) -> str:
    """Why it does not run, in the words of the scheduler or of the kubelet; empty if they have said nothing yet."""
    if pod.gated:
        return "created, and not started yet"
    if not pod.spec.node_name:
        scheduled = _condition(pod, "PodScheduled")
        return scheduled.message if scheduled is not None and scheduled.status == "False" else ""
    waiting = pod.container.state.waiting if pod.container is not None else None
    if waiting is None:
        return f"bound to {pod.spec.node_name}"
    words = f"{waiting.reason}: {waiting.message}" if waiting.message else waiting.reason
    return f"{words} on {pod.spec.node_name}"


def is_starting(pod: SandboxPod) -> bool:
    """Whether its node is at it, and has told of no trouble."""
    waiting = pod.container.state.waiting if pod.container is not None else None
    return bool(pod.spec.node_name) and (waiting is None or waiting.reason in _STARTING)


def hopeless(pod: SandboxPod) -> str:
    """Why it can never run; empty if it still may."""
    waiting = pod.container.state.waiting if pod.container is not None else None
    if waiting is not None and waiting.reason in _GIVEN_UP:
        return f"{waiting.reason}: {waiting.message}"
    if pod.terminated is None and pod.status.phase == "Failed":
        return _said(pod) or "the pod failed before it ran"
    return ""


def start_failure(pod: SandboxPod) -> tuple[str, bool] | None:
    """Why the command could not be executed, and whether it is missing."""
    done = pod.terminated
    if done is None or done.reason not in _NOT_STARTED:
        return None
    return done.message, any(words in done.message for words in _MISSING)


def _said(pod: SandboxPod) -> str:
    return ": ".join(part for part in (pod.status.reason, pod.status.message) if part)


def _disrupted(pod: SandboxPod) -> str:
    """By what the cluster had it end: an eviction, a taint, a node that is gone."""
    found = _condition(pod, "DisruptionTarget")
    return (found.message or found.reason or "") if found is not None and found.status == "True" else ""


def _condition(pod: SandboxPod, kind: str) -> Condition | None:
    return next((one for one in pod.status.conditions if one.type == kind), None)


def _deleted_at(pod: SandboxPod) -> float:
    return seconds(pod.metadata.deletion_timestamp)


def seconds(text: str | None) -> float:
    """A time of Kubernetes in seconds since the epoch; 0 where there is none."""
    return dt.datetime.fromisoformat(text).timestamp() if text else 0.0
