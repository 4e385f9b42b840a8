"""The connection of the backend to its cluster: clients, the watch of its pods, and names.

The verbs are built on it. A client serves one thread, so each thread has its own. A process that lives long follows all
its pods with one watch; a short one follows only the pods that it waits for.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from dibs.backends.kubernetes.pods import MANAGED, SandboxPod
from dibs.backends.port import Handle
from dibs.errors import BackendUnavailable
from dibs.kube import errors
from dibs.kube.client import PODS, Cluster, Version
from dibs.kube.config import ClusterConfig, find_cluster
from dibs.kube.informer import Follower
from dibs.kube.render import SANDBOX
from dibs.settings import ClusterSettings

_REMEMBERED = 1000  # pods
_ASK = 0.1, 2.0  # seconds between two questions while there is no watch: at first, and in the end


class Connection:
    """Clients of one cluster, and its pods as they are now."""

    def __init__(self, name: str, settings: ClusterSettings, *, long_lived: bool = False) -> None:
        self.name = name
        self.settings = settings
        self.domain = f"cluster:{name}"
        self.patience = settings.pending
        self._long_lived = long_lived
        self._local = threading.local()
        self._lock = threading.Lock()
        self._clients: list[Cluster] = []
        self._followers: dict[str, Follower[SandboxPod]] = {}
        self._config: ClusterConfig | None = None
        self._version: Version | None = None
        self._made: dict[str, SandboxPod] = {}  # as this process has made them, until they are asked for

    # -- the cluster

    @property
    def config(self) -> ClusterConfig:
        if self._config is None:
            self._config = find_cluster(self.settings.context or None, self.settings.kubeconfig)
        return self._config

    @property
    def namespace(self) -> str:
        return self.settings.namespace or self.config.namespace

    def cluster(self) -> Cluster:
        """The client of this thread."""
        found: Cluster | None = getattr(self._local, "cluster", None)
        if found is None:
            found = self._local.cluster = Cluster(self.config)
            with self._lock:
                self._clients.append(found)
        return found

    def version(self) -> Version:
        if self._version is None or not self._version.has_dra:  # one that is too old may be upgraded
            self._version = self.cluster().version()
        return self._version

    def close(self) -> None:
        with self._lock:
            followers, self._followers = list(self._followers.values()), {}
            clients, self._clients = self._clients, []
        for follower in followers:
            follower.close()
        for client in clients:
            client.close()
        self._local = threading.local()

    # -- pods

    def pod(self, handle: Handle) -> SandboxPod | None:
        """The pod of a sandbox, asked of the API server now; None: there is none."""
        try:
            found = self.cluster().get(PODS, handle.sandbox_id, SandboxPod, self.namespace)
        except errors.Missing:
            return None
        return found if found.sandbox == handle.sandbox_id else None

    def recognised(self, handle: Handle, found: SandboxPod) -> SandboxPod | None:  # noqa: ARG002
        """What the watch has shown, if it is the pod of that sandbox."""
        return found

    def seen(self, handle: Handle) -> SandboxPod | None:
        """The same, from the watch where that is current and knows the pod; at first, as this process has made it."""
        follower = self._followers.get(self._scope(handle.sandbox_id))
        if follower is not None and follower.current:
            found = follower.get(handle.sandbox_id)
            if found is not None:
                return self.recognised(handle, found)
        made = self._made.pop(handle.sandbox_id, None)
        return made if made is not None else self.pod(handle)

    def remember(self, pod: SandboxPod) -> None:
        """What was just made need not be asked for. One that has changed since is noticed when it is changed."""
        if len(self._made) > _REMEMBERED:
            self._made.clear()
        self._made[pod.sandbox] = pod

    def follow(self, sandbox_id: str) -> Follower[SandboxPod]:
        """The watch that shows a sandbox; started if need be."""
        scope = self._scope(sandbox_id)
        with self._lock:
            follower = self._followers.get(scope)
            if follower is None:
                config = self.config
                follower = self._followers[scope] = Follower(
                    lambda: Cluster(config), PODS, SandboxPod, self.namespace, scope, _sandbox_of
                ).start()
        return follower

    def unfollow(self, sandbox_id: str) -> None:
        """A short process has no more use for the watch of a single sandbox."""
        if self._long_lived:
            return
        with self._lock:
            follower = self._followers.pop(self._scope(sandbox_id), None)
        if follower is not None:
            follower.close()

    def watch(self, on_change: Callable[[str, str], None]) -> PodWatch:
        """Tell of every change, by sandbox; "" for all of them."""
        return PodWatch(self.follow(""), on_change)

    def wait_for(
        self,
        handle: Handle,
        done: Callable[[SandboxPod | None], bool],
        timeout: float | None,
        told: SandboxPod | None = None,
    ) -> SandboxPod | None:
        """Until the pod is as `done` wants it, or time is up; how it is then. By watch; without one, by asking.

        `told`: how the API server has just said that it is.
        """
        until = None if timeout is None else time.monotonic() + timeout
        pause = _ASK[0]
        follower = self.follow(handle.sandbox_id)
        pod = told or self.pod(handle)  # the watch may not know yet what this process has written
        while not done(pod):
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                break
            if follower.current or follower.wait_current(min(pause, left if left is not None else pause)):
                known = pod
                follower.wait(lambda known=known: _is_newer(follower.get(handle.sandbox_id), known), left)  # type: ignore[misc]
                found = follower.get(handle.sandbox_id)
                newer = found is not None and _is_newer(found, known)
                pod = self.recognised(handle, found) if newer and found is not None else self.pod(handle)
                if newer and pod is None:
                    time.sleep(_ASK[0])  # it is not its pod, and shown again at once
            else:
                pause = min(pause * 2, _ASK[1])
                pod = self.pod(handle)
        return pod

    def _scope(self, sandbox_id: str) -> str:
        return MANAGED if self._long_lived or not sandbox_id else f"{SANDBOX}={sandbox_id}"

    # -- writing

    def patch_pod(self, pod: SandboxPod, body: dict[str, Any]) -> None:
        """A change of exactly this pod: one that has changed meanwhile is an `errors.Changed`."""
        meta = {**body.get("metadata", {}), "resourceVersion": pod.metadata.resource_version, "uid": pod.metadata.uid}
        self.cluster().patch(PODS, pod.metadata.name, {**body, "metadata": meta}, self.namespace)


class PodWatch:
    """Someone who listens to the watch; `close` ends only that."""

    def __init__(self, follower: Follower[SandboxPod], on_change: Callable[[str, str], None]) -> None:
        self._stop = follower.listen(lambda key: on_change(key, "changed"))

    def close(self) -> None:
        self._stop()


def _is_newer(found: SandboxPod | None, known: SandboxPod | None) -> bool:
    """Whether the watch knows more than what was read. That it knows nothing means little: it may be behind."""
    if found is None or known is None:
        return found is not known
    if found.metadata.uid != known.metadata.uid:
        return True
    return int(found.metadata.resource_version) > int(known.metadata.resource_version)


def _sandbox_of(pod: SandboxPod) -> str:
    return pod.sandbox


def unavailable(reason: str, handle: Handle, code: str = "CLUSTER_SLOW") -> BackendUnavailable:
    return BackendUnavailable(reason, field="sandbox", value=handle.sandbox_id, code=code, remedy="try again")
