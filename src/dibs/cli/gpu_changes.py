"""`dibs gpus simulate`, `taint` and `untaint`: what an administrator changes about the GPUs of a host."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from dibs.cli.gpus import print_gpus
from dibs.cli.names import gpu_names, model_names
from dibs.cli.output import output_option, show_data
from dibs.errors import Conflict, InvalidRequest

if TYPE_CHECKING:
    from dibs.home import Home
    from dibs.workloads.service import Workloads


def _refuse_while_held(service: Workloads) -> None:
    """The simulated world must not change while a part of it is held."""
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


@click.command()
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
        print_gpus(service, output)


@click.command()
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


@click.command()
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


COMMANDS = (simulate, taint, untaint)
