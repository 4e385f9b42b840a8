"""What the `kubernetes` backend says of itself. See `dibs.backends.declaration`."""

from __future__ import annotations

import os

from dibs.backends.declaration import BY_DIBS, Cell, Declaration, Place, delegated, delivered, refused
from dibs.backends.port import Backend
from dibs.settings import ClusterSettings, Settings

COLUMN: dict[str, Cell] = {
    **BY_DIBS,
    "gpu.count": delegated("an extended resource or a claim; the devices are read back from the claim or the kubelet"),
    "gpu.vendor": delegated("the vendor's extended resource or DeviceClass"),
    "gpu.models": delegated("a selector of the claim"),
    "gpu.memory": delegated("a selector of the claim"),
    "gpu.profile": delegated("the profile's extended resource, or a selector of the claim"),
    "gpu.all": refused("a count is needed: a scheduler is asked for a number", "COUNT_NEEDED"),
    "devices": refused("devices are named by a host; on a cluster the scheduler chooses"),
    "where": delegated("CEL in the claim, judged by dibs before and by the scheduler then"),
    "claim": delegated("handed over as a ResourceClaimTemplate that goes with the sandbox"),
    "allow_busy": refused("the scheduler does not know who else uses a device"),
    "cpu": delivered("limit and request of the container, read back from its cgroup where the image has a shell"),
    "memory": delivered("limit and request of the container, read back from its cgroup where the image has a shell"),
    "pids": refused("a pod has no limit of its own for processes; the kubelet has podPidsLimit"),
    "command": delivered("started by the kubelet; looked at right after, and a difference ends it"),
    "backend": delivered("this one; kubernetes-NAME for a cluster of the configuration"),
    "env": delivered("read back from the command's process; the image's own variables are not known here"),
    "workdir": delivered("a folder in the container, made if it is not there; the image's own if it is left out"),
    "root": refused("a pod's root is an image: say image"),
    "image": delivered("pulled by the node; what it says of a pull that fails is told while it waits"),
    "entrypoint": delivered("in place of the image's own"),
    "user": delivered("a number, or UID:GID; read back from the process"),
    "shm": delivered("a memory volume of this size on /dev/shm, read back"),
    "read_only": delivered("the image is mounted read-only, read back"),
    "platform": delegated("node labels kubernetes.io/os and kubernetes.io/arch"),
    "options": delivered("kubernetes: node_selector, tolerations, affinity, priority_class, service_account and so on"),
    "network": delivered("private: the cluster's own; host and none are refused"),
    "publish": refused("ports of a pod are not published on a host: use a Service, or the gateway's proxy"),
    "mounts": refused("folders of a host are not on a cluster"),
    "volumes": delivered(
        "a PersistentVolumeClaim, there already or made because it says create; its mount is read back"
    ),
    "ttl": delivered(
        "kept by the kubelet, in whole seconds, rounded up; of a sandbox made through a gateway, which may renew it, "
        "by the gateway"
    ),
    "wait": delivered("how long the scheduler may take; the cluster's setting `pending` if it is not said"),
    "grace": delivered("SIGTERM, then SIGKILL after it, by the kubelet; whole seconds, rounded up"),
    "tty": delivered("the container's terminal"),
    "interactive": delivered("stdin stays open for clients that attach"),
    "labels": delivered(
        "kept in the ledger, and on the pod: as labels, or as a note what Kubernetes allows no label for"
    ),
}


def _make(place: Place) -> Backend:
    from dibs.backends.kubernetes.backend import KubernetesBackend

    settings = place.settings.clusters.get(place.name, ClusterSettings())
    return KubernetesBackend(place.name, settings, long_lived=place.long_lived)


def _has_kubeconfig() -> bool:
    """Without reading anything: every `dibs` comes by here."""
    home = os.path.expanduser("~/.kube/config")
    return bool(os.environ.get("KUBECONFIG") or os.environ.get("KUBERNETES_SERVICE_HOST")) or os.path.exists(home)


def _served(settings: Settings) -> tuple[str, ...]:
    """The clusters of the configuration, and the one that a kubeconfig names."""
    named, name = settings.clusters, KUBERNETES.name
    return tuple(named) if name in named or not _has_kubeconfig() else (name, *named)


def _domains(settings: Settings) -> tuple[str, ...]:
    return tuple(f"cluster:{name}" for name in _served(settings))


KUBERNETES = Declaration(
    name="kubernetes",
    make=_make,
    column=COLUMN,
    host_files=False,
    scheduled=True,
    served=_served,
    domains=_domains,
)
