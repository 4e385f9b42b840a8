"""What dibs renders is accepted by the real API server, field by field; and what cannot be said is refused."""

from __future__ import annotations

import os
from random import Random, SystemRandom
from typing import Any

import pytest
from tests.cluster.world import World, device

from dibs.errors import DibsError, InvalidRequest
from dibs.kube import client as kube
from dibs.kube import objects as core
from dibs.kube.render import KINDS, Kind, Offers, Rendered, owner_of, render
from dibs.request.pod_options import PodOptions, read_options
from dibs.request.spec import parse_spec

PLUGIN = Offers(extended=frozenset({"nvidia.com/gpu", "nvidia.com/mig-1g.10gb"}), classes=(), has_dra=True)
DRA = Offers(classes=("gpu.nvidia.com", "mig.nvidia.com", "gpu.amd.com"))
BOTH = Offers(extended=PLUGIN.extended, classes=DRA.classes)


def rendered(offers: Offers, options: PodOptions | None = None, kind: Kind = "Pod", **request: Any) -> Rendered:
    spec = parse_spec({"image": "example.com/none:1", "command": ["true"], "workdir": "/", **request})
    return render(spec, "box", offers, options or PodOptions(), KINDS[kind][0])


def refusals(offers: Offers, options: PodOptions | None = None, **request: Any) -> list[str]:
    with pytest.raises(InvalidRequest) as refused:
        rendered(offers, options, **request)
    return [one.code for one in refused.value.problems]


def container(found: Rendered) -> dict[str, Any]:
    (one,) = found.workload["spec"]["containers"]
    assert isinstance(one, dict)
    return one


REQUESTS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "one": {"gpu": 1},
    "vendor": {"gpu": "nvidia:2"},
    "model": {"gpu": "H100:2"},
    "models and memory": {"gpu": "nvidia:H100,A100:80GB..:2"},
    "an upper bound": {"gpu": "..40GB"},
    "a profile": {"gpu": "1g.10gb"},
    "two selectors": {"gpu": ["nvidia:H100", "amd:1"]},
    "where": {"gpu": "nvidia:1", "where": ["device.attributes[device.driver].?type.orValue('') == 'gpu'"]},
    "limits": {"gpu": "nvidia:1", "cpu": "500m", "memory": "1.5Gi", "shm": "1Gi"},
    "all the rest": {
        "env": {"A": "1"}, "user": "1000:1000", "read_only": True, "ttl": "90s", "grace": "3s", "labels": {"team": "a"},
        "platform": "linux/amd64", "entrypoint": ["/bin/sh", "-c"],
    },
}  # fmt: skip


@pytest.mark.parametrize("offers", [DRA, BOTH], ids=["dra only", "both"])
@pytest.mark.parametrize("name", list(REQUESTS))
def test_every_manifest_is_accepted_with_strict_field_validation(world: World, name: str, offers: Offers) -> None:
    found = rendered(offers, **REQUESTS[name])
    pod = world.cluster.create(kube.PODS, found.workload, "default", dry_run=True)
    assert found.form == ("none" if "gpu" not in REQUESTS[name] else found.form)
    if found.template is not None:
        world.cluster.create(kube.TEMPLATES, found.template, "default", dry_run=True)
        assert pod["spec"]["resourceClaims"] == found.workload["spec"]["resourceClaims"]
        assert not any("/" in key for key in container(found)["resources"].get("limits", {}))
    assert "runtimeClassName" not in pod["spec"]


def _selector(random: Random) -> str:
    """A request for cards as a user may write it."""
    models = random.sample(("H100", "A100", "L40S", "RTX 4090", "MI300X", "h100-80gb", "B200 NVL", "V100-SXM2"), 2)
    vendor = random.choice(("", "nvidia:", "amd:"))
    bounds = random.choice(("", ":80GB..", ":..40Gi", ":16GiB..80GiB", ":1.5Gi..", ":24GB"))
    return f"{vendor}{','.join(models[: random.randrange(1, 3)])}{bounds}:{random.randrange(1, 9)}"


def test_requests_at_random_become_manifests_that_are_accepted(world: World) -> None:
    """Selectors above all: the API server compiles each, and bounds what it may cost."""
    soak = bool(os.environ.get("DIBS_SOAK"))
    seed = SystemRandom().randrange(1 << 32) if soak else 1
    random = Random(seed)
    for number in range(1000 if soak else 30):
        selectors = [_selector(random) for _ in range(random.randrange(1, 4))]
        found = rendered(DRA, gpu=selectors if len(selectors) > 1 else selectors[0])
        assert found.template is not None
        try:
            world.cluster.create(kube.TEMPLATES, found.template, "default", dry_run=True)
            world.cluster.create(kube.PODS, found.workload, "default", dry_run=True)
        except DibsError as error:
            raise AssertionError((seed, number, selectors)) from error


def test_typed_options_are_accepted_too(world: World) -> None:
    options = {
        "node_selector": {"zone": "a"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
        "image_pull_secrets": ["registry"],
        "image_pull_policy": "Never",
        "annotations": {"a": "b"},
        "labels": {"c": "d"},
        "run_as_non_root": True,
    }
    found = rendered(BOTH, read_options(options), gpu=1)
    pod = world.cluster.create(kube.PODS, found.workload, "default", dry_run=True)
    assert pod["spec"]["nodeSelector"] == {"zone": "a"}
    assert pod["metadata"]["labels"]["c"] == "d"


def test_a_rendered_claim_is_allocated_and_its_template_goes_with_the_pod(world: World) -> None:
    world.node()
    world.device_class("gpu.nvidia.com")
    world.slice([device("gpu-0"), device("gpu-1")])
    offers = Offers(classes=("gpu.nvidia.com",))
    found = rendered(offers, gpu=2)
    assert found.template is not None
    world.cluster.create(kube.TEMPLATES, found.template, "default")
    pod = world.cluster.create(kube.PODS, found.workload, "default")
    owner = {"metadata": {"ownerReferences": [owner_of(pod)]}}
    world.cluster.patch(kube.TEMPLATES, found.template["metadata"]["name"], owner, "default")
    assert world.bound("box") == "fake-1"
    world.cluster.delete(kube.PODS, "box", "default", grace=0)
    world.until(
        lambda: not world.cluster.items(kube.TEMPLATES, core.Pod, "default"), "the template goes with its owner"
    )


def test_a_rendered_count_is_scheduled_as_the_extended_resource(world: World) -> None:
    world.node(nvidia_com__gpu="2")
    found = rendered(PLUGIN, gpu=2)
    assert container(found)["resources"] == {"limits": {"nvidia.com/gpu": "2"}, "requests": {"nvidia.com/gpu": "2"}}
    world.cluster.create(kube.PODS, found.workload, "default")
    assert world.bound("box") == "fake-1"


def test_the_form_is_chosen_by_request_and_cluster_and_can_be_forced() -> None:
    assert rendered(PLUGIN, gpu=2).form == "extended resource"
    assert rendered(DRA, gpu=2).form == "claim"
    assert rendered(BOTH, gpu=2).form == "extended resource"
    assert rendered(BOTH, gpu="H100:2").form == "claim"
    assert rendered(BOTH, PodOptions(devices="claim"), gpu=2).form == "claim"
    assert rendered(BOTH, gpu=2).why == "a plain count, and the cluster offers nvidia.com/gpu"
    assert "model or memory" in rendered(BOTH, gpu="H100:2").why
    assert refusals(BOTH, PodOptions(devices="extended"), gpu="H100:2") == ["EXTENDED_RESOURCE_CANNOT"]


def test_a_profile_is_its_own_extended_resource() -> None:
    assert container(rendered(PLUGIN, gpu="1g.10gb"))["resources"]["limits"] == {"nvidia.com/mig-1g.10gb": "1"}


def test_any_card_of_several_vendors_is_the_first_that_can_be_had() -> None:
    found = rendered(DRA, gpu=1)
    assert found.template is not None
    (one,) = found.template["spec"]["spec"]["devices"]["requests"]
    assert [part["deviceClassName"] for part in one["firstAvailable"]] == ["gpu.nvidia.com", "gpu.amd.com"]


def test_what_a_cluster_cannot_do_is_refused_all_at_once() -> None:
    assert refusals(BOTH, gpu="all") == ["COUNT_NEEDED"]
    assert refusals(BOTH, device=["nvidia.com/gpu=0"]) == ["EXACT_DEVICE_ON_CLUSTER"]
    assert refusals(Offers(has_dra=False), gpu="H100") == ["CLUSTER_TOO_OLD"]
    assert refusals(Offers(), gpu=1) == ["CLASS_MISSING"]
    bad = PodOptions(labels={"a": "no good"})
    many = refusals(BOTH, bad, image="", network="host", pids=5, user="alice", mounts=["/a:/b"])
    assert many == ["UNSUPPORTED_ON_KUBERNETES"] * 6


@pytest.mark.parametrize(
    "options", [{"resources": {"limits": {"gpu": 1}}}, {"gpu": 2}, {"tolerations": [{"kee": "a"}]}]
)
def test_an_unknown_option_is_refused_and_never_passed_through(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read_options(options)
    assert refused.value.code == "KUBERNETES_OPTION_INVALID"


@pytest.mark.parametrize(("kind", "field"), [("Sandbox", "podTemplate"), ("BatchSandbox", "template")])
def test_all_kinds_of_workload_hold_the_same_pod(kind: Kind, field: str) -> None:
    pod = rendered(BOTH, gpu=2).workload
    other = rendered(BOTH, kind=kind, gpu=2).workload
    assert other["spec"][field]["spec"] == pod["spec"]
    assert other["spec"][field]["metadata"]["labels"] == pod["metadata"]["labels"]


def test_the_pod_has_no_more_rights_than_it_needs() -> None:
    found = rendered(BOTH, gpu=1)
    spec = found.workload["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"] == {"seccompProfile": {"type": "RuntimeDefault"}}
    assert container(found)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }


def test_times_are_whole_seconds_and_never_shorter_than_was_asked_for() -> None:
    spec = rendered(DRA, ttl="90.2s", grace="2.4s").workload["spec"]
    assert (spec["activeDeadlineSeconds"], spec["terminationGracePeriodSeconds"]) == (91, 3)
