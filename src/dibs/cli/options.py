"""The options that describe a sandbox, shared by `run`, `sandbox create` and `explain`.

Those of fields come from the table in `request.fields`; here is what a command line adds to it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import structs

from dibs.cli import names
from dibs.cli.verb import Option
from dibs.errors import InvalidRequest, Problem
from dibs.request.fields import DEVICES, ENVIRONMENT, FIELDS, FLAG, LIFE, SECTIONS
from dibs.request.spec import SandboxSpec, parse_spec

# Options that are no fields of a request, by the field after which the help shows them.
_BESIDE = {
    "gpu": Option("--gres", section=DEVICES, multiple=True, hidden=True),  # Slurm's spelling
    "env": Option("--clean-env", section=ENVIRONMENT, flag=True, help="Start with an empty environment."),
    "labels": Option(
        "-f", "--file", section=LIFE, kind="file", help="Read the request from YAML or JSON; options add to it."
    ),
}


def _options() -> Iterator[Option]:
    for field in sorted(FIELDS, key=lambda field: SECTIONS.index(field.section) if field.option else 0):
        if field.option:
            yield Option(
                *field.option, to=field.name, help=field.about, section=field.section, metavar=field.metavar or None,
                flag=field.schema is FLAG, multiple=field.repeated, alone=field.alone or None,
                complete=getattr(names, field.complete) if field.complete else None,
            )  # fmt: skip
            if field.name in _BESIDE:
                yield _BESIDE[field.name]


REQUEST = tuple(_options())


# Fields whose option is written in another way than the field of a file.
_BY_HAND = frozenset(("gpu", "claim", "entrypoint", "workdir", "root", "env", "mounts", "volumes", "labels"))


def read_spec(values: Mapping[str, Any], command: tuple[str, ...], **extra: Any) -> SandboxSpec:
    """The sandbox that the options describe. All problems are reported together."""
    mapping: dict[str, Any] = _from_file(values["file"]) if values.get("file") else {}
    problems: list[Problem] = []
    gpus = [*values.get("gpu", ()), *(item for word in values.get("gres", ()) for item in word.split(","))]
    if gpus:
        mapping["gpu"] = gpus if len(gpus) > 1 else gpus[0]
    if values.get("claim"):
        from dibs.cli.service import load_claim

        mapping["claim"] = load_claim(values["claim"])
    for field in FIELDS:
        value = values.get(field.name)
        if field.name in _BY_HAND or value is None or value is False or value == ():
            continue
        mapping[field.name] = list(value) if field.repeated else value
    if values.get("entrypoint") is not None:
        mapping["entrypoint"] = [values["entrypoint"]] if values["entrypoint"] else []
    for key in ("workdir", "root"):
        if values.get(key) is not None:
            inside = values[key] == "host" or (key == "workdir" and mapping.get("image"))
            mapping[key] = values[key] if inside else os.path.abspath(values[key])
    brought = _brought() if mapping.get("image") and not mapping.get("workdir") else ""
    if values.get("env"):
        mapping["env"] = {**_mapping(mapping.get("env")), **_variables(values["env"], problems)}
    if values.get("mounts"):
        mapping["mounts"] = [*mapping.get("mounts", ()), *(_absolute(mount) for mount in values["mounts"])]
    if values.get("volumes"):
        mapping["volumes"] = [*mapping.get("volumes", ()), *values["volumes"]]
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
    return structs.replace(spec, brought=brought) if brought else spec


# Working directories that would hide a part of the image itself.
_SYSTEM = frozenset(
    ("/", "/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/opt", "/proc", "/run", "/sbin", "/sys", "/usr", "/var")
)


def _brought() -> str:
    """As on `local`, the command finds the caller's working directory at the same place, writable, wherever the
    backend that is chosen can see it.

    Not at a gateway, which may be on another machine, and not where it would hide a part of the image.
    """
    from dibs.remote.choose import in_process

    here = os.getcwd()
    return here if in_process() and here not in _SYSTEM else ""


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
