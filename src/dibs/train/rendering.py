"""A TrainJob and its runtime become a JobSet and the objects beside it: merged, checked, counted, written out.

The command line, the webhook and the backends call it. The order is Kubeflow Trainer's: patches, then what the job
itself says, then the policies; after that the result is checked as a whole. All problems are reported at once. Pure,
and the arguments stay as they are.
"""

from __future__ import annotations

from typing import Any

import msgspec

from dibs.train import admission, compute_domain, gang, job_annotations, jobset, patches, pods, policies
from dibs.train.env import set_env
from dibs.train.facts import Facts
from dibs.train.names import DATASET, LAUNCHER, MODEL, NODE, TRAINER, ancestor, container, copied, pod_spec
from dibs.train.policies import Context
from dibs.train.processes import Processes
from dibs.train.refusals import Refusals

Json = dict[str, Any]

_BOTH_JOBS = (
    "must have 1 when MPI trainingRuntime with enabled runLauncherAsNode does not have either launcher and node"
)


class Rendered(msgspec.Struct, frozen=True):
    """`objects`: all of it, in the order in which it is written. `processes`: per node, with the reason."""

    job: Json
    jobset: Json
    companions: tuple[Json, ...]
    nodes: int
    processes: Processes | None
    warnings: tuple[str, ...]

    @property
    def objects(self) -> list[Json]:
        return jobset.in_order([self.jobset, *self.companions])


def render(job: Json, runtime: Json, facts: Facts | None = None) -> Rendered:
    """The objects of a job. `job` and `runtime` come from `objects`. Raises TrainRefused with every problem."""
    found = Refusals()
    rendered = examined(job, runtime, facts or Facts(), found)
    found.check()
    return rendered


def examined(job: Json, runtime: Json, facts: Facts, found: Refusals) -> Rendered:
    """The same, with the problems added to `found`: for callers that have more to say."""
    warnings = list(admission.runtime_warnings(runtime, referenced=True))
    admission.check_job(job, runtime, facts, found)
    job_annotations.check(job, found)
    spec = job["spec"]
    template = patches.applied(runtime["spec"].get("template", {}), spec.get("runtimePatches", []), warnings, found)
    made = jobset.new(job, template)
    policy = runtime["spec"].get("mlPolicy")
    facts = compute_domain.known(job, facts)
    context = Context(copied(job), policy or {}, made, facts, 1, found, warnings)
    context.nodes = _counts(context, policy)
    _initializers(context)
    _trainer(context)
    domain = compute_domain.enforce(job, _trained(context), context.nodes, facts, found)
    processes = policies.enforce(context)
    jobset.fill_defaults(made)
    companions = [jobset.snapshot(job, runtime)]
    if context.name == "mpi" and processes is not None:
        companions += _mpi_objects(context, processes)
    companions += domain
    companions += gang.enforce(job, runtime["spec"].get("podGroupPolicy", {}), made, facts, found)
    pods.check(job, made, facts, warnings, found)
    jobset.check_names(made, found)
    return Rendered(job, made, tuple(companions), context.nodes, processes, tuple(warnings))


def _counts(context: Context, policy: Json | None) -> int:
    """Set how many pods each job has, and return how many nodes train. One number, whichever field says it."""
    wanted = context.trainer.get("numNodes")
    if wanted is None and policy is not None:
        wanted = policy.get("numNodes", 1)
    trainer_job = context.trainer_job
    for replicated in context.jobs:
        own = replicated["template"]["spec"].get("parallelism", 1)
        _set_count(replicated, wanted if replicated is trainer_job and wanted is not None else own)
    if wanted is not None and wanted < 1:
        path = "spec.trainer.numNodes" if "numNodes" in context.trainer else "spec.mlPolicy.numNodes"
        context.found.invalid(path, wanted, "must be greater than or equal to 1", "a job without nodes does nothing")
    if context.name == "mpi":
        _mpi_counts(context, wanted or 1)
    if wanted is not None:
        return int(wanted)
    return int(trainer_job["template"]["spec"]["parallelism"]) if trainer_job else 1


def _mpi_counts(context: Context, nodes: int) -> None:
    launcher, workers = context.job_named(LAUNCHER), context.job_named(NODE)
    as_node = context.policy["mpi"]["runLauncherAsNode"]
    if launcher is not None:
        _set_count(launcher, 1)
    if workers is None:
        if nodes >= 2 or not as_node:
            context.found.invalid("spec.trainer.numNodes", nodes, _BOTH_JOBS)
        return
    rest = nodes - 1 if as_node else nodes
    if as_node and launcher is None:
        text = (
            "must have 1 when MPI trainingRuntime with enabled runLauncherAsNode does not have either launcher and node"
        )
        context.found.invalid("spec.trainer.numNodes", nodes, text)
    if rest >= 1:
        _set_count(workers, rest)
        return
    # The launcher is the only node: a job of no pods would never be ready.
    context.jobs.remove(workers)
    for replicated in context.jobs:
        left = [one for one in replicated.get("dependsOn", []) if one["name"] != NODE]
        replicated["dependsOn"] = left
        if not left:
            del replicated["dependsOn"]


def _set_count(replicated: Json, count: int) -> None:
    replicated["template"]["spec"]["parallelism"] = count
    replicated["template"]["spec"]["completions"] = count


def _initializers(context: Context) -> None:
    said = context.job["spec"].get("initializer", {})
    for name, field in ((DATASET, "dataset"), (MODEL, "model")):
        if field not in said:
            continue
        for replicated in context.jobs:
            target = container(replicated, name) if ancestor(replicated) == name else None
            if target is None:
                continue
            if "storageUri" in said[field]:
                set_env(target, [{"name": "STORAGE_URI", "value": said[field]["storageUri"]}])
            set_env(target, said[field].get("env", []))
            if secret := said[field].get("secretRef"):
                target.setdefault("envFrom", []).append({"secretRef": {"name": secret["name"]}})


def _trainer(context: Context) -> None:
    """What the job says for its nodes: image, command, arguments; amounts and claims per node."""
    trainer_job, said = context.trainer_job, context.trainer
    node = container(trainer_job, NODE) if trainer_job else None
    claims = job_annotations.claims(context.job, context.found)
    if trainer_job is None or node is None:
        if said or claims:
            remedy = f'label a job template of the runtime with the step "{TRAINER}" and call its container "{NODE}"'
            text = "the runtime has no job with the step trainer, so nothing of spec.trainer could be applied"
            context.found.invalid("spec.trainer", said, text, remedy)
        return
    context.runtime_command = node.get("command", [])
    for field in ("image", "command", "args"):
        if field in said:
            node[field] = said[field]
    for replicated in _trained(context):
        target = container(replicated, NODE)
        if target is not None:
            _resources(target, said.get("resourcesPerNode", {}))
            _claims(target, pod_spec(replicated), claims)


def _trained(context: Context) -> list[Json]:
    """The replicated jobs whose containers are nodes."""
    if context.trainer_job is None:
        return []
    if context.name == "mpi" and (workers := context.job_named(NODE)) is not None:
        return [context.trainer_job, workers] if context.policy["mpi"]["runLauncherAsNode"] else [workers]
    return [context.trainer_job]


def _resources(target: Json, said: Json) -> None:
    """Merged key by key; claims of the runtime stay."""
    for field in ("limits", "requests"):
        if said.get(field):
            resources = target.setdefault("resources", {})
            resources[field] = {**resources.get(field, {}), **said[field]}


def _claims(target: Json, pod: Json, said: list[Json]) -> None:
    """KEP-2782: a claim of the same name is replaced whole, in place; new ones are appended, and used by the node."""
    if not said:
        return
    claims = pod.setdefault("resourceClaims", [])
    for one in said:
        entry = {"name": one["name"], "resourceClaimTemplateName": one["resourceClaimTemplateName"]}
        at = next((index for index, claim in enumerate(claims) if claim["name"] == one["name"]), None)
        if at is None:
            claims.append(entry)
        else:
            claims[at] = entry
    names = [one["name"] for one in said]
    resources = target.setdefault("resources", {})
    rest = [one for one in resources.get("claims", []) if one["name"] not in names]
    resources["claims"] = [{"name": name} for name in names] + rest


def _mpi_objects(context: Context, processes: Processes) -> list[Json]:
    job, name, key = context.job, context.job["metadata"]["name"], context.facts.ssh_key
    data = {"hostfile": policies.hostfile(context, processes)}
    metadata = jobset.owned(job, f"{name}-mpi-hostfile")
    made: list[Json] = [{"apiVersion": "v1", "data": data, "kind": "ConfigMap", "metadata": metadata}]
    secret = f"{name}-mpi-ssh-auth"
    if key is None:
        context.warnings.append(f"the Secret {secret} is not part of this: its key pair has to be made for each job")
        return made
    made.append(
        {
            "apiVersion": "v1",
            "immutable": True,
            "kind": "Secret",
            "metadata": jobset.owned(job, secret),
            "stringData": {"ssh-privatekey": key.private, "ssh-publickey": key.public},
            "type": "kubernetes.io/ssh-auth",
        }
    )
    return made
