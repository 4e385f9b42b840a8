"""Pods that wait for reasons other than claims: room, taints, affinity, gates, gangs, quotas, extended resources."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.cluster.test_pending_devices import codes, why
from tests.cluster.world import JOBS, World, device, model_is, request

from dibs.errors import NotFound
from dibs.kube import client as kube
from dibs.kube import errors
from dibs.kube.pending import explain_pod


def test_too_few_of_an_extended_resource_is_reported_with_what_is_left(world: World) -> None:
    world.node(nvidia_com__gpu="8")
    world.pod("seven", limits={"nvidia.com/gpu": "7"})
    world.bound("seven")
    world.pod("two", limits={"nvidia.com/gpu": "2"})
    answer = why(world, "two")
    assert "Insufficient nvidia.com/gpu" in answer.words[0].message
    assert codes(answer) == ["RESOURCE_SHORT"]
    assert answer.reasons[0].text == "2 nvidia.com/gpu wanted; the node has 8, 1 of it left"


def test_more_than_a_node_will_ever_have_is_reported(world: World) -> None:
    world.node(nvidia_com__gpu="8")
    world.pod("nine", limits={"nvidia.com/gpu": "9"})
    answer = why(world, "nine")
    assert codes(answer) == ["RESOURCE_SHORT"]
    assert answer.reasons[0].remedy == "ask for at most 8"


def test_a_resource_that_no_node_offers_is_reported(world: World) -> None:
    world.node()
    world.pod("amd", limits={"amd.com/gpu": "1"})
    answer = why(world, "amd")
    assert codes(answer) == ["RESOURCE_UNKNOWN"]


def test_an_extended_resource_that_a_class_serves_is_judged_on_its_devices(world: World) -> None:
    world.node()
    world.device_class("ext", extendedResourceName="example.com/gpu")
    world.slice([device("gpu-0")])
    world.pod("first", limits={"example.com/gpu": "1"})
    world.bound("first")
    world.pod("second", limits={"example.com/gpu": "1"})
    answer = why(world, "second")
    assert codes(answer) == ["DEVICE_IN_USE"]
    assert "of pod default/first" in answer.reasons[0].text


def test_memory_and_cpu_are_judged_with_what_the_other_pods_have(world: World) -> None:
    world.node()
    world.pod("big", limits={"cpu": "6", "memory": "30Gi"})
    world.bound("big")
    world.pod("more", limits={"cpu": "3", "memory": "1Gi"})
    answer = why(world, "more")
    assert [one.text for one in answer.reasons] == ["3 cpu wanted; the node has 8, 2 of it left"]


def test_a_node_taint_is_named_with_the_toleration_it_needs(world: World) -> None:
    world.node(taints=[{"key": "team", "value": "a", "effect": "NoSchedule"}])
    world.pod("plain")
    answer = why(world, "plain")
    assert codes(answer) == ["NODE_TAINTED"]
    assert "team=a:NoSchedule" in answer.reasons[0].text


def test_a_cordoned_node_is_told_as_such(world: World) -> None:
    world.node()
    world.cluster.patch(kube.NODES, "fake-1", {"spec": {"unschedulable": True}})
    world.pod("plain")
    answer = why(world, "plain")
    assert codes(answer) == ["NODE_CORDONED"]


def test_selector_and_affinity_are_reported_and_the_nearest_node_is_named(world: World) -> None:
    world.node("near", labels={"zone": "a"})
    world.node("far", labels={"zone": "b"}, taints=[{"key": "team", "value": "a", "effect": "NoSchedule"}])
    term = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["c"]}]}
    required = {"nodeSelectorTerms": [term]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    world.pod("picky", affinity=affinity)
    answer = why(world, "picky")
    assert answer.nearest == "near"
    assert codes(answer) == ["NODE_AFFINITY"]
    assert "zone In c" in answer.reasons[0].text
    world.pod("labelled", nodeSelector={"zone": "c"})
    assert codes(why(world, "labelled")) == ["NODE_NOT_SELECTED"]


def test_a_scheduling_gate_is_named(world: World) -> None:
    world.node()
    world.pod("gated", schedulingGates=[{"name": "example.com/hold"}])
    answer = explain_pod(world.cluster, "default", "gated")
    assert codes(answer) == ["GATED"]
    assert "example.com/hold" in answer.reasons[0].text


def test_a_gang_short_of_pods_is_told_although_the_scheduler_says_nothing(world: World) -> None:
    world.node()
    group = {"metadata": {"name": "gang"}, "spec": {"schedulingPolicy": {"gang": {"minCount": 3}}}}
    world.cluster.create(kube.POD_GROUPS, group, "default")
    world.pod("lone", schedulingGroup={"podGroupName": "gang"})
    answer = explain_pod(world.cluster, "default", "lone")
    assert codes(answer) == ["GANG_SHORT"]
    assert "3 pods together, and has 1" in answer.reasons[0].text


def test_a_pod_that_a_quota_keeps_from_being_created_is_explained_by_its_owner(world: World) -> None:
    world.node(nvidia_com__gpu="8")
    world.cluster.create(
        kube.QUOTAS, {"metadata": {"name": "few"}, "spec": {"hard": {"requests.nvidia.com/gpu": "1"}}}, "default"
    )
    container = {"name": "main", "image": "example.com/none:1", "resources": {"limits": {"nvidia.com/gpu": "2"}}}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    world.cluster.create(JOBS, {"metadata": {"name": "train"}, "spec": {"template": template}}, "default")
    world.said("train", "FailedCreate")
    answer = explain_pod(world.cluster, "default", "train-x7k2p")
    assert answer.state == "not created"
    assert codes(answer) == ["QUOTA"]
    assert "exceeded quota: few" in answer.reasons[0].text
    assert "requests.nvidia.com/gpu 0 of 1" in answer.reasons[0].text


def test_a_pod_that_is_not_there_is_not_found_with_names_that_are_close(world: World) -> None:
    world.node()
    world.pod("trainer")
    with pytest.raises(NotFound) as refused:
        explain_pod(world.cluster, "default", "trainr")
    assert "trainer" in refused.value.problems[0].remedy


def test_a_pod_that_fits_is_told_that_nothing_stands_against_it(world: World) -> None:
    world.node()
    world.pod("elsewhere", schedulerName="absent-scheduler")
    answer = explain_pod(world.cluster, "default", "elsewhere")
    assert "NOTHING_AGAINST_IT" in codes(answer)
    assert "SCHEDULER_SILENT" in codes(answer)


def test_a_bound_pod_is_not_called_unschedulable(world: World) -> None:
    world.node()
    world.pod("bound")
    world.bound("bound")
    answer = explain_pod(world.cluster, "default", "bound")
    assert answer.state == "bound"
    assert "fake-1" in answer.reasons[0].text


VIEWER = {"kind": "User", "name": "viewer", "apiGroup": "rbac.authorization.k8s.io"}
ROLES = kube.Resource("rbac.authorization.k8s.io/v1", "clusterroles", "ClusterRole", False)
BINDINGS = kube.Resource("rbac.authorization.k8s.io/v1", "clusterrolebindings", "ClusterRoleBinding", False)


def bind(world: World, role: str) -> None:
    reference = {"kind": "ClusterRole", "name": role, "apiGroup": "rbac.authorization.k8s.io"}
    body = {"metadata": {"name": f"viewer-{role}"}, "roleRef": reference, "subjects": [VIEWER]}
    world.cluster.create(BINDINGS, body)


@pytest.fixture
def viewer(world: World) -> World:
    """A world with the role `view` for the viewer, and one more that may read nodes and devices."""
    rules = [
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list"]},
        {
            "apiGroups": ["resource.k8s.io"],
            "resources": ["resourceslices", "deviceclasses", "devicetaintrules"],
            "verbs": ["get", "list"],
        },
    ]
    world.cluster.create(ROLES, {"metadata": {"name": "device-reader"}, "rules": rules})
    bind(world, "view")
    return world


def forget(world: World) -> None:
    for name in ("viewer-view", "viewer-device-reader"):
        try:
            world.cluster.delete(BINDINGS, name)
        except errors.Missing:
            continue
    world.cluster.delete(ROLES, "device-reader")


def test_the_role_view_and_read_access_to_devices_are_enough(viewer: World) -> None:
    bind(viewer, "device-reader")
    try:
        viewer.node(nvidia_com__gpu="1")
        viewer.pod("two", limits={"nvidia.com/gpu": "2"})
        viewer.refused("two")
        with viewer.running.client("viewer") as cluster:
            answer = explain_pod(cluster, "default", "two")
        assert codes(answer) == ["RESOURCE_SHORT"]
        assert answer.unreadable == ()
    finally:
        forget(viewer)


def test_kubectl_why_tells_the_reasons_apart_for_pods_of_others_with_no_right_to_write(viewer: World) -> None:
    bind(viewer, "device-reader")
    try:
        viewer.node("plain", labels={"zone": "a"}, nvidia_com__gpu="2")
        viewer.device_class()
        viewer.slice([device("gpu-0")], node="plain")
        viewer.template("b200", request("gpu", model_is("SIM-B200")))
        viewer.pod("resource", limits={"nvidia.com/gpu": "3"})
        viewer.pod("claim", template="b200")
        term = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["c"]}]}
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
        viewer.pod("affinity", affinity={"nodeAffinity": required})
        for name in ("resource", "claim", "affinity"):
            viewer.refused(name)
        viewer.cluster.patch(kube.NODES, "plain", {"spec": {"taints": [{"key": "team", "effect": "NoSchedule"}]}})
        viewer.pod("taint")
        viewer.refused("taint")
        few = {"metadata": {"name": "few"}, "spec": {"hard": {"requests.nvidia.com/gpu": "3"}}}
        viewer.cluster.create(kube.QUOTAS, few, "default")
        container = {"name": "main", "image": "example.com/none:1", "resources": {"limits": {"nvidia.com/gpu": "4"}}}
        template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
        viewer.cluster.create(JOBS, {"metadata": {"name": "quota"}, "spec": {"template": template}}, "default")
        viewer.said("quota", "FailedCreate")
        wanted = {
            "resource": "RESOURCE_SHORT", "claim": "DEVICE_NO_MATCH", "affinity": "NODE_AFFINITY",
            "taint": "NODE_TAINTED", "quota-x7k2p": "QUOTA",
        }  # fmt: skip
        for name, code in wanted.items():
            assert f"[{code}]" in kubectl_why(viewer, name)
    finally:
        forget(viewer)


def kubectl_why(world: World, pod: str) -> str:
    """What `kubectl dibs why` prints for the viewer."""
    scripts = Path(sys.executable).parent
    done = subprocess.run(
        [str(world.running.binaries / "kubectl"), "dibs", "why", pod, "-n", "default"],
        capture_output=True, text=True, check=False,
        env={"PATH": f"{scripts}:/usr/bin:/bin", "KUBECONFIG": str(world.running.kubeconfig("viewer"))},
    )  # fmt: skip
    assert done.returncode == 83 or pod.startswith("quota"), done.stderr
    return done.stdout


def test_what_may_not_be_read_is_named_with_the_role_to_add_and_never_taken_for_empty(viewer: World) -> None:
    try:
        viewer.node(nvidia_com__gpu="1")
        viewer.pod("two", limits={"nvidia.com/gpu": "2"})
        said = viewer.refused("two")
        with viewer.running.client("viewer") as cluster:
            answer = explain_pod(cluster, "default", "two")
        assert "NO_NODES" not in codes(answer)
        assert said in [one.message for one in answer.words]
        named = {one.reason for one in answer.unreadable}
        assert "viewer may not list nodes in the whole cluster" in named
        (remedy,) = {one.remedy for one in answer.unreadable}  # one role for all of it
        assert "clusterrole dibs-read --verb=get,list,watch --resource=nodes,resourceslices.resource.k8s.io," in remedy
        assert remedy.endswith("--clusterrole=dibs-read --user=viewer")
    finally:
        forget(viewer)
