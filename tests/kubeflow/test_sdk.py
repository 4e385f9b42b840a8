"""The unmodified Kubeflow SDK at the gateway, on `local` and on Docker: a job's whole life, and what it could lose."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tests import needs
from tests.kubeflow.conftest import API, Place

from dibs.ledger.store import Ledger

Sdk = Callable[..., Any]

LIFE = """
def train(word):
    import os
    number = os.environ.get("JOB_COMPLETION_INDEX", "")
    print(f"{word} from {os.uname().nodename}: {os.environ['DIBS_GPU_COUNT']} GPUs", flush=True)

out["runtimes"] = [one.name for one in client.list_runtimes()]
trainer = CustomTrainer(
    func=train, func_args={"word": "hello"}, image=IMAGE, num_nodes=2, resources_per_node={"gpu": 2}
)
name = client.train(runtime="plain", trainer=trainer)
job = client.wait_for_job_status(name, polling_interval=1, timeout=120)
out["status"] = job.status
out["steps"] = sorted([step.name, step.status, step.device, step.device_count] for step in job.steps)
out["logs"] = [list(client.get_job_logs(name, step=step)) for step in ("node-0", "node-1")]
out["followed"] = list(client.get_job_logs(name, follow=True))
out["events"] = sorted({event.reason for event in client.get_job_events(name)})
out["listed"] = name in [one.name for one in client.list_jobs()]
out["name"] = name
client.delete_job(name)
out["gone"] = name not in [one.name for one in client.list_jobs()]
"""


def test_a_job_of_two_nodes_runs_from_its_function_to_its_deletion(anywhere: Place, sdk: Sdk) -> None:
    if anywhere.image == "python":
        needs.shared_network()
    found = sdk(f"IMAGE = {anywhere.image!r}\n{LIFE}", where=anywhere)
    assert {"torch-distributed", "jax-distributed", "mpi-distributed", "plain"} <= set(found["runtimes"])
    assert found["status"] == "Complete"
    assert [step[:2] for step in found["steps"]] == [["node-0", "Succeeded"], ["node-1", "Succeeded"]]
    assert all(step[2:] == ["gpu", "2"] for step in found["steps"])
    for lines in (*found["logs"], found["followed"]):
        assert len(lines) == 1
        assert lines[0].startswith("hello from ")
        assert lines[0].endswith("2 GPUs")
    assert found["logs"][0] == found["followed"]
    assert {"JobSubmitted", "JobRunning", "JobComplete", "LeaseReserved"} <= set(found["events"])
    assert found["listed"]
    assert found["gone"]
    with Ledger(anywhere.gateway.home) as ledger:
        assert ledger.leases() == []


def test_a_function_that_fails_is_a_failed_job_with_its_reason(place: Place, sdk: Sdk) -> None:
    code = (
        "def train():\n    raise SystemExit(3)\n"
        f"name = client.train(runtime='plain', trainer=CustomTrainer(func=train, image={place.image!r}))\n"
        "try:\n    client.wait_for_job_status(name, polling_interval=1, timeout=120)\n"
        "except RuntimeError as error:\n    out['error'] = str(error)\n"
        "out['status'] = client.get_job(name).status\n"
        "out['name'] = name\n"
    )
    found = sdk(code)
    assert found["status"] == "Failed"
    assert found["error"] == f"TrainJob {found['name']} is Failed"
    [condition] = place.ask("GET", f"{API}/namespaces/team-a/trainjobs/{found['name']}").data["status"]["conditions"]
    assert "exit code 3" in condition["message"]
    assert place.ask("DELETE", f"{API}/namespaces/team-a/trainjobs/{found['name']}").status == 200


def test_sd_40_gpu_cpu_and_memory_of_a_node_are_delivered(docker: Place, sdk: Sdk) -> None:
    """The SDK's own container backend starts two processes, and gives the container no device and no limit."""
    code = (
        "def train():\n    import os, pathlib\n"
        "    devices = [one for one in os.listdir('/dev') if one.startswith('nvidia') and one[-1].isdigit()]\n"
        "    v2 = pathlib.Path('/sys/fs/cgroup/memory.max')\n"
        "    v1 = pathlib.Path('/sys/fs/cgroup/memory/memory.limit_in_bytes')\n"
        "    limit = (v2 if v2.exists() else v1).read_text().strip()\n"
        "    print(f\"{os.environ['DIBS_GPU_COUNT']} {limit}\", flush=True)\n"
        f"trainer = CustomTrainer(func=train, image={docker.image!r},\n"
        "    resources_per_node={'gpu': 2, 'cpu': 1, 'memory': '256Mi'})\n"
        "name = client.train(runtime='plain', trainer=trainer)\n"
        "client.wait_for_job_status(name, polling_interval=1, timeout=120)\n"
        "out['logs'] = list(client.get_job_logs(name))\n"
        "out['name'] = name\n"
    )
    found = sdk(code, where=docker)
    assert found["logs"] == ["2 268435456"]
    path = f"{API}/namespaces/team-a/trainjobs/{found['name']}"
    [rank] = docker.ask("GET", path).data["status"]["dibs"]["ranks"]
    assert len(rank["devices"]) == 2
    assert docker.ask("DELETE", path).status == 200


CLAIM = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaim",
    "metadata": {"name": "two-gpus"},
    "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": 2}}]}},
}


def test_sd_41_claims_that_the_sdk_strips_are_reached_by_annotation_and_by_key(place: Place, sdk: Sdk) -> None:
    """A patch with claims arrives without them, and the server cannot see that; these ways arrive whole."""
    assert place.ask("PUT", "/api/v1/claims/two-gpus", CLAIM, tenant="").status == 200
    code = (
        "from kubeflow.trainer.options import *\n"
        "def train():\n    import os\n    print(os.environ.get('DIBS_GPU_COUNT', 'none'), flush=True)\n"
        f"trainer = CustomTrainer(func=train, image={place.image!r})\n"
        "def stripped(job, trainer, backend):\n"
        "    pod = {'resourceClaims': [{'name': 'gpu', 'resourceClaimTemplateName': 'two-gpus'}],\n"
        "           'containers': [{'name': 'node', 'resources': {'claims': [{'name': 'gpu'}]}}]}\n"
        "    one = {'name': 'node', 'template': {'spec': {'template': {'spec': pod}}}}\n"
        "    spec = {'template': {'spec': {'replicatedJobs': [one]}}}\n"
        "    patch = {'manager': 'example.com/test', 'trainingRuntimeSpec': spec}\n"
        "    job.setdefault('spec', {})['runtimePatches'] = [patch]\n"
        "ways = {\n"
        "    'patch': (trainer, [stripped]),\n"
        "    'annotation': (trainer, [Annotations({'train.dibs/claims': 'gpu=two-gpus'})]),\n"
        "    'key': (CustomTrainer(func=train, image=trainer.image, resources_per_node={'nvidia.com/gpu': 2}), []),\n"
        "}\n"
        "for way, (trainer, options) in ways.items():\n"
        "    name = client.train(runtime='plain', trainer=trainer, options=options)\n"
        "    client.wait_for_job_status(name, polling_interval=1, timeout=120)\n"
        "    out[way] = list(client.get_job_logs(name))\n"
        "    client.delete_job(name)\n"
    )
    found = sdk(code)
    assert found["annotation"] == ["2"]
    assert found["key"] == ["2"]
    assert found["patch"] == ["0"], "the SDK sends claims in patches now: docs/kubeflow.md says that it strips them"


def test_sd_41_a_runtime_that_holds_the_claims_gives_them(place: Place, sdk: Sdk) -> None:
    assert place.ask("PUT", "/api/v1/claims/two-gpus", CLAIM, tenant="").status == 200
    pod = {
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "two-gpus"}],
        "containers": [{"name": "node", "image": place.image, "resources": {"claims": [{"name": "gpu"}]}}],
    }
    labels = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    job = {"name": "node", "template": {"metadata": {"labels": labels}, "spec": {"template": {"spec": pod}}}}
    runtime = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainingRuntime",
        "metadata": {"name": "prewired", "labels": {"trainer.kubeflow.org/framework": "plain"}},
        "spec": {"mlPolicy": {"numNodes": 1}, "template": {"spec": {"replicatedJobs": [job]}}},
    }
    path = f"{API}/namespaces/team-a/trainingruntimes"
    assert place.ask("POST", path, runtime, tenant="").status == 201
    code = (
        "def train():\n    import os\n    print(os.environ['DIBS_GPU_COUNT'], flush=True)\n"
        "name = client.train(runtime='prewired', trainer=CustomTrainer(func=train))\n"
        "client.wait_for_job_status(name, polling_interval=1, timeout=120)\n"
        "out['logs'] = list(client.get_job_logs(name))\n"
        "client.delete_job(name)\n"
    )
    assert sdk(code)["logs"] == ["2"]
    assert place.ask("DELETE", f"{path}/prewired", tenant="").status == 200


def test_limits_that_the_sdk_does_not_know_do_not_break_it(place: Place, sdk: Sdk) -> None:
    """The SDK raises for a whole job whose container limits memory alone."""
    needs.limits()
    code = (
        "def train():\n    print('ran')\n"
        f"trainer = CustomTrainer(func=train, image={place.image!r}, resources_per_node={{'memory': '256Mi'}})\n"
        "name = client.train(runtime='plain', trainer=trainer)\n"
        "out['status'] = client.wait_for_job_status(name, polling_interval=1, timeout=120).status\n"
        "out['name'] = name\n"
    )
    found = sdk(code)
    assert found["status"] == "Complete"
    pods = place.ask("GET", "/kubeflow/api/v1/namespaces/team-a/pods").data["items"]
    [pod] = [one for one in pods if one["metadata"]["name"].startswith(found["name"])]
    assert json.loads(pod["metadata"]["annotations"]["train.dibs/limits"]) == {"node": {"memory": "256Mi"}}
    assert place.ask("DELETE", f"{API}/namespaces/team-a/trainjobs/{found['name']}").status == 200
