"""Where dibs differs from the released Kubeflow Trainer on purpose: the exact differences, and why they are better.

`test_trainer_conformance` holds every recorded case to this list. A line says where, what upstream does, and what dibs
does. The SD numbers are those of docs/silent-drops.md.
"""

# ruff: noqa: E501
from __future__ import annotations

from typing import NamedTuple


class Improvement(NamedTuple):
    reason: str
    differences: tuple[str, ...]


IMPROVEMENTS: dict[str, Improvement] = {
    "torch-num-nodes-zero": Improvement(
        "SD-37: a number below one makes no job",
        ("refused: spec.trainer.numNodes: Invalid value: 0: must be greater than or equal to 1",),
    ),
    "torch-gpu-in-runtime-job-memory-only": Improvement(
        "SD-30/SD-31/SD-32: the number of processes is written out, from the devices that the node has after the merge",
        ('jobset.pod[0].containers[0].env[1].value: "1" -> "4"',),
    ),
    "torch-gpu-in-runtime-overridden-by-job": Improvement(
        "SD-30/SD-31/SD-32: the number of processes is written out, from the devices that the node has after the merge",
        ('jobset.pod[0].containers[0].env[1].value: "auto" -> "8"',),
    ),
    "torch-gpu-in-runtime-no-spec-trainer": Improvement(
        "SD-33: a job without spec.trainer gets the rendezvous environment as well",
        (
            "jobset.pod[0].containers[0].env: none -> PET_NNODES PET_NPROC_PER_NODE PET_NODE_RANK PET_MASTER_ADDR PET_MASTER_PORT",
            'jobset.pod[0].containers[0].ports: none -> [{"containerPort": 29500, "protocol": "TCP"}]',
        ),
    ),
    "torch-tpu-without-cpu": Improvement(
        "SD-30/SD-31/SD-32: the number of processes is written out, from the devices that the node has after the merge",
        ('jobset.pod[0].containers[0].env[1].value: "1" -> "4"',),
    ),
    "torch-amd-gpu": Improvement(
        "SD-30/SD-31/SD-32: the number of processes is written out, from the devices that the node has after the merge",
        ('jobset.pod[0].containers[0].env[1].value: "auto" -> "2"',),
    ),
    "torch-uppercase-gpu-vendor-key": Improvement(
        "SD-32: a resource that is not known to be an accelerator is asked about, not guessed by its name",
        (
            "refused: spec.trainer.numProcPerNode: Required value: the number of processes cannot be derived from the devices: resource example.com/H100-GPU",
        ),
    ),
    "torch-bare-gpu-key": Improvement(
        'SD-02: a bare "gpu" is no resource of Kubernetes; every pod would be refused',
        (
            'refused: spec.replicatedJobs[0].template.spec.template.spec.containers[0].resources.limits[gpu]: Invalid value: "gpu": must be a standard resource, or a name with a domain',
        ),
    ),
    "torch-resources-request-raised-over-runtime-limit": Improvement(
        "SD-37: a merge that makes an invalid pod is refused at admission",
        (
            'refused: spec.replicatedJobs[0].template.spec.template.spec.containers[0].resources.requests[cpu]: Invalid value: "32": must be less than or equal to cpu limit of 4',
        ),
    ),
    "torch-num-nodes-from-runtime-no-trainer": Improvement(
        "SD-33: a job without spec.trainer gets the rendezvous environment as well",
        (
            "jobset.pod[0].containers[0].env: none -> PET_NNODES PET_NPROC_PER_NODE PET_NODE_RANK PET_MASTER_ADDR PET_MASTER_PORT",
            'jobset.pod[0].containers[0].ports: none -> [{"containerPort": 29500, "protocol": "TCP"}]',
        ),
    ),
    "torch-unnamed-runtime-port": Improvement(
        "SD-53: the ports of the runtime stay, and the rendezvous port is added",
        (
            'jobset.pod[0].containers[0].ports: [{"containerPort": 29500, "protocol": "TCP"}] -> [{"containerPort": 8080, "protocol": "TCP"}, {"containerPort": 29500, "protocol": "TCP"}]',
        ),
    ),
    "torch-several-unnamed-runtime-ports": Improvement(
        "SD-53: the ports of the runtime stay, and the rendezvous port is added",
        ('jobset: none -> {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": "demo",…',),
    ),
    "torch-runtime-without-ancestor-label": Improvement(
        "SD-37: overrides that would reach no container are refused",
        (
            'refused: spec.trainer: Invalid value: {"command":["x"],"env":[{"name":"X","value":"1"}],"image":"img/job:1","numNodes":3,"resourcesPerNode":{"limits":{"cpu":"2"}}}: the runtime has no job with the step trainer, so nothing of spec.',
        ),
    ),
    "patch-metadata-can-drop-ancestor": Improvement(
        "SD-37: overrides that would reach no container are refused",
        (
            'refused: spec.runtimePatches[0].trainingRuntimeSpec.template.spec.replicatedJobs[0].template.metadata.labels: Invalid value: "other": must not change the step of a job: it is "trainer" in the runtime',
            'refused: spec.trainer: Invalid value: {"image":"img/job:1","numNodes":2}: the runtime has no job with the step trainer, so nothing of spec.trainer could be applied',
        ),
    ),
    "claims-in-runtime-no-spec-trainer": Improvement(
        "SD-33: a job without spec.trainer gets the rendezvous environment as well",
        (
            "jobset.pod[0].containers[0].env: none -> PET_NNODES PET_NPROC_PER_NODE PET_NODE_RANK PET_MASTER_ADDR PET_MASTER_PORT",
            'jobset.pod[0].containers[0].ports: none -> [{"containerPort": 29500, "protocol": "TCP"}]',
        ),
    ),
    "no-ml-policy-resources-per-node-ignored": Improvement(
        "SD-26: resourcesPerNode is applied whether or not the runtime has an mlPolicy",
        (
            'jobset.pod[0].containers[0].resources.limits.cpu: "1" -> "8"',
            'jobset.pod[0].containers[0].resources.limits.nvidia.com/gpu: none -> "1"',
        ),
    ),
    "mpi-launcher-as-node-no-trainer": Improvement(
        "SD-50: numNodes is the number of nodes: one node with runLauncherAsNode is the launcher alone",
        (
            "jobset.spec.replicatedJobs: node launcher -> launcher",
            'others[0].data.hostfile: "demo-node-0-0.demo slots=1\\ndemo-launcher-0-0.demo slots=1\\n" -> "demo-launcher-0-0.demo slots=1\\n"',
        ),
    ),
    "mpi-separate-launcher-three-nodes": Improvement(
        "SD-26: per node means the nodes: workers get the resources, not the launcher in their place",
        (
            'jobset.pod[0].containers[0].resources: none -> {"limits": {"cpu": "4", "nvidia.com/gpu": "2"}}',
            'jobset.pod[1].containers[0].resources: {"limits": {"cpu": "4", "nvidia.com/gpu": "2"}} -> none',
        ),
    ),
    "jax-no-spec-trainer": Improvement(
        "SD-33: a job without spec.trainer gets the rendezvous environment as well",
        (
            "jobset.pod[0].containers[0].env: A JAX_PROCESS_ID -> A JAX_PROCESS_ID JAX_NUM_PROCESSES JAX_COORDINATOR_ADDRESS",
            'jobset.pod[0].containers[0].ports: none -> [{"containerPort": 29500, "protocol": "TCP"}]',
        ),
    ),
    "jax-gpus-and-num-proc-ignored": Improvement(
        "SD-37: a number of processes that the policy cannot deliver is refused",
        ("refused: spec.trainer.numProcPerNode: Invalid value: 4: a jax runtime starts one process per node",),
    ),
    "jax-custom-subdomain": Improvement(
        "SD-34: the address has the subdomain that the pods have",
        ('jobset.pod[0].containers[0].env[2].value: "demo-node-0-0.demo:29500" -> "demo-node-0-0.sub:29500"',),
    ),
    "xgboost-gpu-request-and-limit-differ": Improvement(
        "SD-37: a merge that makes an invalid pod is refused at admission",
        (
            'refused: spec.replicatedJobs[0].template.spec.template.spec.containers[0].resources.requests[nvidia.com/gpu]: Invalid value: "2": must be equal to nvidia.com/gpu limit of 4',
        ),
    ),
    "torchtune-single-device": Improvement(
        "SD-30/SD-31/SD-32: the number of processes is written out, from the devices that the node has after the merge",
        ('jobset.pod[2].containers[0].env[1].value: "auto" -> "1"',),
    ),
    "torchtune-lora-distributed": Improvement(
        "SD-30/SD-31/SD-32: the number of processes is written out, from the devices that the node has after the merge",
        ('jobset.pod[2].containers[0].env[1].value: "auto" -> "2"',),
    ),
    "torchtune-other-command-gets-master-env": Improvement(
        "SD-30/SD-31/SD-32: the number of processes is written out, from the devices that the node has after the merge",
        ('jobset.pod[2].containers[0].env[1].value: "auto" -> "2"',),
    ),
    "initializer-model-uri": Improvement(
        "SD-30/SD-31/SD-32: the number of processes is written out, from the devices that the node has after the merge",
        ('jobset.pod[2].containers[0].env[1].value: "auto" -> "2"',),
    ),
    "initializer-both-no-trainer": Improvement(
        "SD-33: a job without spec.trainer gets the rendezvous environment as well",
        (
            "jobset.pod[2].containers[0].env: none -> PET_NNODES PET_NPROC_PER_NODE PET_NODE_RANK PET_MASTER_ADDR PET_MASTER_PORT",
            'jobset.pod[2].containers[0].ports: none -> [{"containerPort": 29500, "protocol": "TCP"}]',
        ),
    ),
    "initializer-dataset-empty": Improvement(
        "SD-30/SD-31/SD-32: the number of processes is written out, from the devices that the node has after the merge",
        ('jobset.pod[2].containers[0].env[1].value: "auto" -> "2"',),
    ),
    "patch-sidecar-env-value-from-over-value": Improvement(
        "SD-28: an entry that is patched with another source gets that one instead of both",
        ('jobset.pod[0].containers[1].env[0].value: "rt" -> none',),
    ),
    "patch-volumes-add-and-same-name": Improvement(
        "SD-28: an entry that is patched with another source gets that one instead of both",
        ("jobset.pod[0].volumes[1].emptyDir: {} -> none",),
    ),
    "patch-volume-mounts-same-and-new-path": Improvement(
        "SD-37: a merge that makes an invalid pod is refused at admission",
        (
            'refused: spec.replicatedJobs[0].template.spec.template.spec.containers[0].volumeMounts[1].name: Not found: "w2": no such volume',
        ),
    ),
    "invalid-patch-several-errors": Improvement(
        "SD-49: a patch for a job or container that the runtime does not have is refused",
        (
            'other words: spec.runtimePatches[0].trainingRuntimeSpec.template.spec.replicatedJobs[0].name: Invalid value: "nope": must not have replicated job that doesn\'t exist in the runtime job template',
            'other words: spec.runtimePatches[0].trainingRuntimeSpec.template.spec.replicatedJobs[1].template.spec.template.spec.containers[1].name: Invalid value: "gone": must not have container that doesn\'t exist in the runtime job node',
        ),
    ),
    "patch-init-container-via-containers": Improvement(
        "SD-49: a patch for a job or container that the runtime does not have is refused",
        (
            'refused: spec.runtimePatches[0].trainingRuntimeSpec.template.spec.replicatedJobs[0].template.spec.template.spec.containers[0].name: Invalid value: "prep": must not have container that doesn\'t exist in the runtime job node',
        ),
    ),
    "update-add-trainer-later": Improvement(
        "SD-51: a change that the JobSet would not take is refused at admission",
        (
            "refused: spec.trainer: Forbidden: the JobSet of this job exists, and does not let this be changed, suspended or not",
        ),
    ),
    "update-add-trainer-later-while-suspended": Improvement(
        "SD-51: a change that the JobSet would not take is refused at admission",
        (
            "refused: spec.trainer: Forbidden: the JobSet of this job exists, and does not let this be changed, suspended or not",
        ),
    ),
    "gang-coscheduling-with-crd": Improvement(
        "SD-31/SD-39: processes by devices; a limit counts in minResources, as Kubernetes makes it the request",
        (
            'jobset.pod[1].containers[0].env[1].value: "3" -> "1"',
            'others[0].spec.minResources.nvidia.com/gpu: none -> "3"',
        ),
    ),
    "gang-volcano-with-crd": Improvement(
        "SD-31/SD-39: processes by devices; a limit counts in minResources, as Kubernetes makes it the request",
        (
            'jobset.pod[1].containers[0].env[1].value: "auto" -> "1"',
            'others[0].spec.minResources.nvidia.com/gpu: none -> "3"',
        ),
    ),
    "gang-coscheduling-default-timeout-suspended": Improvement(
        "SD-33/SD-39: the environment without spec.trainer; a limit counts in minResources",
        (
            "jobset.pod[1].containers[0].env: none -> PET_NNODES PET_NPROC_PER_NODE PET_NODE_RANK PET_MASTER_ADDR PET_MASTER_PORT",
            'jobset.pod[1].containers[0].ports: none -> [{"containerPort": 29500, "protocol": "TCP"}]',
            'others[0].spec.minResources.nvidia.com/gpu: none -> "2"',
        ),
    ),
    "gang-coscheduling-resume": Improvement(
        "SD-31/SD-39: processes by devices; a limit counts in minResources, as Kubernetes makes it the request",
        (
            'jobset.pod[1].containers[0].env[1].value: "auto" -> "1"',
            'others[0].spec.minResources.nvidia.com/gpu: none -> "2"',
        ),
    ),
    "gang-both-policies": Improvement(
        "SD-37: two gang schedulers at once would wait for each other",
        (
            'refused: spec.podGroupPolicy: Invalid value: ["coscheduling","volcano"]: only one of coscheduling and volcano can be configured',
        ),
    ),
    "gang-coscheduling-claims-not-counted": Improvement(
        "SD-39: devices by claim are counted, beside minResources",
        (
            'jobset.pod[0].containers[0].env[1].value: "1" -> "2"',
            'others[0].metadata.annotations: none -> {"train.dibs/min-devices": "{\\"gpu.nvidia.com\\": 4}"}',
        ),
    ),
    "gang-coscheduling-mpi": Improvement(
        "SD-39: a limit counts in minResources, as Kubernetes makes it the request",
        ('others[0].spec.minResources.cpu: none -> "5"',),
    ),
    "name-too-long-for-jobset": Improvement(
        "SD-37: what JobSet would refuse later, in an Event, is refused at once",
        (
            'refused: spec.replicatedJobs[0].name: Invalid value: "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa-node-0": JobSet name is too long, job names generated for this JobSet will exceed 63 characters',
            'refused: spec.replicatedJobs[0].name: Invalid value: "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa-node-0": JobSet name is too long, pod names generated for this JobSet will exceed 63 characters',
        ),
    ),
    "torch-num-proc-zero-accepted": Improvement(
        "SD-37: a number below one makes no job",
        ("refused: spec.trainer.numProcPerNode: Invalid value: 0: must be greater than or equal to 1",),
    ),
    "invalid-num-proc-string": Improvement(
        "the same refusal, with the path instead of a name of Go",
        (
            'other words: spec.trainer.numProcPerNode: Invalid value: "auto": spec.trainer.numProcPerNode in body must be of type integer: "string"',
        ),
    ),
    "torch-num-nodes-negative-accepted": Improvement(
        "SD-37: a number below one makes no job",
        ("refused: spec.trainer.numNodes: Invalid value: -1: must be greater than or equal to 1",),
    ),
    "unknown-field-pruned": Improvement(
        "KEP-2782: resourceClaimsPerNode is delivered; the released CRD prunes it",
        (
            'jobset.pod[0].containers[0].env[1].value: "1" -> "2"',
            'jobset.pod[0].containers[0].resources: none -> {"claims": [{"name": "g"}]}',
            "jobset.pod[0].resourceClaims: none -> g",
            "stored.spec.trainer.resourceClaimsPerNode: none -> g",
        ),
    ),
    "runtime-mpi-num-proc-zero-accepted": Improvement(
        "SD-37: a number below one makes no job",
        ("refused: spec.mlPolicy.mpi.numProcPerNode: Invalid value: 0: NumProcPerNode in mpiPolicy must be >= 1",),
    ),
    "runtime-ancestor-unknown-is-accepted": Improvement(
        "SD-37: overrides that would reach no container are refused",
        (
            'refused: spec.template.spec.replicatedJobs[0].template.metadata.labels: Invalid value: "nobody": unknown step: what a TrainJob says would reach no container',
        ),
    ),
    "patch-two-managers-same-container-env-order": Improvement(
        "SD-28: an entry that is patched with another source gets that one instead of both",
        ("jobset.pod[0].volumes[1].emptyDir: {} -> none",),
    ),
    "runtime-update-replicas-namespaced-not-validated": Improvement(
        "the rules for a new runtime hold for a changed one",
        ("refused: spec.template.spec.replicatedJobs[0].replicas: Invalid value: 2: always must be 1",),
    ),
}
