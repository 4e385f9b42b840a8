"""What a sandbox is in the cluster: a pod that dibs makes, or a Sandbox or BatchSandbox whose controller makes the pod.

Of the latter dibs creates the owner and follows the pod. Its controller makes a new pod when the old one is gone, with
the scheduling gate of the template, so it holds nothing. Only one pod of an owner may ever run: its uid is written on
the owner before its gate is taken away. Another pod is not that sandbox: what ran is lost, and is not run again.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec

from dibs.backends.kubernetes.connection import Connection
from dibs.backends.kubernetes.pods import SandboxContainer, SandboxPod
from dibs.backends.port import Capability, Handle
from dibs.errors import DibsError, NotFound, Unsupported
from dibs.kube import errors
from dibs.kube.client import PODS, Resource
from dibs.kube.render import FINALIZER, KINDS, RELEASED, SANDBOX, Kind

NEVER_RUN = "none"  # in place of a uid: no pod of this owner may run
_TRIES = 5  # to change an object that its controller changes too


class Owners(Connection):
    """The kind of workload, and which pod is its own."""

    _resource: Resource | None = None

    @property
    def kind(self) -> Kind:
        kind: Kind = self.settings.kind  # type: ignore[assignment]  # settings allow these only
        return kind

    @property
    def owns(self) -> bool:
        """Whether a controller makes the pod of what dibs creates."""
        return self.kind != "Pod"

    @property
    def workloads(self) -> Resource:
        """The resource that dibs creates, in the version that the cluster serves."""
        if not self.owns:
            return PODS
        if self._resource is None:
            self._resource = self._served()
        return self._resource

    def available(self) -> Capability:
        try:
            self.version()
            if self.owns:
                self._resource = self._served()  # it may have been installed, or upgraded, meanwhile
        except DibsError as error:
            problem = error.problems[0]
            return Capability(ok=False, reason=problem.reason, remedy=problem.remedy, code=problem.code)
        return Capability(ok=True)

    def _served(self) -> Resource:
        """The kinds that are not Kubernetes' own need their controller; one of another version is not taken for it."""
        known = KINDS[self.kind]
        try:
            group = self.cluster().raw(f"/apis/{known[0].group}")
            served = [str(one.get("version")) for one in group.get("versions", ())]
        except errors.Missing:
            served = []
        for one in known:
            if one.api.rpartition("/")[2] in served and self._has(one):
                return one
        wanted = " or ".join(one.api for one in known)
        what = f"it serves {known[0].group} only as {', '.join(served)}" if served else "it does not have that kind"
        raise Unsupported(
            f"{self.kind} ({wanted}) is not installed in the cluster: {what}", field="kubernetes.kind",
            value=self.kind, code="KIND_NOT_INSTALLED",
            remedy="install its custom resource definition and controller, or set kind = Pod",
        )  # fmt: skip

    def _has(self, resource: Resource) -> bool:
        try:
            found = self.cluster().raw(f"/apis/{resource.api}")
        except errors.Missing:
            return False
        return any(one.get("name") == resource.plural for one in found.get("resources", ()))

    # -- its pod

    def pod(self, handle: Handle) -> SandboxPod | None:
        if not self.owns:
            return super().pod(handle)
        pods = self._pods(handle)
        released = next((one for one in pods if FINALIZER in one.metadata.finalizers), None)
        if released is not None:
            return released
        newest = max(pods, key=lambda pod: pod.metadata.creation_timestamp or "", default=None)
        return self._own(handle, newest) if newest is not None else None

    def remove_others(self, handle: Handle) -> None:
        """Delete the pods that were never released: without their owner, Kubernetes would do it in its own time."""
        for one in self._pods(handle) if self.owns else ():
            if FINALIZER not in one.metadata.finalizers:
                with suppress(errors.Missing):
                    self.cluster().delete(PODS, one.metadata.name, self.namespace, grace=0)

    def _pods(self, handle: Handle) -> list[SandboxPod]:
        labels = f"{SANDBOX}={handle.sandbox_id}"
        return self.cluster().items(PODS, SandboxPod, self.namespace, labels=labels)

    def recognised(self, handle: Handle, found: SandboxPod) -> SandboxPod | None:
        if not self.owns or FINALIZER in found.metadata.finalizers:
            return found
        return self.pod(handle)

    def _own(self, handle: Handle, pod: SandboxPod) -> SandboxPod | None:
        """A pod that was not released yet, unless another one was."""
        owner = self.owner(handle)
        uid = owner.metadata.annotations.get(RELEASED, "") if owner is not None else ""
        return pod if uid in ("", pod.metadata.uid) else None

    # -- its owner

    def owner(self, handle: Handle) -> SandboxPod | None:
        """The metadata of the owner; None where it is gone, or going."""
        if not self.owns:
            return None
        try:
            found = self.cluster().get(self.workloads, handle.sandbox_id, SandboxPod, self.namespace)
        except errors.Missing:
            return None
        return found if found.sandbox == handle.sandbox_id and not found.metadata.deletion_timestamp else None

    def is_to_come(self, handle: Handle) -> bool:
        """Whether its controller has yet to make the pod, where there is none."""
        owner = self.owner(handle)
        return owner is not None and RELEASED not in owner.metadata.annotations

    def commit(self, handle: Handle, pod: SandboxPod) -> None:
        """Write on the owner that this pod is the one that runs. Repeatable; raises NotFound if another one was."""
        for _ in range(_TRIES if self.owns else 0):
            owner = self.owner(handle)
            uid = owner.metadata.annotations.get(RELEASED, "") if owner is not None else "none"
            if uid == pod.metadata.uid:
                return
            if owner is None or uid:
                raise NotFound(
                    f"its {self.kind} is gone" if owner is None else "its pod was removed, and not by dibs",
                    field="sandbox", value=handle.sandbox_id, code="SANDBOX_GONE",
                )  # fmt: skip
            meta = {"annotations": {RELEASED: pod.metadata.uid}, "resourceVersion": owner.metadata.resource_version}
            try:
                self.cluster().patch(self.workloads, handle.sandbox_id, {"metadata": meta}, self.namespace)
                return
            except errors.Changed:
                continue

    def withhold(self, handle: Handle) -> bool:
        """No pod that is still to come may run; False if there is no owner, or a pod was released meanwhile."""
        for _ in range(_TRIES if self.owns else 0):
            owner = self.owner(handle)
            if owner is None or owner.metadata.annotations.get(RELEASED, NEVER_RUN) != NEVER_RUN:
                return False
            meta = {"annotations": {RELEASED: NEVER_RUN}, "resourceVersion": owner.metadata.resource_version}
            try:
                self.cluster().patch(self.workloads, handle.sandbox_id, {"metadata": meta}, self.namespace)
                return True
            except errors.Changed:
                continue
        return False

    def promised(self, handle: Handle) -> SandboxContainer:
        """The container of the command as the owner's template has it, while there is no pod."""
        try:
            found = self.cluster().get(self.workloads, handle.sandbox_id, dict[str, Any], self.namespace)
        except errors.Missing:
            return SandboxContainer()
        template = found["spec"].get("podTemplate") or found["spec"].get("template") or {}
        return msgspec.convert(template, SandboxPod).main

    def said_by_owner(self, handle: Handle) -> str | None:
        """Why there is no pod yet, in the words of the controller; None: there is nothing that one could come of."""
        try:
            found = self.cluster().get(self.workloads, handle.sandbox_id, dict[str, Any], self.namespace)
        except errors.Missing:
            return None
        if found["metadata"].get("deletionTimestamp") or RELEASED in found["metadata"].get("annotations", {}):
            return None
        said = [
            f"{one.get('type')}: {one.get('reason', '')} {one.get('message', '')}".strip()
            for one in (found.get("status") or {}).get("conditions", ())
            if one.get("status") != "True" and one.get("message")
        ]
        return "; ".join(said) or f"no controller has made a pod of this {self.kind} yet"
