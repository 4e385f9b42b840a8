"""Settings, read once: `<config>/config.toml`, then the environment, then flags.

Every setting comes from `load_settings`; no other module reads the file or these variables. Strict: an unknown key or a
value that cannot be read is refused, and all problems are reported at once. Without a file nothing is parsed or loaded,
because every `dibs run` comes through here.

Each setting has one line in a table below: its reader and its meaning. The configuration reference in the docs is
written from the same table.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from dibs.errors import InvalidRequest, Problem, quoted
from dibs.home import Home
from dibs.patterns import lazy_pattern

NAME = lazy_pattern(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
_DURATION = lazy_pattern(r"(?:[0-9]+(?:\.[0-9]+)?(?:ms|[smhd]))+", re.ASCII)
_PART = lazy_pattern(r"([0-9]+(?:\.[0-9]+)?)(ms|[smhd])", re.ASCII)
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_LARGEST_FILE = 1 << 20
OFF = "off"


class Quota(msgspec.Struct, frozen=True, kw_only=True):
    """What a tenant may hold at once. None: no limit."""

    sandboxes: int | None = None
    cpu_millis: int | None = None
    memory_bytes: int | None = None
    gpus: int | None = None


class GatewaySettings(msgspec.Struct, frozen=True, kw_only=True):
    """How `dibs serve` listens, and what it puts up with."""

    listen: tuple[str, ...] = ("127.0.0.1:8080",)
    socket: str = ""  # empty: gateway.sock in the state folder
    socket_mode: int = 0o600
    socket_group: str = ""
    loopback_open: bool = False
    allow_host_network: bool = False
    allow_publish: bool = False
    public_url: str = ""
    max_body: int = 1 << 20
    max_upload: int = 64 << 30
    max_head: int = 64 << 10
    max_connections: int = 4096
    head_timeout: float = 15.0
    body_timeout: float = 30.0
    keep_alive: float = 75.0
    drain: float = 10.0
    threads: int = 16
    delivery_workers: int = 8
    max_sandbox_ttl: float | None = None
    log_format: str = "text"
    log_level: str = "info"
    otel_endpoint: str = ""
    openshell: str = ""  # empty: OpenShell's service is not served
    openshell_certificate: str = ""
    openshell_key: str = ""
    openshell_client_ca: str = ""
    openshell_image: str = "host"
    openshell_backend: str = "auto"
    oidc_issuer: str = ""
    oidc_audience: str = ""
    oidc_jwks: str = ""
    oidc_tenant_claim: str = "tenant"


class ClusterSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A Kubernetes cluster that sandboxes run on."""

    context: str = ""  # empty: the current one, or the cluster that dibs runs in
    kubeconfig: str = ""  # empty: KUBECONFIG, or ~/.kube/config
    namespace: str = ""  # empty: the context's
    kind: str = "Pod"
    template: str = ""  # a file with a pod template that every sandbox is merged into
    pending: float = 600.0
    preflight: bool = True
    jobs: bool = False


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that can be set."""

    ledger: str = ""  # empty: SQLite in the state folder
    backends: tuple[str, ...] = ()  # empty: the built-in order
    images: dict[str, str] = {}
    mounts_allow: tuple[str, ...] = ()
    docker_socket: str = ""
    fake_cluster: str = ""
    podman_socket: str = ""
    clusters: dict[str, ClusterSettings] = {}  # by backend: kubernetes, kubernetes-NAME
    gateway: GatewaySettings = GatewaySettings()
    tenants: dict[str, Quota] = {}


class Setting(msgspec.Struct, frozen=True):
    """One key: where it goes, how it is read, what it means, and the variable that also sets it."""

    key: str
    field: str
    read: Callable[[Any], Any]
    meaning: str
    variable: str = ""
    default: str = ""


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.isprintable():
        raise ValueError("must be text on one line")
    return value


def _words(value: Any) -> tuple[str, ...]:
    items = [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value
    if not isinstance(items, list | tuple) or not all(isinstance(item, str) and item.isprintable() for item in items):
        raise ValueError("must be a list of texts")
    return tuple(items)


def _folders(value: Any) -> tuple[str, ...]:
    found = _words(value)
    for item in found:
        if not item.startswith("/"):
            raise ValueError(f"{quoted(item)} is not an absolute path")
    return found


def _names(value: Any) -> tuple[str, ...]:
    found = _words(value)
    for item in found:
        if NAME.fullmatch(item) is None:
            raise ValueError(f"{quoted(item)} cannot be the name of a backend")
    return found


def _listens(value: Any) -> tuple[str, ...]:
    found = _words(value)
    for item in found:
        address(item)
    return found


def address(text: str) -> tuple[str, int]:
    """`127.0.0.1:8080`, `[::1]:8080`, `host:0` → host and port. Raises ValueError."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"{quoted(text)}: write an IPv6 address in brackets, as in [::1]:8080")
    if not colon or not host or not re.fullmatch(r"[0-9]{1,5}", port, re.ASCII) or int(port) > 65535:
        raise ValueError(f"{quoted(text)} is not HOST:PORT, as in 127.0.0.1:8080")
    return host, int(port)


def _flag(value: Any) -> bool:
    if isinstance(value, str) and value in ("true", "false", "1", "0"):
        return value in ("true", "1")
    if not isinstance(value, bool):
        raise ValueError("must be true or false")  # noqa: TRY004
    return value


def _whole(least: int, most: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if isinstance(value, str) and re.fullmatch(r"[0-9]{1,18}", value, re.ASCII):
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise ValueError(f"must be a whole number from {least} to {most}")
        return value

    return read


def _size(value: Any) -> int:
    from dibs.quantity import NANO, Quantity

    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError("must be an amount of bytes, as in 4Mi")  # noqa: TRY004 - told as a problem of the value
    nanos = Quantity.parse(str(value)).nanos
    if nanos <= 0 or nanos % NANO:
        raise ValueError("must be a whole number of bytes above 0")
    return nanos // NANO


def _cpus(value: Any) -> int:
    from dibs.quantity import NANO, Quantity

    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError("must be an amount of cpus, as in 4 or 500m")  # noqa: TRY004
    nanos = Quantity.parse(str(value)).nanos
    if nanos < 0:
        raise ValueError("must not be below 0")
    return nanos * 1000 // NANO


def _seconds(least: float, most: float) -> Callable[[Any], float]:
    def read(value: Any) -> float:
        if isinstance(value, str) and _DURATION.fullmatch(value):
            value = sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(value))
        elif isinstance(value, str) and re.fullmatch(r"[0-9]+(\.[0-9]+)?", value, re.ASCII):
            value = float(value)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError("must be a length of time, as in 30s or 1h30m")  # noqa: TRY004
        if not least <= value <= most:
            raise ValueError(f"must be between {least:g} and {most:g} seconds")
        return float(value)

    return read


def _mode(value: Any) -> int:
    if isinstance(value, str) and re.fullmatch(r"0?[0-7]{3}", value, re.ASCII):
        return int(value, 8)
    raise ValueError('must be a file mode in quotes, as in "0660"')


def _one_of(*choices: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if value not in choices:
            raise ValueError(f"must be one of {', '.join(choices)}")
        return str(value)

    return read


def _url(*schemes: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        text = _text(value)
        if text and not text.startswith(tuple(f"{scheme}://" for scheme in schemes)):
            raise ValueError(f"must be a URL that starts with {' or '.join(f'{scheme}://' for scheme in schemes)}")
        return text

    return read


def _path(value: Any) -> str:
    text = _text(value)
    if text and not text.startswith("/"):
        raise ValueError("must be an absolute path")
    return text


def _socket(value: Any) -> str:
    text = _text(value)
    if text and text != OFF and not text.startswith("/"):
        raise ValueError('must be an absolute path, or "off"')
    if len(text.encode()) > 100:
        raise ValueError("is too long for a unix socket (at most 100 bytes)")
    return text


def _absolute(value: Any) -> str:
    text = _text(value)
    if text and not text.startswith("/"):
        raise ValueError("must be an absolute path")
    return text


def _namespace(value: Any) -> str:
    text = _text(value)
    if text and NAME.fullmatch(text) is None:
        raise ValueError("must be up to 63 lower-case letters, digits and -")
    return text


def _place(value: Any) -> str:
    text = _text(value)
    if text and not text.startswith(("/", "https://", "http://")):
        raise ValueError("must be an absolute path, or a URL that starts with https:// or http://")
    return text


def _openshell(value: Any) -> str:
    text = _text(value)
    if text.startswith("unix:"):
        _socket(text.removeprefix("unix:"))
        if not text.startswith("unix:/"):
            raise ValueError("must be unix: and an absolute path")
    elif text:
        address(text)
    return text


_COUNT = _whole(0, 1_000_000)

TOP: tuple[Setting, ...] = (
    Setting("ledger", "ledger", _url("postgresql", "postgres"),
            "Where leases and sandboxes are kept: a PostgreSQL URL, for several gateways on one ledger.",
            "DIBS_LEDGER", "SQLite in the state folder"),
    Setting("backends", "backends", _names, "Which backends `auto` tries, in this order.",
            "DIBS_BACKENDS", "the built-in order"),
)  # fmt: skip
MOUNTS: tuple[Setting, ...] = (
    Setting("allow", "mounts_allow", _folders,
            "Folders of the host that requests over the gateway may mount.", default="none"),
)  # fmt: skip
DOCKER: tuple[Setting, ...] = (
    Setting("socket", "docker_socket", _socket, "The Docker Engine's socket.", "DIBS_DOCKER_SOCKET", "found"),
)
PODMAN: tuple[Setting, ...] = (
    Setting("socket", "podman_socket", _socket, "The Podman service's socket.", "DIBS_PODMAN_SOCKET", "found"),
)
FAKE: tuple[Setting, ...] = (
    Setting("cluster", "fake_cluster", _absolute,
            "The file of a simulated cluster, for tests: its scheduler chooses devices, and nothing runs.",
            "DIBS_FAKE_CLUSTER", "none"),
)  # fmt: skip
KUBERNETES: tuple[Setting, ...] = (
    Setting("context", "context", _text, "The context of the kubeconfig, or in-cluster.",
            "DIBS_KUBERNETES_CONTEXT", "the current one, or the cluster that dibs runs in"),
    Setting("kubeconfig", "kubeconfig", _absolute, "The kubeconfig file.", "DIBS_KUBERNETES_KUBECONFIG",
            "KUBECONFIG, or ~/.kube/config"),
    Setting("namespace", "namespace", _namespace, "The namespace of the sandboxes.", "DIBS_KUBERNETES_NAMESPACE",
            "the context's"),
    Setting("kind", "kind", _one_of("Pod", "Sandbox", "BatchSandbox"),
            "What a sandbox is: a Pod, or a Sandbox (agent-sandbox) or BatchSandbox (OpenSandbox) around one.",
            "DIBS_KUBERNETES_KIND", "Pod"),
    Setting("template", "template", _absolute,
            "A file with a pod template (metadata and spec) that every sandbox is merged into; conflicts are refused.",
            "DIBS_KUBERNETES_TEMPLATE", "none"),
    Setting("pending", "pending", _seconds(1, 30 * 86400),
            "How long a sandbox may wait for a place if its request does not say.", "DIBS_KUBERNETES_PENDING", "10m"),
    Setting("preflight", "preflight", _flag,
            "Refuse what no node of the cluster could ever run. Switch it off where nodes are added on demand.",
            "DIBS_KUBERNETES_PREFLIGHT", "true"),
    Setting("jobs", "jobs", _flag,
            "Training jobs of the gateway's Kubeflow API may run here, in the namespace that has the tenant's name.",
            "DIBS_KUBERNETES_JOBS", "false"),
)  # fmt: skip
GATEWAY: tuple[Setting, ...] = (
    Setting("listen", "listen", _listens,
            "Addresses to listen on, each HOST:PORT. Beyond loopback a token must exist.", default="127.0.0.1:8080"),
    Setting("socket", "socket", _socket, "The unix socket, or off.", default="gateway.sock in the state folder"),
    Setting("socket_mode", "socket_mode", _mode, "Who may connect to the unix socket.", default='"0600"'),
    Setting("socket_group", "socket_group", _text, "The group that owns the unix socket.", default="yours"),
    Setting("loopback_open", "loopback_open", _flag,
            "Loopback needs no token: programs of this host act as you. Sandboxes and containers do not.",
            default="false"),
    Setting("allow_host_network", "allow_host_network", _flag,
            "Sandboxes may ask for the host's network. Tenants can then meet on it.", default="false"),
    Setting("allow_publish", "allow_publish", _flag, "Sandboxes may publish ports of the host.", default="false"),
    Setting("public_url", "public_url", _url("http", "https"),
            "How clients reach this gateway, where a proxy stands before it.", default="the address of the request"),
    Setting("max_body", "max_body", _size, "The largest request body, file uploads apart.", default="1Mi"),
    Setting("max_upload", "max_upload", _size, "The largest upload of files.", default="64Gi"),
    Setting("max_head", "max_head", _size, "The largest request line with its headers.", default="64Ki"),
    Setting("max_connections", "max_connections", _whole(1, 1_000_000), "Connections at once; others get a 503.",
            default="4096"),
    Setting("head_timeout", "head_timeout", _seconds(0.1, 3600), "How long a request's headers may take.",
            default="15s"),
    Setting("body_timeout", "body_timeout", _seconds(0.1, 3600),
            "How long a request's body may pause, and how long a body that is not an upload may take in all.",
            default="30s"),
    Setting("keep_alive", "keep_alive", _seconds(0, 3600), "How long an idle connection is kept.", default="75s"),
    Setting("drain", "drain", _seconds(0, 3600), "How long a stop waits for requests that are under way.",
            default="10s"),
    Setting("threads", "threads", _whole(1, 1000), "Threads for the ledger and the backends.", default="16"),
    Setting("delivery_workers", "delivery_workers", _whole(1, 256), "Sandboxes that are made at the same time.",
            default="8"),
    Setting("max_sandbox_ttl", "max_sandbox_ttl", _seconds(1, 366 * 86400),
            "The longest time to live; a request without one gets this.", default="no limit"),
    Setting("log_format", "log_format", _one_of("text", "json"), "How log lines look.", default="text"),
    Setting("log_level", "log_level", _one_of("debug", "info", "warning", "error"), "Which log lines there are.",
            default="info"),
    Setting("otel_endpoint", "otel_endpoint", _url("http", "https"),
            "Where traces go (OTLP over HTTP). Needs `dibs[otel]`.", default="no traces"),
    Setting("openshell", "openshell", _openshell,
            "Where OpenShell's gRPC service listens: HOST:PORT or unix:PATH. Needs `dibs[openshell]`.",
            default="it does not"),
    Setting("openshell_certificate", "openshell_certificate", _path,
            "The certificate of that service, in PEM; with it and its key it speaks TLS.", default="no TLS"),
    Setting("openshell_key", "openshell_key", _path, "The private key of that certificate.", default="no TLS"),
    Setting("openshell_client_ca", "openshell_client_ca", _path,
            "Clients must have a certificate that these authorities signed: O is the tenant, CN the user.",
            default="they need none"),
    Setting("openshell_image", "openshell_image", _text, "The image of an OpenShell request that names none.",
            default="host"),
    Setting("openshell_backend", "openshell_backend", _one_of("auto", "local", "docker", "podman", "fake"),
            "The backend of an OpenShell request that names none.", default="auto"),
    Setting("oidc_issuer", "oidc_issuer", _url("https", "http"),
            "Tokens of this OIDC issuer are taken by OpenShell's service.", default="none are"),
    Setting("oidc_audience", "oidc_audience", _text,
            "The audience that such a token must be for; required with an issuer.", default='""'),
    Setting("oidc_jwks", "oidc_jwks", _place, "The issuer's keys: a URL or the path of a file.",
            default="what the issuer's discovery document names"),
    Setting("oidc_tenant_claim", "oidc_tenant_claim", _text, "The claim of such a token that names the tenant.",
            default="tenant"),
)  # fmt: skip
TENANT: tuple[Setting, ...] = (
    Setting("sandboxes", "sandboxes", _COUNT, "Sandboxes at once.", default="no limit"),
    Setting("cpu", "cpu_millis", _cpus, "The sum of the cpu limits. Each sandbox must then have one.",
            default="no limit"),
    Setting("memory", "memory_bytes", _size, "The sum of the memory limits. Each sandbox must then have one.",
            default="no limit"),
    Setting("gpus", "gpus", _COUNT, "GPUs at once.", default="no limit"),
)  # fmt: skip
SECTIONS: dict[str, tuple[Setting, ...]] = {
    "mounts": MOUNTS, "docker": DOCKER, "podman": PODMAN, "gateway": GATEWAY, "fake": FAKE,
}  # fmt: skip
_PREFIX = "DIBS_GATEWAY_"
_NAMED = ("kubernetes", "clusters", "images", "tenants")  # sections that are not one table of settings
_DEFAULTS = Settings()


def load_settings(home: Home, *, path: str | None = None, environ: Mapping[str, str] | None = None) -> Settings:
    """The settings of an installation, or InvalidRequest with every problem. `path`: another file, which must exist."""
    env = os.environ if environ is None else environ
    problems: list[Problem] = []
    document = _document(path or str(home.config / "config.toml"), must_exist=path is not None, problems=problems)
    if not document and not any(name.startswith("DIBS_") for name in env) and not problems:
        return _DEFAULTS
    values = _read_document(document, problems)
    gateway = values.pop("gateway", {})
    _read_environment(env, values, gateway, problems)
    if problems:
        raise InvalidRequest(problems)
    return Settings(gateway=GatewaySettings(**gateway), **values)


def with_flags(settings: Settings, flags: Mapping[str, Any]) -> Settings:
    """Settings with what the command line says about the gateway (and `ledger`) put over them."""
    problems: list[Problem] = []
    given = {key: value for key, value in flags.items() if value is not None}
    top: dict[str, Any] = {}
    _read_table({key: given.pop(key) for key in ("ledger",) if key in given}, TOP, "", top, problems)
    gateway: dict[str, Any] = {}
    _read_table(given, GATEWAY, "gateway.", gateway, problems)
    if problems:
        raise InvalidRequest(problems)
    return msgspec.structs.replace(settings, gateway=msgspec.structs.replace(settings.gateway, **gateway), **top)


def _document(path: str, *, must_exist: bool, problems: list[Problem]) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            text = file.read(_LARGEST_FILE + 1)
    except FileNotFoundError:
        if must_exist:
            problems.append(Problem("SETTINGS_UNREADABLE", "config", path, "there is no such file", "check the path"))
        return {}
    except OSError as error:
        remedy = "make it readable for you, or name another one with --config"
        problems.append(Problem("SETTINGS_UNREADABLE", "config", path, error.strerror or str(error), remedy))
        return {}
    if len(text) > _LARGEST_FILE:
        problems.append(Problem("SETTINGS_UNREADABLE", "config", path, "it is larger than 1 MiB", "make it smaller"))
        return {}
    import tomllib

    try:
        return tomllib.loads(text.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        reason = f"it is not TOML: {error}"
        problems.append(Problem("SETTINGS_UNREADABLE", "config", path, reason, "correct the place that is named"))
        return {}


def _read_document(document: Mapping[str, Any], problems: list[Problem]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    plain = {key: value for key, value in document.items() if key not in (*SECTIONS, *_NAMED)}
    _read_table(plain, TOP, "", values, problems, also=(*SECTIONS, *_NAMED))
    for name, table in SECTIONS.items():
        section = _section(document, name, problems)
        target: dict[str, Any] = {}
        _read_table(section, table, f"{name}.", target, problems)
        if name == "gateway":
            values["gateway"] = target
        else:
            values |= target
    clusters = _read_clusters(document, problems)
    values |= {"clusters": clusters} if clusters else {}
    images = _section(document, "images", problems)
    for name, place in images.items():
        if not isinstance(place, str) or not place.startswith("/"):
            remedy = 'write an absolute path, as in ubuntu = "/srv/roots/ubuntu.tar"'
            reason = "an image is a folder or a tar file of this host"
            problems.append(Problem("SETTING_INVALID", f"images.{name}", _shown(place), reason, remedy))
    values |= {"images": dict(images)} if images else {}
    tenants: dict[str, Quota] = {}
    for name, section in _section(document, "tenants", problems).items():
        if NAME.fullmatch(name) is None or not isinstance(section, dict):
            remedy = "write it as [tenants.red], with up to 63 lower-case letters, digits and -"
            problems.append(Problem("SETTING_INVALID", f"tenants.{name}", "", "this cannot be a tenant", remedy))
            continue
        quota: dict[str, Any] = {}
        _read_table(section, TENANT, f"tenants.{name}.", quota, problems)
        tenants[name] = Quota(**quota)
    return values | ({"tenants": tenants} if tenants else {})


def _read_clusters(document: Mapping[str, Any], problems: list[Problem]) -> dict[str, ClusterSettings]:
    """`[kubernetes]` is the backend of that name, `[clusters.prod]` is `kubernetes-prod`."""
    given = {"kubernetes": ("kubernetes", document["kubernetes"])} if "kubernetes" in document else {}
    for name, section in _section(document, "clusters", problems).items():
        if NAME.fullmatch(name) is None or len(name) > 20 or not isinstance(section, dict):
            remedy = "write it as [clusters.prod], with up to 20 lower-case letters, digits and -"
            problems.append(Problem("SETTING_INVALID", f"clusters.{name}", "", "this cannot be a cluster", remedy))
            continue
        given[f"kubernetes-{name}"] = (f"clusters.{name}", section)
    found: dict[str, ClusterSettings] = {}
    for backend, (place, section) in given.items():
        if not isinstance(section, dict):
            problems.append(Problem("SETTING_INVALID", place, _shown(section), "this is a section", f"write [{place}]"))
            continue
        values: dict[str, Any] = {}
        _read_table(section, KUBERNETES, f"{place}.", values, problems)
        found[backend] = ClusterSettings(**values)
    return found


def _section(document: Mapping[str, Any], name: str, problems: list[Problem]) -> dict[str, Any]:
    section = document.get(name, {})
    if isinstance(section, dict):
        return section
    problems.append(Problem("SETTING_INVALID", name, _shown(section), "this is a section", f"write [{name}] above it"))
    return {}


def _read_table(
    given: Mapping[str, Any],
    table: tuple[Setting, ...],
    prefix: str,
    into: dict[str, Any],
    problems: list[Problem],
    *,
    also: tuple[str, ...] = (),
) -> None:
    known = {setting.key: setting for setting in table}
    for key, value in given.items():
        setting = known.get(key)
        if setting is None:
            remedy = f"the known ones are {', '.join((*known, *also))}"
            problems.append(Problem("SETTING_UNKNOWN", f"{prefix}{key}", _shown(value), "no such setting", remedy))
            continue
        _read_one(setting, f"{prefix}{key}", value, into, problems)


def _read_one(setting: Setting, name: str, value: Any, into: dict[str, Any], problems: list[Problem]) -> None:
    try:
        into[setting.field] = setting.read(value)
    except ValueError as error:
        problems.append(Problem("SETTING_INVALID", name, _shown(value), str(error), setting.meaning))


def _read_environment(
    env: Mapping[str, str], values: dict[str, Any], gateway: dict[str, Any], problems: list[Problem]
) -> None:
    for table in (TOP, DOCKER, PODMAN, FAKE):
        for setting in table:
            if env.get(setting.variable):
                _read_one(setting, setting.variable, env[setting.variable], values, problems)
    cluster: dict[str, Any] = {}
    for setting in KUBERNETES:
        if env.get(setting.variable):
            _read_one(setting, setting.variable, env[setting.variable], cluster, problems)
    if cluster:
        clusters = values.setdefault("clusters", {})
        clusters["kubernetes"] = msgspec.structs.replace(clusters.get("kubernetes", ClusterSettings()), **cluster)
    known = {f"{_PREFIX}{setting.key.upper()}": setting for setting in GATEWAY}
    for name in sorted(env):
        if not name.startswith(_PREFIX):
            continue
        if name not in known:
            remedy = f"the known ones are {', '.join(known)}"
            problems.append(Problem("SETTING_UNKNOWN", name, "", "no such setting", remedy))
        elif env[name]:
            _read_one(known[name], name, env[name], gateway, problems)


def _shown(value: Any) -> str:
    """A value in a message. A URL may carry a password, which is left out."""
    return re.sub(r"(://[^:/@\s]*):[^@\s]*@", r"\1:…@", quoted(value)[1:-1])
