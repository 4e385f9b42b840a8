"""From a mapping to a `SandboxSpec`: the complete request for a sandbox, its resources and its command.

`cli`, `sdk` and the gateway fill the mapping, `workloads` uses the `SandboxSpec`. The table in `request.fields` says
which fields there are and how each is read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dibs.errors import InvalidRequest, Problem, as_written, quoted
from dibs.patterns import lazy_pattern
from dibs.request.durations import parse_duration
from dibs.request.fields import BY_NAME, FIELDS, RESOURCES, WITH_OPTIONS, Field
from dibs.request.model import MountSpec, PublishedPort
from dibs.request.parse import ALIASES, VENDOR_KEYS, collect_request, memory_bytes
from dibs.request.sandbox_spec import SandboxSpec

__all__ = ["MountSpec", "PublishedPort", "SandboxSpec", "parse_spec"]

_ENV_NAME = lazy_pattern(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_PUBLISH = lazy_pattern(
    r"(?:(?:\[(?P<v6>[0-9a-fA-F:.]{2,45})\]|(?P<v4>[0-9.]{7,15})):)?(?P<host>[0-9]{1,5}):(?P<port>[0-9]{1,5})", re.ASCII
)
_MOST_ENV = 1 << 20
RESERVED_ENV = (
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "AMD_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
    "ZE_AFFINITY_MASK",
    "ONEAPI_DEVICE_SELECTOR",
)


def parse_spec(mapping: Mapping[str, Any]) -> SandboxSpec:
    """The whole sandbox from one mapping, or InvalidRequest with every problem in it."""
    problems: list[Problem] = []
    resources: dict[str, Any] = {}
    rest: dict[str, Any] = {}
    options: dict[str, Any] = {}
    for raw, value in mapping.items():
        key = str(raw)
        if key in RESOURCES or key in ALIASES or key in VENDOR_KEYS:
            resources[key] = value
        elif key == "resources" and isinstance(value, Mapping):
            for name, inner in value.items():
                if name in resources or name in mapping:
                    said = f"{mapping.get(name, resources.get(name))} and {inner}"
                    remedy = "say it once"
                    problems.append(Problem("CONFLICT", f"resources.{name}", said, f"{name} is given twice", remedy))
                resources[str(name)] = inner
        elif key in WITH_OPTIONS:
            options[key] = value
        elif key in BY_NAME:
            rest[key] = value
        else:
            remedy = f"the known ones are {', '.join(BY_NAME)}"
            problems.append(Problem("UNKNOWN_FIELD", key, as_written(value), "there is no such field", remedy))
    request = collect_request(resources, problems)
    reader = _Reader(problems)
    found = {field.attribute: reader.read(field, rest[field.name]) for field in FIELDS if field.name in rest}
    if found.get("publish") and not found.get("network"):
        found["network"] = "private"  # the only network that has ports to publish
    spec = SandboxSpec(
        resources=request, options=options, **{name: value for name, value in found.items() if value is not _WRONG}
    )
    if options:
        from dibs.request.options import check_options

        for name in options:
            problems += check_options(name, options, request)
    if spec.publish and spec.network in ("host", "none"):
        reason = "only a private network has ports to publish: a server on the host's network is on its ports already"
        said = f"{spec.network} and {', '.join(map(str, spec.publish))}"
        problems.append(Problem("CONFLICT", "publish", said, reason, "say network private, or leave publish out"))
    if spec.volumes:
        from dibs.request.volumes import same_target

        problems += same_target(spec.mounts, spec.volumes)
    if spec.image and spec.root != "host":
        said = f"{spec.image} and {spec.root}"
        problems.append(Problem("CONFLICT", "image", said, "image and root both say what the root is", "keep one"))
    if problems:
        raise InvalidRequest(problems)
    return spec


def _published(text: str) -> PublishedPort | None:
    match = _PUBLISH.fullmatch(text)
    if match is None:
        return None
    address = match["v6"] or match["v4"] or "127.0.0.1"
    host_port, port = int(match["host"]), int(match["port"])
    if match["v4"] or match["v6"]:
        import ipaddress  # loading it takes longer than the rest of this file, and few requests publish a port

        try:
            address = str(ipaddress.ip_address(address))
        except ValueError:
            return None
    return PublishedPort(host_port, port, address) if 0 < host_port < 1 << 16 and 0 < port < 1 << 16 else None


_WRONG: Any = object()  # stands for a value that was refused: the default takes its place, and the request fails


def _code(field: Field) -> str:
    return f"{field.name.upper()}_INVALID"


class _Reader:
    """Reads the values of fields, by kind, and remembers what was wrong with them."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems

    def read(self, field: Field, value: Any) -> Any:
        return getattr(self, field.kind)(field, value)

    def refuse(self, code: str, field: str, value: Any, reason: str, remedy: str) -> Any:
        self.problems.append(Problem(code, field, quoted(value)[1:-1], reason, remedy))
        return _WRONG

    def volumes(self, field: Field, value: Any) -> Any:  # noqa: ARG002 - there is one such field
        from dibs.request.volumes import read_volumes

        return read_volumes(value, self.problems)

    def words(self, field: Field, value: Any) -> Any:
        name = field.name
        words = [value] if isinstance(value, str) else value
        if not isinstance(words, list | tuple) or not all(isinstance(word, str) for word in words):
            return self.refuse(_code(field), name, value, "must be a list of words", field.remedy)
        for word in words:
            if "\0" in word:
                return self.refuse(_code(field), name, word, "has a NUL byte in it", "leave it out")
        if words and not words[0]:
            return self.refuse(_code(field), name, "", f"the name of the {name} is empty", field.remedy)
        return tuple(words)

    def image(self, field: Field, value: Any) -> Any:
        """A reference as engines write it, or the absolute path of a saved image."""
        if value == "":
            return value
        if not isinstance(value, str) or re.fullmatch(field.shape, value, re.ASCII) is None or len(value) > 512:
            return self.refuse("IMAGE_INVALID", field.name, value, "this cannot be an image", field.remedy)
        return value

    def bytes(self, field: Field, value: Any) -> Any:
        amount = memory_bytes(value, field.name, self.problems)
        return _WRONG if amount is None else amount

    def text(self, field: Field, value: Any) -> Any:
        if value == "" and field.default == '""':
            return value
        if not isinstance(value, str) or re.fullmatch(field.shape, value, re.ASCII) is None:
            reason = f"this cannot be a {field.name}"
            return self.refuse(_code(field), field.name, value, reason, field.remedy)
        return value

    def choice(self, field: Field, value: Any) -> Any:
        if value == "" or value in field.choices:
            return value
        reason, remedy = "this is not one of the choices", f"the choices are {', '.join(field.choices)}"
        return self.refuse(_code(field), field.name, value, reason, remedy)

    def publish(self, field: Field, value: Any) -> Any:
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, list | tuple):
            return self.refuse("PUBLISH_INVALID", "publish", value, "must be a list", field.remedy)
        ports: list[PublishedPort] = []
        for item in items:
            one = _published(str(item))
            if one is None:
                self.refuse("PUBLISH_INVALID", "publish", item, "this is not a published port", field.remedy)
            elif any((one.host_port, one.address) == (other.host_port, other.address) for other in ports):
                reason = "this port of the host is published twice"
                self.refuse("CONFLICT", "publish", item, reason, "a port of the host leads to one port of the sandbox")
            else:
                ports.append(one)
        return tuple(ports)

    def path(self, field: Field, value: Any) -> Any:
        if value == field.default.strip('"'):
            return value
        if not isinstance(value, str) or not value or not value.isprintable():
            return self.refuse(_code(field), field.name, value, "this is not a path", "write an absolute path")
        if not value.startswith("/"):
            return self.refuse(_code(field), field.name, value, "the path is not absolute", "start it with /")
        return value

    def env(self, _field: Field, value: Any) -> Any:
        if isinstance(value, list | tuple):
            pairs = [str(item).partition("=") for item in value]
            lonely = [name for name, equals, _ in pairs if not equals]
            for name in lonely:
                self.refuse("ENV_INVALID", "env", name, "has no value", f"write {name}=VALUE")
            texts: dict[str, str] = {}
            for name, equals, said in pairs:
                if texts.get(name, said) != said:
                    reason = "it is given twice, with different values; one would be lost"
                    self.refuse("ENV_INVALID", f"env.{name}", "", reason, "give it once")
                if equals:
                    texts[name] = said
            value = texts
        if not isinstance(value, Mapping):
            return self.refuse("ENV_INVALID", "env", value, "must be a mapping of names to values", "write NAME=VALUE")
        result: dict[str, str] = {}
        for name, text in value.items():
            if not isinstance(name, str) or _ENV_NAME.fullmatch(name) is None:
                remedy = "a name is letters, digits and _, and does not start with a digit"
                self.refuse("ENV_INVALID", "env", name, "this cannot be the name of a variable", remedy)
            elif name in RESERVED_ENV or name.startswith("DIBS_"):
                remedy = "ask for devices with --gpu or --device; dibs sets this from what was leased"
                self.refuse("ENV_RESERVED", f"env.{name}", text, "this variable is dibs' own", remedy)
            elif not isinstance(text, str | int | float) or isinstance(text, bool) or "\0" in str(text):
                self.refuse("ENV_INVALID", f"env.{name}", text, "must be text without a NUL byte", "put it in quotes")
            else:
                result[name] = str(text)
        if sum(len(name) + len(text) for name, text in result.items()) > _MOST_ENV:
            self.refuse("ENV_INVALID", "env", f"{len(result)} variables", "more than 1 MiB in all", "use a file")
        return result

    def mounts(self, _field: Field, value: Any) -> Any:
        if not isinstance(value, list | tuple):
            remedy = "write SOURCE:TARGET or SOURCE:TARGET:rw"
            return self.refuse("MOUNT_INVALID", "mounts", value, "must be a list", remedy)
        mounts = []
        for item in value:
            parts = str(item).split(":")
            if len(parts) == 1:
                parts = [parts[0], parts[0]]
            writable = parts[-1] == "rw"
            if parts[-1] in ("rw", "ro") and len(parts) > 2:
                parts = parts[:-1]
            if len(parts) != 2 or not all(part.startswith("/") and part.isprintable() for part in parts):
                remedy = "write SOURCE:TARGET or SOURCE:TARGET:rw, both absolute"
                self.refuse("MOUNT_INVALID", "mounts", item, "this is not a mount", remedy)
            else:
                mounts.append(MountSpec(parts[0], parts[1], writable))
        return tuple(mounts)

    def duration(self, field: Field, value: Any) -> Any:
        try:
            seconds = parse_duration(value)
        except ValueError as error:
            remedy = "write it as 90s, 10m, 1h30m or a number of seconds"
            return self.refuse("DURATION_INVALID", field.name, value, str(error), remedy)
        if seconds < field.least:
            reason = f"must be at least {field.least:g}s"
            return self.refuse("DURATION_INVALID", field.name, value, reason, "leave it out for none")
        return seconds

    def flag(self, field: Field, value: Any) -> Any:
        if not isinstance(value, bool):
            return self.refuse("FLAG_INVALID", field.name, value, "must be true or false", "leave it out for false")
        return value

    def labels(self, _field: Field, value: Any) -> Any:
        own = sorted(name for name in value if str(name).startswith("dibs.")) if isinstance(value, Mapping) else []
        for name in own:
            reason = "names that begin with dibs. are kept for dibs itself"
            self.refuse("LABELS_INVALID", "labels", name, reason, f"choose another name, such as {name[5:] or 'mine'}")
        if own:
            return {}
        if isinstance(value, Mapping) and all(
            isinstance(k, str) and isinstance(v, str) and k.isprintable() and v.isprintable() and 0 < len(k) < 64
            for k, v in value.items()
        ):
            return dict(value)
        return self.refuse("LABELS_INVALID", "labels", value, "must map short names to text", "write NAME=VALUE")
