"""A `CreateSandboxRequest` → dibs' own request. One function for every driver; pure; it finds every problem.

Resources are said in up to four places: `resource_requirements.gpu`, `template.resources`, a workload template, and
the block for Kubernetes in `driver_config`. All of them are read, and two that differ are refused with both values.
What OpenShell has no word for is said in annotations, under `dibs.`. Each field of a request ends in one of three ways:
in the sandbox, in a refusal that names it, or in the list of what is not applicable, which the sandbox reports.

Used by `sandboxes` (to create), `templates` (to check one when it is kept) and `dibs explain --openshell`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import msgspec
from google.protobuf import unknown_fields

from dibs.backends.installed import ON_HOST, automatic, made_from_image
from dibs.errors import InvalidRequest, Problem, quoted
from dibs.gateway.openshell import drivers, names, schema
from dibs.quantity import Quantity
from dibs.request.gpu import VENDORS, parse_gpu
from dibs.request.model import family
from dibs.request.pod_options import option_problems
from dibs.request.spec import SandboxSpec, parse_spec

KEEP_ALIVE = ["tail", "-f", "/dev/null"]  # what runs where no command is named: the sandbox waits for exec
GPU = "spec.resource_requirements.gpu"
_GPU_EXAMPLES = "as in 1; limits.gpu of template.resources also takes a model, as in H100:2"
LIMITS = ("cpu", "memory", "gpu", *(f"{vendor}.com/gpu" for vendor in VENDORS))
# annotation → our field
ANNOTATIONS = {
    "dibs.backend": "backend",
    "dibs.wait": "wait",
    "dibs.where": "where",
    "dibs.ttl": "ttl",
    "dibs.network": "network",
    "dibs.user": "user",
    "dibs.workdir": "workdir",
    "dibs.shm-size": "shm",
    "dibs.pids": "pids",
}


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """What the reading of a request depends on: the administrator's settings."""

    images: frozenset[str] = frozenset({"host"})  # the names that `local` knows
    default_image: str = "host"
    default_backend: str = "auto"
    backends: tuple[str, ...] = msgspec.field(default_factory=automatic)  # what `auto` tries
    longest_ttl: float | None = None


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """A sandbox as asked for. `blocks`: the drivers that have a block; `unused`: what is not applicable anywhere."""

    spec: SandboxSpec
    blocks: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    annotations: dict[str, str] = {}
    written: dict[str, str] = {}  # our field → as the client calls it


def read_create(request: Any, rules: Rules, template: Any = None) -> Wanted:
    """The whole request, or InvalidRequest with every problem in it. `template`: the workload template it names."""
    reader = _Reader(request, rules, template)
    wanted = reader.read()
    if wanted is None or reader.problems:
        raise InvalidRequest(reader.problems)
    return wanted


def unknown(message: Any, field: str = "") -> list[Problem]:
    """Fields that the schema does not have, wherever they are in a message."""
    problems = []
    for one in _unknown_fields(message):
        where = f"{field}.{one.field_number}" if field else str(one.field_number)
        kind = message.DESCRIPTOR.name
        reason = f"{kind} has no field {one.field_number} that dibs knows"
        problems.append(Problem("UNKNOWN_FIELD", where, "", reason, "leave it out, or use an older client"))
    for descriptor, value in message.ListFields():
        place = f"{field}.{descriptor.name}" if field else descriptor.name
        if descriptor.message_type is None or descriptor.message_type.full_name.startswith("google.protobuf."):
            continue
        if descriptor.message_type.GetOptions().map_entry or descriptor.message_type.name == "SandboxPolicy":
            continue
        if descriptor.is_repeated:
            for number, item in enumerate(value):
                problems += unknown(item, f"{place}[{number}]")
        else:
            problems += unknown(value, place)
    return problems


def _unknown_fields(message: Any) -> Any:
    return unknown_fields.UnknownFieldSet(message)


def plain(struct: Any) -> dict[str, Any]:
    """A protobuf Struct as plain data; whole numbers become integers."""
    return {key: _plain_value(value) for key, value in struct.fields.items()}


def _plain_value(value: Any) -> Any:
    kind = value.WhichOneof("kind")
    if kind == "struct_value":
        return plain(value.struct_value)
    if kind == "list_value":
        return [_plain_value(one) for one in value.list_value.values]
    if kind == "number_value":
        number = value.number_value
        return int(number) if math.isfinite(number) and number == int(number) else number
    return None if kind in (None, "null_value") else getattr(value, kind)


class _Said(msgspec.Struct, frozen=True):
    """One place that says an amount, and what it says."""

    field: str
    text: str


class _Reader:
    """Reads one request. `mapping` becomes what `parse_spec` takes; `problems` all that is wrong."""

    def __init__(self, request: Any, rules: Rules, template: Any) -> None:
        self.request = request
        self.spec = request.spec
        self.template = request.spec.template
        self.workload = template
        self.rules = rules
        self.problems: list[Problem] = []
        self.mapping: dict[str, Any] = {}
        self.unused: list[str] = []
        self.written: dict[str, str] = {}  # our field → as the client calls it

    def refuse(self, code: str, field: str, value: Any, reason: str, remedy: str = "") -> None:
        self.problems.append(Problem(code, field, quoted(value)[1:-1], reason, remedy))

    def read(self) -> Wanted | None:
        self.problems += unknown(self.request)
        self.not_offered()
        annotations = self.annotations()
        blocks, field = self.blocks()
        self.resources(blocks, field)
        self.source()
        self.options(blocks, field)
        self.process()
        self.labels()
        if self.rules.longest_ttl is not None:
            self.mapping.setdefault("ttl", self.rules.longest_ttl)
        problem = self.request.name and names.name_problem(self.request.name, "name")
        if problem:
            self.problems.append(problem)
        elif self.request.name:
            self.mapping["name"] = self.request.name
        problem = names.request_id_problem(self.request.request_id)
        if problem:
            self.problems.append(problem)
        try:
            spec = parse_spec(self.mapping)
        except InvalidRequest as error:
            self.problems += [self.renamed(one, field) for one in error.problems]
            return None
        if not self.problems:
            self.problems += [
                one for one in drivers.check_devices(blocks, field, spec.resources) if one not in self.problems
            ]
        return Wanted(
            spec=spec, blocks=tuple(blocks), unused=tuple(self.unused), annotations=annotations, written=self.written
        )

    # -- what is refused or not applicable --------------------------------------------------------------------------

    def not_offered(self) -> None:
        """Fields that ask for something which dibs does not have. Said with nothing in it, a field asks for nothing."""
        spec, template, request = self.spec, self.template, self.request
        if spec.policy.ByteSize():
            reason = "dibs enforces no OpenShell policies"
            remedy = "leave it out; the annotation dibs.network: none or private limits the network"
            self.refuse("POLICY_NOT_OFFERED", "spec.policy", "(not shown)", reason, remedy)
        if spec.providers:
            reason = "dibs hands out no credentials of providers"
            remedy = "pass what the sandbox needs in spec.environment"
            self.refuse("PROVIDERS_NOT_OFFERED", "spec.providers", list(spec.providers), reason, remedy)
        if spec.provider_attachment_epoch:
            value = spec.provider_attachment_epoch
            self.refuse("PROVIDERS_NOT_OFFERED", "spec.provider_attachment_epoch", value, "there are no providers here")
        if spec.restart_policy not in (0, schema.number("SANDBOX_RESTART_POLICY_NEVER")):
            reason = "dibs restarts no command"
            remedy = "leave it out, or run it in a loop of its own"
            said = schema.name("SandboxRestartPolicy", spec.restart_policy)
            self.refuse("RESTART_NOT_OFFERED", "spec.restart_policy", said, reason, remedy)
        if request.await_main_process_attachment:
            reason = "the command is started when the sandbox is ready, whether a client listens or not"
            remedy = "leave it out; ExecSandboxInteractive runs a command with its output"
            self.refuse("ATTACHMENT_NOT_OFFERED", "await_main_process_attachment", True, reason, remedy)
        if template.agent_socket:
            reason = "there is no agent in a sandbox"
            value = template.agent_socket
            self.refuse("AGENT_NOT_OFFERED", "spec.template.agent_socket", value, reason, "leave it out")
        if template.HasField("user_namespaces"):
            reason = "it cannot be chosen: local sandboxes always have one, others what the engine or cluster does"
            value = template.user_namespaces
            self.refuse("USER_NAMESPACE_NOT_OFFERED", "spec.template.user_namespaces", value, reason, "leave it out")
        if spec.log_level:
            self.unused.append("spec.log_level: there is no supervisor in the sandbox whose log it would set")
        if self.workload is not None and self.workload.spec.desired_service_level.ByteSize():
            self.unused.append("desired_service_level: sandboxes are made on demand, none are kept ready")

    def annotations(self) -> dict[str, str]:
        """Those that are ours become fields; the others are kept and shown again."""
        found = dict(self.request.annotations)
        for key, value in self.template.annotations.items():
            if found.setdefault(key, value) != value:
                said = f"{found[key]} and {value}"
                reason = f"annotations.{key} says something else"
                self.refuse("CONFLICT", f"spec.template.annotations.{key}", said, reason, "say it once")
        for key in [key for key in found if key.startswith("dibs.")]:
            text = found.pop(key)
            field = f"annotations.{key}"
            if key not in ANNOTATIONS:
                known = f"the known ones are {', '.join(ANNOTATIONS)}"
                self.refuse("UNKNOWN_ANNOTATION", field, text, "dibs does not know it", known)
                continue
            self.mapping[ANNOTATIONS[key]] = text
            self.written[ANNOTATIONS[key]] = field
        for key, text in found.items():
            if not 0 < len(key) <= 253 or len(text) > 4096 or not key.isprintable():
                reason = "a key has 1 to 253 printable characters, a value 4096 at most"
                self.refuse("ANNOTATION_INVALID", "annotations", key, reason)
        if len(found) > 64:
            self.refuse("ANNOTATION_INVALID", "annotations", len(found), "there are more than 64")
        return found

    # -- resources --------------------------------------------------------------------------------------------------

    def blocks(self) -> tuple[dict[str, Any], str]:
        """The blocks of `driver_config`, and how the client calls the place they are in."""
        field = "spec.template.driver_config"
        blocks = plain(self.template.driver_config)
        if self.workload is not None:
            theirs = plain(self.workload.spec.driver_config)
            if not blocks:
                field = "workload_template.spec.driver_config"
            for driver, block in theirs.items():
                if blocks.setdefault(driver, block) != block:
                    said = f"{quoted(blocks[driver])} and {quoted(block)}"
                    reason = "the workload template says something else"
                    self.refuse("CONFLICT", f"{field}.{driver}", said, reason, "say it once")
        self.problems += drivers.check_shape(blocks, field)
        return blocks, field

    def served(self) -> set[str]:
        """The kinds of backend that may get the sandbox."""
        backend = self.mapping["backend"]
        return {family(str(one)) for one in (self.rules.backends if backend == "auto" else (backend,))}

    def options(self, blocks: Mapping[str, Any], field: str) -> None:
        """The blocks of drivers that may get the sandbox, as options of these backends."""
        served = self.served()
        self.problems += drivers.not_offered(blocks, field, served)
        for driver in drivers.ENGINES:
            block = blocks.get(driver)
            if driver in served and isinstance(block, Mapping) and "cdi_devices" in block:
                self.mapping[driver] = {"cdi_devices": block["cdi_devices"]}
        pod = drivers.kubernetes_options(blocks)
        runtime = self.template.runtime_class_name
        if runtime and pod.setdefault("runtime_class", runtime) != runtime:
            theirs = _Said(f"{field}.kubernetes.pod.runtime_class_name", str(pod["runtime_class"]))
            self.conflict(theirs, _Said("spec.template.runtime_class_name", runtime))
        if drivers.CLUSTER in served:
            self.mapping |= {drivers.CLUSTER: pod} if pod else {}
            return
        if runtime:
            reason = "only a cluster has runtime classes, and none is served here"
            remedy = "leave it out, or name a cluster with the annotation dibs.backend"
            self.refuse("RUNTIME_CLASS_NOT_OFFERED", "spec.template.runtime_class_name", runtime, reason, remedy)
        # A block that does not apply is checked all the same.
        self.problems += [self.renamed(one, field) for one in option_problems(pod)]

    def resources(self, blocks: Mapping[str, Any], field: str) -> None:
        """cpu, memory and GPUs from every place that may say them."""
        said: dict[str, list[_Said]] = {}
        requested: dict[str, list[_Said]] = {}
        typed = self.spec.resource_requirements
        if typed.HasField("gpu"):
            said.setdefault("gpu", []).append(self.typed_gpu(typed.gpu, GPU))
        if self.workload is not None:
            amounts = self.workload.spec.workload.resources
            place = "workload_template.spec.workload.resources"
            if amounts.HasField("gpu"):
                said.setdefault("gpu", []).append(self.typed_gpu(amounts.gpu, f"{place}.gpu"))
            for name in ("cpu", "memory"):
                if getattr(amounts, name):
                    said.setdefault(name, []).append(_Said(f"{place}.{name}", getattr(amounts, name)))
        self.amounts(plain(self.template.resources), "spec.template.resources", said, requested)
        theirs = drivers.kubernetes_resources(blocks)
        self.amounts(theirs, f"{field}.kubernetes.containers.agent.resources", said, requested)
        for key in ("cpu", "memory"):
            if key in said:
                self.agree(said[key])
                self.mapping[key], self.written[key] = said[key][0].text, said[key][0].field
            for one in requested.get(key, ()):
                self.requested(key, one, said.get(key))
        self.gpus(said, requested)

    def typed_gpu(self, gpu: Any, field: str) -> _Said:
        if gpu.HasField("count") and gpu.count == 0:
            reason = "gpu count must be greater than 0"
            self.refuse("GPU_INVALID", f"{field}.count", 0, reason, "leave gpu out to get none")
            return _Said(f"{field}.count", "1")
        return _Said(f"{field}.count", str(gpu.count if gpu.HasField("count") else 1))

    def amounts(
        self, value: Mapping[str, Any], field: str, said: dict[str, list[_Said]], requested: dict[str, list[_Said]]
    ) -> None:
        """`{limits: {…}, requests: {…}}`, as Kubernetes has it; values are texts or numbers."""
        for part, amounts in value.items():
            if part not in ("limits", "requests"):
                known = "the known ones are limits and requests"
                self.refuse("UNKNOWN_FIELD", f"{field}.{part}", amounts, "there is no such field", known)
                continue
            if not isinstance(amounts, Mapping):
                self.refuse("RESOURCES_INVALID", f"{field}.{part}", amounts, "must be an object of names and amounts")
                continue
            for key, amount in amounts.items():
                place = f"{field}.{part}.{key}"
                if key not in LIMITS:
                    known = f"the known ones are {', '.join(LIMITS)}"
                    self.refuse("UNKNOWN_RESOURCE", place, amount, "dibs does not know this resource", known)
                elif isinstance(amount, bool) or not isinstance(amount, str | int | float) or not _finite(amount):
                    self.refuse("QUANTITY_INVALID", place, amount, "must be a text or a number", "as in 2 or 4Gi")
                else:
                    into = said if part == "limits" else requested
                    into.setdefault(key, []).append(_Said(place, str(amount).strip()))

    def agree(self, said: list[_Said]) -> None:
        """All places must say the same amount of cpu or memory. A bad first one is told by `parse_spec`."""
        first = said[0]
        for one in said[1:]:
            try:
                amount = Quantity.parse(one.text)
            except ValueError:
                self.refuse("QUANTITY_INVALID", one.field, one.text, "this is not an amount", "as in 2 or 4Gi")
                continue
            try:
                same = amount == Quantity.parse(first.text)
            except ValueError:
                return
            if not same:
                self.conflict(one, first)

    def requested(self, key: str, one: _Said, limits: list[_Said] | None) -> None:
        """dibs limits, and reserves nothing of cpu or memory: a request must say what the limit says."""
        if not limits:
            reason = "there is no limit beside it; dibs sets limits and reserves nothing without one"
            self.refuse("REQUEST_WITHOUT_LIMIT", one.field, one.text, reason, f"say it in limits.{key}")
            return
        self.agree([limits[0], one])

    def gpus(self, said: Mapping[str, list[_Said]], requested: Mapping[str, list[_Said]]) -> None:
        """One number of GPUs, and at most one vendor, model or range of memory with it."""
        places = [(key, one) for key in said if key not in ("cpu", "memory") for one in said[key]]
        beside = [(key, one) for key in requested if key not in ("cpu", "memory") for one in requested[key]]
        for key, one in beside:
            if not any(key == other for other, _ in places):
                reason = "there is no limit beside it: devices are held whole or not at all"
                self.refuse("REQUEST_WITHOUT_LIMIT", one.field, one.text, reason, f"say it in limits.{key}")
        counts: list[tuple[int | str, _Said]] = []
        for key, one in (*places, *beside):
            count = self.count(key, one)
            if count is not None:
                counts.append((count, one))
        for count, one in counts[1:]:
            if count != counts[0][0]:
                self.conflict(one, counts[0][1])
        kinds = sorted({(key, one.text if key == "gpu" else "") for key, one in places if not _bare(key, one)})
        if len(kinds) > 1:
            told = " and ".join(f"{one.field} ({one.text})" for key, one in places if not _bare(key, one))
            self.refuse("CONFLICT", "gpu", told, "they say different kinds of GPU", "say one kind")
        elif kinds:
            key = kinds[0][0]
            chosen = next(one for other, one in places if other == key and not _bare(key, one))
            self.mapping[key], self.written[key] = chosen.text, chosen.field
        elif counts:
            self.mapping["gpu"], self.written["gpu"] = counts[0][0], counts[0][1].field

    def count(self, key: str, one: _Said) -> int | str | None:
        """How many GPUs a place says; None where it is wrong, which is told then."""
        if key != "gpu" and not re.fullmatch(r"[0-9]{1,9}", one.text, re.ASCII):
            self.refuse("GPU_INVALID", one.field, one.text, "must be a whole number", "as in 1")
            return None
        wrong: list[Problem] = []
        selector = parse_gpu(one.text, one.field, wrong)
        self.problems += [msgspec.structs.replace(problem, remedy=_GPU_EXAMPLES) for problem in wrong]
        return None if selector is None else selector.count

    def conflict(self, one: _Said, other: _Said) -> None:
        reason = f"{other.field} says {other.text}; they must say the same"
        self.refuse("CONFLICT", one.field, one.text, reason, "make both the same, or say it once")

    # -- the rest ---------------------------------------------------------------------------------------------------

    def source(self) -> None:
        """The image decides on the backend: `host` and the names in the settings are `local`, others an engine's."""
        image = self.template.image
        if self.workload is not None and self.workload.spec.workload.image:
            theirs = self.workload.spec.workload.image
            if image and image != theirs:
                reason = f"the workload template says {theirs}"
                self.refuse("CONFLICT", "spec.template.image", image, reason, "say it once")
            image = theirs
        image = image or self.rules.default_image
        self.mapping["image"] = image
        self.written["image"] = "spec.template.image"
        backend = self.mapping.setdefault("backend", self.rules.default_backend)
        if image in self.rules.images and backend == "auto":
            self.mapping["backend"] = ON_HOST
        elif image == "host" and made_from_image(backend):
            reason = f"host is the root of this host, which {backend} does not run in"
            self.refuse("IMAGE_UNKNOWN", "spec.template.image", image, reason, "name an image")

    def process(self) -> None:
        environment = dict(self.template.environment)
        for name, value in self.spec.environment.items():
            if environment.setdefault(name, value) != value:
                reason = "spec.template.environment has another value for it"
                self.refuse("CONFLICT", f"spec.environment.{name}", "(not shown)", reason, "say it once")
        if self.workload is not None:
            environment = {**dict(self.workload.spec.workload.environment), **environment}
        self.mapping["env"] = environment
        self.written["env"] = "spec.environment"
        command = list(self.spec.command)
        self.mapping["command"] = command or KEEP_ALIVE
        self.written["command"] = "spec.command"
        if not command:
            self.mapping["grace"] = 0  # it only waits, and need not be asked to end
        if self.spec.tty:
            self.mapping["tty"] = True
        backend = self.mapping.get("backend", "auto")
        if backend == "auto" or made_from_image(backend):
            self.mapping["entrypoint"] = []  # the command stands in place of the image's own

    def labels(self) -> None:
        labels = dict(self.request.labels)
        for key, value in self.template.labels.items():
            if labels.setdefault(key, value) != value:
                said = f"{labels[key]} and {value}"
                self.refuse("CONFLICT", f"spec.template.labels.{key}", said, f"labels.{key} differs", "say it once")
        self.mapping["labels"] = labels

    def renamed(self, problem: Problem, blocks: str) -> Problem:
        """A problem of ours, its field called as the client has written it."""
        head = re.match(r"[A-Za-z_./]+", problem.field)
        name = head.group(0).partition(".")[0] if head else ""
        for key in (problem.field, head.group(0) if head else "", name):
            if key in self.written:
                return msgspec.structs.replace(problem, field=self.written[key] + problem.field[len(key) :])
        if name in drivers.SERVED:
            return msgspec.structs.replace(problem, field=f"{blocks}.{drivers.option_field(problem.field)}")
        return problem


def _bare(key: str, one: _Said) -> bool:
    """Whether it says a number of GPUs and nothing else."""
    return key == "gpu" and one.text.isdigit()


def _finite(amount: float | str) -> bool:
    return not isinstance(amount, float) or math.isfinite(amount)


def with_hidden(spec: Any, hidden: str) -> Any:
    """A copy of a SandboxSpec that may be kept and shown: names of variables, not their values."""
    shown = type(spec)()
    shown.CopyFrom(spec)
    for place in (shown.environment, shown.template.environment if shown.HasField("template") else {}):
        for name in list(place):
            place[name] = hidden
    return shown
