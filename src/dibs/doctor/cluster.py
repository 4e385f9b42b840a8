"""`dibs doctor --cluster`: what keeps workloads of a Kubernetes cluster from getting devices, each with its fix.

The command line calls `examine_cluster`. It reads, and asks what it may read; it changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from dibs.claims.features import Features
from dibs.claims.selectors import View
from dibs.claims.taints import added_by_rules
from dibs.claims.wanted import compiled
from dibs.doctor import cluster_drivers
from dibs.doctor.finding import Finding
from dibs.kube import errors
from dibs.kube.client import (
    CLAIMS,
    CLASSES,
    EVENTS,
    NODES,
    OLDEST_DRA,
    POD_GROUPS,
    PODS,
    SLICES,
    TAINT_RULES,
    Cluster,
    Resource,
)
from dibs.kube.demand import is_extended
from dibs.kube.errors import role_to_read
from dibs.kube.inventory import ClusterInventory, read_inventory

# A vendor's domain: its extended resources end in it, and so does the name of its DRA driver.
_VENDORS = ("nvidia.com", "amd.com", "intel.com")
_PREVENTING = ("NoSchedule", "NoExecute")


def examine_cluster(cluster: Cluster) -> list[Finding]:
    """All findings, in the order in which one would fix them."""
    inventory = read_inventory(cluster)
    found = [_version(inventory), _access(cluster, inventory), cluster_drivers.rights(cluster, inventory)]
    found += _seen(inventory, "cluster-nodes", _nodes, NODES)
    found += _seen(inventory, "cluster-kubelets", cluster_drivers.kubelets, NODES)
    found += [_offered(inventory), cluster_drivers.plugin_mode(cluster)]
    if inventory.version.has_dra:
        found += _seen(inventory, "cluster-twice", _twice, NODES, SLICES)
        found += _seen(inventory, "cluster-drivers", cluster_drivers.same_hardware, SLICES)
        found += _seen(inventory, "cluster-pools", _pools, SLICES)
        found += _seen(inventory, "cluster-classes", _classes, CLASSES, SLICES)
        found += _seen(inventory, "cluster-taints", _taints, SLICES, TAINT_RULES)
        found += [cluster_drivers.features(inventory), _gangs(cluster)]
    return found


def _seen(
    inventory: ClusterInventory,
    name: str,
    check: Callable[[ClusterInventory], Finding | Iterator[Finding]],
    *needed: Resource,
) -> list[Finding]:
    """A check, skipped where what it looks at may not be read: what is not seen is not in order."""
    hidden = [one.plural for one in needed if not inventory.read(one.plural)]
    if hidden:
        return [Finding(name, "skip", f"{' and '.join(hidden)} may not be read")]
    found = check(inventory)
    return [found] if isinstance(found, Finding) else list(found)


def _version(inventory: ClusterInventory) -> Finding:
    text = f"Kubernetes {inventory.version.text}"
    if inventory.version.has_dra:
        return Finding("cluster-version", "ok", text)
    oldest = ".".join(map(str, OLDEST_DRA))
    why = "it has no resource.k8s.io/v1: devices are extended resources only, and claims are refused"
    return Finding("cluster-version", "warn", text, why, f"upgrade to {oldest} or newer")


def _access(cluster: Cluster, inventory: ClusterInventory) -> Finding:
    wanted = [NODES, PODS, EVENTS]
    if inventory.version.has_dra:
        wanted += [SLICES, CLASSES, CLAIMS, TAINT_RULES]
    denied = [one for one in wanted if not cluster.may("list", one)]
    if not denied:
        return Finding("cluster-access", "ok", "everything that dibs looks at may be read")
    names = ", ".join(one.plural for one in denied)
    listed = [f"{one.plural}.{one.group}" if one.group else one.plural for one in denied]
    fix = role_to_read(cluster.user() or "USER", listed).removeprefix("grant it: ")
    return Finding("cluster-access", "fail", f"may not list {names}", "what cannot be read cannot be explained", fix)


def _nodes(inventory: ClusterInventory) -> Iterator[Finding]:
    if not inventory.nodes:
        yield Finding("cluster-nodes", "fail", "the cluster has no nodes", "nothing can run", "add a node")
        return
    bad = [node.name for node in inventory.nodes if not node.ready]
    if bad:
        title = f"{len(bad)} of {len(inventory.nodes)} nodes are not ready: {', '.join(bad[:5])}"
        yield Finding("cluster-nodes", "warn", title, "nothing is scheduled there", f"kubectl describe node {bad[0]}")
    else:
        yield Finding("cluster-nodes", "ok", f"{len(inventory.nodes)} nodes, all ready")


def _offered(inventory: ClusterInventory) -> Finding:
    names = sorted({name for node in inventory.nodes for name in _resources(node.status.allocatable)})
    drivers = sorted({one.spec.driver for one in inventory.slices})
    said = [*(f"extended resource {name}" for name in names), *(f"DRA driver {name}" for name in drivers)]
    hidden = [one.plural for one in (NODES, SLICES) if not inventory.read(one.plural)]
    if hidden:
        return Finding("cluster-devices", "skip", "; ".join([*said, f"{' and '.join(hidden)} may not be read"]))
    if said:
        return Finding("cluster-devices", "ok", ", ".join(said))
    return Finding(
        "cluster-devices",
        "fail",
        "no node offers devices",
        "neither a device plugin (allocatable) nor a DRA driver (ResourceSlices) has registered any",
        "install the vendor's device plugin or DRA driver, and see its pods' logs",
    )


def _counted(count: int, noun: str) -> str:
    plural = "es" if noun.endswith("s") else "s"
    return f"{count} {noun}{'' if count == 1 else plural}"


def _resources(allocatable: dict[str, str]) -> list[str]:
    return [name for name, amount in allocatable.items() if is_extended(name) and amount != "0"]


def _twice(inventory: ClusterInventory) -> Finding:
    """A device plugin and a DRA driver of one vendor on one node give the same card away twice."""
    both = []
    for node in inventory.nodes:
        drivers = {one.spec.driver for one in inventory.slices if one.spec.node_name == node.name and one.spec.devices}
        for vendor in _VENDORS:
            plugin = [name for name in _resources(node.status.allocatable) if vendor in name]
            driver = [name for name in drivers if name.endswith(vendor)]
            if plugin and driver:
                both.append(f"{node.name} ({plugin[0]} and {driver[0]})")
    if not both:
        return Finding("cluster-twice", "ok", "no node offers cards through a device plugin and a DRA driver at once")
    return Finding(
        "cluster-twice",
        "fail",
        f"the same cards are offered twice on {', '.join(both[:5])}",
        "Kubernetes counts the two apart, so one card is given to two pods",
        "run either the device plugin or the DRA driver on a node; a DeviceClass with extendedResourceName serves both",
    )


def _pools(inventory: ClusterInventory) -> Finding:
    newest: dict[tuple[str, str], tuple[int, int, int]] = {}  # pool: generation, slices wanted, slices there
    for one in inventory.slices:
        key, pool = (one.spec.driver, one.spec.pool.name), one.spec.pool
        generation, _, there = newest.get(key, (-1, 0, 0))
        if pool.generation > generation:
            newest[key] = (pool.generation, pool.resource_slice_count, 1)
        elif pool.generation == generation:
            newest[key] = (generation, pool.resource_slice_count, there + 1)
    short = [f"{driver}/{pool}" for (driver, pool), (_, wanted, there) in newest.items() if there != wanted]
    if not short:
        return Finding("cluster-pools", "ok", f"{_counted(len(newest), 'pool')} of devices, all complete")
    return Finding(
        "cluster-pools",
        "fail",
        f"incomplete pools: {', '.join(short[:5])}",
        "devices of an incomplete pool are not given away",
        "see the driver's pod on that node; delete ResourceSlices that a former driver has left",
    )


def _classes(inventory: ClusterInventory) -> Finding:
    """Drivers whose devices no DeviceClass selects cannot be asked for."""
    features = Features.default()
    selectors = [compiled(one.spec.selectors, features) for one in inventory.classes]
    lost = set()
    for driver in {one.spec.driver for one in inventory.slices}:
        devices = [device for one in inventory.slices if one.spec.driver == driver for device in one.spec.devices]
        views = [View(driver, device) for device in devices]
        if views and not any(all(view.answer(e) is True for e in wanted) for wanted in selectors for view in views):
            lost.add(driver)
    if not lost:
        return Finding("cluster-classes", "ok", _counted(len(inventory.classes), "device class"))
    return Finding(
        "cluster-classes",
        "fail",
        f"no DeviceClass selects a device of {', '.join(sorted(lost))}",
        "a claim names a class: these devices cannot be asked for",
        'create a DeviceClass with the selector device.driver == "DRIVER"',
    )


def _taints(inventory: ClusterInventory) -> Finding:
    tainted = [
        f"{one.spec.pool.name}/{device.name}"
        for one in inventory.slices
        for device in one.spec.devices
        if any(
            taint.effect in _PREVENTING
            for taint in (
                *device.taints,
                *added_by_rules(inventory.rules, one.spec.driver, one.spec.pool.name, device.name),
            )
        )
    ]
    if not tainted:
        return Finding("cluster-taints", "ok", "no device is tainted")
    return Finding(
        "cluster-taints",
        "warn",
        f"{len(tainted)} tainted devices: {', '.join(tainted[:5])}",
        "only claims and pods that tolerate the taint get them",
        "dibs gpus --cluster -o wide shows the taints; repair the device, or remove the DeviceTaintRule",
    )


def _gangs(cluster: Cluster) -> Finding:
    try:
        served = cluster.raw(f"/apis/{POD_GROUPS.api}")
    except errors.Missing:
        served = {}
    if any(one.get("name") == POD_GROUPS.plural for one in served.get("resources") or ()):
        return Finding("cluster-gangs", "ok", "pods can be scheduled as a group (PodGroup)")
    return Finding(
        "cluster-gangs",
        "skip",
        "PodGroups are not served; without the gate GenericWorkload spec.schedulingGroup of a pod is dropped",
    )
