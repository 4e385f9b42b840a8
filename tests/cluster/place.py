"""A namespace on a cluster with real nodes, for one test: pods that run, what they print, what runs in them."""

from __future__ import annotations

import subprocess
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.cluster import images
from tests.cluster.running import RunningCluster

from dibs.kube import client as kube
from dibs.kube import errors
from dibs.kube import objects as core
from dibs.kube.client import Cluster

_PATIENCE = 120.0


class Place:
    def __init__(self, running: RunningCluster) -> None:
        self.running = running
        self.cluster: Cluster = running.client()
        self.namespace = f"test-{uuid.uuid4().hex[:8]}"
        self.cluster.create(kube.NAMESPACES, {"metadata": {"name": self.namespace}})
        self.until(self._has_account, "the namespace has its default service account")

    def template(self, name: str, *requests: Mapping[str, Any], **devices: Any) -> None:
        spec = {"devices": {"requests": list(requests), **devices}}
        self.cluster.create(kube.TEMPLATES, {"metadata": {"name": name}, "spec": {"spec": spec}}, self.namespace)

    def pod(
        self,
        name: str,
        *,
        command: Sequence[str] = ("sleep", "2147483647"),
        image: str = images.BUSYBOX,
        template: str = "",
        claim: str = "",
        limits: Mapping[str, str] | None = None,
        node: str = "",
        env: Mapping[str, str] | None = None,
        **spec: Any,
    ) -> None:
        """A pod of one container, `main`. `node` binds it past the scheduler's choice, by its label."""
        resources: dict[str, Any] = {"limits": dict(limits)} if limits else {}
        if template or claim:
            reference = {"resourceClaimTemplateName": template} if template else {"resourceClaimName": claim}
            spec["resourceClaims"] = [{"name": "gpu", **reference}]
            resources["claims"] = [{"name": "gpu"}]
        if node:
            spec["nodeSelector"] = {"kubernetes.io/hostname": node}
        variables = [{"name": key, "value": value} for key, value in (env or {}).items()]
        container = {
            "name": "main", "image": image, "command": list(command), "resources": resources, "env": variables,
        }  # fmt: skip
        whole = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container], **spec}
        self.cluster.create(kube.PODS, {"metadata": {"name": name}, "spec": whole}, self.namespace)

    def get(self, name: str) -> dict[str, Any]:
        return self.cluster.get(kube.PODS, name, dict[str, Any], self.namespace)

    def phase(self, name: str, wanted: str = "Running") -> dict[str, Any]:
        """The pod, once it has come to a phase."""
        found: dict[str, Any] = {}

        def there() -> bool:
            found.update(self.get(name))
            return bool(found["status"].get("phase") == wanted)

        self.until(there, f"{name} is {wanted}", lambda: self.story(name))
        return found

    def exec(self, name: str, *words: str) -> str:
        return self.running.kubectl("exec", "-n", self.namespace, name, "--", *words)

    def logs(self, name: str) -> str:
        return self.running.kubectl("logs", "-n", self.namespace, name)

    def story(self, name: str) -> str:
        """What was said about an object so far, for a failure."""
        events = self.cluster.items(kube.EVENTS, core.Event, self.namespace)
        return "; ".join(f"{one.reason}: {one.message}" for one in events if one.involved_object.name == name)

    def delete(self, name: str) -> None:
        """Delete a pod as users do, and wait until it is gone."""
        self.cluster.delete(kube.PODS, name, self.namespace)
        self.until(lambda: not self._there(name), f"{name} is gone")

    def until(
        self, done: Callable[[], bool], what: str, why: Callable[[], str] = lambda: "", patience: float = _PATIENCE
    ) -> None:
        end = time.monotonic() + patience
        while not done():
            assert time.monotonic() < end, f"waited for: {what}; {why()}"
            time.sleep(0.02)

    def claim_of(self, pod: str) -> dict[str, Any]:
        """The claim that was made for a pod's entry `gpu`."""
        name = self.get(pod)["status"]["resourceClaimStatuses"][0]["resourceClaimName"]
        return self.cluster.get(kube.CLAIMS, name, dict[str, Any], self.namespace)

    def pods(self, labels: str = "") -> list[dict[str, Any]]:
        return self.cluster.items(kube.PODS, dict[str, Any], self.namespace, labels=labels or None)

    def empty_of_users(self) -> None:
        """Remove the pods that use claims, and wait until these are given back; others stay."""
        users = [one["metadata"]["name"] for one in self.pods() if one["spec"].get("resourceClaims")]
        for name in users:
            self.delete(name)
        self.until(lambda: not self.cluster.items(kube.CLAIMS, core.Pod, self.namespace), "all claims are gone")

    def empty(self) -> None:
        """Remove all pods and claims. Pods end at once, so that the next test finds the devices."""
        self.cluster.delete_all(kube.PODS, self.namespace, grace=0)
        self.until(lambda: not self.cluster.items(kube.PODS, core.Pod, self.namespace), "all pods are gone")
        self.cluster.delete_all(kube.CLAIMS, self.namespace)
        self.until(lambda: not self.cluster.items(kube.CLAIMS, core.Pod, self.namespace), "all claims are gone")

    def clear(self) -> None:
        """Remove the namespace with all that is in it."""
        self.empty()
        self.cluster.delete(kube.NAMESPACES, self.namespace)
        self.cluster.close()

    def _there(self, name: str) -> bool:
        try:
            self.get(name)
        except errors.Missing:
            return False
        return True

    def _has_account(self) -> bool:
        try:
            self.cluster.get(kube.SERVICE_ACCOUNTS, "default", dict[str, Any], self.namespace)
        except errors.Missing:
            return False
        return True


def inside(pid: int, *words: str) -> str:
    """A command in a node's mount and network namespaces, for what must be looked at past Kubernetes."""
    enter = ["nsenter", "--target", str(pid), "--mount", "--net", "--pid", *words]
    return subprocess.run(enter, check=True, capture_output=True, text=True).stdout
