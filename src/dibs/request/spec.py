"""The whole of what a sandbox is asked to be: its resources, and what runs in it.

`cli` and `sdk` fill the mapping, `workloads` uses the `SandboxSpec`. Every field here has a row in the delivery table
(`plan.delivery`); a field without a row fails the tests.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from dibs.errors import InvalidRequest, Problem, as_written, quoted
from dibs.request.durations import parse_duration
from dibs.request.model import Request
from dibs.request.parse import ALIASES, VENDOR_KEY, collect_request, memory_bytes
from dibs.request.parse import KNOWN as RESOURCES

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_BACKEND = re.compile(r"[a-z][a-z0-9-]{0,30}", re.ASCII)
_USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}|[0-9]{1,10}(:[0-9]{1,10})?", re.ASCII)
_PLATFORM = re.compile(r"[a-z0-9]{1,16}/[a-z0-9_]{1,16}(/[a-z0-9]{1,8})?", re.ASCII)
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]*|/[^\0]+", re.ASCII)
_PUBLISH = re.compile(
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


class MountSpec(msgspec.Struct, frozen=True):
    """A folder or file of the host, `SOURCE:TARGET[:rw]`. Read-only unless it says rw."""

    source: str
    target: str
    writable: bool = False

    def __str__(self) -> str:
        return f"{self.source}:{self.target}{':rw' if self.writable else ''}"


class PublishedPort(msgspec.Struct, frozen=True):
    """A TCP port of the host that leads to one of the sandbox, `[ADDRESS:]PORT:PORT`. On loopback unless it says so."""

    host_port: int
    port: int
    address: str = "127.0.0.1"

    def __str__(self) -> str:
        where = f"[{self.address}]" if ":" in self.address else self.address
        return f"{where}:{self.host_port}:{self.port}"


class SandboxSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A valid sandbox, still a wish: no device is chosen yet."""

    resources: Request = Request()
    command: tuple[str, ...] = ()
    name: str = ""
    backend: str = "auto"
    env: dict[str, str] = {}
    workdir: str = ""
    root: str = "host"
    network: Literal["", "host", "none", "private"] = ""  # empty: not asked for; see `workloads.networks`
    publish: tuple[PublishedPort, ...] = ()
    mounts: tuple[MountSpec, ...] = ()
    ttl_seconds: float | None = None
    wait_seconds: float | None = None
    grace_seconds: float = 10.0
    tty: bool = False
    interactive: bool = False
    labels: dict[str, str] = {}
    image: str = ""
    entrypoint: tuple[str, ...] | None = None  # None: the image's own; (): none
    user: str = ""
    shm_bytes: int | None = None
    read_only: bool = False
    platform: str = ""
    # By backend, what only that one understands. Ledgers and the native API have it as `wishes`.
    options: dict[str, dict[str, Any]] = msgspec.field(default_factory=dict, name="wishes")


_FIELDS = (
    "command", "name", "backend", "env", "workdir", "root", "network", "publish", "mounts", "ttl", "wait", "grace",
    "tty", "interactive", "labels", "image", "entrypoint", "user", "shm", "read_only", "platform",
)  # fmt: skip
WITH_OPTIONS = ("docker", "podman", "kubernetes")  # the backends that have options of their own


ELSEWHERE = ("kubernetes", "fake-cluster")  # backends whose sandboxes do not see the folders of this host


def family(backend: str) -> str:
    """The kind of a backend: there may be several clusters, `kubernetes` and `kubernetes-NAME`."""
    return "kubernetes" if backend.startswith("kubernetes-") else backend


def parse_spec(mapping: Mapping[str, Any]) -> SandboxSpec:
    """The whole sandbox from one mapping, or InvalidRequest with every problem in it."""
    problems: list[Problem] = []
    resources: dict[str, Any] = {}
    rest: dict[str, Any] = {}
    options: dict[str, Any] = {}
    for raw, value in mapping.items():
        key = str(raw)
        if key in RESOURCES or key in ALIASES or VENDOR_KEY.fullmatch(key):
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
        elif key in _FIELDS:
            rest[key] = value
        else:
            known = ", ".join((*RESOURCES, *_FIELDS, *WITH_OPTIONS))
            problems.append(
                Problem(
                    "UNKNOWN_FIELD", key, as_written(value), "there is no such field", f"the known ones are {known}"
                )
            )
    request = collect_request(resources, problems)
    reader = _Reader(rest, problems)
    spec = SandboxSpec(
        resources=request,
        command=reader.command(),
        name=reader.name(),
        backend=reader.pattern("backend", "auto", _BACKEND, "write auto, local, docker, podman, kubernetes or fake"),
        env=reader.env(),
        workdir=reader.path("workdir", ""),
        root=reader.path("root", "host"),
        network=reader.network(),
        publish=reader.publish(),
        mounts=reader.mounts(),
        ttl_seconds=reader.duration("ttl", least=1.0),
        wait_seconds=reader.duration("wait", least=0.0),
        grace_seconds=reader.duration("grace", least=0.0, default=10.0) or 0.0,
        tty=reader.flag("tty"),
        interactive=reader.flag("interactive"),
        labels=reader.labels(),
        image=reader.image(),
        entrypoint=reader.words("entrypoint") if "entrypoint" in rest else None,
        user=reader.pattern("user", "", _USER, "write a number, a name, or both of user and group as in 1000:1000"),
        shm_bytes=reader.bytes("shm"),
        read_only=reader.flag("read_only"),
        platform=reader.pattern("platform", "", _PLATFORM, "write it as linux/amd64"),
        options=options,
    )
    if options:
        from dibs.request.options import check_options

        for name in options:
            problems += check_options(name, options, request)
    if spec.publish and spec.network in ("host", "none"):
        reason = "only a private network has ports to publish: a server on the host's network is on its ports already"
        said = f"{spec.network} and {', '.join(map(str, spec.publish))}"
        problems.append(Problem("CONFLICT", "publish", said, reason, "say network private, or leave publish out"))
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


class _Reader:
    """Reads fields out of a mapping and remembers what was wrong with them."""

    def __init__(self, values: dict[str, Any], problems: list[Problem]) -> None:
        self.values = values
        self.problems = problems

    def refuse(self, code: str, field: str, value: Any, reason: str, remedy: str) -> None:
        self.problems.append(Problem(code, field, quoted(value)[1:-1], reason, remedy))

    def command(self) -> tuple[str, ...]:
        return self.words("command", remedy="write it after --")

    def words(self, field: str, remedy: str = "write it as a list of words") -> tuple[str, ...]:
        value = self.values.get(field, ())
        words = [value] if isinstance(value, str) else value
        if not isinstance(words, list | tuple) or not all(isinstance(word, str) for word in words):
            self.refuse(f"{field.upper()}_INVALID", field, value, "must be a list of words", remedy)
            return ()
        for word in words:
            if "\0" in word:
                self.refuse(f"{field.upper()}_INVALID", field, word, "has a NUL byte in it", "leave it out")
                return ()
        if words and not words[0]:
            self.refuse(f"{field.upper()}_INVALID", field, "", f"the name of the {field} is empty", remedy)
        return tuple(words)

    def image(self) -> str:
        """A reference as engines write it, or the absolute path of a saved image."""
        value = self.values.get("image", "")
        if not isinstance(value, str) or (value and (_IMAGE.fullmatch(value) is None or len(value) > 512)):
            remedy = "write it as python:3.12, registry.example/team/image:tag, or the path of a tar"
            self.refuse("IMAGE_INVALID", "image", value, "this cannot be an image", remedy)
            return ""
        return value

    def bytes(self, field: str) -> int | None:
        if field not in self.values:
            return None
        return memory_bytes(self.values[field], field, self.problems)

    def name(self) -> str:
        return self.pattern("name", "", _NAME, "a name is up to 63 lower-case letters, digits and -, as in train-1")

    def pattern(self, field: str, default: str, shape: re.Pattern[str], remedy: str) -> str:
        value = self.values.get(field, default)
        if value == default:
            return default
        if not isinstance(value, str) or shape.fullmatch(value) is None:
            self.refuse(f"{field.upper()}_INVALID", field, value, f"this cannot be a {field}", remedy)
            return default
        return value

    def choice(self, field: str, default: str, choices: tuple[str, ...]) -> str:
        value = self.values.get(field, default)
        if value not in choices:
            reason = "this is not one of the choices"
            offered = " and ".join(choice for choice in choices if choice)
            self.refuse(f"{field.upper()}_INVALID", field, value, reason, f"the choices are {offered}")
            return default
        return str(value)

    def network(self) -> Literal["", "host", "none", "private"]:
        found = self.choice("network", "", ("", "host", "none", "private"))
        if not found and self.values.get("publish"):
            return "private"  # the only network that has ports to publish
        return "host" if found == "host" else "none" if found == "none" else "private" if found == "private" else ""

    def publish(self) -> tuple[PublishedPort, ...]:
        value = self.values.get("publish", ())
        items = [value] if isinstance(value, str) else value
        remedy = "write [ADDRESS:]PORT:PORT, the host's port first, as in 8080:80 or 0.0.0.0:8080:80"
        if not isinstance(items, list | tuple):
            self.refuse("PUBLISH_INVALID", "publish", value, "must be a list", remedy)
            return ()
        ports: list[PublishedPort] = []
        for item in items:
            one = _published(str(item))
            if one is None:
                self.refuse("PUBLISH_INVALID", "publish", item, "this is not a published port", remedy)
            elif any((one.host_port, one.address) == (other.host_port, other.address) for other in ports):
                reason = "this port of the host is published twice"
                self.refuse("CONFLICT", "publish", item, reason, "a port of the host leads to one port of the sandbox")
            else:
                ports.append(one)
        return tuple(ports)

    def path(self, field: str, default: str) -> str:
        value = self.values.get(field, default)
        if value == default:
            return default
        if not isinstance(value, str) or not value or not value.isprintable():
            self.refuse(f"{field.upper()}_INVALID", field, value, "this is not a path", "write an absolute path")
            return default
        if not value.startswith("/"):
            self.refuse(f"{field.upper()}_INVALID", field, value, "the path is not absolute", "start it with /")
            return default
        return value

    def env(self) -> dict[str, str]:
        value: Any = self.values.get("env", {})
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
            self.refuse("ENV_INVALID", "env", value, "must be a mapping of names to values", "write NAME=VALUE")
            return {}
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

    def mounts(self) -> tuple[MountSpec, ...]:
        value = self.values.get("mounts", ())
        if not isinstance(value, list | tuple):
            self.refuse("MOUNT_INVALID", "mounts", value, "must be a list", "write SOURCE:TARGET or SOURCE:TARGET:rw")
            return ()
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

    def duration(self, field: str, *, least: float, default: float | None = None) -> float | None:
        if field not in self.values:
            return default
        value = self.values[field]
        try:
            seconds = parse_duration(value)
        except ValueError as error:
            remedy = "write it as 90s, 10m, 1h30m or a number of seconds"
            self.refuse("DURATION_INVALID", field, value, str(error), remedy)
            return default
        if seconds < least:
            self.refuse("DURATION_INVALID", field, value, f"must be at least {least:g}s", "leave it out for none")
            return default
        return seconds

    def flag(self, field: str) -> bool:
        value = self.values.get(field, False)
        if not isinstance(value, bool):
            self.refuse("FLAG_INVALID", field, value, "must be true or false", "leave it out for false")
            return False
        return value

    def labels(self) -> dict[str, str]:
        value = self.values.get("labels", {})
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
        self.refuse("LABELS_INVALID", "labels", value, "must map short names to text", "write NAME=VALUE")
        return {}
