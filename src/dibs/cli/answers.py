"""What `-o json` and `-o yaml` print, as types: the source of the published JSON schemas.

`dibs schema` turns them into JSON Schema; tests hold every command to its schema. Nothing else imports this module: the
verbs print what they have, and must not pay for describing it.

The rules for names: a moment ends in `_at` (or is `at`, `since`) and is ISO 8601 in UTC with milliseconds; `user` is
the name of a user; `sandbox` the name of a sandbox and `sandbox_id` its id; sizes are in bytes; what is not known is
null. What Kubernetes or OCI have names for (claims, slices, CDI specs) keeps those names.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from dibs.cli.cluster_answers import ClusterGpus, ClusterSubmission, ClusterTrainingJob, Waiting

Moment = Annotated[
    str,
    Meta(
        pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}Z$",
        description="ISO 8601, in UTC, with milliseconds",
        extra_json_schema={"format": "date-time"},
    ),
]
State = Literal["queued", "creating", "running", "paused", "stopping", "exited", "failed"]


class Answer(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Nothing that is not described here is printed."""


class Problem(Answer):
    """One thing that is wrong. Codes are public: they are never renamed."""

    code: str
    field: str
    value: str
    reason: str
    remedy: str | UnsetType = UNSET


class Error(Answer):
    """A refusal or a failure, on stderr; the exit code says the same as `error`."""

    error: str
    retryable: bool
    problems: tuple[Problem, ...]


class Exit(Answer):
    """How a command ended. `code` is what a shell would show."""

    code: int
    reason: str | UnsetType = UNSET
    signal: int | UnsetType = UNSET
    detail: str | UnsetType = UNSET
    at: Moment | UnsetType = UNSET


class Sandbox(Answer):
    """A sandbox, alive or ended; `devices` are those that it holds, or held."""

    id: str
    name: str
    state: State
    backend: str
    user: str
    simulated: bool
    request: dict[str, Any]
    command: tuple[str, ...]
    labels: dict[str, str]
    devices: tuple[str, ...]
    created_at: Moment
    started_at: Moment | None
    ended_at: Moment | None
    expires_at: Moment | None
    exit: Exit | None
    reason: str | None
    group: str | UnsetType = UNSET  # with its rank, if it is a member of one
    rank: int | UnsetType = UNSET


class Run(Sandbox):
    """`dibs run`: the sandbox, and what its command said. Without the output if it was detached."""

    stdout: str | UnsetType = UNSET
    stderr: str | UnsetType = UNSET


class GroupRun(Answer):
    """`dibs run --nodes`: the members by rank. Without the exit code, and their output, if they were detached."""

    group: str
    members: tuple[Run, ...]
    exit_code: int | UnsetType = UNSET  # of the first member that failed


class Event(Answer):
    """Something that happened to a sandbox."""

    at: Moment
    kind: str
    detail: str


class SandboxWithEvents(Sandbox, kw_only=True):
    """`dibs sandbox show`."""

    events: tuple[Event, ...]


class Sandboxes(Answer):
    """`dibs ps`, newest first; `total` is how many there are in all."""

    sandboxes: tuple[Sandbox, ...]
    total: int


class Ended(Answer):
    """One of those that `dibs wait` waited for."""

    name: str
    exit: Exit


class Share(Answer):
    """A part of a device's capacity; amounts in billionths."""

    id: str
    consumed: dict[str, int]


class LeasedDevice(Answer):
    """A device as it was when it was leased."""

    id: str
    model: str | UnsetType = UNSET
    uuid: str | UnsetType = UNSET
    index: int | UnsetType = UNSET
    memory: int | UnsetType = UNSET
    units: tuple[str, ...] | UnsetType = UNSET
    simulated: bool | UnsetType = UNSET
    share: Share | UnsetType = UNSET
    marks: tuple[str, ...] | UnsetType = UNSET


class Lease(Answer):
    """Devices that one sandbox holds, or held."""

    id: str
    sandbox_id: str
    state: Literal["reserved", "attached", "draining", "free"]
    devices: tuple[LeasedDevice, ...]
    created_at: Moment
    changed_at: Moment
    sandbox: str | UnsetType = UNSET
    user: str | UnsetType = UNSET
    tenant: str | UnsetType = UNSET
    backend: str | UnsetType = UNSET
    domain: str | UnsetType = UNSET  # the cluster that has the authority over its devices; none: this host
    kind: Literal["booked", "delegated", "bound"] | UnsetType = UNSET  # by dibs; to a scheduler; by that scheduler
    claim: str | UnsetType = UNSET
    node: str | UnsetType = UNSET


class Ticket(Answer):
    """A place in the queue. `sandbox_id`: of a sandbox that a gateway has accepted."""

    ticket: str
    place: int
    user: str
    request: dict[str, Any]
    since: Moment
    sandbox_id: str | UnsetType = UNSET


class Queue(Answer):
    """`dibs queue`, first come first."""

    queue: tuple[Ticket, ...]


class Leases(Queue):
    """`dibs leases`: what is held, and who waits for it."""

    leases: tuple[Lease, ...]


class Holder(Answer):
    """Who has a device, and since when."""

    lease_id: str
    sandbox_id: str
    sandbox: str
    user: str
    since: Moment
    state: Literal["reserved", "attached", "draining", "free"]
    tenant: str | UnsetType = UNSET


class Health(Answer):
    ok: bool
    reason: str


class Device(Answer):
    """A GPU, or a part of one. `name` is its CDI name; `attributes` are those of DRA."""

    id: str
    name: str
    index: int | None
    model: str
    vendor: str
    uuid: str
    memory: int | None
    state: str
    health: Health
    holder: Holder | None
    used_by: tuple[Any, ...]
    parent: str | None
    attributes: dict[str, Any]
    simulated: bool
    source: str
    note: str


class SourceError(Answer):
    """A source of devices that could not be read."""

    source: str
    reason: str
    remedy: str | UnsetType = UNSET


class Gpus(Answer):
    """`dibs gpus`; `undecided`: devices of which `--where` cannot be decided, and why."""

    simulated: bool
    devices: tuple[Device, ...]
    errors: tuple[SourceError, ...]
    undecided: dict[str, str] | UnsetType = UNSET


class SimulationOff(Answer):
    """`dibs gpus simulate off`."""

    simulated: Literal[False]
    was_on: bool


class Verdict(Answer):
    """What became of one device when a part of the request looked at it."""

    device: str
    fate: str
    reason: str | UnsetType = UNSET
    miss: float | UnsetType = UNSET


class Selector(Answer):
    """One part of the request against every device; `wanted` null: all that fit."""

    selector: str
    wanted: int | None
    verdicts: tuple[Verdict, ...]
    field: str


class BackendExplanation(Answer):
    """What would happen on one backend."""

    backend: str
    ok: bool
    selectors: tuple[Selector, ...] | UnsetType = UNSET
    problems: tuple[Problem, ...] | UnsetType = UNSET
    devices: tuple[str, ...] | UnsetType = UNSET
    waits_for: str | UnsetType = UNSET
    error: str | UnsetType = UNSET
    notes: tuple[str, ...] | UnsetType = UNSET
    delegated_to: str | UnsetType = UNSET


class Explanation(Answer):
    """`dibs explain`: nothing was created."""

    asked: dict[str, Any]
    backends: tuple[BackendExplanation, ...]
    simulated: bool | UnsetType = UNSET
    claim: dict[str, Any] | UnsetType = UNSET
    source_errors: tuple[str, ...] | UnsetType = UNSET
    queue_length: int | UnsetType = UNSET


class ReceiptDevice(Answer):
    id: str
    model: str
    uuid: str
    cdi_name: str
    nodes: tuple[str, ...]
    memory: int | UnsetType = UNSET
    share: dict[str, str] | UnsetType = UNSET
    used_outside: tuple[str, ...] | UnsetType = UNSET
    attached_as: str | UnsetType = UNSET


class ReceiptLine(Answer):
    """One field: what was asked, planned, sent to the engine and seen, and what came of it."""

    field: str
    asked: str
    planned: str
    rendered: str
    observed: str
    outcome: Literal["delivered", "delegated", "refused", "mismatch", "not observed"]
    origin: str


class Node(Answer):
    path: str
    kind: str
    major: int
    minor: int


class Facts(Answer):
    """What was expected, or what was seen. Values that may be secret are not in it."""

    nodes: tuple[Node, ...]
    env: dict[str, str]
    mounts: tuple[str, ...]
    limits: dict[str, int]
    isolation: dict[str, str]
    process: dict[str, str]
    origin: dict[str, str]


class Receipt(Answer):
    """`dibs receipt`: the proof of one delivery."""

    sandbox_id: str
    sandbox: str
    backend: str
    at: Moment
    verdict: Literal["delivered", "mismatch", "not observed", "not started"]
    simulated: bool
    asked: dict[str, Any]
    devices: tuple[ReceiptDevice, ...]
    lines: tuple[ReceiptLine, ...]
    rendered: dict[str, Any]
    observed: Facts
    expected: Facts
    claim: dict[str, Any] | UnsetType = UNSET
    problems: tuple[Problem, ...] | UnsetType = UNSET
    notes: tuple[str, ...] | UnsetType = UNSET


class Finding(Answer):
    """One check of the doctor; `fix` is a command, or what to do."""

    id: str
    verdict: Literal["ok", "warn", "fail", "skip"]
    title: str
    why: str
    fix: str


class Findings(Answer):
    """`dibs doctor`; `failed` is how many checks failed."""

    failed: int
    findings: tuple[Finding, ...]


class Row(Answer):
    """A cell of the delivery table."""

    field: str
    backend: str
    outcome: Literal["delivered", "delegated", "refused"]
    how: str


class Token(Answer):
    """A token; the secret itself is shown once, when it is made."""

    id: str
    name: str
    state: Literal["good", "expired", "revoked"]
    tenant: str
    scopes: tuple[str, ...]
    created_at: Moment
    expires_at: Moment | None
    revoked_at: Moment | None
    last_used_at: Moment | None


class Tokens(Answer):
    """`dibs token ls`."""

    tokens: tuple[Token, ...]


class NewToken(Answer):
    """`dibs token create`: the only time that the secret is shown. Empty with --secret-file."""

    id: str
    name: str
    token: str


class Context(Answer):
    name: str
    url: str
    token: Literal["file", "kept", "none"]


class Contexts(Answer):
    """`dibs context ls`; `current` is empty if none is in use."""

    current: str
    contexts: tuple[Context, ...]


class Claims(Answer):
    """`dibs claims ls`: the names of kept claims."""

    claims: tuple[str, ...]


class HostStatus(Answer):
    """`dibs host status`."""

    installed: bool
    running: bool
    usable: bool
    version: str
    socket: str
    state: str
    unit: str
    members: tuple[str, ...]
    pid: int
    user: str
    since: Moment | None
    gpus: int
    free: int
    simulated: bool
    sandboxes: int
    waiting: int


class Listener(Answer):
    address: str
    identity: str


class ServePlan(Answer):
    """`dibs serve --check`."""

    listen: tuple[Listener, ...]
    ledger: str
    tenants: tuple[str, ...]


class TrainProcesses(Answer):
    per_node: int
    reason: str
    devices: int


class TrainRank(Answer):
    """`container` and `claims` are Kubernetes' own; `unresolved`: variables that only a cluster can fill in."""

    name: str
    host: str
    job: str
    step: str
    index: int
    container: dict[str, Any]
    env: dict[str, str]
    devices: int | UnsetType = UNSET
    claims: tuple[dict[str, Any], ...] | UnsetType = UNSET
    unresolved: tuple[str, ...] | UnsetType = UNSET


class TrainVerdict(Answer):
    """Whether a backend of this host could run a job."""

    backend: str
    verdict: Literal["can", "waits", "cannot"]
    waits_for: str | UnsetType = UNSET
    problems: tuple[Problem, ...] | UnsetType = UNSET


class TrainExplanation(Answer):
    job: str
    runtime: str
    nodes: int
    processes: TrainProcesses | None
    ranks: tuple[TrainRank, ...]
    warnings: tuple[str, ...]
    here: tuple[TrainVerdict, ...]


class TrainObject(Answer):
    object: str
    allowed: bool
    warnings: tuple[str, ...]
    problems: tuple[Problem, ...]


class TrainValidation(Answer):
    objects: tuple[TrainObject, ...]


class JobRank(Answer):
    rank: str
    host: str
    replicated_job: str
    index: int
    step: str
    phase: Literal["Pending", "Creating", "Running", "Succeeded", "Failed", "Stopped"]
    sandbox_id: str
    exit_code: int | None
    reason: str
    devices: tuple[str, ...]
    started_at: Moment | None
    ended_at: Moment | None


class JobCondition(Answer):
    type: str
    status: Literal["True", "False"]
    reason: str
    message: str
    at: Moment


class TrainingJob(Answer, kw_only=True):
    """`dibs train run`, at its end or when it is detached."""

    job: str
    id: str
    state: Literal["queued", "creating", "running", "stopping", "suspended", "complete", "failed"]
    backend: str
    user: str
    tenant: str
    runtime: str
    created_at: Moment
    ended_at: Moment | None
    restarts: int
    processes: int | None
    waits_for: str
    conditions: tuple[JobCondition, ...]
    ranks: tuple[JobRank, ...]
    warnings: tuple[str, ...]


class TrainingJobWithEvents(TrainingJob, kw_only=True):
    events: tuple[Event, ...]


class TrainingJobs(Answer):
    jobs: tuple[TrainingJob, ...]


class TrainingReceipt(Answer):
    """`missing`: ranks that were not delivered."""

    job: str
    backend: str
    simulated: bool
    ranks: dict[str, Receipt]
    missing: tuple[str, ...]


# What each command prints; a tuple: one of these. `error` is what any of them prints to stderr when it fails.
ANSWERS: dict[str, Any] = {
    "run": (Run, GroupRun),
    "ps": Sandboxes,
    "wait": tuple[Ended, ...],
    "sandbox create": Sandbox,
    "sandbox ls": Sandboxes,
    "sandbox show": SandboxWithEvents,
    "sandbox wait": tuple[Ended, ...],
    "gpus": Gpus,
    "gpus simulate": (Gpus, SimulationOff),
    "leases": Leases,
    "queue": Queue,
    "gpus --cluster": ClusterGpus,
    "explain": Explanation,
    "explain pod": Waiting,
    "explain claim": Waiting,
    "receipt": Receipt,
    "doctor": Findings,
    "table": tuple[Row, ...],
    "token create": NewToken,
    "token ls": Tokens,
    "context ls": Contexts,
    "claims ls": Claims,
    "host status": HostStatus,
    "serve --check": ServePlan,
    "train explain": TrainExplanation,
    "train validate": TrainValidation,
    "train run": TrainingJob,
    "train ls": TrainingJobs,
    "train show": TrainingJobWithEvents,
    "train receipt": (TrainingReceipt, Receipt),
    "train cluster submit": ClusterSubmission,
    "train cluster show": ClusterTrainingJob,
    "error": Error,
}
# Printed in the form of another project, and described there.
FOREIGN = {
    "claims check": "Kubernetes' objects of resource.k8s.io",
    "claims solve": "Kubernetes' objects of resource.k8s.io",
    "gpus -o slices": "Kubernetes' ResourceSlices",
    "train render": "Kubernetes' objects: a JobSet and what goes with it",
    "train runtimes": "Kubeflow Trainer's ClusterTrainingRuntimes",
    "cdi": "CDI specs, and OCI's runtime configuration",
}
