"""How a sandbox is, and its end: status, survey, wait, stop, delete, expiry, usage, pause."""

from __future__ import annotations

import time
from collections.abc import Sequence

from dibs.backends.kubernetes.connection import unavailable
from dibs.backends.kubernetes.owners import NEVER_RUN
from dibs.backends.kubernetes.placement import Placing, ended
from dibs.backends.kubernetes.pods import EXPIRES, NEVER, SandboxPod, seconds, status_of
from dibs.backends.port import Exit, ExitReason, Handle, Phase, Status
from dibs.errors import BackendUnavailable, Conflict, Unsupported
from dibs.kube import errors
from dibs.kube.render import FINALIZER, RELEASED

_KILLING = 60.0  # seconds beyond its grace in which a node must have ended it


class Lives(Placing):
    """Everything about the life of what was created."""

    def status(self, handle: Handle) -> Status:
        return self._status(handle, self.pod(handle))

    def _status(self, handle: Handle, pod: SandboxPod | None) -> Status:
        owner = self.owner(handle) if pod is None else None
        if owner is None:
            return status_of(pod)
        if owner.metadata.annotations.get(RELEASED) == NEVER_RUN:
            return Status(Phase.EXITED, Exit(137, ExitReason.NOT_STARTED, 9))
        if RELEASED in owner.metadata.annotations:
            pod = self.pod(handle)  # it may have been made and released since it was looked for
            if pod is not None:
                return status_of(pod)
            return Status(Phase.EXITED, Exit(137, ExitReason.LOST, 9, "its pod was removed, and not by dibs"))
        return Status(Phase.HELD, detail=f"no controller has made a pod of this {self.kind} yet")

    def survey(self, handles: Sequence[Handle]) -> dict[str, Status]:
        """From the watch, in a process that has one; else with one list. That one is gone is asked of the server."""
        if not handles:
            return {}
        pods = self._all_pods()
        found = {}
        for one in handles:
            pod = pods.get(one.sandbox_id)
            known = pod is not None and (not self.owns or FINALIZER in pod.metadata.finalizers)
            found[one.sandbox_id] = status_of(pod) if known else self.status(one)
        return found

    def _all_pods(self) -> dict[str, SandboxPod]:
        from dibs.backends.kubernetes.pods import MANAGED
        from dibs.kube.client import PODS

        if self._long_lived:
            follower = self.follow("")
            if follower.wait_current(5.0):
                return follower.snapshot()
            raise BackendUnavailable(
                follower.trouble or "the cluster does not answer", field="cluster", value=self.name,
                code="CLUSTER_UNREACHABLE",
            )  # fmt: skip
        return {pod.sandbox: pod for pod in self.cluster().items(PODS, SandboxPod, self.namespace, labels=MANAGED)}

    def wait(self, handle: Handle, timeout: float | None = None) -> Status:
        """Follows the watch until the workload ends, or the time is over: the caller counts the time."""
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            pod = self.pod(handle)
            left = None if until is None else until - time.monotonic()
            if (ended(pod) and not (pod is None and self.is_to_come(handle))) or (left is not None and left <= 0):
                return self._status(handle, pod)
            if pod is not None and pod.expires is not None and pod.runs:
                due = pod.expires - time.time()
                if due <= 0:
                    self.end(handle, pod, "expired", 0.0)
                left = due if left is None else min(left, max(due, 0.0))
                left = max(left, 0.05)
            version = pod.metadata.resource_version if pod is not None else ""
            self.wait_for(
                handle, lambda one, v=version: (one.metadata.resource_version if one is not None else "") != v, left  # type: ignore[misc]
            )  # fmt: skip

    def stop(self, handle: Handle, grace_seconds: float) -> None:
        pod = self.pod(handle)
        if pod is None and self.owns and not self.withhold(handle):
            pod = self.pod(handle)
        if pod is None:
            return
        told = self.end(handle, pod, "stopped", grace_seconds)
        pod = self.wait_for(handle, ended, grace_seconds + _KILLING, told)
        if not ended(pod):
            node = pod.spec.node_name if pod is not None else ""
            raise unavailable(f"node {node} has not ended it: is the node there?", handle, "NODE_SILENT")

    def delete(self, handle: Handle) -> None:
        pod = self.pod(handle)
        if not ended(pod) or (pod is None and self.is_to_come(handle)):
            phase = self._status(handle, pod).phase
            raise Conflict(f"the sandbox is {phase}", code="STILL_RUNNING", value=handle.sandbox_id)
        self._remove(handle, pod)
        self.unfollow(handle.sandbox_id)

    def set_expiry(self, handle: Handle, at: float | None) -> None:
        pod = self.running(handle)
        deadline = pod.spec.active_deadline_seconds
        if deadline is not None:
            self._bring_forward(pod, deadline, at)
            return
        for _ in range(5):
            try:
                self.patch_pod(pod, {"metadata": {"annotations": {EXPIRES: NEVER if at is None else f"{at:.3f}"}}})
                break
            except errors.Changed:
                pod = self.running(handle)
        if at is not None and at <= time.time():
            self.end(handle, self.running(handle), "expired", 0.0)

    def _bring_forward(self, pod: SandboxPod, deadline: int, at: float | None) -> None:
        """The kubelet keeps the time of this one; Kubernetes lets a pod's deadline only come nearer."""
        started = pod.container.state.running if pod.container is not None else None
        begun = seconds(started.started_at) if started is not None else time.time()
        wanted = None if at is None else max(1, int(at - begun))
        if wanted is None or wanted > deadline:
            raise Unsupported(
                "the kubelet keeps its time to live, and a pod's deadline can only be brought forward",
                field="ttl", value="none" if at is None else f"{at - time.time():g}s", code="EXPIRY_FIXED",
                remedy="make it through a gateway (`dibs serve`), which keeps the time itself and can renew it",
            )  # fmt: skip
        if wanted < deadline:
            self.patch_pod(pod, {"spec": {"activeDeadlineSeconds": wanted}})

    def running(self, handle: Handle) -> SandboxPod:
        """Its pod; raises Conflict if it does not run."""
        pod = self.pod(handle)
        if pod is None or not pod.runs:
            status = self._status(handle, pod)
            detail = f" ({status.detail})" if status.detail else ""
            raise Conflict(
                f"the sandbox is {status.phase}{detail}", field="sandbox", value=handle.sandbox_id, code="NOT_RUNNING"
            )
        return pod

    # -- what a pod has not
