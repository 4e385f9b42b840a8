"""mlPolicies: what torch, JAX, XGBoost, MPI and plain jobs need in their containers to find each other.

`rendering` calls `enforce` once everything else is merged. Each policy sets the environment that Kubeflow Trainer sets,
so that images work unchanged, also where the job has no `spec.trainer`, and with the address that the pods really have.
Changes the JobSet that it is given; reports what cannot be.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from dibs.train import env, torchtune
from dibs.train.facts import Facts
from dibs.train.names import LAUNCHER, NODE, PORT, TRAINER, ancestor, container, pod_spec
from dibs.train.processes import FIELD, Processes, per_node
from dibs.train.refusals import Refusals

Json = dict[str, Any]

POLICIES: Final = ("torch", "mpi", "jax", "xgboost", "flux")
TORCH_ENV: Final = ("PET_NNODES", "PET_NPROC_PER_NODE", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT")
XGBOOST_ENV: Final = ("DMLC_TRACKER_URI", "DMLC_TRACKER_PORT", "DMLC_TASK_ID", "DMLC_NUM_WORKER")
MPI_HOSTFILE, MPI_FQDN, MPI_SLOTS, MPI_RSH = MPI_ENV = (
    "OMPI_MCA_orte_default_hostfile", "OMPI_MCA_orte_keep_fqdn_hostnames", "OMPI_MCA_orte_set_default_slots",
    "OMPI_MCA_plm_rsh_args",
)  # fmt: skip
SSH_VOLUME, HOSTFILE_VOLUME = "mpi-ssh-auth", "mpi-hostfile"


class Context(msgspec.Struct):
    """What a policy works on. `nodes`: how many the job has, whichever field said so."""

    job: Json
    policy: Json
    jobset: Json
    facts: Facts
    nodes: int
    found: Refusals
    warnings: list[str]
    runtime_command: list[str] = []  # the node container's own, before the job's replaced it

    @property
    def name(self) -> str:
        return next((name for name in POLICIES if name in self.policy), "plain")

    @property
    def trainer(self) -> Json:
        found: Json = self.job["spec"].get("trainer", {})
        return found

    @property
    def jobs(self) -> list[Json]:
        found: list[Json] = self.jobset["spec"]["replicatedJobs"]
        return found

    @property
    def trainer_job(self) -> Json | None:
        return next((one for one in self.jobs if ancestor(one) == TRAINER), None)

    def job_named(self, name: str) -> Json | None:
        return next((one for one in self.jobs if one["name"] == name), None)

    @property
    def subdomain(self) -> str:
        found: str = self.jobset["spec"].get("network", {}).get("subdomain") or self.job["metadata"]["name"]
        return found

    def hosts(self, replicated: Json) -> list[str]:
        """The names of a replicated job's pods, as the others look them up."""
        pods = replicated["template"]["spec"].get("parallelism", 1)
        job = self.job["metadata"]["name"]
        return [
            f"{job}-{replicated['name']}-{replica}-{index}.{self.subdomain}"
            for replica in range(replicated.get("replicas", 1))
            for index in range(pods)
        ]

    def first_host(self, replicated: Json) -> str:
        return f"{self.job['metadata']['name']}-{replicated['name']}-0-0.{self.subdomain}"


def enforce(context: Context) -> Processes | None:
    """Set what the policy needs. The number of processes per node, where the policy has one."""
    if context.name == "mpi":
        return _mpi(context)
    trainer_job = context.trainer_job
    node = container(trainer_job, NODE) if trainer_job else None
    if trainer_job is None or node is None:
        return None
    explicit = context.trainer.get("numProcPerNode")
    if context.name == "torch":
        return _torch(context, trainer_job, node, explicit)
    if context.name == "xgboost":
        return _xgboost(context, trainer_job, node, explicit)
    if context.name == "jax":
        _jax(context, trainer_job, node)
    env.set_env(node, context.trainer.get("env", []))
    if explicit not in (None, 1):
        text = f"a {context.name} runtime starts one process per node"
        context.found.invalid(FIELD, explicit, text, "leave it out, or use a torch, mpi or xgboost runtime")
    return Processes(1, f"a {context.name} runtime starts one process per node")


def _torch(context: Context, trainer_job: Json, node: Json, explicit: int | None) -> Processes:
    found = per_node(explicit, node, pod_spec(trainer_job), context.facts, context.found, by_cpu=True)
    host = context.first_host(trainer_job)
    variables = [
        env.value("PET_NNODES", context.nodes),
        env.value("PET_NPROC_PER_NODE", found.per_node),
        env.completion_index("PET_NODE_RANK"),
    ]
    master = [env.value("PET_MASTER_ADDR", host), env.value("PET_MASTER_PORT", PORT)]
    env.set_env(node, context.trainer.get("env", []))
    env.set_env(node, variables)
    if torchtune.is_used(context.trainer):
        torchtune.check(context.job, found.per_node, context.found)
        runtime, args = context.job["spec"]["runtimeRef"]["name"], context.trainer.get("args", [])
        managed = torchtune.managed_words(context.runtime_command)
        address = f"{host}:{PORT}"
        node["command"] = torchtune.command_of(runtime, managed, address, context.nodes, found.per_node, args)
    else:
        env.set_env(node, master)
    env.open_port(node)
    for target in context.policy["torch"].get("envInjection", {}).get("targets", []):
        replicated = context.job_named(target["jobName"])
        for name in target["containerNames"]:
            other = _any_container(replicated, name) if replicated else None
            if other is None:
                text = (
                    f'envInjection target podSet "{target["jobName"]}" container "{name}" not found in runtime template'
                )
                context.found.invalid("spec.runtimeRef", target, text)
            else:
                env.set_env(other, [*variables, *master])
    return found


def _any_container(replicated: Json, name: str) -> Json | None:
    pod = pod_spec(replicated)
    both = [*pod.get("initContainers", []), *pod.get("containers", [])]
    return next((one for one in both if one.get("name") == name), None)


def _jax(context: Context, trainer_job: Json, node: Json) -> None:
    env.set_env(
        node,
        [
            env.value("JAX_NUM_PROCESSES", context.nodes),
            env.completion_index("JAX_PROCESS_ID"),
            env.value("JAX_COORDINATOR_ADDRESS", f"{context.first_host(trainer_job)}:{PORT}"),
        ],
    )
    env.open_port(node)
    own = [one["name"] for one in context.trainer.get("env", []) if one["name"].startswith("JAX_")]
    if own:
        context.warnings.append(
            f"spec.trainer.env sets {', '.join(own)} itself: the ranks must find each other by that"
        )


def _xgboost(context: Context, trainer_job: Json, node: Json, explicit: int | None) -> Processes:
    found = per_node(explicit, node, pod_spec(trainer_job), context.facts, context.found, by_cpu=False)
    env.set_env(node, context.trainer.get("env", []))
    env.set_env(
        node,
        [
            env.value("DMLC_TRACKER_URI", context.first_host(trainer_job)),
            env.value("DMLC_TRACKER_PORT", PORT),
            env.completion_index("DMLC_TASK_ID"),
            env.value("DMLC_NUM_WORKER", context.nodes * found.per_node),
        ],
    )
    env.open_port(node)
    return found


def _mpi(context: Context) -> Processes | None:
    mpi = context.policy["mpi"]
    launcher, workers = context.job_named(LAUNCHER), context.job_named(NODE)
    nodes = workers or (launcher if mpi["runLauncherAsNode"] else None)
    counted = container(nodes, NODE) if nodes else None
    if nodes is None or counted is None:
        context.found.invalid(
            "spec.runtimeRef", context.job["spec"]["runtimeRef"], "an mpi runtime must have a node job"
        )
        return None
    explicit, own = context.trainer.get("numProcPerNode"), mpi["numProcPerNode"]
    if own < 1:
        context.found.invalid("spec.mlPolicy.mpi.numProcPerNode", own, "NumProcPerNode in mpiPolicy must be >= 1")
    if explicit is None and own > 1:
        found = Processes(own, f"the runtime's mlPolicy.mpi.numProcPerNode says {own}")
    else:
        found = per_node(explicit, counted, pod_spec(nodes), context.facts, context.found, by_cpu=False)
    for replicated in (workers, launcher):
        if replicated is not None:
            _mpi_volumes(context, replicated, found)
    for replicated in (launcher, workers if mpi["runLauncherAsNode"] else None):
        target = container(replicated, NODE) if replicated else None
        if target is not None:
            env.set_env(target, context.trainer.get("env", []))
    return found


def _mpi_volumes(context: Context, replicated: Json, processes: Processes) -> None:
    name, pod = context.job["metadata"]["name"], pod_spec(replicated)
    env.upsert(pod, "volumes", "name", [_ssh_volume(name)])
    if replicated["name"] == LAUNCHER:
        env.upsert(pod, "volumes", "name", [_hostfile_volume(name)])
    node = container(replicated, NODE)
    if node is None:
        return
    mounts = [{"mountPath": context.policy["mpi"]["sshAuthMountPath"], "name": SSH_VOLUME}]
    if replicated["name"] == LAUNCHER:
        mounts.append({"mountPath": "/etc/mpi", "name": HOSTFILE_VOLUME})
        env.set_env(
            node,
            [
                env.value(MPI_HOSTFILE, "/etc/mpi/hostfile"),
                env.value(MPI_FQDN, "true"),
                env.value(MPI_SLOTS, processes.per_node),
                env.value(MPI_RSH, "-o ConnectionAttempts=10"),
            ],
        )
    env.upsert(node, "volumeMounts", "mountPath", mounts)


def hostfile(context: Context, processes: Processes) -> str:
    """One line per node of an MPI job. With runLauncherAsNode the launcher is one of them."""
    names = (NODE, LAUNCHER) if context.policy["mpi"]["runLauncherAsNode"] else (NODE,)
    jobs = [one for one in context.jobs if one["name"] in names]
    return "".join(f"{host} slots={processes.per_node}\n" for one in jobs for host in context.hosts(one))


def _ssh_volume(job: str) -> Json:
    items = [
        {"key": "ssh-privatekey", "mode": 0o640, "path": "id_rsa"},
        {"key": "ssh-publickey", "mode": 0o644, "path": "id_rsa.pub"},
        {"key": "ssh-publickey", "mode": 0o644, "path": "authorized_keys"},
    ]
    return {"name": SSH_VOLUME, "secret": {"defaultMode": 0o400, "items": items, "secretName": f"{job}-mpi-ssh-auth"}}


def _hostfile_volume(job: str) -> Json:
    items = [{"key": "hostfile", "mode": 0o444, "path": "hostfile"}]
    return {"configMap": {"items": items, "name": f"{job}-mpi-hostfile"}, "name": HOSTFILE_VOLUME}
