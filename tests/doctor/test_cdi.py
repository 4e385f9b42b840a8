"""CDI specs against the host that they describe."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from dibs.doctor import cdi

NULL = os.stat("/dev/null").st_rdev
DRIVER = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\nGCC version: 12\n"


def found(patient: Any, **scene: Any) -> dict[str, Any]:
    return {finding.id: finding for finding in cdi.check(patient.scene(**scene))}


def test_a_true_spec_is_fine(patient: Any) -> None:
    patient.node("/dev/nvidia0")
    patient.spec({"deviceNodes": [{"path": "/dev/nvidia0", "type": "c", "major": 1, "minor": 3}]})
    assert patient.verdicts(found(patient).values()) == {"cdi": "ok"}


def test_a_host_without_specs_and_cards_is_passed_over(patient: Any) -> None:
    assert patient.verdicts(found(patient).values()) == {"cdi": "skip"}


def test_a_node_with_other_numbers_is_stale(patient: Any) -> None:
    patient.node("/dev/nvidia-uvm")
    path = patient.spec({"deviceNodes": [{"path": "/dev/nvidia-uvm", "type": "c", "major": 511, "minor": 0}]})
    finding = found(patient)["cdi.stale-nodes"]
    assert finding.verdict == "fail"
    assert f"/dev/nvidia-uvm is {os.major(NULL)}:{os.minor(NULL)}, the spec says 511:0" in finding.why
    assert finding.fix == f"sudo nvidia-ctk cdi generate --output={path}"


def test_a_node_without_numbers_only_has_to_exist(patient: Any) -> None:
    patient.spec({"deviceNodes": [{"path": "/dev/nvidia0"}]})
    assert "/dev/nvidia0 does not exist" in found(patient)["cdi.stale-nodes"].why
    patient.node("/dev/nvidia0")
    assert "cdi" in found(patient)


def test_the_host_path_of_a_node_is_what_counts(patient: Any) -> None:
    patient.node("/dev/other")
    patient.spec({"deviceNodes": [{"path": "/dev/nvidia0", "hostPath": "/dev/other"}]})
    assert "cdi" in found(patient)


def test_a_plain_file_is_no_device_node(patient: Any) -> None:
    patient.file("/dev/nvidia0")
    patient.spec({"deviceNodes": [{"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0}]})
    assert "is no device node" in found(patient)["cdi.stale-nodes"].why


def test_missing_libraries_and_hooks_are_listed_shortly(patient: Any) -> None:
    mounts = [
        {"hostPath": f"/no/lib{n}.so", "containerPath": f"/usr/lib/lib{n}.so", "options": ["ro"]} for n in range(4)
    ]
    hooks = [{"hookName": "createContainer", "path": "/no/bin/nvidia-cdi-hook"}]
    patient.spec({"mounts": mounts, "hooks": hooks})
    why = found(patient)["cdi.stale-files"].why
    assert "/no/bin/nvidia-cdi-hook, /no/lib0.so, /no/lib1.so and 2 more" in why


@pytest.mark.parametrize(("library", "stale"), [("580.95.05", False), ("570.1.2", True)])
def test_a_spec_of_another_driver_is_stale(patient: Any, library: str, stale: bool) -> None:
    patient.file("/proc/driver/nvidia/version", DRIVER)
    real = patient.file(f"/etc/lib/libcuda.so.{library}")
    patient.spec({"mounts": [{"hostPath": str(real), "containerPath": "/usr/lib/libcuda.so.1"}]})
    findings = found(patient)
    assert ("cdi.stale-driver" in findings) == stale
    if stale:
        assert "written for 570.1.2, and 580.95.05 is loaded" in findings["cdi.stale-driver"].why


def test_a_broken_spec_and_a_conflict_are_faults(patient: Any) -> None:
    broken = patient.specs / "broken.json"
    broken.write_text("{")
    finding = found(patient)["cdi.spec"]
    assert finding.verdict == "fail"
    assert str(broken) in finding.title
    broken.unlink()
    for name in ("a.json", "b.json"):
        patient.spec({"env": ["A=b"]}, name)
    titles = [finding.title for finding in cdi.check(patient.scene())]
    assert len(titles) == 2
    assert all("has a conflict" in title for title in titles)


def test_an_overruled_spec_is_reported(patient: Any, tmp_path: Path) -> None:
    winning = tmp_path / "run"
    winning.mkdir()
    loser = patient.spec({"env": ["A=b"]})
    os.link(loser, winning / "nvidia.json")
    finding = found(patient, specs=[patient.specs, winning])["cdi.shadowed"]
    assert finding.verdict == "warn"
    assert str(loser) in finding.title
    assert str(winning / "nvidia.json") in finding.why


def test_cards_without_a_spec_are_reported_with_the_command(patient: Any) -> None:
    finding = found(patient, devices=[patient.card(source="nvml+pci")])["cdi.missing"]
    assert finding.verdict == "warn"
    assert finding.fix.startswith("sudo nvidia-ctk cdi generate --output=")


def test_specs_of_other_vendors_are_left_to_the_tools_of_the_vendor(patient: Any) -> None:
    path = patient.spec({"deviceNodes": [{"path": "/dev/dri/card7"}]}, "amd.json", "amd.com/gpu")
    assert found(patient)["cdi.stale-nodes"].fix == f"sudo amd-ctk cdi generate --output={path}"
