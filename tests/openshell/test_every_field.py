"""No field of a SandboxSpec disappears: over random ones, each is in the sandbox, in a refusal, or reported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st
from openshell._proto import openshell_pb2 as pb
from tests.openshell.test_requests import POD, asked, on_cluster, with_gpu

from dibs.errors import InvalidRequest
from dibs.gateway.openshell import schema
from dibs.gateway.openshell.requests import Rules, Wanted, read_create
from dibs.request.pod_options import Toleration, read_options
from dibs.request.spec import SandboxSpec

RULES = Rules(backends=("local", "docker", "podman", "kubernetes"))
POD_READ = {
    "node_selector": {"zone": "a"},
    "tolerations": (Toleration(key="gpu", operator="Exists", effect="NoExecute", toleration_seconds=30),),
    "runtime_class_name": "nvidia",
    "priority_class_name": "high",
}
OURS = {"runtime_class_name": "runtime_class", "priority_class_name": "priority_class"}
# annotation → a value, and where it ends
SAID: dict[str, tuple[str, Callable[[SandboxSpec], bool]]] = {
    "dibs.wait": ("10m", lambda spec: spec.wait_seconds == 600),
    "dibs.ttl": ("1h", lambda spec: spec.ttl_seconds == 3600),
    "dibs.network": ("none", lambda spec: spec.network == "none"),
    "dibs.user": ("1000", lambda spec: spec.user == "1000"),
    "dibs.workdir": ("/w", lambda spec: spec.workdir == "/w"),
    "dibs.shm-size": ("64Mi", lambda spec: spec.shm_bytes == 64 << 20),
    "dibs.pids": ("100", lambda spec: spec.resources.pids == 100),
}
CPU = {"1": 1000, "500m": 500, 2: 2000, 0.5: 500}
MEMORY = {"1Gi": 1 << 30, "512Mi": 512 << 20, 1 << 20: 1 << 20}


def read(spec: pb.SandboxSpec) -> Wanted:
    return read_create(asked(spec), RULES)


TEXT = st.text(alphabet="abcXYZ019-_/. =", min_size=0, max_size=8)
AMOUNT = st.one_of(st.sampled_from(["1", "2", "500m", "1Gi", "x", ""]), st.integers(0, 4), st.floats(), st.none())
STRUCT = st.dictionaries(
    st.sampled_from(["limits", "requests", "claims"]),
    st.dictionaries(st.sampled_from(["cpu", "memory", "nvidia.com/gpu", "gpu", "disk"]), AMOUNT, max_size=3),
    max_size=2,
)
BLOCKS = st.dictionaries(
    st.sampled_from(["docker", "podman", "kubernetes", "vm", "lxc"]),
    st.dictionaries(st.sampled_from(["cdi_devices", "mounts", "pod", "gpu_device_ids", "x"]), AMOUNT, max_size=2),
    max_size=2,
)


@st.composite
def specs(draw: st.DrawFn) -> pb.SandboxSpec:
    """Any SandboxSpec: each field is there or not, with a good or a bad value."""
    spec = pb.SandboxSpec()
    chosen = draw(st.sets(st.sampled_from([field.name for field in pb.SandboxSpec.DESCRIPTOR.fields])))
    if "log_level" in chosen:
        spec.log_level = "debug"
    if "environment" in chosen:
        spec.environment.update(draw(st.dictionaries(st.sampled_from(["A", "B", "1x"]), TEXT, max_size=2)))
    if "policy" in chosen:
        spec.policy.version = draw(st.integers(0, 2))
    if "providers" in chosen:
        spec.providers.extend(draw(st.lists(TEXT, max_size=2)))
    if "resource_requirements" in chosen:
        spec.resource_requirements.gpu.SetInParent()
        if draw(st.booleans()):
            spec.resource_requirements.gpu.count = draw(st.integers(0, 3))
    if "command" in chosen:
        spec.command.extend(draw(st.lists(st.sampled_from(["sh", "-c", "true"]), max_size=3)))
    if "tty" in chosen:
        spec.tty = draw(st.booleans())
    if "provider_attachment_epoch" in chosen:
        spec.provider_attachment_epoch = draw(TEXT)
    if "restart_policy" in chosen:
        spec.restart_policy = draw(st.sampled_from([0, 1, 2, 3]))  # type: ignore[assignment]
    if "template" in chosen:
        inner = draw(st.sets(st.sampled_from([field.name for field in pb.SandboxTemplate.DESCRIPTOR.fields])))
        template = spec.template
        if "image" in inner:
            template.image = draw(st.sampled_from(["host", "python:3.12"]))
        for name in {"runtime_class_name", "agent_socket"} & inner:
            setattr(template, name, draw(TEXT))
        for name in {"labels", "annotations", "environment"} & inner:
            getattr(template, name).update(draw(st.dictionaries(st.sampled_from(["A", "team"]), TEXT, max_size=2)))
        if "user_namespaces" in inner:
            template.user_namespaces = draw(st.booleans())
        if "resources" in inner:
            template.resources.update(draw(STRUCT))
        if "driver_config" in inner:
            template.driver_config.update(draw(BLOCKS))
    return spec


@st.composite
def good_specs(draw: st.DrawFn) -> pb.SandboxSpec:
    """Specs that are accepted. Most of `specs` are refused for one field, which would hide the loss of another."""
    words, names = st.text("abcXYZ019-_", min_size=1, max_size=8), st.sampled_from(["A", "B", "C"])
    spec = pb.SandboxSpec(tty=draw(st.booleans()), log_level=draw(st.sampled_from(["", "debug"])))
    spec.environment.update(draw(st.dictionaries(names, words, max_size=2)))
    spec.command.extend(draw(st.sampled_from([[], ["sh", "-c", "true"]])))
    spec.restart_policy = draw(st.sampled_from([0, 1]))  # type: ignore[assignment]
    template = spec.template
    template.image = draw(st.sampled_from(["", "host", "python:3.12"]))
    on_image = template.image == "python:3.12"
    if on_image:
        template.annotations["dibs.backend"] = draw(st.sampled_from(["auto", "docker", "podman", "kubernetes"]))
        if template.annotations["dibs.backend"] in ("auto", "kubernetes"):
            template.runtime_class_name = draw(st.sampled_from(["", "nvidia"]))
    inherited = draw(st.dictionaries(names, words, max_size=2))
    template.environment.update({name: spec.environment.get(name, value) for name, value in inherited.items()})
    template.labels.update(draw(st.dictionaries(st.sampled_from(["team", "tier"]), st.sampled_from(["a", "b"]))))
    template.annotations.update(draw(st.dictionaries(st.sampled_from(["note", "owner"]), words)))
    for key in draw(st.sets(st.sampled_from(sorted(SAID)))):
        template.annotations[key] = SAID[key][0]
    limits: dict[str, Any] = {}
    if draw(st.booleans()):
        limits["cpu"] = draw(st.sampled_from(list(CPU)))
    if draw(st.booleans()):
        limits["memory"] = draw(st.sampled_from(list(MEMORY)))
    blocks: dict[str, Any] = {}
    if draw(st.booleans()):
        spec.resource_requirements.gpu.SetInParent()
        count = draw(st.sampled_from([None, 1, 2, 3]))
        if count is not None:
            spec.resource_requirements.gpu.count = count
        limits.update(draw(st.sampled_from([{}, {"nvidia.com/gpu": str(count or 1)}, {"gpu": f"H100:{count or 1}"}])))
        devices = [f"nvidia.com/gpu={number}" for number in range(count or 1)]
        for engine in draw(st.sets(st.sampled_from(["docker", "podman"]))):
            blocks[engine] = {"cdi_devices": devices}
    pod = draw(st.sets(st.sampled_from(sorted(POD))))
    empty = draw(st.booleans())
    if pod or empty:
        blocks["kubernetes"] = {"pod": {key: POD[key] for key in sorted(pod)}}
        repeated = draw(st.booleans())
        if repeated and limits:
            blocks["kubernetes"]["containers"] = {"agent": {"resources": {"limits": limits}}}
    in_template = draw(st.booleans())
    if limits and in_template:
        template.resources.update({"limits": limits, **draw(st.sampled_from([{}, {"requests": limits}]))})
    template.driver_config.update(blocks)
    return spec


def on_all_drivers() -> pb.SandboxSpec:
    engine = {"cdi_devices": ["nvidia.com/gpu=0"]}
    resources = {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": 1}}
    spec = on_cluster("auto", resources=resources, driver_config={
        "docker": engine, "podman": engine,
        "kubernetes": {"pod": POD, "containers": {"agent": {"resources": {"limits": {"cpu": "1000m"}}}}},
    })  # fmt: skip
    spec.template.runtime_class_name = "nvidia"
    spec.log_level = "debug"
    return spec


@settings(max_examples=300, deadline=None)
@given(specs())
@example(with_gpu(0))
@example(with_gpu(1, driver_config={"docker": {"x": 1}}))
@example(with_gpu(1, driver_config={"lxc": {}}))
@example(with_gpu(1, resources={"limits": {"disk": "1"}, "claims": {}}))
@example(with_gpu(1, driver_config={"vm": {"gpu_device_ids": ["0000:01:00.0"]}}))
def test_every_field_of_any_spec_is_delivered_refused_or_reported(spec: pb.SandboxSpec) -> None:
    try:
        wanted = read(spec)
    except InvalidRequest as error:
        must_be_told(spec, [problem.field for problem in error.problems if problem.reason])
        return
    must_be_told(spec, [])
    delivered(spec, wanted)


@settings(max_examples=300, deadline=None)
@given(good_specs())
@example(on_all_drivers())
def test_every_field_of_an_acceptable_spec_is_delivered_or_reported(spec: pb.SandboxSpec) -> None:
    must_be_told(spec, [])
    delivered(spec, read(spec))


def test_the_spec_has_no_field_that_these_tests_do_not_look_at() -> None:
    known = {
        "log_level", "environment", "template", "policy", "providers", "resource_requirements", "command", "tty",
        "provider_attachment_epoch", "restart_policy",
    }  # fmt: skip
    assert {field.name for field in schema.message("SandboxSpec").DESCRIPTOR.fields} == known
    known = {
        "image", "runtime_class_name", "agent_socket", "labels", "annotations", "environment", "resources",
        "user_namespaces", "driver_config",
    }  # fmt: skip
    assert {field.name for field in schema.message("SandboxTemplate").DESCRIPTOR.fields} == known


def served(spec: pb.SandboxSpec) -> set[str]:
    """The backends that may get it."""
    backend = spec.template.annotations.get("dibs.backend", "auto")
    if backend == "auto":
        return {"local"} if spec.template.image in ("", "host") else set(RULES.backends)
    return {backend}


def must_be_told(spec: pb.SandboxSpec, told: list[str]) -> None:
    """What is refused whatever else is wrong must be among the problems."""
    template, limits = spec.template, plain(spec.template.resources)
    always = {
        "spec.policy": spec.policy.version,
        "spec.providers": list(spec.providers),
        "spec.provider_attachment_epoch": spec.provider_attachment_epoch,
        "spec.restart_policy": spec.restart_policy in (2, 3),
        "spec.resource_requirements.gpu.count":
            spec.resource_requirements.gpu.HasField("count") and spec.resource_requirements.gpu.count == 0,
        "spec.template.runtime_class_name": template.runtime_class_name and "kubernetes" not in served(spec),
        "spec.template.agent_socket": template.agent_socket,
        "spec.template.user_namespaces": template.HasField("user_namespaces"),
        "spec.template.driver_config.lxc": "lxc" in template.driver_config,
        "spec.template.resources.claims": "claims" in template.resources,
        **{
            f"spec.template.resources.{part}.disk": "disk" in limits.get(part, {})
            for part in ("limits", "requests")
        },
        **{
            f"spec.template.driver_config.{driver}.x": "x" in block
            for driver, block in plain(template.driver_config).items() if driver != "lxc"
        },
        "spec.template.driver_config.vm.gpu_device_ids":
            "gpu_device_ids" in plain(template.driver_config).get("vm", {}),
    }  # fmt: skip
    for field, value in always.items():
        assert not value or any(one.startswith(field) for one in told), (field, told)


def plain(struct: Any) -> dict[str, Any]:
    from google.protobuf.json_format import MessageToDict

    found: dict[str, Any] = MessageToDict(struct) if all_finite(struct) else {}
    return found


def all_finite(struct: Any) -> bool:
    return "nan" not in str(struct) and "inf" not in str(struct)


def delivered(spec: pb.SandboxSpec, wanted: Wanted) -> None:
    """Nothing that was set is missing from what was made of it."""
    made, template = wanted.spec, spec.template
    assert bool(spec.log_level) == any("log_level" in note for note in wanted.unused)
    assert made.env == {**dict(template.environment), **dict(spec.environment)}
    assert made.tty == spec.tty
    assert list(made.command) == (list(spec.command) or ["tail", "-f", "/dev/null"])
    assert made.labels == dict(template.labels)
    assert wanted.annotations == {
        key: value for key, value in template.annotations.items() if not key.startswith("dibs.")
    }
    for key, (_, arrived) in SAID.items():
        assert key not in template.annotations or arrived(made), key
    assert made.image == (template.image or "host")
    assert made.backend in served(spec) or served(spec) == set(RULES.backends)
    amounts_are_delivered(spec, wanted)
    blocks_are_delivered(spec, wanted)


def amounts_are_delivered(spec: pb.SandboxSpec, wanted: Wanted) -> None:
    block = plain(spec.template.driver_config).get("kubernetes", {})
    theirs = block.get("containers", {}).get("agent", {}).get("resources", {}).get("limits", {})
    limits = {**theirs, **plain(spec.template.resources).get("limits", {})}
    made = wanted.spec.resources
    for said, ours, known in (
        (limits.get("cpu"), made.cpu_millis, CPU),
        (limits.get("memory"), made.memory_bytes, MEMORY),
    ):
        assert (said is None) == (ours is None)
        assert said not in known or ours == known[said]
    typed = spec.resource_requirements.HasField("gpu")
    assert made.wants_devices == (typed or "gpu" in limits or "nvidia.com/gpu" in limits)
    if typed:
        count = spec.resource_requirements.gpu.count if spec.resource_requirements.gpu.HasField("count") else 1
        (selector,) = made.gpus
        assert selector.count == count
        assert (selector.models == ("H100",)) == ("H100" in str(limits.get("gpu")))
        assert (selector.vendor == "nvidia") == ("nvidia.com/gpu" in limits)


def blocks_are_delivered(spec: pb.SandboxSpec, wanted: Wanted) -> None:
    """Those of drivers that may get it become its options; all of them are reported for where it does not run."""
    blocks, options = plain(spec.template.driver_config), wanted.spec.options
    assert set(wanted.blocks) == set(blocks)
    for engine in ("docker", "podman"):
        given = blocks.get(engine) if engine in served(spec) else None
        assert options.get(engine, {}) == (given or {})
    pod = blocks.get("kubernetes", {}).get("pod", {}) if "kubernetes" in served(spec) else {}
    if spec.template.runtime_class_name:
        pod = {**pod, "runtime_class_name": spec.template.runtime_class_name}
    found = read_options(options.get("kubernetes", {}))
    for key, value in POD_READ.items():
        here = getattr(found, OURS.get(key, key))
        assert here == value if key in pod else not here, key
