"""Reading TrainJobs and runtimes: strict, complete, with paths."""

from __future__ import annotations

from typing import Any

import pytest
from tests.train.jobs import job, patch, replicated, runtime

from dibs.train.objects import read_job, read_runtime
from dibs.train.refusals import TrainRefused

Json = dict[str, Any]

PATCHED = "spec.runtimePatches[0].trainingRuntimeSpec.template.spec.replicatedJobs[0]"


def problems(value: Any, old: Json | None = None) -> list[str]:
    with pytest.raises(TrainRefused) as refused:
        read_job(value, old)
    return [problem.field for problem in refused.value.problems]


def test_unknown_and_misplaced_fields_are_named_with_their_paths_all_at_once() -> None:
    bad = job(patches=[patch({"hostNetwork": True})], trainer={"numnodes": 2, "env": [{"name": "A", "val": "1"}]})
    bad["spec"]["replicas"] = 1
    bad["extra"] = {}
    assert set(problems(bad)) == {
        "extra",
        "spec.replicas",
        "spec.trainer.numnodes",
        "spec.trainer.env[0].val",
        f"{PATCHED}.template.spec.template.spec.hostNetwork",
    }


@pytest.mark.parametrize("garbage", [None, 1, "x", [], {}, {"kind": "Pod"}, {"apiVersion": "v1", "kind": "TrainJob"}])
def test_garbage_is_refused_and_raises_nothing_else(garbage: Any) -> None:
    for read in (read_job, read_runtime):
        with pytest.raises(TrainRefused):
            read(garbage)


def test_null_counts_as_unset_and_defaults_are_filled_in() -> None:
    spec = read_job(job(trainer={"numNodes": None, "env": None}))["spec"]
    assert spec["trainer"] == {}
    assert spec["suspend"] is False
    assert spec["managedBy"] == "trainer.kubeflow.org/trainjob-controller"
    assert spec["runtimeRef"]["kind"] == "ClusterTrainingRuntime"


def test_amounts_are_read_as_kubernetes_reads_them() -> None:
    limits = {"cpu": 2.0, "memory": "1024Mi", "nvidia.com/gpu": 4}
    read = read_job(job(trainer={"resourcesPerNode": {"limits": limits}}))
    assert read["spec"]["trainer"]["resourcesPerNode"]["limits"] == {"cpu": "2", "memory": "1Gi", "nvidia.com/gpu": "4"}
    assert problems(job(trainer={"resourcesPerNode": {"limits": {"cpu": "two", "memory": True}}})) == [
        "spec.trainer.resourcesPerNode.limits.cpu",
        "spec.trainer.resourcesPerNode.limits.memory",
    ]


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"runtimeRef": {"name": "other"}}, "spec.runtimeRef"),
        ({"trainer": {"numNodes": 3}}, "spec.trainer"),
        ({"activeDeadlineSeconds": 7}, "spec.activeDeadlineSeconds"),
        ({"patches": [patch({"serviceAccountName": "b"})]}, "spec.runtimePatches[0]"),
    ],
)
def test_what_is_immutable_cannot_be_changed(changed: Json, field: str) -> None:
    first: Json = {
        "trainer": {"numNodes": 2},
        "activeDeadlineSeconds": 5,
        "patches": [patch({"serviceAccountName": "a"})],
    }
    old = read_job(job(**first))
    new = job(**{**first, **{key: value for key, value in changed.items() if key != "runtimeRef"}})
    new["spec"] |= {key: value for key, value in changed.items() if key == "runtimeRef"}
    [found] = problems(new, old)
    assert found.startswith(field)
    assert read_job(job(**first), old) == old


def test_the_order_of_a_list_with_keys_does_not_count_as_a_change() -> None:
    variables = [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]
    old = read_job(job(trainer={"env": variables}))
    read_job(job(trainer={"env": variables[::-1]}), old)


def test_a_runtime_has_one_policy_at_most() -> None:
    with pytest.raises(TrainRefused, match="Only one of the policy can be configured"):
        read_runtime(runtime(policy={"torch": {}, "jax": {}}))


def test_claims_per_node_are_named_as_labels_and_once() -> None:
    claims = [{"name": "Gpu", "resourceClaimTemplateName": "t"}, {"name": "a", "resourceClaimTemplateName": ""},
              {"name": "a", "resourceClaimTemplateName": "t"}]  # fmt: skip
    where = "spec.trainer.resourceClaimsPerNode"
    found = problems(job(trainer={"resourceClaimsPerNode": claims}))
    assert found == [f"{where}[0].name", f"{where}[1].resourceClaimTemplateName", f"{where}[2]"]


def test_what_was_read_is_read_again_as_the_same() -> None:
    own = runtime(replicated(resources={"limits": {"cpu": 1}}), policy={"mpi": {}})
    assert read_runtime(read_runtime(own)) == read_runtime(own)
    wanted = job(trainer={"numNodes": 2}, patches=[patch({"nodeSelector": {"a": "b"}})])
    assert read_job(read_job(wanted)) == read_job(wanted)
