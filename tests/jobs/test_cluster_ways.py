"""A training job on a cluster without Kubeflow Trainer: what is created for it, and what is refused by name."""

from __future__ import annotations

from typing import Any

import pytest
from tests.train.jobs import job, rendered, replicated, runtime

from dibs.train.refusals import Refusals
from dibs.workloads.cluster_jobs import objects, strategies
from dibs.workloads.cluster_jobs.strategies import Chosen, Way

Json = dict[str, Any]


def refused(way: Way, wanted: Json, own: Json) -> list[str]:
    found = Refusals()
    strategies.check(Chosen(way, ""), rendered(wanted, own), True, found)
    return [one.path for one in found]


def made(way: Way, wanted: Json, own: Json) -> list[Json]:
    kind = {"jobset": "JobSet", "jobs": "Job"}[way]
    return [one for one in objects.created(rendered(wanted, own), way) if one["kind"] == kind]


def deadlines(way: Way, wanted: Json, own: Json) -> list[Any]:
    [main] = made(way, wanted, own)
    specs = [one["template"]["spec"] for one in main["spec"]["replicatedJobs"]] if way == "jobset" else [main["spec"]]
    return [one.get("activeDeadlineSeconds") for one in specs]


@pytest.mark.parametrize("way", ["jobset", "jobs"])
def test_the_deadline_of_a_job_is_that_of_its_jobs(way: Way) -> None:
    wanted = job(activeDeadlineSeconds=600)
    shorter, longer = runtime(), runtime()
    shorter["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]["activeDeadlineSeconds"] = 60
    longer["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]["activeDeadlineSeconds"] = 6000
    assert deadlines(way, wanted, runtime()) == [600]
    assert deadlines(way, wanted, shorter) == [60]
    assert deadlines(way, wanted, longer) == [600]
    assert deadlines(way, job(), runtime()) == [None]
    assert refused(way, wanted, runtime()) == []


@pytest.mark.parametrize(
    "jobset", [{"failurePolicy": {"maxRestarts": 1}}, {"startupPolicy": {"startupPolicyOrder": "InOrder"}}, {}]
)
def test_a_deadline_over_stages_or_restarts_is_refused_without_kubeflow_trainer(jobset: Json) -> None:
    first = replicated("first", "")
    last = replicated("node")
    if not jobset:
        last["dependsOn"] = [{"name": "first", "status": "Complete"}]
    own = runtime(first, last, jobset=jobset)
    assert refused("jobset", job(activeDeadlineSeconds=600), own) == ["spec.activeDeadlineSeconds"]
    assert refused("trainer", job(activeDeadlineSeconds=600), own) == []
    assert refused("jobset", job(), own) == []


@pytest.mark.parametrize("way", ["jobset", "jobs"])
def test_labels_of_a_job_are_on_what_stands_for_it(way: Way) -> None:
    """A queue is chosen by a label: lost, the job would pass it by."""
    wanted, own = job(), runtime()
    wanted["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "team", "both": "job"}
    wanted["metadata"]["annotations"] = {"note": "x", "train.dibs/backend": "kubernetes"}
    own["spec"]["template"]["metadata"] = {"labels": {"both": "runtime"}}
    [main] = made(way, wanted, own)
    labels = {key: main["metadata"]["labels"].get(key) for key in ("kueue.x-k8s.io/queue-name", "both", objects.JOB)}
    assert labels == {"kueue.x-k8s.io/queue-name": "team", "both": "runtime", objects.JOB: "demo"}
    assert main["metadata"]["annotations"] == {"note": "x"}


@pytest.mark.parametrize(
    ("jobset", "path"),
    [
        ({"failurePolicy": {"maxRestarts": 3}}, "spec.failurePolicy"),
        ({"failurePolicy": {"rules": [{"name": "r", "action": "FailJobSet"}]}}, "spec.failurePolicy"),
        ({"ttlSecondsAfterFinished": 60}, "spec.ttlSecondsAfterFinished"),
        ({"coordinator": {"replicatedJob": "node"}}, "spec.coordinator"),
        ({"volumeClaimPolicies": [{"templates": []}]}, "spec.volumeClaimPolicies"),
        ({"managedBy": "acme.io/c"}, "spec.managedBy"),
    ],
)
def test_what_only_jobset_does_is_refused_by_name_without_it(jobset: Json, path: str) -> None:
    own = runtime(jobset=jobset)
    assert refused("jobs", job(), own) == [path]
    assert refused("jobset", job(), own) == []


def test_several_jobs_would_not_end_together_without_jobset() -> None:
    own = runtime(replicated("side", ""), replicated())
    assert refused("jobs", job(), own) == ["spec.replicatedJobs"]
    twice = replicated("side", "")
    twice["replicas"] = 2
    only = runtime(twice)
    assert refused("jobs", job(), only) == ["spec.replicatedJobs"]
    assert refused("jobset", job(), own) == []


@pytest.mark.parametrize("way", ["jobset", "jobs", "trainer"])
def test_another_manager_needs_a_trainjob(way: Way) -> None:
    found = refused(way, job(managedBy="kueue.x-k8s.io/multikueue"), runtime())
    assert found == ([] if way == "trainer" else ["spec.managedBy"])
