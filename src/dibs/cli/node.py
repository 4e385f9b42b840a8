"""`dibs node`: this node's devices for Kubernetes, as a DRA driver or as a device plugin."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from dibs.errors import Problem


@click.command()
@click.option(
    "--node-name", metavar="NAME", default="", help="Its name in the cluster. Default: $NODE_NAME, the host's."
)
@click.option(
    "--driver",
    metavar="NAME",
    default="",
    help="Publish all devices under this driver name. Default: each under its own, as gpu.nvidia.com.",
)
@click.option(
    "--device-plugin",
    "resource",
    metavar="RESOURCE",
    default="",
    help="Offer whole devices as this extended resource instead of DRA, as in nvidia.com/gpu.",
)
@click.option("--simulate", metavar="WORLD", help="Offer simulated devices: `8`, or `H100:4,L4:2`.")
@click.option("--model", help="With --simulate COUNT: the model of the cards.")
@click.option("--partitions", type=int, help="With --simulate: each card is also offered in so many equal parts.")
@click.option("--shared", is_flag=True, help="With --simulate: claims may share a card by its memory.")
@click.option(
    "--kubelet-dir", metavar="DIR", default="/var/lib/kubelet", show_default=True, help="The kubelet's folder."
)
@click.option(
    "--cdi-dir",
    metavar="DIR",
    default="/var/run/cdi",
    show_default=True,
    help="Where specs of single claims are written; the container runtime must read it.",
)
@click.option("--refresh", metavar="DURATION", default="10s", show_default=True, help="How often to look for changes.")
@click.option(
    "--cluster", metavar="CONTEXT", help="Of the kubeconfig. Default: the current one, or the one dibs runs in."
)
def node(
    node_name: str, driver: str, resource: str, simulate: str | None, model: str | None, partitions: int | None,
    shared: bool, kubelet_dir: str, cdi_dir: str, refresh: str, cluster: str | None,
) -> None:  # fmt: skip
    """Offer this node's devices to its cluster, and give them to pods.

    As a DRA driver (the default) it publishes every device that `dibs gpus` shows as ResourceSlices, with all of its
    attributes, and prepares claims by CDI name. An unhealthy device gets a taint. With --device-plugin it offers whole
    devices as an extended resource, for clusters without DRA; never both on one node.

    It runs on the node itself, as root, usually from the DaemonSet of the Helm chart. Prepared claims survive its
    restart and the kubelet's.

    \b
    Examples:
      dibs node
      dibs node --simulate 8 --model H100
      dibs node --device-plugin nvidia.com/gpu
    """
    import signal
    from pathlib import Path

    from dibs.devices.cdi_source import spec_dirs
    from dibs.devices.simulated import parse_world
    from dibs.errors import InvalidRequest, Problem, Unsupported
    from dibs.home import find_home
    from dibs.kube.config import find_cluster
    from dibs.request.durations import parse_duration

    problems = []
    if driver:
        problems += _name_problems(driver)
    if resource:
        problems += _resource_problems(resource)
        if driver:
            remedy = "leave one of them out"
            problems.append(
                Problem("INVALID_REQUEST", "--driver", driver, "a device plugin has no driver name", remedy)
            )
    if simulate is None and (model is not None or partitions is not None or shared):
        remedy = "add --simulate, as in --simulate 8"
        problems.append(Problem("INVALID_REQUEST", "--simulate", "", "there is no simulated world to shape", remedy))
    try:
        every = parse_duration(refresh)
    except ValueError as error:
        problems.append(Problem("INVALID_REQUEST", "--refresh", refresh, str(error), "as in 10s or 1m"))
    else:
        if every < 1:
            problems.append(Problem("INVALID_REQUEST", "--refresh", refresh, "must be at least 1s", "as in 10s or 1m"))
    if problems:
        raise InvalidRequest(problems)
    world = parse_world(simulate, model, partitions, shared=shared) if simulate is not None else None
    try:
        from dibs.node import driver as nodes
        from dibs.node.devices import Source
    except ImportError as error:
        raise Unsupported(
            f"this dibs was installed without what it needs for that: {error.name}", field="dibs node",
            code="NODE_EXTRA_MISSING", remedy="pip install 'dibs[node]'",
        ) from error  # fmt: skip
    name = nodes.node_name(node_name)
    folders = spec_dirs()
    settings = nodes.NodeSettings(
        node=name, kubelet=Path(kubelet_dir), cdi_folder=Path(cdi_dir), resource=resource, refresh=every,
        static_folders=tuple(dict.fromkeys((*folders, cdi_dir))),
    )  # fmt: skip
    source = Source(name, find_home(), world=world, driver=driver)
    config = None if resource else find_cluster(cluster)
    running = nodes.NodeDriver(settings, source, config, lambda line: click.echo(line, err=True))
    for one in (signal.SIGTERM, signal.SIGINT):
        signal.signal(one, lambda *_: running.stop())
    running.run()


def _name_problems(driver: str) -> list[Problem]:
    from dibs.claims.fielderrors import FieldErrors
    from dibs.claims.names import check_driver
    from dibs.errors import Problem

    errors = FieldErrors()
    check_driver(errors, "", driver)
    reason = "a driver has the name of a DNS domain of at most 63 characters, as gpu.example.com"
    return [Problem("INVALID_REQUEST", "--driver", driver, reason)] if errors else []


def _resource_problems(resource: str) -> list[Problem]:
    from dibs.errors import Problem

    domain, slash, name = resource.partition("/")
    if slash and name and "." in domain and not domain.endswith("kubernetes.io"):
        return []
    reason = "an extended resource is DOMAIN/NAME outside of kubernetes.io, as nvidia.com/gpu"
    return [Problem("INVALID_REQUEST", "--device-plugin", resource, reason)]
