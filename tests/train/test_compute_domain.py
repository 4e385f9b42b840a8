"""ComputeDomains of NVIDIA: one for each job that asks, with a claim for each node; else refused by name."""

from __future__ import annotations

from typing import Any

import pytest
from tests.train.jobs import env, exactly, job, node, pod_of, refused, rendered, replicated, runtime, template

from dibs.train.facts import COMPUTE_DOMAIN_CRD, Facts
from dibs.train.job_annotations import COMPUTE_DOMAIN

Json = dict[str, Any]
THERE = Facts(crds=frozenset((COMPUTE_DOMAIN_CRD,)), templates={"h100": template(exactly(4))}, claims={})


def asking(name: str = "imex", **spec: Any) -> Json:
    made = job(**spec)
    return {**made, "metadata": {**made["metadata"], "annotations": {COMPUTE_DOMAIN: name}}}


def test_a_job_gets_a_domain_of_its_nodes_and_each_node_a_claim() -> None:
    made = rendered(asking(trainer={"numNodes": 3, "resourcesPerNode": {"limits": {"nvidia.com/gpu": 2}}}), facts=THERE)
    [domain] = [one for one in made.companions if one["kind"] == "ComputeDomain"]
    assert domain["apiVersion"] == "resource.nvidia.com/v1beta1"
    assert domain["metadata"]["name"] == "demo-imex"
    assert domain["spec"] == {"numNodes": 3, "channel": {"resourceClaimTemplate": {"name": "demo-imex"}}}
    assert pod_of(made)["resourceClaims"] == [{"name": "imex", "resourceClaimTemplateName": "demo-imex"}]
    assert node(made)["resources"]["claims"] == [{"name": "imex"}]
    assert env(node(made))["PET_NPROC_PER_NODE"] == "2"  # a channel is no device that a process drives
    assert made.warnings == ()


def test_it_stands_beside_the_claims_of_devices_and_on_every_node_of_mpi() -> None:
    claims = [{"name": "gpu", "resourceClaimTemplateName": "h100"}]
    made = rendered(asking(trainer={"resourceClaimsPerNode": claims}), facts=THERE)
    assert node(made)["resources"]["claims"] == [{"name": "gpu"}, {"name": "imex"}]
    assert env(node(made))["PET_NPROC_PER_NODE"] == "4"
    launcher = runtime(
        replicated("launcher"), replicated("node", ""), policy={"mpi": {"runLauncherAsNode": True}, "numNodes": 3}
    )
    both = rendered(asking(), launcher, THERE)
    for index in (0, 1):
        assert [one["name"] for one in pod_of(both, index)["resourceClaims"]] == ["imex"]
    assert [one["spec"]["numNodes"] for one in both.companions if one["kind"] == "ComputeDomain"] == [3]


@pytest.mark.parametrize(
    ("name", "facts", "words"),
    [
        ("imex", Facts(crds=frozenset(), templates={}, claims={}), COMPUTE_DOMAIN_CRD),
        ("Not A Label", THERE, "must be a DNS label"),
    ],
)
def test_what_cannot_be_is_refused_by_name(name: str, facts: Facts, words: str) -> None:
    [reason] = refused(asking(name), facts=facts)
    assert words in reason


def test_a_name_that_is_taken_is_refused() -> None:
    claims = [{"name": "imex", "resourceClaimTemplateName": "h100"}]
    reasons = refused(asking(trainer={"resourceClaimsPerNode": claims}), facts=THERE)
    assert any("a claim of that name is there already" in one for one in reasons)
