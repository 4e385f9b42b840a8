"""User namespaces and overlays: settings explain, a try decides."""

from __future__ import annotations

from typing import Any

import pytest

from dibs.devices.host import HOST
from dibs.doctor import Scene, bubblewrap, kernel
from dibs.doctor.finding import Finding


@pytest.mark.parametrize(
    ("setting", "value", "fix"),
    [
        ("user/max_user_namespaces", "0", "sudo sysctl -w user.max_user_namespaces=15000"),
        ("kernel/unprivileged_userns_clone", "0", "sudo sysctl -w kernel.unprivileged_userns_clone=1"),
        ("kernel/apparmor_restrict_unprivileged_userns", "1", "apparmor_parser -r /etc/apparmor.d/dibs-bwrap"),
    ],
)
def test_a_setting_that_forbids_namespaces_is_named_with_its_command(
    patient: Any, setting: str, value: str, fix: str
) -> None:
    patient.file(f"/proc/sys/{setting}", value + "\n")
    refused = kernel.namespaces(patient.roots, "bwrap: setting up uid map: Permission denied")
    assert refused.verdict == "fail"
    assert setting.rpartition("/")[2] in refused.title
    assert fix in refused.fix
    assert "Permission denied" in refused.why


def test_a_try_that_works_outweighs_a_setting(patient: Any) -> None:
    patient.file("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1")
    assert kernel.namespaces(patient.roots, "").verdict == "ok"


def test_the_apparmor_profile_is_for_the_bubblewrap_that_is_used(patient: Any) -> None:
    patient.file("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1")
    assert "profile dibs-bwrap /opt/bwrap flags=(unconfined)" in kernel.refusal(patient.roots, "/opt/bwrap")[1]


@pytest.mark.parametrize(("value", "verdict"), [("0", "warn"), ("63000", "ok")])
def test_where_nothing_can_be_tried_the_settings_are_reported(patient: Any, value: str, verdict: str) -> None:
    patient.file("/proc/sys/user/max_user_namespaces", value)
    assert patient.only(kernel.check(patient.scene())).verdict == verdict


def test_a_failed_overlay_keeps_the_kernels_words() -> None:
    refused = kernel.overlay("bwrap: Can't make overlay mount: Invalid argument")
    assert refused.verdict == "fail"
    assert "Invalid argument" in refused.why


def test_namespaces_and_overlays_are_really_tried_on_this_host(patient: Any) -> None:
    scene = patient.scene()
    findings = list(kernel.check(Scene(scene.home, HOST, scene.inventory, scene.specs)))
    assert [finding.id for finding in findings] == [kernel.NAMESPACES, kernel.OVERLAY]
    for finding in findings:
        assert finding.verdict in ("ok", "fail", "skip")
        assert finding.verdict != "fail" or (finding.why and finding.fix)


def test_the_bubblewrap_of_this_host_is_found_and_judged(patient: Any) -> None:
    from dibs.backends.local.bubblewrap import candidates

    finding: Finding = patient.only(bubblewrap.check(patient.scene()))
    good = [path for path, _ in candidates() if not bubblewrap.judge(path)[0]]
    assert (finding.verdict == "ok") == bool(good)
    if good:
        assert good[0] in finding.title


def test_a_program_that_is_no_bubblewrap_is_refused_with_the_reason() -> None:
    complaint, _ = bubblewrap.judge("/bin/true")
    assert "no --tmp-overlay" in complaint
    complaint, _ = bubblewrap.judge("/bin/false")
    assert "cannot be run" in complaint
    complaint, _ = bubblewrap.judge("/no/such/bwrap")
    assert "No such file" in complaint
