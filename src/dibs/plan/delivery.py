"""The delivery table: each field of a request, on each backend, is delivered, delegated or refused. There is no fourth.

This table is the promise. The planner refuses by it, the docs page and the capability listing are printed from it, and
a test fails when a field of `SandboxSpec` or `Request` has no row, or a row has a blank cell.
"""

from __future__ import annotations

import enum

import msgspec

from dibs.request.spec import family


class Outcome(enum.StrEnum):
    DELIVERED = "delivered"
    DELEGATED = "delegated"
    REFUSED = "refused"


class Cell(msgspec.Struct, frozen=True):
    """What happens to a field on a backend, and how it is known. `probe`: only if the backend finds it can, here."""

    outcome: Outcome
    how: str
    probe: bool = False
    code: str = ""  # of the refusal, where there is a better one than that the field is not supported


def _yes(how: str, *, probe: bool = False) -> Cell:
    return Cell(Outcome.DELIVERED, how, probe)


def _no(why: str, code: str = "") -> Cell:
    return Cell(Outcome.REFUSED, why, code=code)


_CHOSEN = _yes("chosen by dibs, booked in the ledger")
_MEMORY_ONLY = _yes("kept in memory; nothing runs")
_LEDGER = _yes("kept in the ledger")
_NOTHING_RUNS = _no("nothing runs")


def _row(local: Cell, docker: Cell, podman: Cell, fake: Cell) -> dict[str, Cell]:
    return {"local": local, "docker": docker, "podman": podman, "fake": fake}


def _left(how: str) -> Cell:
    return Cell(Outcome.DELEGATED, how)


def _alike(cell: Cell, fake: Cell | None = None) -> dict[str, Cell]:
    return _row(cell, cell, cell, fake or cell)


_IN_CONTAINER = "the nodes are seen in the container. Where the engine does not know the name: as nodes, and said so"
_SEEN = "read back from its first process; of one that ends at once, from what the runtime was told just before"
_STARTED = "started by the engine; looked at just before or right after, and a difference ends it"
_STOPPED = "the image's stop signal (SIGTERM unless it names one), then SIGKILL; whole seconds, rounded up"

TABLE: dict[str, dict[str, Cell]] = {
    "gpu.count": _row(
        _yes("leased in the ledger; exactly these device nodes are in the sandbox's /dev"),
        _yes(f"leased in the ledger; passed by exact CDI name, never by count; {_IN_CONTAINER}"),
        _yes(f"leased in the ledger; passed by exact CDI name; {_IN_CONTAINER}"),
        _MEMORY_ONLY,
    ),
    "gpu.vendor": _alike(_CHOSEN),
    "gpu.models": _alike(_CHOSEN),
    "gpu.memory": _alike(_CHOSEN),
    "gpu.profile": _alike(_CHOSEN),
    "gpu.all": _alike(_yes("resolved to a list when planned; the list is in the plan and the receipt"), _CHOSEN),
    "devices": _alike(_yes("exactly the named devices, or a refusal that names the holder"), _CHOSEN),
    "where": _alike(_yes("CEL, evaluated by dibs on the devices that it found"), _CHOSEN),
    "claim": _alike(
        _yes("solved by dibs' own DRA allocator; admin access and driver configuration are refused"), _CHOSEN
    ),
    "allow_busy": _alike(_yes("cards that processes outside dibs use may be given; the receipt says so"), _CHOSEN),
    "cpu": _row(
        _yes("cgroup quota, read back", probe=True),
        _yes("the engine's quota, read back from the cgroup", probe=True),
        _yes("the engine's quota, read back from the cgroup", probe=True),
        _MEMORY_ONLY,
    ),
    "memory": _row(
        _yes("cgroup limit, read back", probe=True),
        _yes("the engine's limit, read back from the cgroup", probe=True),
        _yes("the engine's limit, read back from the cgroup", probe=True),
        _MEMORY_ONLY,
    ),
    "pids": _row(
        _yes("cgroup limit, read back", probe=True),
        _yes("the engine's limit, read back from the cgroup", probe=True),
        _yes("the engine's limit, read back from the cgroup", probe=True),
        _MEMORY_ONLY,
    ),
    "command": _row(
        _yes("started in the sandbox after the devices were seen in it"),
        _yes(_STARTED),
        _yes(_STARTED),
        _MEMORY_ONLY,
    ),
    "name": _alike(_yes("unique among the live sandboxes of a tenant, by the ledger")),
    "backend": _alike(_yes("this one"), _yes("this one; never taken by auto")),
    "env": _row(_yes("read back from the sandbox's first process"), _yes(_SEEN), _yes(_SEEN), _MEMORY_ONLY),
    "workdir": _row(
        _yes("bound writable; must exist. For a remote caller it is a folder of the sandbox's own layer"),
        _yes("a folder in the container, made if it is not there; the image's own if it is left out"),
        _yes("a folder in the container, made if it is not there; the image's own if it is left out"),
        _MEMORY_ONLY,
    ),
    "root": _row(
        _yes("the host's own, a folder or a tar; never written to"),
        _no("a container's root is an image: say image"),
        _no("a container's root is an image: say image"),
        _MEMORY_ONLY,
    ),
    "image": _row(
        _yes("host, or a name of the configuration that stands for a root folder or a tar"),
        _yes("present, pulled, or loaded from a tar of `save` or `export`; its platform is checked"),
        _yes("present, pulled, or loaded from a tar of `save` or `export`; its platform is checked"),
        _NOTHING_RUNS,
    ),
    "entrypoint": _row(
        _yes("put before the command"),
        _yes("in place of the image's own"),
        _yes("in place of the image's own"),
        _NOTHING_RUNS,
    ),
    "user": _row(
        _yes("a user and group that the sandbox's user namespace has"),
        _yes("a number, or a name of the image's own users; the ids are read back from the process"),
        _yes("a number, or a name of the image's own users; the ids are read back from the process"),
        _NOTHING_RUNS,
    ),
    "shm": _row(
        _yes("the size of /dev/shm, read back"),
        _yes("the engine makes /dev/shm of this size; read back"),
        _yes("the engine makes /dev/shm of this size; read back"),
        _NOTHING_RUNS,
    ),
    "read_only": _row(
        _yes("no writable layer; /tmp, /run and the working directory stay writable"),
        _yes("the engine mounts the image read-only, read back; /tmp, /run and /dev/shm stay writable"),
        _yes("the engine mounts the image read-only, read back; /tmp, /run and /dev/shm stay writable"),
        _NOTHING_RUNS,
    ),
    "platform": _row(
        _yes("must be this host's own: nothing is emulated"),
        _yes("the image must be of it, and the engine able to run it"),
        _yes("the image must be of it, and the engine able to run it"),
        _NOTHING_RUNS,
    ),
    "options": _row(
        _no("this backend has no options of its own"),
        _yes("docker.cdi_devices: exact CDI devices, as many as were asked for"),
        _yes("podman.cdi_devices: exact CDI devices, as many as were asked for"),
        _no("this backend has no options of its own"),
    ),
    "network": _row(
        _yes("host; none: its own loopback only; private: its own, connected by pasta or slirp4netns, read back"),
        _yes("host: the engine's own; none: loopback only; private: a bridge of the tenant's own. Read back"),
        _yes("host: the engine's own; none: loopback only; private: a bridge of the tenant's own. Read back"),
        _MEMORY_ONLY,
    ),
    "publish": _row(
        _yes("the helper of the private network listens on it; its socket is looked for"),
        _yes("the engine listens on it; read back from the engine"),
        _yes("the engine listens on it; read back from the engine"),
        _MEMORY_ONLY,
    ),
    "mounts": _row(
        _yes(
            "bind mounts, read back from mountinfo with device and inode of their source; two on one target are refused"
        ),
        _yes(
            "bind mounts, read back from mountinfo with device and inode of their source; two on one target are refused"
        ),
        _yes(
            "bind mounts, read back from mountinfo with device and inode of their source; two on one target are refused"
        ),
        _MEMORY_ONLY,
    ),
    "ttl": _row(
        _yes("kept by the sandbox's own shim, whether dibs runs or not"),
        _yes("kept by a small process beside the container, whether dibs runs or not"),
        _yes("kept by a small process beside the container, whether dibs runs or not"),
        _MEMORY_ONLY,
    ),
    "wait": _alike(_yes("a place in the ledger's queue, first come first served")),
    "grace": _row(_yes("SIGTERM, then SIGKILL after it"), _yes(_STOPPED), _yes(_STOPPED), _MEMORY_ONLY),
    "tty": _row(
        _yes("a pseudo-terminal held by the shim"),
        _yes("the engine's terminal"),
        _yes("the engine's terminal"),
        _no("nothing runs, so there is no terminal"),
    ),
    "interactive": _alike(_yes("stdin stays open for clients that attach"), _no("nothing runs that reads")),
    "labels": _row(
        _LEDGER,
        _yes("kept in the ledger, and on the container"),
        _yes("kept in the ledger, and on the container"),
        _LEDGER,
    ),
}

_ON_CLUSTER = {
    "gpu.count": _left("an extended resource or a claim; the devices are read back from the claim or the kubelet"),
    "gpu.vendor": _left("the vendor's extended resource or DeviceClass"),
    "gpu.models": _left("a selector of the claim"),
    "gpu.memory": _left("a selector of the claim"),
    "gpu.profile": _left("the profile's extended resource, or a selector of the claim"),
    "gpu.all": _no("a count is needed: a scheduler is asked for a number", "COUNT_NEEDED"),
    "devices": _no("devices are named by a host; on a cluster the scheduler chooses"),
    "where": _left("CEL in the claim, judged by dibs before and by the scheduler then"),
    "claim": _left("handed over as a ResourceClaimTemplate that goes with the sandbox"),
    "allow_busy": _no("the scheduler does not know who else uses a device"),
    "cpu": _yes("limit and request of the container, read back from its cgroup where the image has a shell"),
    "memory": _yes("limit and request of the container, read back from its cgroup where the image has a shell"),
    "pids": _no("a pod has no limit of its own for processes; the kubelet has podPidsLimit"),
    "command": _yes("started by the kubelet; looked at right after, and a difference ends it"),
    "backend": _yes("this one; kubernetes-NAME for a cluster of the configuration"),
    "env": _yes("read back from the command's process; the image's own variables are not known here"),
    "workdir": _yes("a folder in the container, made if it is not there; the image's own if it is left out"),
    "root": _no("a pod's root is an image: say image"),
    "image": _yes("pulled by the node; what it says of a pull that fails is told while it waits"),
    "entrypoint": _yes("in place of the image's own"),
    "user": _yes("a number, or UID:GID; read back from the process"),
    "shm": _yes("a memory volume of this size on /dev/shm, read back"),
    "read_only": _yes("the image is mounted read-only, read back"),
    "platform": _left("node labels kubernetes.io/os and kubernetes.io/arch"),
    "options": _yes("kubernetes: node_selector, tolerations, affinity, priority_class, service_account and so on"),
    "network": _yes("private: the cluster's own; host and none are refused"),
    "publish": _no("ports of a pod are not published on a host: use a Service, or the gateway's proxy"),
    "mounts": _no("folders of a host are not on a cluster"),
    "ttl": _yes("kept by the kubelet; of a sandbox made through a gateway, which may renew it, by the gateway"),
    "wait": _yes("how long the scheduler may take; the cluster's setting `pending` if it is not said"),
    "grace": _yes("SIGTERM, then SIGKILL after it, by the kubelet; whole seconds, rounded up"),
    "tty": _yes("the container's terminal"),
    "labels": _yes("kept in the ledger, and on the pod"),
}
for _field, _cells in TABLE.items():
    _cells["kubernetes"] = _ON_CLUSTER.get(_field, _cells["docker"])

_SCHEDULED = _left("the cluster's scheduler chooses; followed until it is bound to a node, then proved like any other")
_IN_CLUSTER = {
    "gpu.count": _SCHEDULED,
    "gpu.models": _SCHEDULED,
    "gpu.all": _no("a count is needed: a scheduler is asked for a number", "COUNT_NEEDED"),
    "gpu.vendor": _no("its cards have models only"),
    "gpu.memory": _no("its cards have models only"),
    "gpu.profile": _no("its cards have models only"),
    "devices": _no("the scheduler chooses"),
    "where": _no("its scheduler knows no CEL"),
    "claim": _no("its scheduler knows no claims"),
    "allow_busy": _no("the scheduler chooses"),
    "wait": _yes("how long the scheduler may take, by the wall clock; a minute if it is not said"),
}
for _field, _cells in TABLE.items():
    _cells["fake-cluster"] = _IN_CLUSTER.get(_field, _cells["fake"])

BACKENDS: tuple[str, ...] = ("local", "docker", "podman", "kubernetes", "fake", "fake-cluster")


def cell(field: str, backend: str) -> Cell:
    return TABLE[field][family(backend)]
