"""Kubernetes says "cannot allocate all claims" for all of these; dibs says which it is."""

from __future__ import annotations

import pytest
from tests.cluster.world import DRIVER, World, device, model_is, request

from dibs.errors import NotFound
from dibs.kube import client as kube
from dibs.kube.pending import explain_claim, explain_pod
from dibs.kube.verdicts import Waiting

SAME_WORDS = "cannot allocate all claims"


def why(world: World, pod: str) -> Waiting:
    said = world.refused(pod)
    answer = explain_pod(world.cluster, "default", pod)
    assert answer.state == "pending"
    assert said in [one.message for one in answer.words]
    return answer


def codes(answer: Waiting) -> list[str]:
    return [one.code for one in answer.reasons]


@pytest.fixture
def two_gpus(world: World) -> World:
    world.node()
    world.device_class()
    world.slice([device("gpu-0"), device("gpu-1", "SIM-A100", "40Gi")])
    return world


def test_a_selector_that_matches_nothing_is_named_with_the_nearest_device(two_gpus: World) -> None:
    two_gpus.template("b200", request("gpu", model_is("SIM-B200")))
    two_gpus.pod("nomatch", template="b200")
    answer = why(two_gpus, "nomatch")
    assert SAME_WORDS in answer.words[0].message
    assert codes(answer) == ["DEVICE_NO_MATCH"]
    (reason,) = answer.reasons
    assert "SIM-B200" in reason.text
    assert "fake-1/gpu-0" in reason.text
    assert "'SIM-H100'" in reason.remedy
    assert answer.nearest == "fake-1"


def test_used_up_devices_are_named_with_their_holders(two_gpus: World) -> None:
    two_gpus.template("one", request("gpu", model_is("SIM-H100")))
    two_gpus.pod("first", template="one")
    assert two_gpus.bound("first") == "fake-1"
    two_gpus.pod("second", template="one")
    answer = why(two_gpus, "second")
    assert SAME_WORDS in answer.words[0].message
    assert codes(answer) == ["DEVICE_IN_USE"]
    assert "fake-1/gpu-0: held by claim default/first-gpu-" in answer.reasons[0].text
    assert "of pod default/first" in answer.reasons[0].text


def test_a_tainted_device_is_named_with_its_taint(world: World) -> None:
    world.node()
    world.device_class()
    taint = {"key": "example.com/broken", "value": "ecc", "effect": "NoSchedule"}
    world.slice([device("gpu-0", taints=[taint])])
    world.template("one", request())
    world.pod("tainted", template="one")
    answer = why(world, "tainted")
    assert SAME_WORDS in answer.words[0].message
    assert codes(answer) == ["DEVICE_TAINTED"]
    assert "example.com/broken=ecc:NoSchedule" in answer.reasons[0].text
    assert "tolerat" in answer.reasons[0].remedy


def test_a_taint_rule_of_an_administrator_counts_too(two_gpus: World) -> None:
    taint = {"key": "example.com/maintenance", "effect": "NoSchedule"}
    rule = {"metadata": {"name": "maintenance"}, "spec": {"deviceSelector": {"driver": DRIVER}, "taint": taint}}
    two_gpus.cluster.create(kube.TAINT_RULES, rule)
    two_gpus.template("one", request())
    two_gpus.pod("ruled", template="one")
    answer = why(two_gpus, "ruled")
    assert codes(answer) == ["DEVICE_TAINTED"]
    assert "example.com/maintenance" in answer.reasons[0].text


def test_used_up_counters_are_named_with_what_draws_on_them(world: World) -> None:
    world.node()
    world.device_class()
    draws = [{"counterSet": "card-0", "counters": {"slices": {"value": "4"}}}]
    world.slice([], pool="mig", count=2, sharedCounters=[{"name": "card-0", "counters": {"slices": {"value": "7"}}}])
    world.slice([device(f"mig-{n}", consumesCounters=draws) for n in range(3)], pool="mig", count=2)
    world.template("one", request())
    world.pod("first", template="one")
    world.bound("first")
    world.pod("second", template="one")
    answer = why(world, "second")
    assert SAME_WORDS in answer.words[0].message
    assert codes(answer) == ["DEVICE_COUNTERS_USED_UP"]
    assert "of pod default/first" in answer.reasons[0].text


def test_used_up_capacity_is_named_with_what_shares_the_device(world: World) -> None:
    world.node()
    world.device_class()
    policy = {"default": "10Gi", "validRange": {"min": "10Gi", "step": "10Gi"}}
    shared = {
        "name": "gpu-0",
        "allowMultipleAllocations": True,
        "capacity": {"memory": {"value": "80Gi", "requestPolicy": policy}},
    }
    world.slice([shared])
    world.template("half", request(capacity={"requests": {"memory": "50Gi"}}))
    world.pod("first", template="half")
    world.bound("first")
    world.pod("second", template="half")
    answer = why(world, "second")
    assert SAME_WORDS in answer.words[0].message
    assert codes(answer) == ["DEVICE_CAPACITY_SHORT"]
    assert "held by claim default/first-gpu-" in answer.reasons[0].text


def test_a_broken_constraint_is_named(two_gpus: World) -> None:
    constraint = {"requests": ["gpu"], "matchAttribute": f"{DRIVER}/model"}
    two_gpus.template("alike", request(count=2), constraints=[constraint])
    two_gpus.pod("alike", template="alike")
    answer = why(two_gpus, "alike")
    assert SAME_WORDS in answer.words[0].message
    assert "DEVICE_CONSTRAINT" in codes(answer)


def test_requests_that_fit_only_alone_are_told_so(two_gpus: World) -> None:
    two_gpus.template("three", request("a", count=1), request("b", count=2))
    two_gpus.pod("three", template="three")
    answer = why(two_gpus, "three")
    assert "DEVICES_TOGETHER" in codes(answer)


def test_more_devices_than_there_are_is_reported_with_the_number(two_gpus: World) -> None:
    two_gpus.template("many", request(count=3))
    two_gpus.pod("many", template="many")
    answer = why(two_gpus, "many")
    assert codes(answer) == ["DEVICE_NO_MATCH"]
    assert "only 2 match" in answer.reasons[0].text
    assert "at most 2" in answer.reasons[0].remedy


def test_a_selector_that_fails_is_the_schedulers_error_and_named(two_gpus: World) -> None:
    two_gpus.template("typo", request("gpu", f"device.attributes['{DRIVER}'].nosuch == 'x'"))
    two_gpus.pod("typo", template="typo")
    answer = why(two_gpus, "typo")
    assert answer.words[0].reason == "SchedulerError"
    assert codes(answer) == ["SELECTOR_FAILS"]
    assert "has(x)" in answer.reasons[0].remedy


def test_a_missing_class_is_named(two_gpus: World) -> None:
    two_gpus.template("classless", request(device_class="nosuch.example.com"))
    two_gpus.pod("classless", template="classless")
    answer = why(two_gpus, "classless")
    assert codes(answer) == ["CLASS_MISSING"]
    assert DRIVER in answer.reasons[0].remedy


def test_a_missing_template_is_named_although_the_scheduler_says_nothing(two_gpus: World) -> None:
    two_gpus.pod("orphan", template="absent")
    two_gpus.said("orphan", "FailedResourceClaimCreation")
    answer = explain_pod(two_gpus.cluster, "default", "orphan")
    assert codes(answer) == ["TEMPLATE_MISSING"]
    assert any('"absent" not found' in one.message for one in answer.words)


def test_a_claim_that_no_pod_uses_waits_for_one(two_gpus: World) -> None:
    two_gpus.claim("unused", request())
    answer = explain_claim(two_gpus.cluster, "default", "unused")
    assert answer.state == "pending"
    assert codes(answer)[0] == "CLAIM_UNUSED"
    assert all(verdict.fits for verdict in answer.nodes)


def test_a_claim_in_use_names_its_devices(two_gpus: World) -> None:
    two_gpus.claim("mine", request("gpu", model_is("SIM-A100")))
    two_gpus.pod("user", claim="mine")
    two_gpus.bound("user")
    answer = explain_claim(two_gpus.cluster, "default", "mine")
    assert answer.state == "allocated"
    assert "fake-1/gpu-1" in answer.reasons[0].text
    assert "user" in answer.reasons[0].text


def test_a_claim_that_is_not_there_is_not_found_with_those_that_were_made_of_its_name(two_gpus: World) -> None:
    two_gpus.claim("mine-gpu-x7k2p", request())
    with pytest.raises(NotFound) as refused:
        explain_claim(two_gpus.cluster, "default", "mine-gpu")
    assert refused.value.problems[0].remedy == "did you mean mine-gpu-x7k2p?"


def test_a_pending_claim_is_explained_like_its_pod(two_gpus: World) -> None:
    two_gpus.claim("b200", request("gpu", model_is("SIM-B200")))
    two_gpus.pod("waiter", claim="b200")
    two_gpus.refused("waiter")
    answer = explain_claim(two_gpus.cluster, "default", "b200")
    assert "CLAIM_WAITS_FOR_POD" in codes(answer)
    assert [one.code for one in answer.nodes[0].reasons] == ["DEVICE_NO_MATCH"]
