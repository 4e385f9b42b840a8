"""What an OpenShell request means: every field is delivered, refused by name, or reported as not applicable."""

from __future__ import annotations

from typing import Any

import pytest
from openshell._proto import openshell_pb2 as pb

from dibs.errors import InvalidRequest, Problem
from dibs.gateway.openshell import drivers, schema
from dibs.gateway.openshell.requests import Rules, Wanted, read_create
from dibs.request.pod_options import PodOptions, Toleration, read_options

RULES = Rules()


def asked(spec: pb.SandboxSpec | None = None, **more: Any) -> Any:
    """A request as it comes over the wire: written by the SDK's messages, read by ours."""
    request = pb.CreateSandboxRequest(spec=spec or pb.SandboxSpec(), **more)
    return schema.parsed("CreateSandboxRequest", request.SerializeToString())


def read(spec: pb.SandboxSpec | None = None, *, template: Any = None, **more: Any) -> Wanted:
    return read_create(asked(spec, **more), RULES, template)


def problems(spec: pb.SandboxSpec | None = None, *, template: Any = None, **more: Any) -> list[Problem]:
    with pytest.raises(InvalidRequest) as caught:
        read(spec, template=template, **more)
    return list(caught.value.problems)


def with_gpu(count: int | None = None, **template: Any) -> pb.SandboxSpec:
    spec = pb.SandboxSpec()
    spec.resource_requirements.gpu.SetInParent()
    if count is not None:
        spec.resource_requirements.gpu.count = count
    for field, value in template.items():
        getattr(spec.template, field).update(value)
    return spec


def resources(**limits: Any) -> pb.SandboxSpec:
    spec = pb.SandboxSpec()
    spec.template.resources.update({"limits": limits})
    return spec


def kept(**workload: Any) -> Any:
    """A workload template, as the SDK would have sent it."""
    from openshell.sandbox import _sandbox_workload_template

    made = _sandbox_workload_template(name="t", **workload)
    return schema.parsed("SandboxWorkloadTemplate", made.SerializeToString())


# -- GPUs -----------------------------------------------------------------------------------------------------------


def test_a_gpu_without_a_count_is_exactly_one() -> None:
    assert read(with_gpu()).spec.resources.short() == {"gpu": "1"}


def test_a_count_is_that_many() -> None:
    assert read(with_gpu(3)).spec.resources.short() == {"gpu": "3"}


def test_no_gpu_means_none() -> None:
    assert not read().spec.resources.wants_devices


def test_a_count_of_zero_is_refused() -> None:
    (problem,) = problems(with_gpu(0))
    assert (problem.field, problem.reason) == (
        "spec.resource_requirements.gpu.count",
        "gpu count must be greater than 0",
    )


@pytest.mark.parametrize("said", ["2", 2, 2.0])
def test_the_template_may_say_the_same_as_the_typed_request(said: Any) -> None:
    wanted = read(with_gpu(2, resources={"limits": {"nvidia.com/gpu": said}}))
    assert wanted.spec.resources.short() == {"gpu": "nvidia:2"}


def test_sd_16_a_template_that_says_another_number_is_refused_with_both_values() -> None:
    (problem,) = problems(with_gpu(1, resources={"limits": {"nvidia.com/gpu": 4}}))
    assert problem.code == "CONFLICT"
    assert problem.value == "4"
    assert "spec.resource_requirements.gpu.count says 1" in problem.reason


def test_sd_16_a_driver_block_that_says_another_number_is_refused_with_both_values() -> None:
    block = {"kubernetes": {"containers": {"agent": {"resources": {"limits": {"nvidia.com/gpu": "2"}}}}}}
    (problem,) = problems(with_gpu(1, driver_config=block))
    assert problem.field.endswith("kubernetes.containers.agent.resources.limits.nvidia.com/gpu")
    assert "says 1" in problem.reason


def test_sd_16_a_workload_template_that_says_another_number_is_refused() -> None:
    (problem,) = problems(with_gpu(1), template=kept(gpu_count=2))
    assert problem.code == "CONFLICT"


# -- cpu and memory -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("said", "millis"), [("2", 2000), (2, 2000), ("500m", 500), (0.5, 500)])
def test_cpu_may_be_text_or_a_number(said: Any, millis: int) -> None:
    assert read(resources(cpu=said)).spec.resources.cpu_millis == millis


@pytest.mark.parametrize("said", ["half", "", "4GB of it", "-1"])
@pytest.mark.parametrize("key", ["cpu", "memory"])
def test_sd_12_an_amount_that_cannot_be_read_is_refused_and_named(key: str, said: str) -> None:
    found = problems(resources(**{key: said}))
    assert [problem.field for problem in found] == [f"spec.template.resources.limits.{key}"]


@pytest.mark.parametrize("said", [True, None, ["1"], {"a": 1}, float("nan"), float("inf")])
def test_a_value_of_another_type_is_refused_and_named(said: Any) -> None:
    found = problems(resources(cpu=said))
    assert [(problem.code, problem.field) for problem in found] == [
        ("QUANTITY_INVALID", "spec.template.resources.limits.cpu")
    ]


def test_sd_13_a_request_that_says_what_the_limit_says_is_fine() -> None:
    spec = pb.SandboxSpec()
    spec.template.resources.update({"limits": {"cpu": "1"}, "requests": {"cpu": "1000m"}})
    assert read(spec).spec.resources.cpu_millis == 1000


@pytest.mark.parametrize("limits", [{}, {"cpu": "2"}])
def test_sd_13_a_request_of_cpu_that_no_limit_equals_is_refused(limits: dict[str, str]) -> None:
    spec = pb.SandboxSpec()
    spec.template.resources.update({"limits": limits, "requests": {"cpu": "1"}})
    (problem,) = problems(spec)
    assert problem.field == "spec.template.resources.requests.cpu"


@pytest.mark.parametrize("key", ["hugepages-2Mi", "ephemeral-storage", "nvidia.com/mig-1g.10gb", "example.com/fpga"])
def test_sd_13_a_raw_resource_that_dibs_does_not_know_is_refused(key: str) -> None:
    (problem,) = problems(resources(**{key: "1"}))
    assert problem.code == "UNKNOWN_RESOURCE"
    assert "cpu, memory, gpu" in problem.remedy


def test_a_workload_template_brings_the_whole_triple() -> None:
    wanted = read(template=kept(cpu="2", memory="4Gi", gpu_count=2))
    found = wanted.spec.resources
    assert (found.cpu_millis, found.memory_bytes, found.short()["gpu"]) == (2000, 4 << 30, "2")


# -- drivers --------------------------------------------------------------------------------------------------------


def test_sd_17_a_misspelt_driver_is_refused_with_the_known_ones() -> None:
    (problem,) = problems(with_gpu(1, driver_config={"dokcer": {"cdi_devices": ["nvidia.com/gpu=0"]}}))
    assert problem.code == "UNKNOWN_DRIVER"
    assert "docker, podman, kubernetes, vm" in problem.remedy


@pytest.mark.parametrize(
    ("block", "field"),
    [
        ({"docker": {"cdi_device": ["x"]}}, "docker.cdi_device"),
        ({"podman": "x"}, "podman"),
        ({"kubernetes": {"pod": {"node_selectors": {}}}}, "kubernetes.pod.node_selectors"),
        ({"kubernetes": {"pod": {"tolerations": [{"kee": "x"}]}}}, "kubernetes.pod.tolerations[0].kee"),
        ({"kubernetes": {"pod": {"runtime_class_name": 3}}}, "kubernetes.pod.runtime_class_name"),
        ({"vm": {"gpu_device_ids": ["0000:01:00.0"]}}, "vm.gpu_device_ids"),
    ],
)
def test_a_key_that_a_driver_does_not_have_or_dibs_cannot_deliver_is_refused(block: dict[str, Any], field: str) -> None:
    found = problems(with_gpu(1, driver_config=block))
    assert f"spec.template.driver_config.{field}" in [problem.field for problem in found]


@pytest.mark.parametrize(
    ("gpus", "devices"),
    [(None, ["nvidia.com/gpu=0"]), (1, []), (2, ["nvidia.com/gpu=0", "nvidia.com/gpu=0"]), (1, ["a", "b"]), (1, [7])],
)
@pytest.mark.parametrize("driver", ["docker", "podman"])
@pytest.mark.parametrize("image", ["host", "python:3.12"])
def test_exact_devices_must_be_distinct_and_as_many_as_were_asked_for(
    driver: str, gpus: int | None, devices: list[Any], image: str
) -> None:
    spec = with_gpu(gpus, driver_config={driver: {"cdi_devices": devices}}) if gpus else pb.SandboxSpec()
    spec.template.driver_config.update({driver: {"cdi_devices": devices}})
    spec.template.image = image
    found = problems(spec)
    assert all(problem.field.startswith(f"spec.template.driver_config.{driver}") for problem in found), found


def test_blocks_of_other_drivers_are_accepted_and_reported() -> None:
    blocks = {"kubernetes": {"pod": {"priority_class_name": "high"}}, "docker": {"cdi_devices": ["nvidia.com/gpu=0"]}}
    wanted = read(with_gpu(1, driver_config=blocks))
    assert wanted.spec.backend == "local"
    assert set(wanted.blocks) == {"kubernetes", "docker"}


def test_mounts_are_refused_where_the_driver_may_get_the_sandbox_and_reported_elsewhere() -> None:
    spec = with_gpu(1, driver_config={"docker": {"mounts": [{"type": "bind"}]}})
    assert read(spec).blocks == ("docker",)
    spec.template.image = "python:3.12"
    assert [problem.field for problem in problems(spec)] == ["spec.template.driver_config.docker.mounts"]


POD = {
    "node_selector": {"zone": "a"},
    "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoExecute", "toleration_seconds": 30}],
    "runtime_class_name": "nvidia",
    "priority_class_name": "high",
}


def on_cluster(backend: str = "kubernetes", **template: Any) -> pb.SandboxSpec:
    spec = with_gpu(1, **template)
    spec.template.image = "python:3.12"
    spec.template.annotations["dibs.backend"] = backend
    return spec


@pytest.mark.parametrize("backend", ["kubernetes", "kubernetes-prod"])
def test_keys_for_kubernetes_become_the_options_of_the_cluster_backend(backend: str) -> None:
    wanted = read(on_cluster(backend, driver_config={"kubernetes": {"pod": POD}}))
    found = read_options(wanted.spec.options["kubernetes"])
    assert found == PodOptions(
        node_selector={"zone": "a"},
        tolerations=(Toleration(key="gpu", operator="Exists", effect="NoExecute", toleration_seconds=30),),
        runtime_class="nvidia",
        priority_class="high",
    )
    assert set(POD) == set(drivers.POD_KEYS.values()) == set(drivers.SHAPES["kubernetes"]["pod"])


def test_the_runtime_class_of_a_template_is_one_of_the_cluster() -> None:
    spec = on_cluster()
    spec.template.runtime_class_name = "gvisor"
    assert read(spec).spec.options == {"kubernetes": {"runtime_class": "gvisor"}}
    spec.template.driver_config.update({"kubernetes": {"pod": {"runtime_class_name": "gvisor"}}})
    assert read(spec).spec.options == {"kubernetes": {"runtime_class": "gvisor"}}


def test_two_runtime_classes_are_refused_with_both_values() -> None:
    spec = on_cluster(driver_config={"kubernetes": {"pod": {"runtime_class_name": "nvidia"}}})
    spec.template.runtime_class_name = "gvisor"
    (problem,) = problems(spec)
    assert (problem.code, problem.value) == ("CONFLICT", "nvidia")
    assert problem.field == "spec.template.driver_config.kubernetes.pod.runtime_class_name"
    assert "spec.template.runtime_class_name says gvisor" in problem.reason


def test_a_runtime_class_without_a_cluster_is_refused() -> None:
    spec = with_gpu(1)
    spec.template.runtime_class_name = "gvisor"
    assert [problem.code for problem in problems(spec)] == ["RUNTIME_CLASS_NOT_OFFERED"]


@pytest.mark.parametrize("backend", ["kubernetes", "docker"])
def test_a_value_that_no_cluster_takes_is_refused_under_the_clients_name(backend: str) -> None:
    block = {"kubernetes": {"pod": {"tolerations": [{"key": "a", "effect": "Never"}]}}}
    (problem,) = problems(on_cluster(backend, driver_config=block))
    assert problem.field == "spec.template.driver_config.kubernetes.pod.tolerations[0].effect"


def test_volumes_of_a_cluster_are_refused_there_and_reported_elsewhere() -> None:
    block = {
        "volumes": [{"name": "data", "persistent_volume_claim": {"claim_name": "data"}}],
        "containers": {"agent": {"volume_mounts": [{"name": "data", "mount_path": "/data"}]}},
    }
    found = problems(on_cluster(driver_config={"kubernetes": block}))
    assert {problem.field.partition("kubernetes.")[2] for problem in found} == {
        "volumes", "containers.agent.volume_mounts",
    }  # fmt: skip
    assert read(on_cluster("docker", driver_config={"kubernetes": block})).blocks == ("kubernetes",)


def test_blocks_for_several_drivers_are_options_of_those_that_this_gateway_serves() -> None:
    blocks = {
        "docker": {"cdi_devices": ["nvidia.com/gpu=0"]},
        "podman": {"cdi_devices": ["nvidia.com/gpu=0"]},
        "kubernetes": {"pod": POD},
    }
    spec = on_cluster("auto", driver_config=blocks)
    assert set(read(spec).spec.options) == {"docker", "podman"}
    served = Rules(backends=("kubernetes-prod", "docker"))
    assert set(read_create(asked(spec), served).spec.options) == {"docker", "kubernetes"}


# -- the rest -------------------------------------------------------------------------------------------------------


def test_an_unknown_field_is_named() -> None:
    data = pb.CreateSandboxRequest(spec=pb.SandboxSpec()).SerializeToString() + bytes([0xF8, 0x06, 0x01])  # field 111
    request = schema.parsed("CreateSandboxRequest", data)
    with pytest.raises(InvalidRequest, match="no field 111"):
        read_create(request, RULES)


@pytest.mark.parametrize("name", ["UPPER", "a_b", "-a", "a-", "a" * 20, "ä", "a b", "../x", "a\n"])
def test_a_bad_name_is_refused(name: str) -> None:
    assert [problem.field for problem in problems(name=name)] == ["name"]


def test_all_problems_come_at_once() -> None:
    spec = with_gpu(0, resources={"limits": {"cpu": "x", "disk": 1}}, driver_config={"k8s": {}})
    spec.providers.append("github")
    fields = {problem.field for problem in problems(spec, name="BAD")}
    assert len(fields) == 6, fields
