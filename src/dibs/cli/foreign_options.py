"""Options that users of Docker, Slurm, SkyPilot, dstack and Kubernetes type, and what to write instead.

`main` asks for an offer when click does not know an option. None of these is accepted: each means something a little
different there, or something that dibs does by itself.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    import click

_GPU = "write --gpu 2, or --gpu H100:2"
_MEMORY = "write --memory 4Gi"
_CPU = "write --cpu 2"
_MOUNT = "write --mount /data:/data"
_NODES = "write --nodes 2, of `dibs run`"
_NOT_NEEDED = "leave it out"
OFFERS = {
    # Docker and Podman
    "--rm": f"{_NOT_NEEDED}: it is removed at its end; `dibs ps --all` and its receipt remain",
    "-i": f"{_NOT_NEEDED}: stdin is passed on; -t gives a terminal",
    "-v": _MOUNT,
    "-m": _MEMORY,
    "-c": _CPU,
    "--cpus": _CPU,
    "--cpuset-cpus": _CPU,
    "--runtime": f"{_NOT_NEEDED}: the devices come by CDI",
    "--privileged": f"{_NOT_NEEDED}: the devices that were leased are visible without it",
    "--net": "write --network host, none or private",
    "--ipc": "write --shm-size 8Gi for more shared memory",
    "--pids-limit": "write --pids 512",
    "--pull": f"{_NOT_NEEDED}: an image that is not there is pulled",
    "--env-file": "write the variables in a file for --file, or --env NAME for each",
    "--restart": "run it again: a sandbox ends with its command",
    # Slurm
    "-G": _GPU,
    "--gpus-per-node": _GPU,
    "--gpus-per-task": _GPU,
    "--mem": _MEMORY,
    "--mem-per-gpu": _MEMORY,
    "--mem-per-cpu": _MEMORY,
    "--cpus-per-task": _CPU,
    "--cpus-per-gpu": _CPU,
    "--time": "write --ttl 1h",
    "-N": _NODES,
    "-n": _NODES,
    "--ntasks": _NODES,
    "--ntasks-per-node": _NODES,
    "--partition": "name the model: --gpu H100",
    "--constraint": "name the model, --gpu H100, or a CEL selector, --where",
    "--exclusive": f"{_NOT_NEEDED}: a GPU is leased to one sandbox alone",
    "-J": "write --name NAME",
    "--job-name": "write --name NAME",
    # SkyPilot, dstack, Kubernetes
    "--accelerators": _GPU,
    "--accelerator": _GPU,
    "--limits": _GPU,
    "--requests": _GPU,
    "--num-nodes": _NODES,
    "--idle-minutes-to-autostop": "write --ttl 1h",
}


def offer(error: click.NoSuchOption, arguments: Sequence[str]) -> click.UsageError:
    """The error with what to write instead, where that is known."""
    import click

    if error.ctx is None:
        return error
    known = {name for option in error.ctx.command.params for name in option.opts}
    typed = _typed(error.option_name, arguments)
    # `-gpu 1` is read as `-g`; the options near to `-g` are no help.
    if not typed.startswith("--") and f"-{typed}" in known:
        return click.UsageError(f"No such option '{typed}'. Did you mean '-{typed}'?", error.ctx)
    if "--gpu" not in known and not (error.option_name == "-i" and "--tty" in known):  # `exec -it`
        return error
    if typed[1:].isdecimal():
        return click.UsageError(f"'{typed}' is no number of GPUs: write --gpu with at least 1.", error.ctx)
    found = OFFERS.get(typed) or OFFERS.get(f"-{typed}") or OFFERS.get(error.option_name)
    return click.UsageError(f"No such option '{typed}': {found}.", error.ctx) if found else error


def _typed(name: str, arguments: Sequence[str]) -> str:
    """The word that click has read the option from."""
    return next((word.partition("=")[0] for word in arguments if word.startswith(name)), name)
