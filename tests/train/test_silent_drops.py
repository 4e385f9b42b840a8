"""The lines of the catalogue that are about training jobs: what is asked for is delivered, or refused at once."""

from __future__ import annotations

from typing import Any

import pytest
from tests.train.jobs import env, exactly, job, node, patch, pod_of, refused, rendered, replicated, runtime, template

from dibs.train.facts import COSCHEDULING_CRD, Facts
from dibs.train.names import DOUBLE_ALLOCATION, MIN_DEVICES
from dibs.train.review import review_job

Json = dict[str, Any]

CLAIMED: Json = {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "h100"}]}
H100 = Facts(templates={"h100": template(exactly(4)), "a100": template(exactly(2))}, claims={})


def claimed(**container: Any) -> Json:
    resources = {"claims": [{"name": "gpu"}], **container.pop("resources", {})}
    return runtime(replicated(pod=dict(CLAIMED), resources=resources, **container))


@pytest.mark.parametrize("resources", [{}, {"limits": {"memory": "8Gi"}}, {"requests": {"cpu": "2"}}])
def test_sd_26_resources_per_node_leave_the_claims_of_the_runtime(resources: Json) -> None:
    made = rendered(job(trainer={"resourcesPerNode": resources}), claimed(), H100)
    assert node(made)["resources"]["claims"] == [{"name": "gpu"}]
    assert {key: node(made)["resources"][key] for key in resources} == resources


def test_sd_26_resources_per_node_are_applied_without_a_policy_and_to_the_workers_of_mpi() -> None:
    trainer = {"numNodes": 2, "resourcesPerNode": {"limits": {"nvidia.com/gpu": 2}}}
    bare = runtime(policy={})
    del bare["spec"]["mlPolicy"]
    assert node(rendered(job(trainer=trainer), bare))["resources"]["limits"] == {"nvidia.com/gpu": "2"}
    separate = runtime(replicated("node", ""), replicated("launcher"), policy={"mpi": {}})
    made = rendered(job(trainer=trainer), separate)
    assert [node(made, index)["resources"] for index in (0, 1)] == [{"limits": {"nvidia.com/gpu": "2"}}, {}]


def test_sd_27_claims_in_resources_per_node_are_refused_with_the_field_to_use() -> None:
    [reason] = refused(job(trainer={"resourcesPerNode": {"claims": [{"name": "gpu"}]}}))
    assert "use resourceClaimsPerNode instead" in reason


def test_sd_28_a_claim_of_the_same_name_replaces_the_source_whole() -> None:
    shared = runtime(
        replicated(
            pod={"resourceClaims": [{"name": "gpu", "resourceClaimName": "shared"}]},
            resources={"claims": [{"name": "gpu", "request": "r"}]},
        )
    )
    entry = {"name": "gpu", "resourceClaimTemplateName": "h100"}
    by_patch = rendered(job(patches=[patch({"resourceClaims": [entry]})], trainer={"numProcPerNode": 1}), shared, H100)
    assert pod_of(by_patch)["resourceClaims"] == [entry]
    by_job = rendered(job(trainer={"resourceClaimsPerNode": [entry]}), shared, H100)
    assert pod_of(by_job)["resourceClaims"] == [entry]
    assert node(by_job)["resources"]["claims"] == [{"name": "gpu"}]


def test_sd_28_volumes_and_variables_get_one_source_too() -> None:
    own = runtime(
        replicated(pod={"volumes": [{"name": "w", "emptyDir": {}}], "containers": [
            {"name": "node", "image": "i"}, {"name": "side", "image": "i", "env": [{"name": "A", "value": "1"}]}]})
    )  # fmt: skip
    source = {"fieldRef": {"fieldPath": "metadata.name"}}
    change = {
        "volumes": [{"name": "w", "hostPath": {"path": "/x"}}],
        "containers": [{"name": "side", "env": [{"name": "A", "valueFrom": source}]}],
    }
    pod = pod_of(rendered(job(patches=[patch(change)]), own))
    assert pod["volumes"] == [{"name": "w", "hostPath": {"path": "/x"}}]
    assert pod["containers"][1]["env"] == [{"name": "A", "valueFrom": source}]


def test_sd_29_a_claim_that_a_patch_takes_from_a_container_is_a_warning() -> None:
    two = {"resourceClaims": [*CLAIMED["resourceClaims"], {"name": "old", "resourceClaimTemplateName": "a100"}]}
    own = runtime(replicated(pod=two, resources={"claims": [{"name": "old"}, {"name": "gpu"}]}))
    change = {"containers": [{"name": "node", "resources": {"claims": [{"name": "gpu"}]}}]}
    made = rendered(job(patches=[patch(change)]), own, H100)
    assert node(made)["resources"]["claims"] == [{"name": "gpu"}]
    assert any('"acme.io/team" replaces the claims' in line and "loses old" in line for line in made.warnings)


def test_sd_30_the_number_of_processes_comes_from_the_claims() -> None:
    made = rendered(job(), claimed(resources={"requests": {"cpu": "64"}}), H100)
    assert env(node(made))["PET_NPROC_PER_NODE"] == "4"
    assert made.processes is not None
    assert "claim gpu, request gpu: 4" in made.processes.reason


@pytest.mark.parametrize(
    ("requests", "reason"),
    [
        ([{"name": "gpu", "firstAvailable": [{"name": "a", "deviceClassName": "gpu.nvidia.com", "count": 1},
                                             {"name": "b", "deviceClassName": "gpu.nvidia.com", "count": 2}]}],
         "alternatives with 1 and 2 devices"),
        ([{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com", "allocationMode": "All"}}], "is no number"),
        ([exactly(2, "acme.example/thing")], "device class acme.example/thing"),
    ],
)  # fmt: skip
def test_sd_30_a_number_that_the_claims_do_not_say_is_asked_for(requests: list[Json], reason: str) -> None:
    facts = Facts(templates={"h100": template(*requests)}, claims={})
    [line] = refused(job(), claimed(), facts)
    assert reason in line
    assert "set spec.trainer.numProcPerNode" in line
    assert env(node(rendered(job(trainer={"numProcPerNode": 3}), claimed(), facts)))["PET_NPROC_PER_NODE"] == "3"


def test_sd_30_alternatives_of_one_size_and_devices_without_processes_are_counted_right() -> None:
    alternatives = [{"name": name, "deviceClassName": f"gpu.{name}.com", "count": 2} for name in ("nvidia", "amd")]
    requests = [
        {"name": "gpu", "firstAvailable": alternatives},
        exactly(1, "nic", "nic"),
        exactly(1, "gpu.nvidia.com", "watch", adminAccess=True),
    ]
    made = rendered(job(), claimed(), Facts(templates={"h100": template(*requests)}, claims={}))
    assert env(node(made))["PET_NPROC_PER_NODE"] == "2"


def test_sd_31_devices_of_the_runtime_count_when_the_job_says_only_memory() -> None:
    own = runtime(replicated(resources={"limits": {"nvidia.com/gpu": 4, "memory": "1Gi"}}))
    made = rendered(job(trainer={"resourcesPerNode": {"limits": {"memory": "64Gi"}}}), own)
    assert env(node(made))["PET_NPROC_PER_NODE"] == "4"


@pytest.mark.parametrize(
    ("resource", "processes"),
    [("nvidia.com/mig-1g.10gb", "3"), ("google.com/tpu", "3"), ("amd.com/gpu", "3"), ("habana.ai/gaudi", "3"),
     ("nvidia.com/gpumem", "1"), ("rdma/hca_shared", "1")],
)  # fmt: skip
def test_sd_32_devices_are_counted_by_what_they_are_not_by_their_name(resource: str, processes: str) -> None:
    made = rendered(job(trainer={"resourcesPerNode": {"limits": {resource: 3}}}))
    assert env(node(made))["PET_NPROC_PER_NODE"] == processes


def test_sd_33_the_rendezvous_environment_is_set_without_a_trainer_section() -> None:
    for policy, first in (("torch", "PET_NNODES"), ("jax", "JAX_NUM_PROCESSES"), ("xgboost", "DMLC_")):
        made = rendered(job(), runtime(policy={policy: {}, "numNodes": 3}))
        assert any(name.startswith(first) for name in env(node(made)))
        assert {"containerPort": 29500, "protocol": "TCP"} in node(made)["ports"]


def test_sd_34_the_address_is_the_one_that_the_pods_have() -> None:
    own = runtime(replicated("worker"), jobset={"network": {"subdomain": "ring"}})
    assert env(node(rendered(job(), own)))["PET_MASTER_ADDR"] == "demo-worker-0-0.ring"


def test_sd_35_a_claim_that_no_container_uses_is_a_warning() -> None:
    own = runtime(replicated(pod=dict(CLAIMED)))
    [warning] = rendered(job(), own, H100).warnings
    assert 'claim "gpu" of job "node" is used by no container' in warning


def test_sd_36_devices_asked_for_twice_are_refused_unless_said_on_purpose() -> None:
    own = claimed(resources={"limits": {"nvidia.com/gpu": 1}})
    wanted = job()
    assert any("asked for twice" in line for line in refused(wanted, own, H100))
    wanted["metadata"]["annotations"] = {DOUBLE_ALLOCATION: "allowed"}
    assert env(node(rendered(wanted, own, H100)))["PET_NPROC_PER_NODE"] == "5"


@pytest.mark.parametrize(
    ("pod", "reason"),
    [
        ({"tolerations": []}, "an empty list changes nothing"),
        ({"volumes": [{"name": "v", "emptyDir": {}, "hostPath": {"path": "/"}}]}, "must have one source"),
        ({"containers": [{"name": "node", "volumeMounts": [{"name": "gone", "mountPath": "/g"}]}]}, "no such volume"),
        ({"containers": [{"name": "node", "resources": {"claims": [{"name": "x"}]}}]}, 'references resourceClaim "x"'),
        ({"containers": [{"name": "node", "resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "2"}}}]},
         "must be less than or equal to cpu limit"),
        ({"containers": [{"name": "node", "image": "other"}]}, "unknown field"),
        ({"resourceClaims": [{"name": "gpu"}]}, "must set either resourceClaimName or resourceClaimTemplateName"),
        ({"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "team-b/h100"}]}, "own namespace"),
        ({"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "gone"}]}, "no such ResourceClaimTemplate"),
    ],
)  # fmt: skip
def test_sd_37_a_patch_that_makes_no_valid_pod_is_refused_at_once(pod: Json, reason: str) -> None:
    lines = refused(job(patches=[patch(pod)], trainer={"numProcPerNode": 1}), facts=H100)
    assert any(reason in line for line in lines), lines


def test_sd_39_a_gang_counts_limits_and_devices_by_claim() -> None:
    own = claimed(resources={"limits": {"example.com/thing": 1}, "requests": {"cpu": "500m"}})
    own["spec"] |= {"podGroupPolicy": {"coscheduling": {}}, "mlPolicy": {"torch": {}, "numNodes": 3}}
    made = rendered(job(), own, H100)
    group = next(one for one in made.companions if one["kind"] == "PodGroup")
    assert group["spec"]["minResources"] == {"cpu": "1500m", "example.com/thing": "3"}
    assert group["metadata"]["annotations"][MIN_DEVICES] == '{"gpu.nvidia.com": 12}'


def test_sd_49_patches_for_what_the_runtime_does_not_have_are_refused_and_the_known_names_listed() -> None:
    patches = [patch({}, "nope"), patch({"containers": [{"name": "gone"}]}, manager="acme.io/other")]
    lines = refused(job(patches=patches))
    assert ["the jobs are node" in lines[0], "its containers are node" in lines[1]] == [True, True]


@pytest.mark.parametrize("where", ["job", "runtime"])
def test_sd_50_the_number_of_nodes_is_that_number_whichever_field_says_it(where: str) -> None:
    policy = {"mpi": {"runLauncherAsNode": True}, "numNodes": 3 if where == "runtime" else 1}
    own = runtime(replicated("node", ""), replicated("launcher"), policy=policy)
    made = rendered(job(trainer={"numNodes": 3} if where == "job" else {}), own)
    pods = [one["template"]["spec"]["parallelism"] for one in made.jobset["spec"]["replicatedJobs"]]
    assert pods == [2, 1]
    hosts = next(one["data"]["hostfile"] for one in made.companions if one["metadata"]["name"] == "demo-mpi-hostfile")
    assert len(hosts.splitlines()) == 3


@pytest.mark.parametrize("suspended", [False, True])
def test_sd_51_a_change_that_the_jobset_would_not_take_is_refused(suspended: bool) -> None:
    own = runtime()

    def lookup(kind: str, name: str) -> Json:
        from dibs.train.objects import read_runtime

        return read_runtime(own)

    created = review_job(job(suspend=suspended), lookup, Facts())
    changed = review_job(job(suspend=suspended, trainer={"numNodes": 4}), lookup, Facts(), old=created.job)
    assert [str(refusal).partition(":")[0] for refusal in changed.refusals] == ["spec.trainer"]
    selector = patch({"nodeSelector": {"pool": "a"}})
    allowed = review_job(job(suspend=suspended, patches=[selector]), lookup, Facts(), old=created.job)
    assert allowed.allowed == suspended


def test_sd_52_a_gang_that_the_cluster_has_no_crd_for_is_refused_by_name() -> None:
    own = {**runtime()}
    own["spec"]["podGroupPolicy"] = {"coscheduling": {}}
    [line] = refused(job(), own, Facts(crds=frozenset()))
    assert COSCHEDULING_CRD in line
    assert not refused(job(), own, Facts(crds=frozenset({COSCHEDULING_CRD})))


def test_sd_53_the_ports_of_a_runtime_stay() -> None:
    ports = [{"containerPort": 8080}, {"containerPort": 9090}, {"containerPort": 53, "protocol": "UDP"}]
    found = node(rendered(job(), runtime(replicated(ports=ports))))["ports"]
    assert [one["containerPort"] for one in found] == [8080, 9090, 53, 29500]
