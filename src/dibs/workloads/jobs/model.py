"""A training job as values: what was submitted, how far it has come, and how callers see it.

`service.Jobs` gives out `Job`; `driver` writes `Status`. Both are kept in the ledger as JSON (`JobSpec`, `Status`), so
that any process that serves the ledger can go on with a job. No logic but what follows from the values.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from dibs.backends.port import LogRecord
from dibs.ledger.jobs import JobId, JobState, Wanted
from dibs.process import ProcessName
from dibs.train.facts import COSCHEDULING_CRD, VOLCANO_CRD, Facts, SshKey

Json = dict[str, Any]
Then = Literal["", "queued", "suspended", "complete", "failed"]
RankPhase = Literal["Pending", "Creating", "Running", "Succeeded", "Failed", "Stopped"]


class Objects(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a job is made of, as it was when it was submitted: later edits of a runtime or a template change nothing.

    `claims`: ResourceClaimTemplates, ResourceClaims and DeviceClasses, by kind and name.
    """

    job: Json
    runtime: Json
    claims: dict[str, dict[str, Json]] = {}
    ssh_key: SshKey | None = None

    def facts(self) -> Facts:
        """What is not among the objects is not there: a job without a cluster has nothing else to look at."""
        return Facts(
            templates=self.claims.get("ResourceClaimTemplate", {}),
            claims=self.claims.get("ResourceClaim", {}),
            classes=self.claims.get("DeviceClass", {}),
            crds=frozenset((COSCHEDULING_CRD, VOLCANO_CRD)),  # all or none is what dibs does anyway
            ssh_key=self.ssh_key,
        )


class Options(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the submitter says beside the objects.

    `backend`: a name, or "auto". `network`: "" for what is usual: private through a gateway and on engines, else the
    host's. `workdir`, `base_env`: of ranks that run from the host's own files. `wait_seconds`: how long it may be
    queued; None: as long as it takes. `remote`: submitted from another machine, so no folder of this host is its.
    """

    backend: str = "auto"
    network: Literal["", "host", "private"] = ""
    workdir: str = ""
    base_env: dict[str, str] = {}
    wait_seconds: float | None = None
    gateway: bool = False
    remote: bool = False


class JobSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the ledger keeps of a submission."""

    objects: Objects
    options: Options = Options()

    def without_secrets(self) -> JobSpec:
        """What is kept of an ended job: not the environment of its submitter, nor its private key."""
        objects = msgspec.structs.replace(self.objects, ssh_key=None)
        return JobSpec(objects, msgspec.structs.replace(self.options, base_env={}))


class Condition(msgspec.Struct, frozen=True, omit_defaults=True):
    """As Kubeflow Trainer writes them: Suspended, Complete, Failed; beside those Running and Queued, which are ours."""

    type: Literal["Suspended", "Complete", "Failed", "Running", "Queued"]
    status: Literal["True", "False"]
    reason: str
    message: str
    at: float


class RankStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """One rank. `job`: its replicated job; `index`: its number there; `step`: trainer, an initialiser, or "".

    `devices`: the ids of what it has, or had. `sandbox_id`: "" while there is none.
    """

    name: str
    host: str
    job: str
    index: int
    step: str
    phase: RankPhase = "Pending"
    sandbox_id: str = ""
    exit_code: int | None = None
    reason: str = ""
    devices: tuple[str, ...] = ()
    started_at: float | None = None
    ended_at: float | None = None


class Status(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far a job has come.

    `stage`: initialisers come before the trainer. `attempt` counts the groups of sandboxes that were made, `restarts`
    those that the failure policy asked for. `group`: that of the ranks which are there now. `port`: where they meet.
    `then`: what follows when its ranks have been stopped. `waits_for`: why it is queued.
    """

    ranks: tuple[RankStatus, ...] = ()
    stage: int = 0
    attempt: int = 0
    restarts: int = 0
    group: str = ""
    groups: tuple[str, ...] = ()  # of earlier stages
    previous: str = ""  # of the attempt before; what older ones wrote is removed
    port: int = 0
    then: Then = ""
    waits_for: str = ""
    conditions: tuple[Condition, ...] = ()
    warnings: tuple[str, ...] = ()
    processes: int | None = None
    processes_reason: str = ""
    queued_at: float | None = None
    started_at: float | None = None  # when all ranks of the first stage ran; again after each resume
    finished_at: float | None = None
    failures: int = 0  # deliveries in a row that failed for a reason that may pass

    @property
    def all_groups(self) -> tuple[str, ...]:
        """Every group of which sandboxes may be left."""
        return tuple(group for group in (*self.groups, self.previous, self.group) if group)


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A job as callers see it. `version` grows with every change."""

    id: JobId
    name: str
    tenant: str
    uid: int
    username: str
    backend: str
    state: JobState
    wanted: Wanted
    version: int
    created_at: float
    ended_at: float | None
    attended: bool
    owner: ProcessName
    spec: JobSpec
    status: Status

    @property
    def live(self) -> bool:
        return self.ended_at is None

    @property
    def ranks(self) -> tuple[RankStatus, ...]:
        return self.status.ranks

    @property
    def nodes(self) -> int:
        """How many ranks train; initialisers are none of them."""
        return sum(rank.step not in ("dataset-initializer", "model-initializer") for rank in self.ranks)

    def condition(self, kind: str) -> Condition | None:
        return next((one for one in self.status.conditions if one.type == kind), None)


class RankLog(msgspec.Struct, frozen=True):
    """Something that a rank has written."""

    rank: str
    record: LogRecord


class Change(msgspec.Struct, frozen=True):
    """One change that a watcher is told."""

    kind: Literal["ADDED", "MODIFIED", "DELETED"]
    job: Job
