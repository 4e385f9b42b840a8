"""From a TrainJob and a runtime to a JobSet: what is merged, in which order, and that the same goes in as before."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from tests.train.jobs import env, exactly, job, node, patch, pod_of, refused, rendered, replicated, runtime, template

from dibs.train.facts import Facts
from dibs.train.objects import read_job, read_runtime
from dibs.train.rendering import render

Json = dict[str, Any]


def test_the_same_job_gives_the_same_bytes_and_its_arguments_stay_as_they_are() -> None:
    wanted = read_job(job(trainer={"numNodes": 2}, patches=[patch({"nodeSelector": {"b": "2", "a": "1"}})]))
    own = read_runtime(runtime(replicated("init", "", pod={"nodeSelector": {"c": "3"}}), replicated()))
    before = copy.deepcopy((wanted, own))
    first, second = (json.dumps(render(wanted, own).objects) for _ in range(2))
    assert first == second
    assert (wanted, own) == before
    shuffled = {key: own[key] for key in reversed(list(own))}
    assert json.dumps(render(wanted, shuffled).objects) == first


def test_patches_are_applied_in_their_order_and_the_jobs_keep_theirs() -> None:
    own = runtime(replicated("b", ""), replicated("node"))
    patches = [
        patch({"nodeSelector": {"x": "1"}}, "node", "a.io/first"),
        patch({"nodeSelector": {"x": "2"}}, "node", "a.io/second"),
        patch({"nodeSelector": {"y": "1"}}, "b", "a.io/third"),
    ]
    made = rendered(job(patches=patches), own)
    assert [one["name"] for one in made.jobset["spec"]["replicatedJobs"]] == ["b", "node"]
    assert [pod_of(made, index)["nodeSelector"] for index in (0, 1)] == [{"y": "1"}, {"x": "2"}]


def test_claims_per_node_win_over_patches_and_patches_over_the_runtime() -> None:
    own = runtime(
        replicated(
            pod={"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "a100"},
                                    {"name": "nic", "resourceClaimTemplateName": "nic"}]},
            resources={"claims": [{"name": "nic"}, {"name": "gpu", "request": "gpu"}]},
        )
    )  # fmt: skip
    known = {"a100": template(exactly(1)), "h100": template(exactly(2)), "b200": template(exactly(8)),
             "nic": template(exactly(1, "nic"))}  # fmt: skip
    facts = Facts(templates=known, claims={})
    by_patch = patch({"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "h100"}]})
    assert env(node(rendered(job(), own, facts)))["PET_NPROC_PER_NODE"] == "1"
    assert env(node(rendered(job(patches=[by_patch]), own, facts)))["PET_NPROC_PER_NODE"] == "2"
    per_node = [{"name": "gpu", "resourceClaimTemplateName": "b200"}]
    made = rendered(job(patches=[by_patch], trainer={"resourceClaimsPerNode": per_node}), own, facts)
    assert env(node(made))["PET_NPROC_PER_NODE"] == "8"
    assert pod_of(made)["resourceClaims"] == [*per_node, {"name": "nic", "resourceClaimTemplateName": "nic"}]
    assert node(made)["resources"]["claims"] == [{"name": "gpu"}, {"name": "nic"}]


def test_with_the_gate_off_every_claim_of_the_job_is_forbidden_by_its_path() -> None:
    claims = [{"name": "gpu", "resourceClaimTemplateName": "t"}]
    change = {"resourceClaims": claims, "containers": [{"name": "node", "resources": {"claims": [{"name": "gpu"}]}}]}
    trainer = {"resourceClaimsPerNode": claims, "numProcPerNode": 1}
    lines = refused(job(trainer=trainer, patches=[patch(change)]), facts=Facts(claims_enabled=False))
    assert len(lines) == 3
    assert all("TrainJobDynamicResourceAllocation feature gate is disabled" in line for line in lines)


def test_a_class_can_say_that_its_devices_get_a_process() -> None:
    own = runtime(
        replicated(pod={"resourceClaims": [{"name": "x", "resourceClaimTemplateName": "t"}]},
                   resources={"claims": [{"name": "x"}], "limits": {"acme.example/npu": 2}})
    )  # fmt: skip
    said = {"metadata": {"name": "npu.acme", "labels": {"train.dibs/processes": "per-device"}},
            "spec": {"extendedResourceName": "acme.example/npu"}}  # fmt: skip
    facts = Facts(templates={"t": template(exactly(3, "rdma"))}, claims={}, classes={"npu.acme": said})
    assert env(node(rendered(job(), own, facts)))["PET_NPROC_PER_NODE"] == "2"


def test_flux_is_refused_by_name() -> None:
    assert any("flux policy is not supported" in line for line in refused(job(), runtime(policy={"flux": {}})))


@pytest.mark.parametrize(("nodes", "command"), [(1, "single_device"), (2, "must be 1 for")])
def test_torchtune_gets_the_recipe_for_what_it_has(nodes: int, command: str) -> None:
    own = runtime(replicated(command=["tune", "run", "output_dir=/out"], resources={"limits": {"nvidia.com/gpu": 1}}))
    own["metadata"]["name"] = "torchtune-llama3.2-1b"
    wanted = job(runtime="torchtune-llama3.2-1b", trainer={"command": ["tune", "run"], "numNodes": nodes})
    if nodes == 1:
        made = node(rendered(wanted, own))
        assert made["command"][2:] == [
            "full_finetune_single_device", "--config", "llama3_2/1B_full_single_device", "output_dir=/out"
        ]  # fmt: skip
        assert "PET_MASTER_ADDR" not in env(made)
    else:
        assert any(command in line for line in refused(wanted, own))


def test_all_problems_of_a_job_are_reported_together() -> None:
    wanted = job(trainer={"numNodes": 0, "numProcPerNode": 0, "env": [{"name": "PET_NNODES", "value": "1"}]},
                 patches=[patch({}, "nope", "bad")])  # fmt: skip
    fields = [line.partition(" ")[0] for line in refused(wanted)]
    assert fields == [
        "spec.runtimePatches.manager",
        "spec.runtimePatches[0].trainingRuntimeSpec.template.spec.replicatedJobs[0].name",
        "spec.trainer.env",
        "spec.trainer.numNodes",
        "spec.trainer.numProcPerNode",
    ]
