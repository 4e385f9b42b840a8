"""Runtimes through the Kubernetes API: who reads, who writes, what is refused, what `kubectl` and the SDK see."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from tests.kubeflow.conftest import API, CORE, Place

Kubectl = Callable[..., subprocess.CompletedProcess[str]]


def runtime(name: str, **spec: Any) -> dict[str, Any]:
    pod = {"containers": [{"name": "node", "image": "host"}]}
    labels = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    job = {"name": "node", "template": {"metadata": {"labels": labels}, "spec": {"template": {"spec": pod}}}}
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainingRuntime",
        "metadata": {"name": name, "labels": {"trainer.kubeflow.org/framework": "plain"}},
        "spec": {"mlPolicy": {"numNodes": 1}, "template": {"spec": {"replicatedJobs": [job]}}, **spec},
    }


def test_the_runtimes_that_come_with_dibs_are_listed_with_all_that_the_sdk_needs(place: Place) -> None:
    answer = place.ask("GET", f"{API}/clustertrainingruntimes")
    assert answer.status == 200
    assert answer.data["kind"] == "ClusterTrainingRuntimeList"
    for one in answer.data["items"]:
        assert one["kind"] == "ClusterTrainingRuntime"
        assert one["metadata"]["labels"]["trainer.kubeflow.org/framework"]
        assert one["spec"]["mlPolicy"]
    names = {one["metadata"]["name"] for one in answer.data["items"]}
    assert {"torch-distributed", "jax-distributed", "mpi-distributed", "plain"} <= names


def test_the_sdk_lists_them_and_gets_one(sdk: Callable[..., Any]) -> None:
    found = sdk(
        "out['names'] = [one.name for one in client.list_runtimes()]\n"
        "out['torch'] = client.get_runtime('torch-distributed').trainer.framework\n"
    )
    assert {"torch-distributed", "plain"} <= set(found["names"])
    assert found["torch"] == "torch"


def test_only_an_administrator_writes_them(place: Place) -> None:
    path = f"{API}/namespaces/team-a/trainingruntimes"
    refused = place.ask("POST", path, runtime("mine"))
    assert refused.status == 403
    assert refused.data["kind"] == "Status"
    assert refused.data["reason"] == "Forbidden"
    assert refused.data["details"]["causes"][0]["reason"] == "SCOPE_MISSING"
    made = place.ask("POST", path, runtime("mine"), tenant="")
    assert made.status == 201, made.data
    assert made.data["metadata"]["namespace"] == "team-a"
    assert place.ask("GET", f"{path}/mine").data["metadata"]["uid"] == made.data["metadata"]["uid"]
    assert place.ask("POST", path, runtime("mine"), tenant="").data["reason"] == "AlreadyExists"
    assert place.ask("GET", f"{API}/namespaces/team-b/trainingruntimes", tenant="team-b").data["items"] == []
    assert place.ask("DELETE", f"{path}/mine", tenant="").data["status"] == "Success"
    gone = place.ask("GET", f"{path}/mine")
    assert (gone.status, gone.data["reason"]) == (404, "NotFound")
    assert gone.data["details"]["kind"] == "trainingruntimes"
    assert gone.data["details"]["name"] == "mine"


def test_what_comes_with_dibs_cannot_be_changed_or_shadowed(place: Place) -> None:
    path = f"{API}/clustertrainingruntimes"
    headers = {"Content-Type": "application/merge-patch+json"}
    changed = place.ask("PATCH", f"{path}/plain", {"spec": {"mlPolicy": {"numNodes": 2}}}, tenant="", headers=headers)
    assert changed.data["details"]["causes"][0]["reason"] == "RUNTIME_SHIPPED"
    own = {**runtime("plain"), "kind": "ClusterTrainingRuntime"}
    assert place.ask("POST", path, own, tenant="").data["reason"] == "AlreadyExists"


def test_a_stale_change_is_refused_and_a_fresh_one_is_kept(place: Place) -> None:
    path = f"{API}/namespaces/default/trainingruntimes"
    made = place.ask("POST", path, runtime("stale"), tenant="").data
    try:
        changed = {**made, "spec": {**made["spec"], "mlPolicy": {"numNodes": 3}}}
        after = place.ask("PUT", f"{path}/stale", changed, tenant="")
        assert after.status == 200, after.data
        assert after.data["spec"]["mlPolicy"]["numNodes"] == 3
        assert after.data["metadata"]["resourceVersion"] != made["metadata"]["resourceVersion"]
        again = place.ask("PUT", f"{path}/stale", changed, tenant="")
        assert (again.status, again.data["reason"]) == (409, "Conflict")
    finally:
        place.ask("DELETE", f"{path}/stale", tenant="")


def test_every_mistake_is_refused_with_its_path(place: Place) -> None:
    wrong = runtime("wrong", podGroupPolicyy={})
    wrong["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["restart"] = "no"
    answer = place.ask("POST", f"{API}/namespaces/default/trainingruntimes", wrong, tenant="")
    assert (answer.status, answer.data["reason"]) == (422, "Invalid")
    fields = {cause["field"] for cause in answer.data["details"]["causes"]}
    assert "spec.podGroupPolicyy" in fields
    assert any(field.endswith("template.spec.restart") for field in fields)


@pytest.mark.parametrize(
    ("path", "status", "reason", "code"),
    [
        (f"{API}/namespaces/team-b/trainingruntimes", 403, "Forbidden", "NAMESPACE_FORBIDDEN"),
        (f"{API}/namespaces/nowhere/trainingruntimes", 403, "Forbidden", "NAMESPACE_FORBIDDEN"),
        (f"{API}/clustertrainingruntimes?limitt=1", 422, "Invalid", "UNKNOWN_FIELD"),
        (f"{API}/clustertrainingruntimes?labelSelector=((", 400, "BadRequest", "SELECTOR_INVALID"),
        (f"{API}/clustertrainingruntimes?fieldSelector=spec.x%3D1", 400, "BadRequest", "SELECTOR_INVALID"),
        (f"{API}/clustertrainingruntimes?watch=true", 405, "MethodNotAllowed", "METHOD_NOT_ALLOWED"),
        (f"{API}/clustertrainingruntimes?continue=abc", 410, "Expired", "WATCH_EXPIRED"),
        ("/kubeflow/apis/batch/v1/jobs", 404, "NotFound", "PATH_UNKNOWN"),
        (f"{CORE}/namespaces/team-a/secrets", 404, "NotFound", "PATH_UNKNOWN"),
    ],
)
def test_refusals_are_status_objects(place: Place, path: str, status: int, reason: str, code: str) -> None:
    answer = place.ask("GET", path)
    assert answer.status == status, answer.data
    assert answer.data["kind"] == "Status"
    assert answer.data["code"] == status
    assert answer.data["reason"] == reason
    assert answer.data["details"]["causes"][0]["reason"] == code


def test_a_token_that_is_not_known_is_unauthorized(place: Place) -> None:
    answer = place.gateway.ask("GET", f"{API}/clustertrainingruntimes", token="dibs_nothing")
    assert (answer.status, answer.data["kind"], answer.data["reason"]) == (401, "Status", "Unauthorized")


@pytest.mark.parametrize("kind", ["application/strategic-merge-patch+json", "application/apply-patch+yaml"])
def test_patches_that_cannot_be_done_are_refused_by_name(place: Place, kind: str) -> None:
    path = f"{API}/clustertrainingruntimes/plain"
    answer = place.ask("PATCH", path, b"{}", tenant="", headers={"Content-Type": kind})
    assert (answer.status, answer.data["reason"]) == (415, "UnsupportedMediaType")
    assert "merge-patch" in answer.data["message"]


def test_kubectl_gets_applies_patches_and_deletes(kubectl: Kubectl) -> None:
    listed = kubectl("get", "clustertrainingruntimes")
    assert listed.returncode == 0, listed.stderr
    assert listed.stdout.splitlines()[0].split() == ["NAME", "POLICY", "FRAMEWORK", "AGE"]
    text = yaml.safe_dump(runtime("applied"))
    assert "created" in kubectl("apply", "-f", "-", given=text).stdout
    try:
        more = yaml.safe_dump(runtime("applied", mlPolicy={"numNodes": 2}))
        assert "configured" in kubectl("apply", "-f", "-", given=more).stdout
        operations = json.dumps([{"op": "replace", "path": "/spec/mlPolicy/numNodes", "value": 4}])
        patched = kubectl("patch", "trainingruntime", "applied", "--type=json", "-p", operations)
        assert patched.returncode == 0, patched.stderr
        shown = kubectl("get", "trainingruntime", "applied", "-o", "jsonpath={.spec.mlPolicy.numNodes}")
        assert shown.stdout == "4"
        wrong = kubectl("apply", "-f", "-", given=text.replace("image:", "imagee:"))
        assert "containers[0].imagee: unknown field" in wrong.stderr
    finally:
        assert "deleted" in kubectl("delete", "trainingruntime", "applied").stdout


def test_kubectl_finds_its_way_about(kubectl: Kubectl) -> None:
    named = kubectl("api-resources", "--no-headers", "-o", "name").stdout.split()
    assert "clustertrainingruntimes.trainer.kubeflow.org" in named
    assert "dibs" in kubectl("version").stdout
    assert "team-b" in kubectl("get", "namespaces").stdout
