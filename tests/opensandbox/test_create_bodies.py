"""The body of `POST /sandboxes` as a request of ours: what it means, and that nothing in it is dropped."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dibs.errors import DibsError, InvalidRequest, NotFound, Problem
from dibs.gateway.opensandbox.requests import EXTENSIONS, FIELDS, RESOURCES, Rules, Wanted, read_create
from dibs.request.model import GpuSelector

PLAIN: dict[str, Any] = {
    "image": {"uri": "host"},
    "entrypoint": ["tail", "-f", "/dev/null"],
    "timeout": 600,
    "resourceLimits": {"cpu": "1", "memory": "2Gi"},
    "secureAccess": False,
}


def read(rules: Rules | None = None, /, **changes: Any) -> Wanted:
    return read_create(json.dumps({**PLAIN, **changes}).encode(), rules or Rules())


def problems(rules: Rules | None = None, /, **changes: Any) -> list[Problem]:
    with pytest.raises(InvalidRequest) as caught:
        read(rules, **changes)
    return list(caught.value.problems)


def codes(rules: Rules | None = None, /, **changes: Any) -> list[tuple[str, str]]:
    return [(problem.code, problem.field) for problem in problems(rules, **changes)]


def test_what_the_sdk_sends_by_itself_is_taken() -> None:
    wanted = read()
    spec = wanted.spec
    assert (spec.image, spec.backend, spec.command) == ("host", "local", ("tail", "-f", "/dev/null"))
    assert (spec.resources.cpu_millis, spec.resources.memory_bytes, spec.ttl_seconds) == (1000, 2 << 30, 600)
    assert spec.grace_seconds == 0.0
    assert wanted.annotations["opensandbox.image"] == "host"
    assert json.loads(wanted.annotations["opensandbox.entrypoint"]) == ["tail", "-f", "/dev/null"]


@pytest.mark.parametrize("text", ["2", "H100:2", "nvidia:H100,A100:80GB..:2", "all", " 2 "])
def test_gpu_is_taken_in_every_short_form(text: str) -> None:
    from dibs.request.gpu import parse_gpu

    assert read(resourceLimits={"gpu": text}).spec.resources.gpus == (parse_gpu(text, "", []),)


def test_vendor_keys_are_gpus_of_that_vendor() -> None:
    for vendor in ("nvidia", "amd", "intel"):
        gpus = read(resourceLimits={f"{vendor}.com/gpu": "2"}).spec.resources.gpus
        assert gpus == (GpuSelector(count=2, vendor=vendor),)


@pytest.mark.parametrize("text", ["0", "-1", "0.5", "half", "", "1.5"])
def test_a_gpu_value_that_the_official_server_drops_is_refused_under_its_own_name(text: str) -> None:
    assert {field for _, field in codes(resourceLimits={"gpu": text})} == {"resourceLimits.gpu"}


def test_an_unknown_resource_is_refused_with_the_known_ones() -> None:
    (problem,) = problems(resourceLimits={"disk": "10Gi"})
    assert (problem.code, problem.field, problem.value) == ("UNKNOWN_RESOURCE", "resourceLimits.disk", "10Gi")
    assert all(name in problem.remedy for name in RESOURCES)


def test_an_unknown_extension_is_refused_with_the_known_ones() -> None:
    (problem,) = problems(extensions={"storage.id": "x"})
    assert (problem.code, problem.field) == ("UNKNOWN_EXTENSION", "extensions.storage.id")
    assert all(name in problem.remedy for name in EXTENSIONS)


def test_an_unknown_field_is_refused_with_the_known_ones() -> None:
    (problem,) = problems(gpu="2")
    assert (problem.code, problem.field) == ("UNKNOWN_FIELD", "gpu")
    assert all(name in problem.remedy for name in FIELDS)


def test_all_problems_are_reported_together() -> None:
    found = codes(
        image={"uri": ""}, timeout=0, resourceLimits={"gpu": "1.5", "disk": "1", "memory": "2GB"}, env={"A": None},
        extensions={"poolRef": "p", "dibs.wait": "soon", "what": "x"}, metadata={"opensandbox.io/x": "1"},
        platform={"os": "windows", "arch": "amd64"}, lifecycle={"preStart": {"command": "x"}},
        credentialProxy={"enabled": True}, networkPolicy={"egress": [{"action": "allow", "target": "x"}]},
        volumes=[{"name": "v", "mountPath": "/v", "ossfs": {"bucket": "c"}}], entrypoint=[], secureAccess="yes",
    )  # fmt: skip
    assert {field for _, field in found} == {
        "image", "timeout", "resourceLimits.gpu", "resourceLimits.disk", "resourceLimits.memory", "env.A",
        "extensions.poolRef", "extensions.dibs.wait", "extensions.what", "metadata.opensandbox.io/x", "platform.os",
        "lifecycle", "credentialProxy", "networkPolicy.egress", "volumes[0].ossfs", "entrypoint", "secureAccess",
    }  # fmt: skip


# -- requests against limits ------------------------------------------------------------------------------------------


def test_requests_that_equal_the_limits_are_what_is_delivered_anyway() -> None:
    limits = {"cpu": "1", "memory": "2Gi", "gpu": "H100:2", "pids": "64"}
    same = {"cpu": "1000m", "memory": "2048Mi", "gpu": " H100 : 2", "pids": "64"}
    assert read(resourceLimits=limits, resourceRequests=same).spec == read(resourceLimits=limits).spec


@pytest.mark.parametrize(
    ("key", "asked", "limit", "code"),
    [
        ("cpu", "500m", "1", "REQUEST_NOT_LIMIT"),
        ("cpu", "2", "1", "REQUEST_NOT_LIMIT"),
        ("memory", "1Gi", "2Gi", "REQUEST_NOT_LIMIT"),
        ("gpu", "1", "2", "REQUEST_NOT_LIMIT"),
        ("nvidia.com/gpu", "1", "2", "REQUEST_NOT_LIMIT"),
        ("gpu", "1", None, "REQUEST_WITHOUT_LIMIT"),
        ("memory", "much", "2Gi", "QUANTITY_INVALID"),
        ("disk", "1", None, "UNKNOWN_RESOURCE"),
    ],
)
def test_a_request_that_is_not_the_limit_is_refused(key: str, asked: str, limit: str | None, code: str) -> None:
    limits = {} if limit is None else {key: limit}
    assert codes(resourceLimits=limits, resourceRequests={key: asked}) == [(code, f"resourceRequests.{key}")]


def test_a_bad_limit_is_told_once_and_where_it_stands() -> None:
    found = codes(resourceLimits={"cpu": "many"}, resourceRequests={"cpu": "1"})
    assert found == [("QUANTITY_INVALID", "resourceLimits.cpu")]


# -- extensions -------------------------------------------------------------------------------------------------------


def test_extensions_carry_what_opensandbox_has_no_word_for() -> None:
    wanted = read(
        extensions={
            "dibs.name": "train-1", "dibs.wait": "10m", "dibs.backend": "local", "dibs.device": "gpu-0, gpu-1",
            "dibs.network": "none", "dibs.user": "1000:1000", "dibs.grace": "5s", "dibs.allow-busy": "true",
            "dibs.idempotency-key": "k-1", "dibs.shm-size": "64Mi", "dibs.read-only": "false", "dibs.workdir": "/srv",
        }
    )  # fmt: skip
    spec = wanted.spec
    assert (spec.name, spec.wait_seconds, spec.backend, spec.network) == ("train-1", 600.0, "local", "none")
    assert (spec.resources.devices, spec.resources.allow_busy) == (("gpu-0", "gpu-1"), True)
    assert (spec.user, spec.grace_seconds, spec.workdir) == ("1000:1000", 5.0, "/srv")
    assert (spec.shm_bytes, spec.read_only) == (64 << 20, False)
    assert wanted.idempotency_key == "k-1"


def test_every_extension_is_read() -> None:
    """A field that is in the table but never read would be dropped silently."""
    for key, field in EXTENSIONS.items():
        if not field:
            continue
        if key in ("dibs.allow-busy", "dibs.read-only"):
            assert codes(extensions={key: "perhaps"}) == [("FLAG_INVALID", f"extensions.{key}")]
            continue
        found = problems(resourceLimits={"gpu": "1"}, extensions={key: "\u0000"})
        assert any(problem.field.startswith(f"extensions.{key}") for problem in found), (key, found)


def test_a_claim_is_given_as_text_or_by_the_name_of_a_kept_one() -> None:
    claim = {"devices": {"requests": [{"name": "g", "exactly": {"deviceClassName": "gpu.dibs.dev"}}]}}
    as_text = read(resourceLimits={}, extensions={"dibs.claim": json.dumps(claim)}).spec.resources.claim
    assert as_text is not None
    assert as_text["devices"]["requests"][0]["name"] == "g"
    rules = Rules(kept_claim=lambda name: claim if name == "pair" else missing(name))
    assert read(rules, resourceLimits={}, extensions={"dibs.claim": "pair"}).spec.resources.claim == as_text
    assert codes(rules, extensions={"dibs.claim": "other"}) == [("CLAIM_NOT_FOUND", "extensions.dibs.claim")]


def missing(name: str) -> dict[str, Any]:
    raise NotFound("no claim is kept under that name", value=name, code="CLAIM_NOT_FOUND")


def test_a_claim_is_never_a_path_of_the_gateways_host(tmp_path: Path) -> None:
    file = tmp_path / "claim.yaml"
    file.write_text("kind: ResourceClaim\n")
    assert codes(extensions={"dibs.claim": str(file)}) == [("CLAIM_INVALID", "extensions.dibs.claim")]


def test_where_takes_one_expression_or_a_list_of_them() -> None:
    one = "device.attributes[device.driver].model == 'H100'"
    limits = {"gpu": "1"}
    assert read(resourceLimits=limits, extensions={"dibs.where": one}).spec.resources.where == (one,)
    both = json.dumps([one, one])
    assert read(resourceLimits=limits, extensions={"dibs.where": both}).spec.resources.where == (one, one)


# -- what it is made from ---------------------------------------------------------------------------------------------


def test_exactly_one_source_is_needed() -> None:
    assert ("SOURCE_INVALID", "image") in codes(image=None)
    assert ("SOURCE_INVALID", "image") in codes(snapshotId="s", templateId=None)


def test_templates_pools_windows_and_registry_passwords_are_refused() -> None:
    assert ("TEMPLATES_NOT_OFFERED", "templateId") in codes(image=None, templateId="t")
    assert codes(extensions={"poolRef": "p"}) == [("POOLS_NOT_OFFERED", "extensions.poolRef")]
    assert codes(platform={"os": "windows", "arch": "amd64"}) == [("PLATFORM_INVALID", "platform.os")]
    (problem,) = problems(image={"uri": "host", "auth": {"username": "u", "password": "hidden!"}})
    assert problem.code == "IMAGE_AUTH_NOT_OFFERED"
    assert "hidden!" not in str(problem)


def test_an_image_of_this_host_goes_to_local_and_any_other_to_an_engine() -> None:
    rules = Rules(images=frozenset({"host", "debian"}))
    assert read(rules, image={"uri": "debian"}).spec.backend == "local"
    other = read(rules, image={"uri": "python:3.11"}).spec
    assert (other.backend, other.image, other.entrypoint) == ("auto", "python:3.11", ())
    assert codes(rules, extensions={"dibs.backend": "docker"}) == [("IMAGE_UNKNOWN", "image.uri")]


def test_a_snapshot_brings_its_backend_and_image() -> None:
    rules = Rules(snapshot=lambda _: ("docker", "dibs/snap:1"))
    spec = read(rules, image=None, snapshotId="snap-1").spec
    assert (spec.backend, spec.image, spec.command) == ("docker", "dibs/snap:1", ("tail", "-f", "/dev/null"))
    found = codes(rules, image=None, snapshotId="snap-1", extensions={"dibs.backend": "podman"})
    assert found == [("CONFLICT", "extensions.dibs.backend")]


# -- network, volumes, time -------------------------------------------------------------------------------------------


def test_a_policy_without_rules_is_all_or_nothing_and_is_delivered() -> None:
    assert read(networkPolicy={"defaultAction": "deny"}).spec.network == "none"
    assert read(networkPolicy={"defaultAction": "deny", "egress": []}).spec.network == "none"
    assert read(networkPolicy={"defaultAction": "allow"}).spec.network == "private"


def test_a_policy_with_rules_is_refused_and_a_contradicting_one_too() -> None:
    rule = {"action": "allow", "target": "example.com"}
    found = codes(networkPolicy={"defaultAction": "deny", "egress": [rule]})
    assert found == [("NETWORK_POLICY_NOT_OFFERED", "networkPolicy.egress")]
    found = codes(networkPolicy={"defaultAction": "deny"}, extensions={"dibs.network": "host"})
    assert found == [("CONFLICT", "extensions.dibs.network")]


def test_only_folders_that_the_administrator_allows_can_be_mounted(tmp_path: Path) -> None:
    shared, other = tmp_path / "shared", tmp_path / "other"
    shared.mkdir()
    other.mkdir()
    (shared / "way-out").symlink_to(other)
    (shared / "in").mkdir()
    rules = Rules(mounts_allow=(str(shared),))

    def volume(path: Path | str, **more: Any) -> dict[str, Any]:
        return {"name": "v", "mountPath": "/data", "host": {"path": str(path)}, **more}

    (mount,) = read(rules, volumes=[volume(shared)]).spec.mounts
    assert (mount.source, mount.target, mount.writable) == (str(shared), "/data", True)
    (mount,) = read(rules, volumes=[volume(shared, subPath="in", readOnly=True)]).spec.mounts
    assert (mount.source, mount.writable) == (str(shared / "in"), False)
    for bad in (other, shared / "way-out", shared / ".." / "other", "/", str(shared) + "-not"):
        assert codes(rules, volumes=[volume(bad)]) == [("MOUNT_NOT_ALLOWED", "volumes[0].host.path")]
    for sub in ("../other", "/etc", "a/../../other"):
        assert codes(rules, volumes=[volume(shared, subPath=sub)]) == [("VOLUME_INVALID", "volumes[0].subPath")]
    assert codes(Rules(), volumes=[volume(shared)]) == [("MOUNT_NOT_ALLOWED", "volumes[0].host.path")]


def test_a_time_to_live_is_bounded_by_the_settings() -> None:
    rules = Rules(longest_ttl=3600.0)
    assert read(rules, timeout=3600).spec.ttl_seconds == 3600.0
    assert read(rules, timeout=None).spec.ttl_seconds == 3600.0
    assert codes(rules, timeout=3601) == [("TIMEOUT_INVALID", "timeout")]
    assert read(timeout=None).spec.ttl_seconds is None
    for bad in (0, -5, "600", 1.5, True):
        assert codes(timeout=bad) == [("TIMEOUT_INVALID", "timeout")]


def test_variables_of_dibs_itself_are_refused_under_the_name_that_was_written() -> None:
    assert codes(env={"CUDA_VISIBLE_DEVICES": "3"}) == [("ENV_RESERVED", "env.CUDA_VISIBLE_DEVICES")]


# -- anything at all --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'"x"', b"\xff\xfe", b"[" * 5000])
def test_what_is_no_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_create(body, Rules())
    assert caught.value.code == "BODY_INVALID"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=6))
def test_any_values_are_taken_or_refused_with_problems_and_nothing_else_happens(changes: dict[str, Any]) -> None:
    found: list[Problem] = []
    try:
        wanted = read(**changes)
    except DibsError as error:
        found = list(error.problems)
    else:
        assert wanted.spec.command
    assert all(problem.code and problem.reason for problem in found)


def test_sd_03_limits_together_with_a_pool_are_refused() -> None:
    limits = {"cpu": "1", "memory": "2Gi", "gpu": "1"}
    assert codes(extensions={"poolRef": "p"}, resourceLimits=limits) == [("POOLS_NOT_OFFERED", "extensions.poolRef")]


def test_sd_04_a_gpu_for_a_windows_sandbox_is_refused() -> None:
    windows = {"os": "windows", "arch": "amd64"}
    assert codes(platform=windows, resourceLimits={"gpu": "1"}) == [("PLATFORM_INVALID", "platform.os")]


@pytest.mark.parametrize(
    "body",
    [
        {"platform": {"os": None, "x": True}},
        {"networkPolicy": {"defaultAction": None, "egress": [{"target": "a", "on": True}]}},
        {"entrypoint": ["a", None, False]},
        {"timeout": True},
        {"env": {"A": None, "B": [True]}},
        {"metadata": {"a": {"b": None}}},
        {"resourceLimits": {"cpu": True, "gpu": ["1", None]}},
        {"lifecycle": {"preStart": {"command": None}}},
        {"secureAccess": {"on": None}},
        {"volumes": [{"name": None, "mountPath": True}]},
        {"volumes": {"name": None}},
        {"image": {"uri": None, "other": True}},
        {"snapshotId": ["a", None], "image": None},
        {"extensions": {"dibs.where": None, "dibs.device": [True]}},
        {"unknown": {"a": None, "b": "it's"}},
    ],
    ids=lambda body: ",".join(body),
)
def test_a_refused_value_is_shown_as_the_client_wrote_it(body: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(**body)
    for problem in caught.value.problems:
        assert not re.search(r"\b(None|True|False)\b|\{'|\['|'\]|'\}", str(problem)), str(problem)
