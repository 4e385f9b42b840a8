"""Objects for tests on a cluster, as short calls: nodes without a kubelet, devices, classes, claims and pods."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from tests.cluster.running import RunningCluster

from dibs.kube import client as kube
from dibs.kube import errors
from dibs.kube import objects as core
from dibs.kube.client import Cluster

DRIVER = "gpu.example.com"
JOBS = kube.Resource("batch/v1", "jobs", "Job")
_NAMESPACED = (JOBS, kube.PODS, kube.CLAIMS, kube.TEMPLATES, kube.POD_GROUPS, kube.QUOTAS, kube.EVENTS)
_GLOBAL = (kube.SLICES, kube.CLASSES, kube.TAINT_RULES, kube.NODES)
_PATIENCE = 60.0


class World:
    """What one test puts into the cluster; all of it is removed after the test."""

    def __init__(self, running: RunningCluster) -> None:
        self.running = running
        self.cluster: Cluster = running.client()
        self.namespace = "default"

    # -- cluster-wide

    def node(
        self,
        name: str = "fake-1",
        *,
        labels: Mapping[str, str] | None = None,
        taints: Sequence[Mapping[str, str]] = (),
        **resources: str,
    ) -> None:
        """A ready node. `resources` over 8 CPUs, 32Gi and 110 pods; `nvidia_com__gpu="8"` is nvidia.com/gpu."""
        self.cluster.create(kube.NODES, {"metadata": {"name": name, "labels": dict(labels or {})}, "spec": {}})
        extra = {key.replace("__", "/").replace("_", "."): value for key, value in resources.items()}
        room = {"cpu": "8", "memory": "32Gi", "pods": "110", **extra}
        conditions = [{"type": "Ready", "status": "True", "reason": "Test", "message": ""}]
        status = {"status": {"capacity": room, "allocatable": room, "conditions": conditions}}
        self.cluster.patch(kube.NODES, name, status, part="status")
        # The API server taints new nodes; the controller takes that away once they are ready.
        self.until(lambda: not self.cluster.get(kube.NODES, name, core.Node).spec.taints, "the node is ready")
        if taints:
            self.cluster.patch(kube.NODES, name, {"spec": {"taints": [dict(one) for one in taints]}})

    def slice(
        self, devices: Sequence[Mapping[str, Any]], *, node: str = "fake-1", pool: str = "", count: int = 1, **spec: Any
    ) -> None:
        pool = pool or node
        name = f"{pool}-{DRIVER}-{len(self.cluster.items(kube.SLICES, dict[str, Any]))}"
        body = {
            "metadata": {"name": name},
            "spec": {
                "driver": DRIVER,
                "nodeName": node,
                "pool": {"name": pool, "generation": 1, "resourceSliceCount": count},
                **({"devices": list(devices)} if devices else {}),
                **spec,
            },
        }
        self.cluster.create(kube.SLICES, body)

    def device_class(self, name: str = DRIVER, expression: str = f"device.driver == '{DRIVER}'", **spec: Any) -> None:
        body = {"metadata": {"name": name}, "spec": {"selectors": [{"cel": {"expression": expression}}], **spec}}
        self.cluster.create(kube.CLASSES, body)

    # -- in the namespace

    def template(self, name: str, *requests: Mapping[str, Any], **devices: Any) -> None:
        spec = {"devices": {"requests": list(requests), **devices}}
        self.cluster.create(kube.TEMPLATES, {"metadata": {"name": name}, "spec": {"spec": spec}}, self.namespace)

    def claim(self, name: str, *requests: Mapping[str, Any]) -> None:
        spec = {"devices": {"requests": list(requests)}}
        self.cluster.create(kube.CLAIMS, {"metadata": {"name": name}, "spec": spec}, self.namespace)

    def pod(
        self,
        name: str,
        *,
        template: str = "",
        claim: str = "",
        limits: Mapping[str, str] | None = None,
        **spec: Any,
    ) -> None:
        resources: dict[str, Any] = {"limits": dict(limits)} if limits else {}
        if template or claim:
            reference = {"resourceClaimTemplateName": template} if template else {"resourceClaimName": claim}
            spec["resourceClaims"] = [{"name": "gpu", **reference}]
            resources["claims"] = [{"name": "gpu"}]
        container = {"name": "main", "image": "example.com/none:1", "resources": resources}
        body = {"metadata": {"name": name}, "spec": {"restartPolicy": "Never", "containers": [container], **spec}}
        self.cluster.create(kube.PODS, body, self.namespace)

    # -- waiting

    def bound(self, name: str) -> str:
        """The node of a pod, once it has one."""
        self.until(lambda: self._pod(name).spec.node_name != "", f"{name} is bound")
        return self._pod(name).spec.node_name

    def refused(self, name: str) -> str:
        """What the scheduler says of a pod, once it has tried."""
        self.until(lambda: self._condition(name) is not None, f"the scheduler has tried {name}")
        found = self._condition(name)
        assert found is not None
        return found.message

    def said(self, name: str, reason: str) -> str:
        """The message of the first event of a reason about an object."""

        def messages() -> list[str]:
            events = self.cluster.items(kube.EVENTS, core.Event, self.namespace)
            return [one.message for one in events if one.involved_object.name == name and one.reason == reason]

        self.until(lambda: bool(messages()), f"event {reason} of {name}")
        return messages()[0]

    def until(self, done: Any, what: str) -> None:
        end = time.monotonic() + _PATIENCE
        while not done():
            assert time.monotonic() < end, f"waited for: {what}"
            time.sleep(0.02)

    def _pod(self, name: str) -> core.Pod:
        return self.cluster.get(kube.PODS, name, core.Pod, self.namespace)

    def _condition(self, name: str) -> core.Condition | None:
        conditions = self._pod(name).status.conditions
        return next((one for one in conditions if one.type == "PodScheduled" and one.status == "False"), None)

    # -- the end

    def clear(self) -> None:
        for resource in _NAMESPACED:
            self.cluster.delete_all(resource, self.namespace, grace=0)
        self.cluster.delete_all(kube.CLAIMS, self.namespace)
        for resource in _GLOBAL:
            self.cluster.delete_all(resource)
        self.until(self._empty, "everything is removed")
        self.cluster.close()

    def _empty(self) -> bool:
        for resource in (kube.PODS, kube.CLAIMS):
            for item in self.cluster.items(resource, core.Pod, self.namespace):
                # No kubelet takes the finalizer of a claim off, or confirms the end of a pod.
                try:
                    self.cluster.patch(resource, item.metadata.name, {"metadata": {"finalizers": None}}, self.namespace)
                    self.cluster.delete(resource, item.metadata.name, self.namespace, grace=0)
                except errors.Missing:
                    continue
                return False
        return not self.cluster.items(kube.NODES, core.Pod)


def device(name: str, model: str = "SIM-H100", memory: str = "80Gi", **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "attributes": {"model": {"string": model}},
        "capacity": {"memory": {"value": memory}},
        **more,
    }


def request(name: str = "gpu", *selectors: str, device_class: str = DRIVER, **exactly: Any) -> dict[str, Any]:
    cel = {"selectors": [{"cel": {"expression": one}} for one in selectors]} if selectors else {}
    return {"name": name, "exactly": {"deviceClassName": device_class, **cel, **exactly}}


def model_is(model: str) -> str:
    return f"device.attributes['{DRIVER}'].model == '{model}'"
