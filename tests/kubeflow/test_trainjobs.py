"""TrainJobs over the Kubernetes API: what is refused and how, tenants, suspending, watching, deleting, kubectl."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from typing import Any

import pytest
import yaml
from tests.kubeflow.conftest import API, CORE, Place

Json = dict[str, Any]
Kubectl = Callable[..., subprocess.CompletedProcess[str]]

JOBS = f"{API}/namespaces/team-a/trainjobs"
MERGE = {"Content-Type": "application/merge-patch+json"}


def job(name: str, command: str = "echo hello", **more: Any) -> Json:
    trainer = {"image": "python", "command": ["bash", "-c", command], **more.pop("trainer", {})}
    metadata = {"name": name, **more.pop("metadata", {})}
    spec = {"runtimeRef": {"name": "plain"}, "trainer": trainer, **more}
    return {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "metadata": metadata, "spec": spec}


@pytest.fixture
def clean(place: Place) -> Iterator[Place]:
    """Whatever a test creates is deleted behind it."""
    yield place
    for tenant in ("team-a", "team-b"):
        path = f"{API}/namespaces/{tenant}/trainjobs"
        for one in place.ask("GET", path, tenant=tenant).data["items"]:
            assert place.ask("DELETE", f"{path}/{one['metadata']['name']}", tenant=tenant).status == 200


def state(place: Place, name: str, *wanted: str) -> Json:
    def look() -> Any:
        found = place.ask("GET", f"{JOBS}/{name}").data
        return found if found["status"]["dibs"]["state"] in wanted else None

    found: Json = place.gateway.until(look)
    return found


@pytest.mark.parametrize(
    ("change", "status", "field"),
    [
        ({"spec": {"trainerr": {}}}, 422, "spec.trainerr"),
        ({"spec": {"runtimeRef": {"name": "nowhere"}}}, 422, "spec.RuntimeRef"),
        ({"spec": {"trainer": {"numNodes": 0}}}, 422, "spec.trainer.numNodes"),
        (
            {"spec": {"trainer": {"resourcesPerNode": {"claims": [{"name": "x"}]}}}},
            422,
            "spec.trainer.resourcesPerNode",
        ),
        ({"metadata": {"annotations": {"train.dibs/clams": "a=b"}}}, 422, "metadata.annotations[train.dibs/clams]"),
        ({"metadata": {"annotations": {"train.dibs/claims": "a"}}}, 422, "metadata.annotations[train.dibs/claims]"),
        ({"metadata": {"annotations": {"train.dibs/wait": "soon"}}}, 400, "metadata.annotations[train.dibs/wait]"),
        ({"metadata": {"namespace": "team-b"}}, 400, "metadata.namespace"),
        ({"kind": "Pod"}, 422, "kind"),
    ],
)
def test_what_cannot_be_is_refused_with_its_path_and_nothing_is_made(
    clean: Place, change: Json, status: int, field: str
) -> None:
    wrong = job("wrong")
    for key, value in change.items():
        wrong[key] = {**wrong[key], **value} if isinstance(value, dict) else value
    answer = clean.ask("POST", JOBS, wrong)
    assert answer.status == status, answer.data
    assert answer.data["kind"] == "Status"
    assert field in [cause.get("field") for cause in answer.data["details"]["causes"]], answer.data
    assert clean.ask("GET", JOBS).data["items"] == []


def test_more_than_there_is_is_refused_with_the_reason(clean: Place) -> None:
    answer = clean.ask("POST", JOBS, job("huge", trainer={"resourcesPerNode": {"limits": {"nvidia.com/gpu": 9}}}))
    assert answer.status == 409, answer.data
    assert answer.data["details"]["causes"][0]["reason"] == "NO_MATCHING_DEVICE", answer.data
    assert clean.ask("GET", JOBS).data["items"] == []


def test_a_dry_run_judges_and_makes_nothing(clean: Place) -> None:
    assert clean.ask("POST", f"{JOBS}?dryRun=All", job("dry")).status == 201
    huge = job("huge", trainer={"resourcesPerNode": {"limits": {"nvidia.com/gpu": 9}}})
    assert clean.ask("POST", f"{JOBS}?dryRun=All", huge).status == 409
    assert clean.ask("GET", JOBS).data["items"] == []


def test_a_tenants_job_is_not_there_for_another(clean: Place) -> None:
    assert clean.ask("POST", JOBS, job("mine")).status == 201
    assert clean.ask("GET", f"{JOBS}/mine", tenant="team-b").status == 403
    assert clean.ask("GET", f"{API}/trainjobs", tenant="team-b").data["items"] == []
    everywhere = clean.ask("GET", f"{API}/trainjobs", tenant="").data["items"]
    assert [(one["metadata"]["namespace"], one["metadata"]["name"]) for one in everywhere] == [("team-a", "mine")]
    other = clean.ask("POST", f"{API}/namespaces/team-b/trainjobs", job("mine"), tenant="team-b")
    assert other.status == 201, other.data
    assert clean.ask("GET", f"{CORE}/namespaces/team-b/pods/mine-node-0-0", tenant="team-a").status == 403
    state(clean, "mine", "Complete")


def test_a_name_is_taken_until_the_job_is_deleted_even_when_it_has_ended(clean: Place) -> None:
    assert clean.ask("POST", JOBS, job("once")).status == 201
    state(clean, "once", "Complete")
    again = clean.ask("POST", JOBS, job("once"))
    assert (again.status, again.data["reason"]) == (409, "AlreadyExists")
    assert clean.ask("DELETE", f"{JOBS}/once").data["status"] == "Success"
    assert clean.ask("GET", f"{JOBS}/once").status == 404
    assert clean.ask("POST", JOBS, job("once")).status == 201


def test_a_name_is_made_up_where_only_its_beginning_is_said(clean: Place) -> None:
    made = job("", metadata={"generateName": "try-"})
    del made["metadata"]["name"]
    answer = clean.ask("POST", JOBS, made)
    assert answer.status == 201, answer.data
    assert answer.data["metadata"]["name"].startswith("try-")


def test_suspend_gives_the_devices_back_and_resume_runs_again_without_a_condition(clean: Place) -> None:
    gpus = {"resourcesPerNode": {"limits": {"nvidia.com/gpu": 8}}}
    assert clean.ask("POST", JOBS, job("long", "sleep 1000", trainer=gpus)).status == 201
    running = state(clean, "long", "Running")
    assert "conditions" not in running["status"]
    assert clean.ask("PATCH", f"{JOBS}/long", {"spec": {"suspend": True}}, headers=MERGE).status == 200
    suspended = state(clean, "long", "Suspended")
    assert [one["type"] for one in suspended["status"]["conditions"]] == ["Suspended"]
    assert clean.ask("GET", f"{CORE}/namespaces/team-a/pods").data["items"] == []
    assert clean.ask("POST", JOBS, job("short", trainer=gpus)).status == 201
    state(clean, "short", "Complete")
    assert clean.ask("PATCH", f"{JOBS}/long", {"spec": {"suspend": False}}, headers=MERGE).status == 200
    resumed = state(clean, "long", "Running")
    assert "conditions" not in resumed["status"], "the SDK would say Created until the end"


def test_what_is_immutable_is_refused_and_a_stale_version_too(clean: Place) -> None:
    made = clean.ask("POST", JOBS, job("fixed", "sleep 1000")).data
    changed = clean.ask("PATCH", f"{JOBS}/fixed", {"spec": {"trainer": {"numNodes": 2}}}, headers=MERGE)
    assert changed.status == 422
    assert changed.data["details"]["causes"][0]["field"] == "spec.trainer"
    state(clean, "fixed", "Running")
    stale = {**made, "spec": {**made["spec"], "suspend": True}}
    answer = clean.ask("PUT", f"{JOBS}/fixed", stale)
    assert (answer.status, answer.data["reason"]) == (409, "Conflict")


def test_an_edit_of_the_runtime_changes_nothing_for_a_job_that_is_there(clean: Place) -> None:
    labels = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    pod = {"containers": [{"name": "node", "image": "python", "env": [{"name": "WORD", "value": "before"}]}]}
    one = {"name": "node", "template": {"metadata": {"labels": labels}, "spec": {"template": {"spec": pod}}}}
    runtime = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainingRuntime", "metadata": {"name": "edited"},
        "spec": {"mlPolicy": {"numNodes": 1}, "template": {"spec": {"replicatedJobs": [one]}}},
    }  # fmt: skip
    path = f"{API}/namespaces/team-a/trainingruntimes"
    assert clean.ask("POST", path, runtime, tenant="").status == 201
    mine = job("snapshot", "echo $WORD", suspend=True)
    mine["spec"]["runtimeRef"] = {"name": "edited", "kind": "TrainingRuntime"}
    assert clean.ask("POST", JOBS, mine).status == 201
    assert clean.ask("DELETE", f"{path}/edited", tenant="").status == 200
    assert clean.ask("PATCH", f"{JOBS}/snapshot", {"spec": {"suspend": False}}, headers=MERGE).status == 200
    state(clean, "snapshot", "Complete")
    log = clean.ask("GET", f"{CORE}/namespaces/team-a/pods/snapshot-node-0-0/log")
    assert log.body == b"before\n"


def test_a_watch_tells_what_has_happened_since_a_list_and_goes_on(clean: Place) -> None:
    listed = clean.ask("GET", JOBS).data["metadata"]["resourceVersion"]
    assert clean.ask("POST", JOBS, job("watched")).status == 201
    seen: list[tuple[str, str]] = []
    connection = HTTPConnection("127.0.0.1", clean.gateway.port, timeout=120)
    headers = {"Authorization": f"Bearer {clean.tokens['team-a']}"}
    connection.request("GET", f"{JOBS}?watch=true&resourceVersion={listed}", headers=headers)
    answer = connection.getresponse()

    def read() -> None:
        for line in iter(answer.readline, b""):
            event = json.loads(line)
            seen.append((event["type"], event["object"]["status"]["dibs"]["state"]))
            if event["type"] == "DELETED":
                return

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    state(clean, "watched", "Complete")
    assert clean.ask("DELETE", f"{JOBS}/watched").status == 200
    reader.join(60)
    connection.close()
    assert seen[0][0] == "ADDED"
    assert ("MODIFIED", "Complete") in seen
    assert seen[-1][0] == "DELETED"


def test_a_watch_from_a_number_that_is_not_known_is_expired(clean: Place) -> None:
    for number in ("1", "99999999"):
        answer = clean.ask("GET", f"{JOBS}?watch=true&resourceVersion={number}")
        assert (answer.status, answer.data["reason"]) == (410, "Expired")


def test_logs_are_cut_and_stamped_as_asked_and_wait_for_who_follows(clean: Place) -> None:
    assert clean.ask("POST", JOBS, job("lines", "for i in 1 2 3; do echo line $i; done; echo wrong >&2")).status == 201
    path = f"{CORE}/namespaces/team-a/pods/lines-node-0-0/log"
    followed = clean.ask("GET", f"{path}?container=node&follow=true").body
    assert followed.count(b"line") == 3
    assert clean.ask("GET", f"{path}?tailLines=1&stream=Stdout").body == b"line 3\n"
    assert clean.ask("GET", f"{path}?limitBytes=4").body == b"line"
    stamped = clean.ask("GET", f"{path}?timestamps=true&stream=Stderr").body
    assert stamped.endswith(b"Z wrong\n")
    assert clean.ask("GET", f"{path}?container=other").status == 400
    assert clean.ask("GET", f"{path}?tail=1").status == 422


def test_a_job_that_waits_for_devices_says_for_what(clean: Place) -> None:
    gpus = {"resourcesPerNode": {"limits": {"nvidia.com/gpu": 8}}}
    assert clean.ask("POST", JOBS, job("first", "sleep 1000", trainer=gpus)).status == 201
    state(clean, "first", "Running")
    assert clean.ask("POST", JOBS, job("second", trainer=gpus)).status == 201
    waiting = clean.gateway.until(lambda: clean.ask("GET", f"{JOBS}/second").data["status"]["dibs"].get("waitsFor", ""))
    assert waiting
    pod = clean.ask("GET", f"{CORE}/namespaces/team-a/pods/second-node-0-0").data
    assert pod["status"]["phase"] == "Pending"
    assert pod["status"]["message"] == waiting
    refused = clean.ask("GET", f"{CORE}/namespaces/team-a/pods/second-node-0-0/log")
    assert refused.status == 400
    assert "waiting to start" in refused.data["message"]
    assert clean.ask("DELETE", f"{JOBS}/first").status == 200
    state(clean, "second", "Complete")


def test_kubectl_creates_watches_reads_and_deletes(kubectl: Kubectl, place: Place) -> None:
    text = yaml.safe_dump(job("by-hand", "echo from kubectl"))
    created = kubectl("create", "-f", "-", given=text)
    assert created.returncode == 0, created.stderr
    waited = kubectl("wait", "--for=condition=Complete", "trainjob/by-hand", "--timeout=100s")
    assert waited.returncode == 0, waited.stderr
    listed = kubectl("get", "trainjobs").stdout.splitlines()
    assert listed[0].split() == ["NAME", "STATE", "AGE"]
    assert listed[1].split()[:2] == ["by-hand", "Complete"]
    assert kubectl("logs", "by-hand-node-0-0").stdout == "from kubectl\n"
    assert "by-hand-node-0-0" in kubectl("get", "pods", "-l", "jobset.sigs.k8s.io/jobset-name=by-hand").stdout
    assert "JobComplete" in kubectl("get", "events").stdout
    described = kubectl("describe", "trainjob", "by-hand")
    assert described.returncode == 0, described.stderr
    assert "JobComplete" in described.stdout
    wrong = kubectl("create", "-f", "-", given=text.replace("trainer:", "trainerr:"))
    assert "spec.trainerr: unknown field" in wrong.stderr
    removed = kubectl("delete", "trainjob", "by-hand")
    assert "deleted" in removed.stdout, removed.stderr
    assert "No resources found" in kubectl("get", "trainjobs").stderr
