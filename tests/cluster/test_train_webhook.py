"""The admission webhook on a real API server: refused, warned of and filled in at `kubectl apply`."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cluster.running import RunningCluster
from tests.cluster.world import World
from tests.train.jobs import exactly, job, patch, replicated, runtime

Json = dict[str, Any]
Apply = Callable[..., "subprocess.CompletedProcess[str]"]

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make a certificate with")


def crd(plural: str, kind: str, scope: str) -> Json:
    """The released CRDs are not part of the project: these take any TrainJob, so that the webhook alone judges."""
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    version = {"name": "v1alpha1", "served": True, "storage": True, "schema": schema}
    names = {"plural": plural, "singular": kind.lower(), "kind": kind, "listKind": f"{kind}List"}
    spec = {"group": "trainer.kubeflow.org", "scope": scope, "names": names, "versions": [version]}
    metadata = {"name": f"{plural}.trainer.kubeflow.org"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": metadata,
        "spec": spec,
    }


CRDS = [
    crd("trainjobs", "TrainJob", "Namespaced"),
    crd("trainingruntimes", "TrainingRuntime", "Namespaced"),
    crd("clustertrainingruntimes", "ClusterTrainingRuntime", "Cluster"),
]
PREWIRED = runtime(
    replicated(
        pod={"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "four"}]},
        resources={"claims": [{"name": "gpu"}]},
    )
)


@pytest.fixture
def apply(request: pytest.FixtureRequest, world: World, running: RunningCluster, tmp_path: Path) -> Iterator[Apply]:
    """`kubectl apply`, on a cluster whose admission asks `dibs webhook`; with the options of its parameter."""
    cert, key, files = tmp_path / "tls.crt", tmp_path / "tls.key", tmp_path / "objects.yaml"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(command, check=True, capture_output=True)
    serving = [
        sys.executable,
        "-m",
        "dibs",
        "webhook",
        "--listen",
        "127.0.0.1:0",
        "--cert",
        str(cert),
        "--key",
        str(key),
        *getattr(request, "param", ()),
    ]
    process = subprocess.Popen(serving, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    url = process.stderr.readline().split()[-1]
    printed = [sys.executable, "-m", "dibs", "webhook", "--manifest", url, "--ca", str(cert)]
    registration = subprocess.run(printed, check=True, capture_output=True, text=True).stdout

    def kubectl(verb: str, *objects: Json, **options: Any) -> subprocess.CompletedProcess[str]:
        files.write_text(yaml.safe_dump_all(objects))
        words = [str(running.binaries / "kubectl"), f"--kubeconfig={running.kubeconfig()}", verb, "-f", str(files)]
        return subprocess.run([*words, *options.get("words", ())], capture_output=True, text=True, check=False)

    hooks = list(yaml.safe_load_all(registration))
    done = kubectl("apply", *CRDS)
    assert done.returncode == 0, done.stderr
    running.kubectl("wait", "--for=condition=Established", *(f"crd/{one['metadata']['name']}" for one in CRDS))
    world.template("four", exactly(4))
    world.template("two", exactly(2))
    done = kubectl("apply", PREWIRED)
    assert done.returncode == 0, done.stderr
    done = kubectl("apply", *hooks)
    assert done.returncode == 0, done.stderr

    def ready() -> bool:
        refused = kubectl("create", job("probe", trainer={"numNodes": 0}), words=["--dry-run=server"])
        return "must be greater than or equal to 1" in refused.stderr

    world.until(ready, "the webhook is asked")
    yield lambda *objects: kubectl("apply", *objects)
    for objects in (hooks, CRDS):
        kubectl("delete", *objects, words=["--ignore-not-found"])
    process.terminate()
    process.wait(20)
    process.stderr.close()


def test_the_api_server_refuses_what_dibs_refuses_and_stores_the_number_of_processes(
    apply: Apply, running: RunningCluster
) -> None:
    # A prewired runtime: the claim's devices are counted, and the number is stored.
    done = apply(job("plain"))
    assert done.returncode == 0, done.stderr
    stored = json.loads(running.kubectl("get", "trainjob", "plain", "-o", "json"))
    assert stored["spec"]["trainer"] == {"numProcPerNode": 4}
    assert "one process per device" in done.stderr

    # A claim of the same name, from another template.
    swapped = job("swapped", trainer={"resourceClaimsPerNode": [{"name": "gpu", "resourceClaimTemplateName": "two"}]})
    assert apply(swapped).returncode == 0
    stored = json.loads(running.kubectl("get", "trainjob", "swapped", "-o", "json"))
    assert stored["spec"]["trainer"]["numProcPerNode"] == 2

    refused = {
        "gone": (job("gone", trainer={"resourceClaimsPerNode": [{"name": "gpu", "resourceClaimTemplateName": "x"}]}),
                 "there is no such ResourceClaimTemplate"),
        "dangling": (job("dangling", patches=[patch({"containers": [
            {"name": "node", "resources": {"claims": [{"name": "nic"}]}}]})]), 'references resourceClaim "nic"'),
        "typo": (job("typo", trainer={"numnodes": 2}), "spec.trainer.numnodes: unknown field"),
        "job": (job("job", patches=[patch({}, "worker")]), "the jobs are node"),
        "none": (job("none", runtime="other"), "must be created before the TrainJob is created"),
    }  # fmt: skip
    for wanted, text in refused.values():
        done = apply(wanted)
        assert done.returncode != 0
        assert text in done.stderr

    # A change of what is there.
    done = apply({**swapped, "spec": {**swapped["spec"], "trainer": {"numNodes": 5, "numProcPerNode": 2}}})
    assert "field is immutable" in done.stderr
    names = json.loads(running.kubectl("get", "trainjobs", "-o", "json"))["items"]
    assert sorted(one["metadata"]["name"] for one in names) == ["plain", "swapped"]


@pytest.mark.parametrize("apply", [("--no-claims",)], indirect=True)
def test_with_claims_switched_off_each_of_them_is_forbidden_and_those_of_a_runtime_still_count(
    apply: Apply, running: RunningCluster
) -> None:
    text = "Forbidden: TrainJobDynamicResourceAllocation feature gate is disabled"
    claims = [{"name": "gpu", "resourceClaimTemplateName": "two"}]
    done = apply(job("own", trainer={"resourceClaimsPerNode": claims}))
    assert done.returncode != 0
    assert f"spec.trainer.resourceClaimsPerNode: {text}" in done.stderr
    pod = {"resourceClaims": claims, "containers": [{"name": "node", "resources": {"claims": [{"name": "gpu"}]}}]}
    done = apply(job("patched", patches=[patch(pod)]))
    assert done.returncode != 0
    base = "spec.runtimePatches[0].trainingRuntimeSpec.template.spec.replicatedJobs[0].template.spec.template.spec"
    assert f"{base}.resourceClaims: {text}" in done.stderr
    assert f"{base}.containers[0].resources.claims: {text}" in done.stderr
    # What an administrator has put into a runtime was never the gate's business.
    done = apply(job("plain"))
    assert done.returncode == 0, done.stderr
    stored = json.loads(running.kubectl("get", "trainjob", "plain", "-o", "json"))
    assert stored["spec"]["trainer"] == {"numProcPerNode": 4}
