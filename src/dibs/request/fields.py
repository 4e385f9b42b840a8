"""The table of fields: everything that a request can say, each field declared once, as plain data.

`request.spec` reads requests by it, `cli.options` makes options of it, `wire.requests` the JSON schema, `remote` the
mapping that is sent, `workloads.receipt` the lines of limits. `scripts/generate_fields.py` writes from it what type
checkers need as Python source (`request/sandbox_spec.py`, `sdk/fields.py`), `scripts/generate_docs.py` the table in
docs/requests.md. Each backend declares whether it delivers a field; a backend that does not name it refuses it.

It must not import anything: each `dibs run` loads it.
"""

from __future__ import annotations

TEXT: dict[str, object] = {"type": "string"}
TEXTS: dict[str, object] = {"anyOf": [TEXT, {"type": "array", "items": TEXT}]}
FLAG: dict[str, object] = {"type": "boolean"}
OBJECT: dict[str, object] = {"type": "object"}
AMOUNT: dict[str, object] = {"type": ["string", "number"]}
DURATION: dict[str, object] = {**AMOUNT, "description": "90s, 10m, 1h30m, or a number of seconds"}
COUNT: dict[str, object] = {
    "anyOf": [{"type": ["string", "integer"]}, {"type": "array", "items": {"type": ["string", "integer"]}}]
}
VARIABLES: dict[str, object] = {
    "anyOf": [
        {"type": "object", "additionalProperties": {"type": ["string", "number"]}},
        {"type": "array", "items": TEXT},
    ]
}

VOLUME: dict[str, object] = {
    "anyOf": [
        TEXT,
        {
            "type": "object",
            "properties": {
                "name": TEXT, "target": TEXT, "sub_path": TEXT, "read_only": FLAG, "create": FLAG, "size": AMOUNT,
                "storage_class": TEXT, "access_modes": {"type": "array", "items": TEXT},
            },
            "required": ["name", "target"],
            "additionalProperties": False,
        },
    ]
}  # fmt: skip

# kind → the suffix of its attribute, its Python type, its default, its JSON schema, its type in the Python API.
# A kind is read by the method of this name in `request.spec`; `resource` by `request.parse`.
KINDS: dict[str, tuple[str, str, str, dict[str, object], str]] = {
    "flag": ("", "bool", "False", FLAG, "bool"),
    "text": ("", "str", '""', TEXT, "str"),
    "image": ("", "str", '""', TEXT, "str"),
    "path": ("", "str", '""', TEXT, "str"),
    "choice": ("", "str", '""', TEXT, "str"),
    "words": ("", "tuple[str, ...]", "()", TEXTS, "str | Sequence[str]"),
    "duration": ("_seconds", "float | None", "None", DURATION, "Duration"),
    "bytes": ("_bytes", "int | None", "None", AMOUNT, "Amount"),
    "env": ("", "dict[str, str]", "{}", VARIABLES, "Mapping[str, str | int | float] | Sequence[str]"),
    "labels": ("", "dict[str, str]", "{}", {"type": "object", "additionalProperties": TEXT}, "Mapping[str, str]"),
    "mounts": ("", "tuple[MountSpec, ...]", "()", {"type": "array", "items": TEXT}, "Sequence[str]"),
    "volumes": (
        "",
        "tuple[VolumeSpec, ...]",
        "()",
        {"anyOf": [VOLUME, {"type": "array", "items": VOLUME}]},
        "str | Sequence[str | Mapping[str, Any]]",
    ),
    "publish": ("", "tuple[PublishedPort, ...]", "()", TEXTS, "str | Sequence[str]"),
    "options": ("", "", "", OBJECT, "Mapping[str, Any]"),
    "resource": ("", "", "", {}, ""),
}


class Field:
    """One field of a request.

    name        in a mapping, a file, the native API and the Python API, and the row of the delivery table
    kind        how it is read and written: a key of KINDS
    about       the help of its option, and what the docs say
    section     where the help of a command shows it
    option      its spellings on the command line; (): it has no option of its own there
    metavar     what the help shows for its value
    repeated    the option may be given several times
    alone       the value of the option without one
    complete    what a shell completes its value with: a function of `cli.names`
    attribute   of `SandboxSpec` (of `Request` for a resource), where it is not the name and the suffix of its kind
    python      the type of the attribute, and its `default`, where they are not those of its kind; as Python source
    shape       the regular expression that a text must match
    choices     of a choice
    least       of a duration, in seconds
    remedy      told when the value is wrong
    schema      of its value in JSON, where it is not that of its kind; `note` becomes its description
    sdk         its type in the Python API, where it is not that of its kind
    rows        its rows in the delivery table, where there are several or another one
    passed      it reaches the backend in `Workload` as it was asked for
    limit       an amount that is compared as a limit, and shown in a line of its own in receipts
    """

    __slots__ = (
        "about", "alone", "attribute", "choices", "complete", "default", "kind", "least", "limit", "metavar", "name",
        "note", "option", "passed", "python", "remedy", "repeated", "rows", "schema", "sdk", "section", "shape",
    )  # fmt: skip

    def __init__(
        self, name: str, kind: str, about: str, section: str = "", option: tuple[str, ...] = (), *, metavar: str = "",
        repeated: bool = False, alone: str = "", complete: str = "", attribute: str = "", python: str = "",
        default: str = "", shape: str = "", choices: tuple[str, ...] = (), least: float = 0.0, remedy: str = "",
        schema: dict[str, object] | None = None, note: str = "", sdk: str = "", rows: tuple[str, ...] = (),
        passed: bool = False, limit: bool = False,
    ) -> None:  # fmt: skip
        suffix, own_python, own_default, own_schema, own_sdk = KINDS[kind]
        self.name, self.kind, self.about, self.section, self.option = name, kind, about, section, option
        self.metavar, self.repeated, self.alone, self.complete = metavar, repeated, alone, complete
        self.attribute = attribute or name + suffix
        self.python, self.default = python or own_python, default or own_default
        self.shape, self.choices, self.least, self.remedy = shape, choices, least, remedy
        self.schema, self.note, self.sdk = schema or own_schema, note, sdk or own_sdk
        self.rows, self.passed, self.limit = rows or (name,), passed, limit


SECTIONS = DEVICES, LIMITS, PLACE, ENVIRONMENT, LIFE = "Devices", "Limits", "Where it runs", "Environment", "Life"
_GPUS = ("gpu.count", "gpu.vendor", "gpu.models", "gpu.memory", "gpu.profile", "gpu.all")
_NAME = "[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"

FIELDS: tuple[Field, ...] = (
    Field(
        "gpu", "resource",
        "GPUs: 2, H100:2, nvidia:H100,A100:80GB..:2, all. Without a value: any one. May be repeated.", DEVICES,
        ("--gpu", "--gpus"), metavar="[REQUEST]", repeated=True, alone="1", complete="gpu_requests",
        schema=COUNT, sdk="Gpu | Sequence[Gpu]", rows=_GPUS, attribute="gpus",
        note="a count, `all`, or vendor:models:memory:count, as in nvidia:H100:80GB..:2; or a list of these",
    ),
    Field(
        "device", "resource", "An exact device: nvidia.com/gpu=0, a UUID or an id.", DEVICES, ("--device",),
        metavar="NAME", repeated=True, complete="device_names", schema=TEXTS, sdk="str | Sequence[str]",
        rows=("devices",), attribute="devices", note="exact devices, as in nvidia.com/gpu=0",
    ),
    Field(
        "where", "resource", "Only GPUs for which this CEL expression is true.", DEVICES, ("--where",), metavar="CEL",
        repeated=True, schema=TEXTS, sdk="str | Sequence[str]", note="CEL expressions that each device must fulfil",
    ),
    Field(
        "claim", "resource", "A DRA claim instead: a YAML file, or a stored claim.", DEVICES, ("--claim",),
        metavar="FILE|NAME", schema=OBJECT, sdk="Mapping[str, Any]",
        note="a ResourceClaim or ResourceClaimTemplate of Kubernetes",
    ),
    Field(
        "cpu", "resource", "CPU limit: 2, 0.5, 500m.", LIMITS, ("--cpu",), metavar="N", schema=AMOUNT,
        sdk="Amount", attribute="cpu_millis", limit=True, note="processors: 2, 0.5 or 500m",
    ),
    Field(
        "memory", "resource", "Memory limit: 4Gi, 512Mi.", LIMITS, ("--memory",), metavar="SIZE", schema=AMOUNT,
        sdk="Amount", attribute="memory_bytes", limit=True, note="4Gi, 512Mi or 4G",
    ),
    Field(
        "pids", "resource", "Limit on the number of processes.", LIMITS, ("--pids",), metavar="N",
        schema={"type": ["string", "integer"]}, sdk="int | str", limit=True,
    ),
    Field(
        "allow_busy", "resource", "Also use GPUs that are in use outside dibs.", DEVICES, ("--allow-busy",),
        schema=FLAG, sdk="bool", note="also cards that processes outside of dibs use",
    ),
    Field(
        "backend", "text", "Where to run: auto, local, docker, podman, kubernetes. Default: auto.", PLACE,
        ("--backend",), metavar="NAME", complete="backend_names", default='"auto"', shape="[a-z][a-z0-9-]{0,30}",
        remedy="write auto, local, docker, podman, kubernetes or fake",
        note="auto, or one of those that GET /api/v1/capabilities lists",
    ),
    Field(
        "name", "text", "Name of the sandbox. Default: its id.", LIFE, ("--name",), shape=_NAME,
        remedy="a name is up to 63 lower-case letters, digits and -, as in train-1",
        schema={"type": "string", "pattern": f"^({_NAME})?$"},
    ),
    Field(
        "env", "env", "Set a variable; without a value, copy your own.", ENVIRONMENT, ("-e", "--env"),
        metavar="NAME[=VALUE]", repeated=True,
    ),
    Field(
        "workdir", "path", "Working directory, writable. Default: the current one.", PLACE, ("-w", "--workdir"),
        metavar="DIR",
    ),
    Field(
        "root", "path", "Root file system. Default: this host's.", PLACE, ("--root",), metavar="DIR|TAR",
        default='"host"', passed=True,
    ),
    Field(
        "image", "image", "Container image, or an image from the configuration.", PLACE, ("--image",),
        metavar="IMAGE", shape=r"[A-Za-z0-9][A-Za-z0-9._:/@-]*|/[^\0]+", passed=True,
        remedy="write it as python:3.12, registry.example/team/image:tag, or the path of a tar",
    ),
    Field(
        "entrypoint", "words", "Replace the image's entrypoint; empty: none.", PLACE, ("--entrypoint",),
        metavar="WORD", python="tuple[str, ...] | None", default="None", passed=True,
        remedy="write it as a list of words",
    ),
    Field(
        "user", "text", "User in the sandbox.", PLACE, ("--user",), metavar="UID[:GID]",
        shape="[a-z_][a-z0-9_-]{0,31}|[0-9]{1,10}(:[0-9]{1,10})?", passed=True,
        remedy="write a number, a name, or both of user and group as in 1000:1000",
    ),
    Field(
        "shm", "bytes", "Size of /dev/shm: 1Gi.", LIMITS, ("--shm-size",), metavar="SIZE", passed=True, limit=True
    ),
    Field("read_only", "flag", "Make the root file system read-only.", PLACE, ("--read-only",), passed=True),
    Field(
        "platform", "text", "Platform of the image: linux/amd64. Default: this host's.", PLACE, ("--platform",),
        metavar="OS/ARCH", shape="[a-z0-9]{1,16}/[a-z0-9_]{1,16}(/[a-z0-9]{1,8})?", remedy="write it as linux/amd64",
        note="as in linux/amd64", passed=True,
    ),
    Field(
        "network", "choice", "private: own namespace with outbound access. Default: host; private at a gateway.", PLACE,
        ("--network",), metavar="host|none|private", choices=("host", "none", "private"),
        python='Literal["", "host", "none", "private"]', schema={"enum": ["host", "none", "private"]},
        sdk='Literal["host", "none", "private"]',
    ),
    Field(
        "publish", "publish", "Publish a port of a private network on the host.", PLACE, ("-p", "--publish"),
        metavar="[ADDRESS:]PORT:PORT", repeated=True,
        remedy="write [ADDRESS:]PORT:PORT, the host's port first, as in 8080:80 or 0.0.0.0:8080:80",
        note="[ADDRESS:]PORT:PORT: a port of the host that leads to one of the sandbox",
    ),
    Field(
        "mounts", "mounts", "Mount a folder or file of the host.", PLACE, ("--mount",), metavar="SRC:DST[:rw]",
        repeated=True, note="SOURCE:TARGET[:rw], as far as the gateway allows",
    ),
    Field(
        "volumes", "volumes", "Mount a named volume; options: ro, create, size=1Gi, class=NAME, access=MODE.", PLACE,
        ("--volume",), metavar="NAME[/SUB]:DST[:OPT,…]", repeated=True,
        note="named volumes: NAME[/SUBPATH]:TARGET[:ro,create,size=SIZE,class=NAME,access=MODE]",
    ),
    Field(
        "ttl", "duration", "Time to live: 90s, 10m, 2h.", LIFE, ("--ttl",), metavar="TIME", least=1.0,
        passed=True,
    ),
    Field(
        "grace", "duration", "Time between SIGTERM and SIGKILL. Default: 10s.", LIFE, ("--grace",),
        metavar="TIME", python="float", default="10.0", passed=True,
    ),
    Field(
        "wait", "duration", "Queue for at most this long if the GPUs are held. Without a value: no limit.", LIFE,
        ("--wait",), metavar="[TIME]", alone="366d",
        note="how long it may wait in the queue; without it a busy device is a refusal",
    ),
    Field(
        "labels", "labels", "Label to find it by.", LIFE, ("--label",), metavar="NAME=VALUE", repeated=True,
        passed=True,
    ),
    Field(
        "command", "words", "What runs; without one it waits for exec.", remedy="write it after --",
        note="the words of the command; without one the sandbox waits for exec",
    ),
    Field("tty", "flag", "With a terminal.", passed=True),
    Field("interactive", "flag", "Its stdin stays open for clients that attach.", passed=True),
    Field("docker", "options", "Options for Docker alone.", rows=("options",)),
    Field("podman", "options", "Options for Podman alone.", rows=("options",)),
    Field("kubernetes", "options", "Options for Kubernetes alone.", rows=("options",)),
)  # fmt: skip

BY_NAME: dict[str, Field] = {field.name: field for field in FIELDS}
RESOURCES: tuple[str, ...] = tuple(field.name for field in FIELDS if field.kind == "resource")
PASSED: tuple[str, ...] = tuple(field.attribute for field in FIELDS if field.passed)
ROWS: tuple[str, ...] = tuple(dict.fromkeys(row for field in FIELDS for row in field.rows))
# The backends that have options of their own, each in a block that is named after it.
WITH_OPTIONS: tuple[str, ...] = tuple(field.name for field in FIELDS if field.kind == "options")
