"""dibs inside a cluster, from an image of this checkout, with no more privilege than it needs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from tests.cluster import dibs_image
from tests.cluster.node_driver import NVIDIA
from tests.cluster.place import Place
from tests.cluster.running import RunningCluster
from tests.cluster.world import request
from tests.engines import installing

from dibs.http import Connection
from dibs.kube import client as kube

TOKEN = "dibs_" + "t" * 43
SECRETS = kube.Resource("v1", "secrets", "Secret")
ROLES = kube.Resource("rbac.authorization.k8s.io/v1", "clusterroles", "ClusterRole", namespaced=False)
BINDINGS = kube.Resource("rbac.authorization.k8s.io/v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False)
CONFINED = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
FOLDERS = {
    "plugins": "/var/lib/kubelet/plugins",
    "registry": "/var/lib/kubelet/plugins_registry",
    "device-plugins": "/var/lib/kubelet/device-plugins",
    "cdi": "/var/run/cdi",
}


@pytest.fixture(scope="module")
def image(nodes: RunningCluster, tmp_path_factory: pytest.TempPathFactory) -> str:
    """dibs as it is here, in both nodes."""
    archive = dibs_image.write(tmp_path_factory.mktemp("image"), installing.install("trixie"))
    nodes.command(f"load {archive}")
    archive.unlink()
    return dibs_image.REFERENCE


def pod(place: Place, name: str, container: dict[str, Any], image: str, **spec: Any) -> None:
    whole = {"name": name, "image": image, "imagePullPolicy": "Never", **container}
    body = {"terminationGracePeriodSeconds": 5, "containers": [whole], **spec}
    place.cluster.create(kube.PODS, {"metadata": {"name": name}, "spec": body}, place.namespace)


def test_a_gateway_serves_from_inside_without_root_or_any_capability(place: Place, image: str) -> None:
    place.cluster.create(SECRETS, {"metadata": {"name": "token"}, "stringData": {"token": TOKEN}}, place.namespace)
    mounts = [{"name": "state", "mountPath": "/var/lib/dibs"}, {"name": "token", "mountPath": "/etc/dibs-token"}]
    settings = {
        "env": [{"name": "DIBS_HOME", "value": "/var/lib/dibs"}],
        "securityContext": CONFINED,
        "volumeMounts": [*mounts, {"name": "tmp", "mountPath": "/tmp"}],
    }
    words = ["dibs", "token", "create", "admin", "--scope", "admin", "--secret-file", "/etc/dibs-token/token"]
    first = {"name": "token", "image": image, "imagePullPolicy": "Never", "command": words, **settings}
    serve = {"command": ["dibs", "serve", "--listen", "0.0.0.0:8080", "--socket", "off", "--log-format", "json"]}
    probe = {"readinessProbe": {"httpGet": {"path": "/ready", "port": 8080}, "periodSeconds": 1}}
    pod(
        place, "gateway", {**serve, **probe, **settings}, image,
        initContainers=[first],
        automountServiceAccountToken=False,
        securityContext={
            "runAsNonRoot": True, "runAsUser": 65532, "runAsGroup": 65532, "fsGroup": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        volumes=[
            {"name": "state", "emptyDir": {}}, {"name": "tmp", "emptyDir": {}},
            {"name": "token", "secret": {"secretName": "token"}},
        ],
    )  # fmt: skip
    place.until(
        lambda: _ready(place.get("gateway")), "the gateway is ready", lambda: str(place.get("gateway")["status"])
    )
    address = f"http://{place.get('gateway')['status']['podIP']}:8080"
    with Connection(address, timeout=30) as line:
        assert line.request("GET", "/api/v1/sandboxes").status == 401
    listed = subprocess.run(
        [sys.executable, "-m", "dibs", "--gateway", address, "ps", "-o", "json"],
        capture_output=True, text=True, check=False,
        env={"DIBS_TOKEN": TOKEN, "HOME": "/nonexistent", "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert listed.returncode == 0, listed.stderr
    assert json.loads(listed.stdout)["sandboxes"] == []
    assert TOKEN not in place.logs("gateway")


@pytest.fixture
def account(place: Place) -> Iterator[str]:
    """A service account with exactly what docs/kubernetes-node.md lists."""
    name = place.namespace
    rules = [
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]},
        {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims"], "verbs": ["get"]},
        {
            "apiGroups": ["resource.k8s.io"],
            "resources": ["resourceslices"],
            "verbs": ["get", "list", "watch", "create", "update", "delete"],
        },
    ]
    place.cluster.create(kube.SERVICE_ACCOUNTS, {"metadata": {"name": name}}, place.namespace)
    place.cluster.create(ROLES, {"metadata": {"name": name}, "rules": rules})
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    subjects = [{"kind": "ServiceAccount", "name": name, "namespace": place.namespace}]
    place.cluster.create(BINDINGS, {"metadata": {"name": name}, "roleRef": role, "subjects": subjects})
    selector = {"cel": {"expression": f"device.driver == '{NVIDIA}'"}}
    place.cluster.create(kube.CLASSES, {"metadata": {"name": NVIDIA}, "spec": {"selectors": [selector]}})
    yield name
    place.empty_of_users()
    place.delete("node")
    place.cluster.delete_all(kube.SLICES)
    place.cluster.delete(kube.CLASSES, NVIDIA)
    place.cluster.delete(BINDINGS, name)
    place.cluster.delete(ROLES, name)


def test_a_node_driver_in_a_pod_gives_devices_with_its_documented_rights_alone(
    place: Place, image: str, account: str
) -> None:
    container = {
        "command": ["dibs", "node", "--simulate", "2", "--model", "H100"],
        "env": [
            {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            {"name": "DIBS_HOME", "value": "/tmp/dibs"},
        ],
        "securityContext": {"runAsUser": 0, **CONFINED},
        "volumeMounts": [
            *({"name": name, "mountPath": path} for name, path in FOLDERS.items()),
            {"name": "tmp", "mountPath": "/tmp"},
        ],
    }
    volumes = [
        *({"name": name, "hostPath": {"path": path, "type": "DirectoryOrCreate"}} for name, path in FOLDERS.items()),
        {"name": "tmp", "emptyDir": {}},
    ]
    pod(
        place, "node", container, image, serviceAccountName=account, volumes=volumes,
        nodeSelector={"kubernetes.io/hostname": "node-a"},
        securityContext={"seccompProfile": {"type": "RuntimeDefault"}},
    )  # fmt: skip
    place.template("two", request(device_class=NVIDIA, count=2))
    place.pod("user", template="two")
    place.phase("user")
    assert place.exec("user", "sh", "-c", "ls -d /dev/simgpu*").split() == ["/dev/simgpu0", "/dev/simgpu1"]


def _ready(found: dict[str, Any]) -> bool:
    return any(one["type"] == "Ready" and one["status"] == "True" for one in found["status"].get("conditions", ()))
