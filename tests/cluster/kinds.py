"""What makes pods of the workloads that are not pods: the released agent-sandbox, and a stand-in for OpenSandbox's.

`installed` puts one of them on a test cluster and takes it away again. agent-sandbox is its own program with its own
CRD. OpenSandbox's controller cannot be built here (no Go module of it is served), so its CRD is written down from what
its clients use, and a thread does for a BatchSandbox what that controller does: one pod per replica, of the template,
owned by it; made anew when it is gone; counted in the status.
"""

from __future__ import annotations

import atexit
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml
from tests.cluster.control_plane import CannotStart, free_ports
from tests.cluster.controllers import AGENT_SANDBOX, Installed
from tests.cluster.controllers import installed as built
from tests.cluster.running import RunningCluster

from dibs.errors import DibsError
from dibs.kube import client as kube
from dibs.kube import errors
from dibs.kube.client import Cluster
from dibs.kube.render import KINDS, Kind

(BATCH,) = KINDS["BatchSandbox"]
SERVED: Mapping[Kind, kube.Resource] = {"Sandbox": KINDS["Sandbox"][1], "BatchSandbox": BATCH}
"""In the version of the CRD that is installed."""
_PATIENCE = 120.0
_COUNT = {"type": "integer", "format": "int32"}
_OPEN = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_BATCH_SPEC = {
    "replicas": _COUNT,
    "poolRef": {"type": "string"},
    "template": _OPEN,
    "shardPatches": {"type": "array", "items": _OPEN},
    "expireTime": {"type": "string", "format": "date-time"},
    "taskTemplate": _OPEN,
    "pause": {"type": "boolean"},
}
_BATCH_STATUS = {
    "replicas": _COUNT,
    "allocated": _COUNT,
    "ready": _COUNT,
    "phase": {"type": "string", "enum": ["Pending", "Succeed", "Pausing", "Paused", "Resuming", "Failed"]},
    "conditions": {"type": "array", "items": _OPEN},
}


_kept: dict[tuple[Path, Kind], ExitStack] = {}


def keep(running: RunningCluster, kind: Kind) -> None:
    """One of them for as long as this process has the cluster. Raises `CannotBuild`."""
    key = running.folder, kind
    if key not in _kept:
        stack = ExitStack()
        stack.enter_context(installed(running, kind, running.folder))
        atexit.register(stack.close)  # before the cluster ends, which was registered first
        _kept[key] = stack


@contextmanager
def installed(running: RunningCluster, kind: Kind, folder: Path) -> Iterator[None]:
    """Raises `CannotBuild` where agent-sandbox is not built."""
    program = built(AGENT_SANDBOX) if kind == "Sandbox" else None
    with defined(running, kind), _process(running, program, folder) if program is not None else _thread(running):
        yield


@contextmanager
def defined(running: RunningCluster, kind: Kind) -> Iterator[None]:
    """Its CRD alone: nothing makes pods."""
    program = built(AGENT_SANDBOX) if kind == "Sandbox" else None
    definition = _agent_sandbox(program) if program is not None else _batch_sandbox()
    with running.client() as cluster:
        cluster.create(kube.CUSTOM_RESOURCES, definition)
        try:
            _until(lambda: _established(cluster, definition), f"{kind} is established")
            yield
        finally:
            cluster.delete(kube.CUSTOM_RESOURCES, definition["metadata"]["name"])
            _until(lambda: not _there(cluster, definition), f"{kind} is removed")


def _agent_sandbox(program: Installed) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((program.module / "crds/agents.x-k8s.io_sandboxes.yaml").read_text())
    found.pop("status", None)
    return found


def _batch_sandbox() -> dict[str, Any]:
    group, _, version = BATCH.api.partition("/")
    schema = {
        "type": "object",
        "properties": {
            "spec": {"type": "object", "properties": _BATCH_SPEC},
            "status": {"type": "object", "properties": _BATCH_STATUS},
        },
    }
    return {
        "metadata": {"name": f"{BATCH.plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"plural": BATCH.plural, "singular": BATCH.kind.lower(), "kind": BATCH.kind},
            "versions": [
                {
                    "name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema},
                    "subresources": {"status": {}},
                }
            ],
        },
    }  # fmt: skip


@contextmanager
def _process(running: RunningCluster, program: Installed, folder: Path) -> Iterator[None]:
    (health,) = free_ports(1, "127.0.0.1")
    log = folder / "agent-sandbox.log"
    with log.open("ab") as out:
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", str(program.program), f"--kubeconfig={running.kubeconfig()}",
             "--leader-elect=false", "--metrics-bind-address=0", f"--health-probe-bind-address=127.0.0.1:{health}"],
            stdin=subprocess.DEVNULL, stdout=out, stderr=out,
        )  # fmt: skip

    def ready() -> bool:
        if process.poll() is not None:
            raise CannotStart(f"agent-sandbox ended: {' | '.join(log.read_text().splitlines()[-5:])}")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{health}/readyz", timeout=5):
                return True
        except (urllib.error.URLError, OSError):
            return False

    try:
        _until(ready, "agent-sandbox is ready")
        yield
    finally:
        process.kill()
        process.wait()


@contextmanager
def _thread(running: RunningCluster) -> Iterator[None]:
    over = threading.Event()

    def serve() -> None:
        with running.client() as cluster:
            while not over.wait(0.05):
                with suppress(DibsError):  # the API server may be away, or the object may have changed: once more
                    for batch in cluster.items(BATCH, dict[str, Any]):
                        _reconcile(cluster, batch)

    thread = threading.Thread(target=serve, name="batch-sandboxes", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _reconcile(cluster: Cluster, batch: dict[str, Any]) -> None:
    meta, spec = batch["metadata"], batch["spec"]
    if meta.get("deletionTimestamp"):
        return
    owner = {
        "apiVersion": BATCH.api, "kind": BATCH.kind, "name": meta["name"], "uid": meta["uid"], "controller": True,
        "blockOwnerDeletion": True,
    }  # fmt: skip
    template, ready = spec["template"], 0
    for number in range(spec.get("replicas", 1)):
        name = f"{meta['name']}-{number}"
        body = {
            "metadata": {**template.get("metadata", {}), "name": name, "ownerReferences": [owner]},
            "spec": template["spec"],
        }
        try:
            pod = cluster.get(kube.PODS, name, dict[str, Any], meta["namespace"])
        except errors.Missing:
            pod = cluster.create(kube.PODS, body, meta["namespace"])
        conditions = pod.get("status", {}).get("conditions") or ()
        ready += any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
    status = {"replicas": spec.get("replicas", 1), "allocated": spec.get("replicas", 1), "ready": ready}
    status |= {"phase": "Succeed" if ready == status["replicas"] else "Pending"}
    if batch.get("status") != status:
        cluster.patch(BATCH, meta["name"], {"status": status}, meta["namespace"], "status")


def _established(cluster: Cluster, definition: dict[str, Any]) -> bool:
    found = cluster.get(kube.CUSTOM_RESOURCES, definition["metadata"]["name"], dict[str, Any])
    conditions = found.get("status", {}).get("conditions") or ()
    return any(one["type"] == "Established" and one["status"] == "True" for one in conditions)


def _there(cluster: Cluster, definition: dict[str, Any]) -> bool:
    try:
        cluster.get(kube.CUSTOM_RESOURCES, definition["metadata"]["name"], dict[str, Any])
    except errors.Missing:
        return False
    return True


def _until(done: Any, what: str) -> None:
    end = time.monotonic() + _PATIENCE
    while not done():
        if time.monotonic() > end:
            raise CannotStart(f"waited for: {what}")
        time.sleep(0.05)
