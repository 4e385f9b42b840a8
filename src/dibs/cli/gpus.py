"""`dibs gpus`: what is there and who holds it; and the simulated world."""

from __future__ import annotations

import gc
import time
from typing import TYPE_CHECKING, Any

import click

from dibs.cli.names import gpu_names, model_names
from dibs.cli.output import Cell, fail, output_option, paint, say, show, show_data, simulated_banner, table
from dibs.errors import Conflict, InvalidRequest

if TYPE_CHECKING:
    from dibs.claims.selectors import Expression
    from dibs.devices.model import Inventory
    from dibs.home import Home
    from dibs.workloads.service import Workloads
    from dibs.workloads.world import DeviceState

_COLOURS = {
    "free": "green",
    "held": "yellow",
    "shared": "yellow",
    "tainted": "red",
    "external": "yellow",
    "unhealthy": "red",
    "unusable": "red",
}


@click.group(invoke_without_command=True)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "wide", "json", "yaml", "slices"]),
    default="table",
    show_default=True,
    help="How to print the answer; slices: as Kubernetes' ResourceSlices.",
)
@click.option("--where", metavar="CEL", help="Only devices that match, as in a claim's selector.")
@click.option(
    "--cluster",
    is_flag=False,
    flag_value="",
    metavar="[CONTEXT]",
    help="Those of a Kubernetes cluster, by its context; alone: the current one.",
)
@click.option("--watch", is_flag=True, help="Draw it anew every second, until Ctrl-C.")
@click.pass_context
def gpus(ctx: click.Context, output: str, where: str | None, cluster: str | None, watch: bool) -> int | None:
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
    if ctx.invoked_subcommand is not None:
        if where is not None:
            raise click.UsageError(f"--where does not go together with {ctx.invoked_subcommand}", ctx)
        return None
    if cluster is not None:
        if where is not None or watch:
            raise click.UsageError("--cluster does not go together with --where or --watch", ctx)
        from dibs.cli.clusters import show_cluster

        return show_cluster(cluster or None, output)
    from dibs.remote.choose import open_service

    wanted = None
    if where is not None:
        wanted = _compiled(where)
        if wanted.error is not None:
            return _refuse_expression(wanted, output)
    if not watch:
        with open_service() as service:
            return _print(service, output, wanted)
    gc.enable()
    while True:
        with open_service() as service:
            click.clear()
            _print(service, output, wanted)
            click.echo(paint(f"\n{time.strftime('%H:%M:%S')}  Ctrl-C ends this", "dim"))
        time.sleep(1)


def _print(service: Workloads, output: str, wanted: Expression | None = None) -> int:
    """Print the devices. The exit code: 80 if it cannot be told of some device whether it matches."""
    inventory, states = service.devices()
    undecided: dict[str, str] = {}
    if wanted is not None:
        inventory, states, undecided = _matching(inventory, states, wanted)
    if output == "slices":
        from dibs.cli.claims_output import slices_text
        from dibs.devices.names import pool_name
        from dibs.devices.slices import slices_of

        click.echo(slices_text(slices_of(inventory, node=pool_name())), nl=False)
        for error in inventory.errors:
            say(f"{error.source} cannot be read: {error.reason}")
    elif output in ("json", "yaml"):
        show_data(_data(inventory, states) | ({"undecided": undecided} if undecided else {}), output)
    else:
        ends: dict[str, str] = {}
        if any(state.holder for state in states):
            from dibs.cli.until import ends_of

            ends = ends_of(service, output)
        show(gpu_lines(inventory, states, wide=output == "wide", matching=wanted is not None, ends=ends))
        waiting = len(service.queue())
        if waiting:
            click.echo(f"\n{waiting} waiting; `dibs leases` shows the queue")
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
                "name": s.device.attachment.cdi_name if s.device.attachment else "",
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
        holder = f"{s.holder.sandbox_name} ({s.holder.username})" if s.holder and s.state == "held" else s.note
        holder += f"; {s.note}" if s.state == "held" and s.note else ""
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
            name = s.device.attachment.cdi_name if s.device.attachment else "–"
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


def _refuse_while_held(service: Workloads) -> None:
    """The world must not change under those who hold a part of it."""
    held = [lease for lease in service.leases() if any(device.simulated for device in lease.devices)]
    if held:
        names = ", ".join(sorted({lease.sandbox_name for lease in held}))
        raise Conflict(
            f"simulated GPUs are held by {names}", field="simulate", code="WORLD_IN_USE",
            remedy=f"remove {'it' if len(held) == 1 else 'them'} first: dibs sandbox rm {names.replace(',', '')}",
        )  # fmt: skip


def _home_of_world() -> Home:
    """Where the simulated world is switched: root's is the host service's, if there is one."""
    from dibs.home import find_home
    from dibs.remote.choose import host_service, refuse_remotely

    if not host_service():
        refuse_remotely("the simulated world")
        return find_home()
    import os

    if os.geteuid() != 0:
        raise InvalidRequest(
            "the simulated world of the host service is for all users of this host, and only root may switch it",
            field="simulate", code="ADMINISTRATOR_NEEDED", remedy="ask an administrator: sudo dibs gpus simulate …",
        )  # fmt: skip
    from dibs.gateway.host import Machine

    return Machine.this().home


@gpus.command()
@click.argument("world", metavar="N|MODEL:N,...|off")
@click.option("--model", shell_complete=model_names, help="The model, as in H100. Default: H100.")
@click.option("--partitions", type=int, metavar="N", help="Each card can also be given in N equal parts.")
@click.option("--shared", is_flag=True, help="Claims may take parts of a card's memory, beside each other.")
@click.option("--unhealthy", metavar="I,J", help="These cards (by index) are broken.")
@output_option(wide=False)
def simulate(
    world: str, model: str | None, partitions: int | None, shared: bool, unhealthy: str | None, output: str
) -> None:
    """Switch a world of simulated GPUs on, or off.

    While it is on, real GPUs are not offered, and every table, plan and receipt says "simulated". The device nodes
    in a sandbox are stand-ins (/dev/simgpu0 …) that behave as /dev/null. It stays on until you switch it off.

    \b
    Examples:
      dibs gpus simulate 8 --model H100
      dibs gpus simulate H100:4,A100-80GB:2,L4:2
      dibs gpus simulate 2 --model A100-80GB --partitions 7
      dibs gpus simulate 8 --unhealthy 3,5
      dibs gpus simulate off
    """
    from dibs.devices import simulated
    from dibs.workloads.service import Workloads

    home = _home_of_world()
    with Workloads(home) as service:
        _refuse_while_held(service)
    if world == "off":
        was_on = simulated.off(home)
        if output == "table":
            click.echo("simulated GPUs are off; `dibs gpus` shows real ones" if was_on else "no simulated GPUs were on")
        else:
            show_data({"simulated": False, "was_on": was_on}, output)
        return
    wanted = simulated.parse_world(world, model=model, partitions=partitions, unhealthy=unhealthy, shared=shared)
    simulated.simulate(home, wanted)
    with Workloads(home) as service:
        _print(service, output)


@gpus.command()
@click.argument("gpu", shell_complete=gpu_names)
@click.argument("taint", metavar="KEY[=VALUE][:EFFECT]")
def taint(gpu: str, taint: str) -> None:
    """Keep a GPU from being given away, and say why.

    The effect is NoSchedule (no new leases), NoExecute (the same, and its holders are told to give it back) or None
    (only a remark). Claims with a matching toleration may have it all the same. Running leases are told
    by an event.

    \b
    Examples:
      dibs gpus taint gpu-3 maintenance=fan
      dibs gpus taint gpu-3 maintenance:NoExecute
    """
    from dibs.remote.choose import open_service
    from dibs.workloads.taints import parse_taint

    wanted = parse_taint(taint)
    with open_service() as service:
        device = service.taint(gpu, wanted)
    click.echo(f"{device.name} {wanted}")


@gpus.command()
@click.argument("gpu", shell_complete=gpu_names)
@click.argument("key", default="")
def untaint(gpu: str, key: str) -> None:
    """Take the taints with KEY off a GPU; without KEY all that people have put there.

    \b
    Example:
      dibs gpus untaint gpu-3 maintenance
    """
    from dibs.errors import NotFound
    from dibs.remote.choose import open_service

    with open_service() as service:
        gone = service.untaint(gpu, key)
    if not gone:
        raise NotFound("it has no such taint", field="taint", value=f"{gpu} {key}".strip(), remedy="see `dibs gpus`")
    click.echo(f"{gpu} has {gone} taint{'' if gone == 1 else 's'} less")
