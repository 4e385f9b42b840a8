"""`dibs gpus --cluster`: the devices and extended resources of a cluster's nodes, and who holds them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dibs.cli.output import Cell, fold, paint, show, show_data, table

if TYPE_CHECKING:
    from dibs.kube.inventory import ClusterInventory


def show_cluster(name: str | None, output: str) -> int:
    from dibs.kube.client import Cluster
    from dibs.kube.config import find_cluster
    from dibs.kube.inventory import read_inventory

    with Cluster(find_cluster(name)) as cluster:
        inventory = read_inventory(cluster)
    if output == "slices":
        import click

        from dibs.cli.claims_output import slices_text

        click.echo(slices_text(inventory.slices), nl=False)
    elif output in ("json", "yaml"):
        show_data(cluster_data(inventory), output, own=False)
    else:
        show(cluster_lines(inventory, wide=output == "wide"))
    return 0


def cluster_data(inventory: ClusterInventory) -> dict[str, Any]:
    from dibs.kube.demand import amounts, in_use, is_extended, shown

    used = in_use(inventory.pods)
    nodes = []
    for node in inventory.nodes:
        total, taken = amounts(node.status.allocatable), used.get(node.name, {})
        names = [name for name in total if name in ("cpu", "memory", "pods") or is_extended(name)]
        nodes.append(
            {
                "name": node.name,
                "ready": node.ready,
                "taints": [str(taint) for taint in node.spec.taints],
                "resources": {
                    name: {"allocatable": shown(total[name], name), "in_use": shown(taken.get(name, 0), name)}
                    for name in names
                },
            }
        )
    return {
        "cluster": inventory.cluster,
        "version": inventory.version.text,
        "nodes": nodes,
        "devices": _devices(inventory),
        "device_classes": [
            {"name": one.metadata.name, "extended_resource": one.spec.extended_resource_name or ""}
            for one in inventory.classes
        ],
        "unreadable": [{"what": one.what, **_problem(one.problem)} for one in inventory.unreadable],
        "notes": list(inventory.notes),
    }


def _problem(problem: Any) -> dict[str, str]:
    return {"code": problem.code, "reason": problem.reason, "remedy": problem.remedy}


def _devices(inventory: ClusterInventory) -> list[dict[str, Any]]:
    from dibs.claims import DeviceId
    from dibs.claims.taints import added_by_rules

    holders = inventory.holders()
    newest: dict[tuple[str, str], int] = {}
    for one in inventory.slices:
        pool = (one.spec.driver, one.spec.pool.name)
        newest[pool] = max(newest.get(pool, 0), one.spec.pool.generation)
    found = []
    for one in inventory.slices:
        pool = (one.spec.driver, one.spec.pool.name)
        if one.spec.pool.generation < newest[pool]:
            continue  # replaced
        for device in one.spec.devices:
            identity = DeviceId(*pool, device.name)
            taints = (*device.taints, *added_by_rules(inventory.rules, *identity))
            found.append(
                {
                    "driver": pool[0],
                    "pool": pool[1],
                    "device": device.name,
                    "node": device.node_name or one.spec.node_name or "",
                    "attributes": {
                        key: next(iter(_plain(value).values()), "") for key, value in device.attributes.items()
                    },
                    "capacity": {key: str(value.value) for key, value in device.capacity.items()},
                    "taints": [
                        f"{taint.key}{'=' + taint.value if taint.value else ''}:{taint.effect}" for taint in taints
                    ],
                    "held_by": [
                        {
                            "claim": f"{claim.metadata.namespace}/{claim.metadata.name}",
                            "users": list(inventory.users_of(claim)),
                        }
                        for claim in holders.get(identity, ())
                    ],
                }
            )
    return found


def _plain(value: Any) -> dict[str, Any]:
    import msgspec

    plain: dict[str, Any] = msgspec.to_builtins(value)
    return plain


def cluster_lines(inventory: ClusterInventory, *, wide: bool) -> list[str]:
    data = cluster_data(inventory)
    lines = [f"cluster {inventory.cluster}, Kubernetes {inventory.version.text}"]
    if not inventory.version.has_dra:
        lines.append(paint("it has no resource.k8s.io/v1: devices are extended resources only", "yellow"))
    rows: list[list[Cell]] = []
    for node in data["nodes"]:
        offered = {name: of for name, of in node["resources"].items() if name not in ("cpu", "memory", "pods")}
        said = ", ".join(f"{of['in_use']} of {of['allocatable']} {name}" for name, of in offered.items()) or "–"
        ready: Cell = ("ready", "green") if node["ready"] else ("not ready", "red")
        rows.append([node["name"], ready, said, ", ".join(node["taints"]) or "–"])
    lines += ["", *table(["NODE", "STATE", "EXTENDED RESOURCES IN USE", "TAINTS"], rows)] if rows else []
    rows = []
    for device in data["devices"]:
        held = ", ".join(
            f"{one['claim']}{' (' + ', '.join(one['users']) + ')' if one['users'] else ''}" for one in device["held_by"]
        )
        state: Cell = ("held", "yellow") if held else ("tainted", "red") if device["taints"] else ("free", "green")
        rows.append(
            [
                device["node"] or "–",
                f"{device['pool']}/{device['device']}",
                _model(device),
                _memory(device),
                state,
                held or "–",
            ]
        )
        if wide:
            extra = ", ".join(f"{key}={value}" for key, value in device["attributes"].items())
            rows[-1] += [device["driver"], extra, ", ".join(device["taints"]) or "–"]
    headers = [
        "NODE",
        "DEVICE",
        "MODEL",
        "MEMORY",
        "STATE",
        "HELD BY",
        *(["DRIVER", "ATTRIBUTES", "TAINTS"] if wide else []),
    ]
    lines += ["", *table(headers, rows)] if rows else []
    if inventory.version.has_dra and not data["devices"] and inventory.read("resourceslices"):
        lines += ["", "no driver publishes devices (ResourceSlices)"]
    if data["device_classes"]:
        said = ", ".join(
            one["name"] + (f" ({one['extended_resource']})" if one["extended_resource"] else "")
            for one in data["device_classes"]
        )
        lines += ["", f"device classes: {said}"]
    for one in inventory.unreadable:
        lines += fold(f"{one.what} could not be read: {one.problem.reason}", "")
    for remedy in dict.fromkeys(one.problem.remedy for one in inventory.unreadable):
        lines += fold(f"→ {remedy}", "  ")
    return [*lines, *inventory.notes]


def _model(device: dict[str, Any]) -> str:
    for key in ("model", "productName"):
        for name, value in device["attributes"].items():
            if name.rpartition("/")[2] == key:
                return str(value)
    return "–"


def _memory(device: dict[str, Any]) -> str:
    return next((value for name, value in device["capacity"].items() if name.rpartition("/")[2] == "memory"), "–")
