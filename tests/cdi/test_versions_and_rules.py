"""Which version a spec needs, and the rules of validation at their edges."""

from __future__ import annotations

import pytest

from dibs.cdi import (
    CURRENT_VERSION,
    EARLIEST_VERSION,
    ContainerEdits,
    Device,
    DeviceNode,
    Hook,
    IntelRdt,
    Mount,
    NetDevice,
    Spec,
    edits_problems,
    minimum_required_version,
    spec_problems,
)

PLAIN = ContainerEdits(env=("A=1",))


def with_edits(edits: ContainerEdits) -> Spec:
    return Spec(kind="a.b/c", devices=(Device("d", container_edits=edits),))


NEEDS: list[tuple[Spec, str]] = [
    (with_edits(PLAIN), "0.3.0"),
    (with_edits(ContainerEdits(mounts=(Mount("/a", "/b"),))), "0.3.0"),
    (with_edits(ContainerEdits(mounts=(Mount("/a", "/b", "bind"),))), "0.4.0"),
    (with_edits(ContainerEdits(device_nodes=(DeviceNode("/a", "/b"),))), "0.5.0"),
    (Spec(kind="a.b/c", devices=(Device("0", container_edits=PLAIN),)), "0.5.0"),
    (Spec(kind="a.b/c.d", devices=(Device("d", container_edits=PLAIN),)), "0.6.0"),
    (Spec(kind="a.b/c", annotations={"a": "b"}, devices=(Device("d", container_edits=PLAIN),)), "0.6.0"),
    (Spec(kind="a.b/c", devices=(Device("d", {"a": "b"}, PLAIN),)), "0.6.0"),
    (with_edits(ContainerEdits(intel_rdt=IntelRdt())), "0.7.0"),
    (with_edits(ContainerEdits(additional_gids=(1,))), "0.7.0"),
    (with_edits(ContainerEdits(intel_rdt=IntelRdt(schemata=("x",)))), "1.1.0"),
    (with_edits(ContainerEdits(intel_rdt=IntelRdt(enable_monitoring=True))), "1.1.0"),
    (with_edits(ContainerEdits(net_devices=(NetDevice("a", "b"),))), "1.1.0"),
]


@pytest.mark.parametrize(("spec", "version"), NEEDS, ids=lambda value: value if isinstance(value, str) else "")
def test_each_feature_needs_the_version_that_brought_it(spec: Spec, version: str) -> None:
    assert minimum_required_version(spec) == version
    accepted = Spec(version, spec.kind, spec.annotations, spec.devices)
    assert spec_problems(accepted) == []
    if version != EARLIEST_VERSION:
        older = Spec(EARLIEST_VERSION, spec.kind, spec.annotations, spec.devices)
        (problem,) = spec_problems(older)
        assert problem.where == "cdiVersion"
        assert f"must be at least v{version}, because of " in problem.what


@pytest.mark.parametrize("version", ["v0.3.0", "0.8.0", "1.0.0", CURRENT_VERSION])
def test_known_version_is_accepted_with_or_without_a_v(version: str) -> None:
    assert spec_problems(Spec(version, "a.b/c", {}, with_edits(PLAIN).devices)) == []


@pytest.mark.parametrize("version", ["", "v", "1.2.0", "vv1.0.0", "0.3", "0.2.0", "latest"])
def test_unknown_or_outdated_version_is_refused(version: str) -> None:
    (problem,) = spec_problems(Spec(version, "a.b/c", {}, with_edits(PLAIN).devices))
    assert problem.where == "cdiVersion"
    assert f'"{version}"' in problem.what


@pytest.mark.parametrize("clos", ["", "/", "a", "x" * 4095])
def test_closid_that_is_a_file_name_or_the_root_is_accepted(clos: str) -> None:
    assert edits_problems(ContainerEdits(intel_rdt=IntelRdt(clos))) == []


@pytest.mark.parametrize("clos", [".", "..", "a/b", "//", "a\nb", "x" * 4096])
def test_closid_that_is_no_file_name_is_refused(clos: str) -> None:
    (problem,) = edits_problems(ContainerEdits(intel_rdt=IntelRdt(clos)))
    assert problem.where == "containerEdits.intelRdt.closID"


@pytest.mark.parametrize("moment", ["prestart", "createRuntime", "createContainer", "startContainer", "poststop"])
def test_known_hooks_are_accepted(moment: str) -> None:
    assert edits_problems(ContainerEdits(hooks=(Hook(moment, "/h"),))) == []


@pytest.mark.parametrize("permissions", ["", "r", "mwr", "rrr", "none"])
def test_permissions_are_letters_of_rwm_or_none(permissions: str) -> None:
    assert edits_problems(ContainerEdits(device_nodes=(DeviceNode("/d", permissions=permissions),))) == []


def test_edits_of_nothing_are_valid_but_a_device_needs_some() -> None:
    assert edits_problems(ContainerEdits()) == []
    (problem,) = spec_problems(Spec("0.3.0", "a.b/c", {}, (Device("d"),)))
    assert (problem.where, "empty device edits" in problem.what) == ("devices[0].containerEdits", True)
