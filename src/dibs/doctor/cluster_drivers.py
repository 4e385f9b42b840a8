"""`dibs doctor --cluster`, second half: kubelets, runtimes, device plugins and drivers, and what this user may do.

`cluster` calls each check. They read what a cluster says of itself; what cannot be read is skipped with its reason, and
what only a look at the node could tell (whether containerd 1.7 has CDI switched on) is said as that.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from dibs.doctor.finding import Finding
from dibs.errors import DibsError
from dibs.kube.client import CLAIMS, OLDEST_DRA, PODS, TEMPLATES, VOLUME_CLAIMS, Cluster, Resource
from dibs.kube.errors import role_to_add
from dibs.kube.inventory import ClusterInventory

DAEMON_SETS = Resource("apps/v1", "daemonsets", "DaemonSet")
_EXEC = Resource("v1", "pods/exec", "PodExec")
_LOG = Resource("v1", "pods/log", "PodLog")
_NVIDIA = "k8s-device-plugin"  # in the name of its image
_STRATEGY = "DEVICE_LIST_STRATEGY"
_BUS_ID, _UUID = "resource.kubernetes.io/pciBusID", "uuid"
_CDI_BY_DEFAULT = (2, 0)  # containerd; 1.7 has CDI switched off, older ones have none
_CDI_AT_ALL = (1, 7)

# What shares, parts and taints of devices need, and the first version that has it switched on.
_FEATURES = {
    "DRAConsumableCapacity (shares of a card)": (1, 36),
    "DRAPartitionableDevices (parts of a card)": (1, 36),
    "DRADeviceTaints (unhealthy devices)": (1, 36),
    "DRAExtendedResource (nvidia.com/gpu from a DRA driver)": (1, 36),
}


def kubelets(inventory: ClusterInventory) -> Iterator[Finding]:
    """Nodes whose kubelet is too old for claims, or whose runtime may not know CDI."""
    if not inventory.nodes:
        return
    old = []
    off = []
    for node in inventory.nodes:
        info = node.status.node_info
        version = _numbers(info.kubelet_version)
        if version and version < OLDEST_DRA:
            old.append(f"{node.name} ({info.kubelet_version})")
        name, _, runtime = info.container_runtime_version.partition("://")
        if name == "containerd" and (numbers := _numbers(runtime)) and numbers < _CDI_BY_DEFAULT:
            off.append((node.name, runtime, numbers))
    if old and inventory.version.has_dra:
        oldest = ".".join(map(str, OLDEST_DRA))
        yield Finding(
            "cluster-kubelets", "fail", f"kubelets older than {oldest}: {', '.join(old[:5])}",
            "they prepare no claims of resource.k8s.io/v1", f"upgrade them to {oldest} or newer",
        )  # fmt: skip
    else:
        yield Finding("cluster-kubelets", "ok", "every kubelet is new enough")
    if not off:
        yield Finding("cluster-cdi", "ok", "no runtime is known to have CDI switched off")
        return
    none = [name for name, _, numbers in off if numbers < _CDI_AT_ALL]
    listed = ", ".join(f"{name} (containerd {version})" for name, version, _ in off[:5])
    if none:
        why, fix = "containerd before 1.7 knows no CDI: devices do not get into containers", "upgrade containerd to 2.0"
        yield Finding("cluster-cdi", "fail", listed, why, fix)
    else:
        why = "containerd 1.7 has CDI switched off unless its configuration says otherwise, which is not seen from here"
        fix = 'set enable_cdi = true in plugins."io.containerd.grpc.v1.cri" on the node, or upgrade containerd to 2.0'
        yield Finding("cluster-cdi", "warn", listed, why, fix)


def plugin_mode(cluster: Cluster) -> Finding:
    """Whether NVIDIA's device plugin gives devices by CDI name: otherwise every pod needs its runtime class."""
    try:
        found = cluster.items(DAEMON_SETS, dict[str, Any])
    except DibsError as error:
        return Finding("cluster-plugin-mode", "skip", f"DaemonSets cannot be read: {error.problems[0].reason}")
    wrong = []
    there = 0
    for one in found:
        for container in one["spec"]["template"]["spec"].get("containers") or ():
            if _NVIDIA not in container.get("image", ""):
                continue
            there += 1
            strategy = _strategy(container)
            if not {"cdi-cri", "cdi-annotations"} & set(strategy.split(",")):
                wrong.append(f"{one['metadata']['namespace']}/{one['metadata']['name']} ({strategy})")
    if not there:
        return Finding("cluster-plugin-mode", "ok", "no device plugin of NVIDIA is here")
    if not wrong:
        return Finding("cluster-plugin-mode", "ok", "NVIDIA's device plugin gives devices by CDI name")
    return Finding(
        "cluster-plugin-mode", "warn", f"NVIDIA's device plugin does not use CDI: {', '.join(wrong)}",
        "pods get their cards only where the node's default runtime is NVIDIA's; dibs names no RuntimeClass",
        "set deviceListStrategy: cdi-cri in the plugin's chart",
    )  # fmt: skip


def _strategy(container: dict[str, Any]) -> str:
    for variable in container.get("env") or ():
        if variable.get("name") == _STRATEGY:
            return str(variable.get("value", ""))
    for word in (*(container.get("command") or ()), *(container.get("args") or ())):
        if word.startswith("--device-list-strategy="):
            return str(word.partition("=")[2])
    return "envvar"  # its own default


def same_hardware(inventory: ClusterInventory) -> Finding:
    """One card that two DRA drivers publish on one node: by its PCI address or its UUID."""
    seen: dict[tuple[str, str, str], set[str]] = {}
    for one in inventory.slices:
        for device in one.spec.devices:
            for key in (_BUS_ID, _UUID, f"{one.spec.driver}/{_UUID}"):
                attribute = device.attributes.get(key)
                if attribute is not None and attribute.string_value:
                    mark = (one.spec.node_name or "", key.rpartition("/")[2], attribute.string_value)
                    seen.setdefault(mark, set()).add(one.spec.driver)
    twice = sorted(
        f"{node}: {value} ({' and '.join(sorted(by))})" for (node, _, value), by in seen.items() if len(by) > 1
    )
    if not twice:
        return Finding("cluster-drivers", "ok", "no card is published by two DRA drivers")
    return Finding(
        "cluster-drivers", "fail", f"cards that two DRA drivers publish: {', '.join(twice[:3])}",
        "each driver gives the card away for itself", "run one driver per card: for `dibs node` see its nodeSelector",
    )  # fmt: skip


def features(inventory: ClusterInventory) -> Finding:
    version = (inventory.version.major, inventory.version.minor)
    off = [name for name, first in _FEATURES.items() if version < first]
    if not off:
        return Finding("cluster-features", "ok", "shares, parts and taints of devices are on by default")
    gates = ",".join(f"{name.partition(' ')[0]}=true" for name in off)
    return Finding(
        "cluster-features", "warn", f"off by default in {inventory.version.text}: {', '.join(off)}",
        "fields of these are dropped or refused unless the gates are on, which is not seen from here",
        f"set --feature-gates={gates} on API server, controller manager, scheduler and kubelets, or upgrade to 1.36",
    )  # fmt: skip


def rights(cluster: Cluster, inventory: ClusterInventory) -> Finding:
    """What running sandboxes in the context's namespace needs, beyond reading."""
    namespace = cluster.config.namespace
    wanted = [("create", PODS), ("delete", PODS), ("create", _EXEC), ("get", _LOG)]
    wanted += [("get", VOLUME_CLAIMS), ("create", VOLUME_CLAIMS)]
    if inventory.version.has_dra:
        wanted += [("create", TEMPLATES), ("patch", TEMPLATES), ("delete", TEMPLATES), ("get", CLAIMS)]
    denied = [(verb, one) for verb, one in wanted if not cluster.may(verb, one, namespace)]
    if not denied:
        return Finding("cluster-rights", "ok", f"sandboxes can be run in namespace {namespace}")
    names = ", ".join(f"{verb} {one.plural}" for verb, one in denied)
    verb, one = denied[0]
    fix = role_to_add(cluster.user() or "USER", verb, one.plural, one.group, namespace).removeprefix("grant it: ")
    why = f"sandboxes cannot be run in namespace {namespace}; looking and explaining work"
    return Finding("cluster-rights", "warn", f"may not {names}", why, f"use the chart's role; or, one by one: {fix}")


def _numbers(version: str) -> tuple[int, int] | None:
    found = re.match(r"v?([0-9]+)\.([0-9]+)", version)
    return (int(found[1]), int(found[2])) if found else None
