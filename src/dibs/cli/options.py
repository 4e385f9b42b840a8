"""The options that describe a sandbox, shared by `run`, `sandbox create` and `explain`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import click

from dibs.cli.names import backend_names, device_names, gpu_requests
from dibs.errors import InvalidRequest, Problem
from dibs.request.spec import ELSEWHERE, SandboxSpec, family, parse_spec

_RESOURCES = (
    click.option(
        "--gpu", "--gpus", "gpu", multiple=True, is_flag=False, flag_value="1", metavar="[REQUEST]",
        shell_complete=gpu_requests,
        help="GPUs: 2, H100:2, nvidia:H100,A100:80GB..:2, all. Alone: one, any. May be repeated.",
    ),
    click.option("--gres", multiple=True, hidden=True),  # Slurm's spelling
    click.option(
        "--device", multiple=True, metavar="NAME", shell_complete=device_names,
        help="An exact device: nvidia.com/gpu=0, a UUID or an id.",
    ),
    click.option("--where", multiple=True, metavar="CEL", help="Only GPUs for which this CEL expression is true."),
    click.option("--claim", metavar="FILE|NAME", help="A DRA claim instead: a YAML file, or a kept one."),
    click.option("--cpu", metavar="N", help="Processors at most: 2, 0.5, 500m."),
    click.option("--memory", metavar="SIZE", help="Memory at most: 4Gi, 512Mi."),
    click.option("--pids", metavar="N", help="Processes at most."),
    click.option("--allow-busy", is_flag=True, help="Also take GPUs that processes outside dibs use."),
    click.option(
        "--backend", metavar="NAME", shell_complete=backend_names,
        help="Where to run: auto, local, docker, podman, kubernetes. Default: auto.",
    ),
)  # fmt: skip
_WORKLOAD = (
    click.option("--name", help="A name for it; else it gets an id."),
    click.option("-e", "--env", multiple=True, metavar="NAME[=VALUE]", help="A variable; alone: with your own value."),
    click.option("--clean-env", is_flag=True, help="Start from an empty environment, not from yours."),
    click.option("-w", "--workdir", metavar="DIR", help="Where it runs, writable. Default: here."),
    click.option("--root", metavar="DIR|TAR", help="Another root file system. Default: this host's."),
    click.option("--image", metavar="IMAGE", help="A container image, or an image of the configuration."),
    click.option("--entrypoint", metavar="WORD", help="In place of the image's own; an empty one: none."),
    click.option("--user", metavar="UID[:GID]", help="Run as this user of the sandbox."),
    click.option("--shm-size", "shm", metavar="SIZE", help="The size of /dev/shm: 1Gi."),
    click.option("--read-only", "read_only", is_flag=True, help="Its root cannot be written to."),
    click.option("--platform", metavar="OS/ARCH", help="Of the image: linux/amd64. Default: this host's."),
    click.option(
        "--network", metavar="host|none|private",
        help="private: its own, with a way out. Default: host; at a gateway private.",
    ),
    click.option(
        "-p", "--publish", multiple=True, metavar="[ADDRESS:]PORT:PORT",
        help="A port of the host that leads to one of a private network.",
    ),
    click.option("--mount", "mounts", multiple=True, metavar="SRC:DST[:rw]", help="A folder or file of the host."),
    click.option("--ttl", metavar="TIME", help="End it after this time: 90s, 10m, 2h."),
    click.option("--grace", metavar="TIME", help="Between asking it to stop and killing it. Default: 10s."),
    click.option(
        "--wait", is_flag=False, flag_value="366d", metavar="[TIME]",
        help="Queue if the GPUs are held, for at most this long. Alone: as long as it takes.",
    ),
    click.option("--label", "labels", multiple=True, metavar="NAME=VALUE", help="A note to find it by."),
    click.option(
        "-f", "--file", type=click.Path(dir_okay=False), help="Read the request from YAML or JSON; options add to it."
    ),
)  # fmt: skip


# How the help of `run`, `sandbox create` and `explain` groups them.
_GROUPS = {
    "Devices": ("gpu", "device", "where", "claim", "allow_busy"),
    "Limits": ("cpu", "memory", "pids", "shm"),
    "Where it runs": ("backend", "image", "root", "workdir", "mounts", "network", "publish", "user", "read_only",
                      "platform", "entrypoint"),
    "Environment": ("env", "clean_env"),
    "Life": ("name", "label", "labels", "ttl", "grace", "wait", "file", "detach"),
    "Groups": ("nodes", "on_failure"),
}  # fmt: skip


class GroupedCommand(click.Command):
    """A command whose many options are grouped in its help."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        shown: dict[str, list[tuple[str, str]]] = {section: [] for section in (*_GROUPS, "Output")}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and isinstance(parameter, click.Option):
                place = next((name for name, members in _GROUPS.items() if parameter.name in members), "Output")
                shown[place].append(record)
        for section, records in shown.items():
            if records:
                with formatter.section(section):
                    formatter.write_dl(records, col_max=26)


def resource_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_RESOURCES):
        function = option(function)
    return function


def workload_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_WORKLOAD):
        function = option(function)
    return function


def read_spec(values: Mapping[str, Any], command: tuple[str, ...], **extra: Any) -> SandboxSpec:
    """The sandbox that the options describe. All problems are reported together."""
    mapping: dict[str, Any] = _from_file(values["file"]) if values.get("file") else {}
    problems: list[Problem] = []
    gpus = [*values.get("gpu", ()), *(item for word in values.get("gres", ()) for item in word.split(","))]
    if gpus:
        mapping["gpu"] = gpus if len(gpus) > 1 else gpus[0]
    if values.get("device"):
        mapping["device"] = list(values["device"])
    if values.get("where"):
        mapping["where"] = list(values["where"])
    if values.get("claim"):
        from dibs.cli.service import load_claim

        mapping["claim"] = load_claim(values["claim"])
    for key in (
        "cpu",
        "memory",
        "pids",
        "backend",
        "name",
        "network",
        "ttl",
        "grace",
        "wait",
        "image",
        "user",
        "shm",
        "platform",
    ):
        if values.get(key) is not None:
            mapping[key] = values[key]
    if values.get("allow_busy"):
        mapping["allow_busy"] = True
    if values.get("read_only"):
        mapping["read_only"] = True
    if values.get("entrypoint") is not None:
        mapping["entrypoint"] = [values["entrypoint"]] if values["entrypoint"] else []
    for key in ("workdir", "root"):
        if values.get(key) is not None:
            inside = values[key] == "host" or (key == "workdir" and mapping.get("image"))
            mapping[key] = values[key] if inside else os.path.abspath(values[key])
    if mapping.get("image") and not mapping.get("workdir") and family(str(mapping.get("backend"))) not in ELSEWHERE:
        _bring_working_directory(mapping)
    if values.get("env"):
        mapping["env"] = {**_mapping(mapping.get("env")), **_variables(values["env"], problems)}
    if values.get("mounts"):
        mapping["mounts"] = [*mapping.get("mounts", ()), *(_absolute(mount) for mount in values["mounts"])]
    if values.get("publish"):
        mapping["publish"] = list(values["publish"])
    if values.get("labels"):
        pairs = [label.partition("=") for label in values["labels"]]
        problems += [
            Problem("LABELS_INVALID", "label", name, "has no value", f"write {name}=VALUE")
            for name, equals, _ in pairs
            if not equals
        ]
        labels: dict[str, str] = {}
        for name, _, value in pairs:
            if labels.get(name, value) != value:
                reason = "it is given twice, with different values; one would be lost"
                problems.append(Problem("LABELS_INVALID", f"label.{name}", value, reason, "give it once"))
            labels[name] = value
        mapping["labels"] = {**_mapping(mapping.get("labels")), **labels}
    if command:
        mapping["command"] = list(command)
    mapping |= {key: value for key, value in extra.items() if value}
    try:
        spec = parse_spec(mapping)
    except InvalidRequest as error:
        raise InvalidRequest([*error.problems, *problems]) from None
    if problems:
        raise InvalidRequest(problems)
    return spec


# Working directories that would hide a part of the image itself.
_SYSTEM = frozenset(
    ("/", "/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/opt", "/proc", "/run", "/sbin", "/sys", "/usr", "/var")
)


def _bring_working_directory(mapping: dict[str, Any]) -> None:
    """As on `local`: the command finds the caller's working directory at the same place, writable.

    Not at a gateway, which may be on another machine, and not where it would hide a part of the image.
    """
    from dibs.remote.choose import in_process

    here = os.getcwd()
    if in_process() and here not in _SYSTEM:
        mapping["workdir"] = here
        mapping["mounts"] = [*mapping.get("mounts", ()), f"{here}:{here}:rw"]


def _mapping(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else {}


def _variables(words: tuple[str, ...], problems: list[Problem]) -> dict[str, str]:
    result: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals and name not in os.environ:
            remedy = f"write {name}=VALUE"
            problems.append(Problem("ENV_INVALID", "env", name, "your environment has no such variable", remedy))
            continue
        value = value if equals else os.environ[name]
        problems += two_values(result, name, value)
        result[name] = value
    return result


def two_values(known: Mapping[str, str], name: str, value: str) -> list[Problem]:
    """A variable that is given twice, with different values: one of them would be lost."""
    if known.get(name, value) == value:
        return []
    reason = "it is given twice, with different values; one would be lost"
    return [Problem("ENV_INVALID", f"env.{name}", "", reason, "give it once")]


def _absolute(mount: str) -> str:
    source, colon, rest = mount.partition(":")
    return f"{os.path.abspath(source)}{colon}{rest}" if source else mount


def _from_file(path: str) -> dict[str, Any]:
    from dibs.devices.yaml_documents import Unreadable, documents

    try:
        with open(path, "rb") as file:
            found = [document for document in documents(file.read(1 << 20)) if document is not None]
    except OSError as error:
        reason = f"it cannot be read: {error.strerror}"
        raise InvalidRequest(reason, field="file", value=path, code="FILE_INVALID", remedy="check the path") from error
    except Unreadable as error:
        reason, remedy = f"it cannot be read as YAML or JSON: {error}", "see docs/requests.md"
        raise InvalidRequest(reason, field="file", value=path, code="FILE_INVALID", remedy=remedy) from error
    data = found[0] if len(found) == 1 else None
    if not isinstance(data, dict):
        reason = "a request is a mapping, as in `gpu: 2`"
        raise InvalidRequest(reason, field="file", value=path, code="FILE_INVALID", remedy="see docs/requests.md")
    return data
