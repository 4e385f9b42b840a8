"""`dibs gpus`: the devices and their holders. Verbs that change them are in `gpu_changes`."""

from __future__ import annotations

import gc
import sys
import time
from typing import TYPE_CHECKING, Any

from dibs.cli.output import Cell, fail, paint, say, show, show_data, simulated_banner, table
from dibs.cli.verb import Misuse, Option, verb
from dibs.errors import InvalidRequest

if TYPE_CHECKING:
    from dibs.claims.selectors import Expression
    from dibs.devices.model import Inventory
    from dibs.plan.device_state import DeviceState
    from dibs.workloads.service import Workloads

_COLOURS = {
    "free": "green",
    "held": "yellow",
    "shared": "yellow",
    "tainted": "red",
    "external": "yellow",
    "unhealthy": "red",
    "unusable": "red",
}


@verb(
    Option(
        "-o", "--output", choices=("table", "wide", "json", "yaml", "slices"), default="table",
        help="How to print the answer; slices: as Kubernetes' ResourceSlices.",
    ),
    Option("--where", metavar="CEL", help="Only devices that match, as in a claim's selector."),
    Option(
        "--cluster", alone="", metavar="[CONTEXT]",
        help="Those of a Kubernetes cluster, by its context; alone: the current one.",
    ),
    Option("--watch", flag=True, help="Draw it anew every second, until Ctrl-C."),
    members="dibs.cli.gpu_changes",
)  # fmt: skip
def gpus(output: str, where: str | None, cluster: str | None, watch: bool) -> int | None:
    """The GPUs of this host: model, memory, health, who holds each and since when.

    \b
    Examples:
      dibs gpus
      dibs gpus -o wide
      dibs gpus --where 'device.driver == "gpu.nvidia.com"'
      dibs gpus -o slices
      dibs gpus --watch
      dibs gpus --cluster
      dibs gpus simulate 8 --model H100
    """
    if cluster is not None:
        if where is not None or watch:
            raise Misuse("--cluster does not go together with --where or --watch")
        from dibs.cli.cluster_gpus import show_cluster

        return show_cluster(cluster or None, output)
    from dibs.remote.choose import open_service

    wanted = None
    if where is not None:
        wanted = _compiled(where)
        if wanted.error is not None:
            return _refuse_expression(wanted, output)
    if not watch:
        with open_service() as service:
            return print_gpus(service, output, wanted)
    import click

    gc.enable()
    while True:
        with open_service() as service:
            click.clear()
            print_gpus(service, output, wanted)
            show(["", paint(f"{time.strftime('%H:%M:%S')}  Ctrl-C ends this", "dim")])
        time.sleep(1)


def print_gpus(service: Workloads, output: str, wanted: Expression | None = None) -> int:
    """Print the devices. The exit code: 80 if it cannot be told of some device whether it matches."""
    inventory, states = service.devices()
    undecided: dict[str, str] = {}
    matching = wanted is not None and bool(states)
    if wanted is not None:
        inventory, states, undecided = _matching(inventory, states, wanted)
    if output == "slices":
        from dibs.cli.claims_output import slices_text
        from dibs.devices.names import pool_name
        from dibs.devices.slices import slices_of

        sys.stdout.write(slices_text(slices_of(inventory, node=pool_name())))
        for error in inventory.errors:
            say(f"{error.source} cannot be read: {error.reason}")
    elif output in ("json", "yaml"):
        show_data(_data(inventory, states) | ({"undecided": undecided} if undecided else {}), output)
    else:
        ends: dict[str, str] = {}
        if any(state.holder for state in states):
            from dibs.cli.until import ends_of

            ends = ends_of(service, output)
        show(gpu_lines(inventory, states, wide=output == "wide", matching=matching, ends=ends))
        waiting = len(service.queue())
        if waiting:
            show(["", f"{waiting} waiting; `dibs leases` shows the queue"])
    if undecided and output not in ("json", "yaml"):
        _show_undecided(undecided)
    return InvalidRequest.exit_code if undecided else 0


def _compiled(text: str) -> Expression:
    from dibs.claims.selectors import expression

    return expression(text, consumable_capacity=True, list_attributes=False)


def _refuse_expression(wanted: Expression, output: str) -> int:
    from dibs.cli.claims_output import cel_lines

    assert wanted.error is not None
    if output in ("json", "yaml"):
        fail(InvalidRequest(str(wanted.error), field="where", value=wanted.text, code="CEL_INVALID"), output)
    else:
        for line in cel_lines("where", wanted.error):
            say(line)
    return InvalidRequest.exit_code


def _matching(
    inventory: Inventory, states: list[DeviceState], wanted: Expression
) -> tuple[Inventory, list[DeviceState], dict[str, str]]:
    """The devices that match, and those of which it cannot be told, with the reason."""
    import msgspec

    from dibs.claims.selectors import View
    from dibs.devices.slices import published, published_id

    kept: list[DeviceState] = []
    undecided: dict[str, str] = {}
    for state in states:
        shown, _ = published(state.device)
        answer = View(published_id(state.device).driver, shown).answer(wanted)
        if answer is True:
            kept.append(state)
        elif answer is not False:
            undecided[state.device.id] = str(answer)
    chosen = tuple(state.device for state in kept)
    return msgspec.structs.replace(inventory, devices=chosen), kept, undecided


def _show_undecided(undecided: dict[str, str]) -> None:
    """Devices of which it cannot be told; those with the same reason together."""
    groups: dict[str, list[str]] = {}
    for device, reason in undecided.items():
        groups.setdefault(reason, []).append(device.rpartition("/")[2])
    for reason, devices in groups.items():
        named = ", ".join(devices[:8]) + (f" and {len(devices) - 8} more" if len(devices) > 8 else "")
        say(paint(f"dibs: where: cannot be told of {named}:", "red"))
        for line in reason.splitlines():
            say(f"  {line}")


def _data(inventory: Inventory, states: list[DeviceState]) -> dict[str, Any]:
    return {
        "simulated": inventory.simulated,
        "devices": [
            {
                "id": s.device.id,
                "name": s.device.cdi.cdi_name if s.device.cdi else "",
                "index": s.device.index,
                "model": s.device.model,
                "vendor": s.device.vendor,
                "uuid": s.device.uuid,
                "memory": s.device.memory,
                "state": s.state,
                "health": s.device.health,
                "holder": s.holder,
                "used_by": s.device.used_by,
                "parent": s.device.parent,
                "attributes": {
                    key: getattr(value, "text", value) for key, value in sorted(s.device.attributes.items())
                },
                "simulated": s.device.simulated,
                "source": s.device.source,
                "note": s.note,
            }
            for s in states
        ],
        "errors": list(inventory.errors),
    }


def gpu_lines(
    inventory: Inventory,
    states: list[DeviceState],
    *,
    wide: bool,
    matching: bool = False,
    ends: dict[str, str] | None = None,
) -> list[str]:
    """`ends`: how long the sandboxes that hold something will still live, by their ids."""
    from dibs.quantity import human_bytes
    from dibs.request.durations import show_duration

    lines = [simulated_banner(), ""] if inventory.simulated else []
    now = time.time()
    rows: list[list[Cell]] = []
    for s in states:
        holder = s.note  # of a shared card it names all who have a share
        if s.holder and s.state != "shared":
            holder = f"{s.holder.sandbox_name} ({s.holder.username})" + (f"; {s.note}" if s.note else "")
        since = show_duration(now - s.holder.since) if s.holder else ""
        memory = human_bytes(s.device.memory) if s.device.memory else "?"
        row: list[Cell] = [
            s.device.name,
            s.device.model or "?",
            memory,
            (s.state, _COLOURS.get(s.state, "")),
            holder,
            since,
            *([ends.get(s.holder.sandbox_id, "") if s.holder else ""] if ends else []),
        ]
        if wide:
            name = s.device.cdi.cdi_name if s.device.cdi else "–"
            numa = s.device.attributes.get("resource.kubernetes.io/numaNode", "")
            bus = s.device.attributes.get("resource.kubernetes.io/pciBusID", "")
            row += [name, s.device.uuid or "–", str(numa), str(bus), s.device.source]
        rows.append(row)
    if rows:
        headers = ["GPU", "MODEL", "MEMORY", "STATE", "HOLDER", "SINCE", *(["UNTIL"] if ends else [])]
        headers += ["NAME", "UUID", "NUMA", "PCI", "SOURCE"] if wide else []
        lines += table(headers, rows, right=frozenset({"MEMORY", "SINCE", "UNTIL", "NUMA"}), whole=wide)
        if not wide:
            free = sum(s.state == "free" for s in states)
            whole = sum(s.device.parent is None for s in states)
            cards = f"{whole} GPU{'' if whole == 1 else 's'}"
            cards += "" if whole == len(states) else f" and {len(states) - whole} parts"
            lines += ["", f"{cards}, {free} free"]
    elif matching:
        lines += ["no device matches"]
    elif not inventory.errors:
        lines += ["no GPU was found on this host", "→ see why: dibs doctor", "→ try without: dibs gpus simulate 8"]
    for error in inventory.errors:
        lines.append(paint(f"{error.source} cannot be read: {error.reason}", "red"))
        if error.remedy:
            lines.append(f"→ {error.remedy}")
    return lines
