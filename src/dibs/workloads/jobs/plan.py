"""What a job means without a cluster: its ranks as sandboxes, the order in which they run, its policies.

Made from what the ledger keeps of a job (`JobSpec`), by `service` to check it and by `driver` to run it. The same spec
gives the same plan. Nothing is looked at but the values, and nothing is made.
"""

from __future__ import annotations

from typing import Any

import msgspec

from dibs.backends.installed import declared
from dibs.home import Home
from dibs.request.spec import SandboxSpec
from dibs.train.names import NODE, ancestor, pod_spec
from dibs.train.ranks import ranks_of
from dibs.train.refusals import Refusals
from dibs.train.rendering import Rendered, examined
from dibs.workloads.jobs import stages
from dibs.workloads.jobs.model import JobSpec, RankStatus
from dibs.workloads.jobs.pods import IMAGE_OPTIONAL, Pod
from dibs.workloads.jobs.volumes import Volumes

Json = dict[str, Any]

# Variables that say where the ranks meet: those that hold the port alone, and those that end with it.
_PORTS = ("PET_MASTER_PORT", "DMLC_TRACKER_PORT")
_ADDRESSES = ("JAX_COORDINATOR_ADDRESS",)
LARGEST = 64  # ranks; more than one host has cards for


class PlannedRank(msgspec.Struct, frozen=True):
    """A rank and its sandbox. `number` counts all ranks of the job."""

    number: int
    name: str
    host: str
    job: str
    index: int
    step: str
    stage: int
    wave: int
    spec: SandboxSpec

    def status(self) -> RankStatus:
        return RankStatus(self.name, self.host, self.job, self.index, self.step)


class JobPlan(msgspec.Struct, frozen=True):
    ranks: tuple[PlannedRank, ...]
    jobset: Json
    rendered: Rendered
    volumes: Volumes
    notes: tuple[str, ...] = ()

    @property
    def last_stage(self) -> int:
        return max(rank.stage for rank in self.ranks)

    def of_stage(self, stage: int) -> tuple[PlannedRank, ...]:
        """In the order in which they are started."""
        return tuple(
            sorted((rank for rank in self.ranks if rank.stage == stage), key=lambda one: (one.wave, one.number))
        )

    @property
    def deadline_seconds(self) -> float | None:
        found = self.rendered.job["spec"].get("activeDeadlineSeconds")
        return None if found is None else float(found)

    @property
    def ttl_seconds(self) -> float | None:
        found = self.jobset["spec"].get("ttlSecondsAfterFinished")
        return None if found is None else float(found)


def plan_job(spec: JobSpec, home: Home, job_id: str, tenant: str, backend: str) -> JobPlan:
    """The plan of a job on a backend. Raises TrainRefused with every problem."""
    found = Refusals()
    objects, options = spec.objects, spec.options
    facts = objects.facts()
    rendered = examined(objects.job, objects.runtime, facts, found)
    found.check()
    stages.check(rendered.job, rendered.jobset, found)
    stage, wave = stages.stage_of(rendered.jobset), stages.wave_of(rendered.jobset)
    by_name = {one["name"]: one for one in rendered.jobset["spec"]["replicatedJobs"]}
    places = {name: index for index, name in enumerate(by_name)}
    volumes = Volumes(home, job_id, tenant, rendered.companions)
    annotations = objects.runtime["metadata"].get("annotations", {})
    optional = annotations.get(IMAGE_OPTIONAL) == "optional" and "image" not in objects.job["spec"].get("trainer", {})
    ranks: list[PlannedRank] = []
    notes: set[str] = set()
    seen: set[str] = set()
    for number, rank in enumerate(ranks_of(rendered, facts)):
        pod = pod_spec(by_name[rank.job])
        network = "host" if pod.get("hostNetwork") else options.network
        network = network or declared(backend).peer_network  # where its ranks have names
        path = f"spec.replicatedJobs[{places[rank.job]}].template.spec.template.spec"
        # Every rank of a replicated job is the same: what is wrong with one is said once.
        trouble = found if rank.job not in seen else Refusals()
        seen.add(rank.job)
        one = Pod(rank.name, rank.index, pod, rank.container, path, facts, volumes, trouble, optional)
        sandbox = one.sandbox(backend, network, options.workdir)
        if rank.container.get("image") and not sandbox.image and not trouble:
            image = rank.container["image"]
            notes.add(f"the runtime's image {image} is not used: ranks run from this host's own files")
        ranks.append(
            PlannedRank(
                number, rank.name, rank.host, rank.job, rank.index, rank.step or _step(by_name[rank.job]),
                stage[rank.job], wave[rank.job], sandbox,
            )
        )  # fmt: skip
    if len(ranks) > LARGEST:
        remedy = "ask for fewer nodes, or run the job on a cluster"
        found.invalid("spec.trainer.numNodes", len(ranks), f"a host runs at most {LARGEST} ranks of a job", remedy)
    found.check()
    return JobPlan(tuple(ranks), rendered.jobset, rendered, volumes, tuple(sorted(notes)))


def _step(replicated: Json) -> str:
    return ancestor(replicated) or (NODE if replicated["name"] == NODE else "")


def with_port(spec: SandboxSpec, port: int, default: int) -> SandboxSpec:
    """The same sandbox, meeting the others at another port than the usual one."""
    if port == default:
        return spec
    env = dict(spec.env)
    for name in _PORTS:
        if env.get(name) == str(default):
            env[name] = str(port)
    for name in _ADDRESSES:
        host, colon, said = env.get(name, "").rpartition(":")
        if colon and said == str(default):
            env[name] = f"{host}:{port}"
    return msgspec.structs.replace(spec, env=env)
