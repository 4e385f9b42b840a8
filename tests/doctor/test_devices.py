"""NVIDIA's driver, the devices, and the simulated world; and the doctor as a whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dibs.devices.model import ExternalUse, Health, SourceError, Version
from dibs.devices.simulated import parse_world, simulate
from dibs.doctor import Finding, Scene, devices, examine, look_over, nvidia, simulated
from dibs.errors import StateError

DRIVER = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\nGCC version: 12\n"


@pytest.mark.parametrize(
    ("line", "version"),
    [
        (DRIVER, "580.95.05"),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.42.01  Tue Jun 15", "470.42.01"),
        ("NVRM version: NVIDIA UNIX aarch64 Kernel Module  535.183  Tue", "535.183"),
        ("", ""),
    ],
)
def test_the_loaded_driver_is_read_from_its_own_line(patient: Any, line: str, version: str) -> None:
    patient.file("/proc/driver/nvidia/version", line)
    assert nvidia.loaded_version(patient.roots) == version


def test_a_host_without_nvidia_is_passed_over(patient: Any) -> None:
    assert patient.only(nvidia.check(patient.scene())).verdict == "skip"


def test_driver_and_library_of_one_version_are_fine(patient: Any) -> None:
    patient.file("/proc/driver/nvidia/version", DRIVER)
    for node in ("nvidia0", "nvidiactl", "nvidia-uvm"):
        patient.node(f"/dev/{node}")
    card = patient.card(attributes={"type": "gpu", "driverVersion": Version("580.95.5")})
    assert patient.verdicts(nvidia.check(patient.scene([card]))) == {"nvidia.driver": "ok", "nvidia.uvm": "ok"}


def test_driver_and_library_of_two_versions_are_a_fault(patient: Any) -> None:
    patient.file("/proc/driver/nvidia/version", DRIVER)
    card = patient.card(attributes={"type": "gpu", "driverVersion": Version("570.1.2")})
    finding = nvidia.driver(patient.scene([card]))
    assert finding.verdict == "fail"
    assert "580.95.05 and the library is 570.1.2" in finding.why


def test_the_librarys_own_words_are_kept(patient: Any) -> None:
    errors = [SourceError("nvml", "NVML: version mismatch", "reboot"), SourceError("nvml", "card 1: NVML: Unknown")]
    findings = list(nvidia.check(patient.scene(errors=errors)))
    assert [(finding.verdict, finding.why) for finding in findings] == [
        ("fail", "NVML: version mismatch"),
        ("fail", "card 1: NVML: Unknown"),
    ]
    assert [finding.fix for finding in findings] == ["reboot", "nvidia-smi"]


def test_nodes_without_a_loaded_module_are_a_fault(patient: Any) -> None:
    patient.node("/dev/nvidia0")
    assert nvidia.driver(patient.scene()).fix == "sudo modprobe nvidia"


def test_a_missing_uvm_node_is_a_fault(patient: Any) -> None:
    patient.node("/dev/nvidia0")
    patient.node("/dev/nvidiactl")
    finding = nvidia.uvm(patient.roots)
    assert finding.verdict == "fail"
    assert finding.title == "/dev/nvidia-uvm is missing"
    patient.node("/dev/nvidia-uvm")
    assert nvidia.uvm(patient.roots).verdict == "ok"


def test_found_cards_are_counted_by_model(patient: Any) -> None:
    cards = [patient.card(0), patient.card(1), patient.card(2, model="L4")]
    finding = patient.only(devices.check(patient.scene(cards)))
    assert (finding.verdict, finding.title) == ("ok", "found 2 × H100, 1 × L4")


def test_a_host_without_devices_is_told_how_to_try(patient: Any) -> None:
    finding = patient.only(devices.check(patient.scene()))
    assert finding.verdict == "warn"
    assert finding.fix == "dibs gpus simulate 8"


def test_a_broken_card_is_a_fault_with_its_reason(patient: Any) -> None:
    card = patient.card(health=Health(ok=False, reason="NVML: GPU is lost"))
    _, finding = devices.check(patient.scene([card]))
    assert (finding.id, finding.verdict) == ("devices.health", "fail")
    assert "GPU is lost" in finding.why


def test_use_by_others_names_them(patient: Any) -> None:
    card = patient.card(used_by=(ExternalUse(41, "ann", "python train.py"), ExternalUse(42, "bob", "x")))
    _, finding = devices.check(patient.scene([card]))
    assert (finding.id, finding.verdict) == ("devices.used", "warn")
    assert "ann's python train.py (pid 41)" in finding.why
    assert finding.fix.endswith("-p 41,42")


def test_a_card_that_cannot_be_attached_is_told_but_a_cut_one_is_as_it_should_be(patient: Any) -> None:
    from dibs.devices.merge_sources import CUT

    cards = [patient.card(0, unattachable="/dev/nvidia0 does not exist"), patient.card(1, unattachable=CUT)]
    findings = list(devices.check(patient.scene(cards)))
    assert [finding.id for finding in findings] == ["devices", "devices.attachment"]


def test_a_source_that_cannot_be_read_is_a_fault(patient: Any) -> None:
    finding = patient.only(devices.check(patient.scene(errors=[SourceError("pci", "numa_node: nonsense")])))
    assert (finding.id, finding.verdict) == ("devices.source", "fail")
    assert "nonsense" in finding.why


def pci_card(patient: Any, bus: str, vendor: str, driver: str) -> None:
    folder = Path(patient.roots.sys, "bus/pci/devices", bus)
    folder.mkdir(parents=True)
    for name, text in {"class": "0x030200", "vendor": vendor, "device": "0x2330", "numa_node": "0"}.items():
        (folder / name).write_text(text)
    if driver:
        (folder / "driver").symlink_to(f"../../drivers/{driver}")


@pytest.mark.parametrize(
    ("vendor", "driver", "said"),
    [
        ("0x10de", "nouveau", "it has nouveau"),
        ("0x10de", "", "it has no driver"),
        ("0x1002", "amdgpu", "no CDI spec names it"),
        ("0x8086", "i915", ""),
        ("0x10de", "nvidia", ""),
    ],
)
def test_cards_on_the_bus_without_a_source_are_reported(patient: Any, vendor: str, driver: str, said: str) -> None:
    pci_card(patient, "0000:1b:00.0", vendor, driver)
    found = [finding for finding in devices.check(patient.scene()) if finding.id == "devices.unserved"]
    assert [said in finding.why for finding in found] == ([True] if said else [])


def test_cards_that_are_offered_are_not_told_again(patient: Any) -> None:
    pci_card(patient, "0000:1b:00.0", "0x1002", "amdgpu")
    card = patient.card(attributes={"type": "gpu", "resource.kubernetes.io/pciBusID": "0000:1b:00.0"})
    assert patient.verdicts(devices.check(patient.scene([card]))) == {"devices": "ok"}


def test_a_simulated_world_is_never_forgotten(patient: Any) -> None:
    assert patient.only(simulated.check(patient.scene())).verdict == "ok"
    simulate(patient.home, parse_world("H100:2,L4:1"))
    finding = patient.only(simulated.check(patient.scene()))
    assert finding.verdict == "warn"
    assert "2 × H100, 1 × L4" in finding.title
    assert finding.fix == "dibs gpus simulate off"


def test_a_damaged_world_is_a_fault(patient: Any) -> None:
    patient.home.simulated.write_text("{")
    finding = patient.only(simulated.check(patient.scene()))
    assert (finding.verdict, finding.fix) == ("fail", "dibs gpus simulate off")


def test_every_fault_has_a_reason_and_a_remedy(patient: Any) -> None:
    patient.file("/proc/self/mountinfo", "22 1 0:44 / / rw - nfs4 server:/ rw\n")
    patient.file("/proc/sys/user/max_user_namespaces", "0")
    patient.file("/etc/passwd", "a:x:1000:1::/:/bin/sh\nb:x:1001:1::/:/bin/sh\n")
    patient.node("/dev/nvidia0")
    patient.spec({"deviceNodes": [{"path": "/dev/nvidia7"}]})
    patient.home.simulated.write_text("{")
    patient.home.ledger.write_text("x" * 5000)
    card = patient.card(health=Health(ok=False, reason="lost"), used_by=(ExternalUse(1, "a", "b"),))
    findings = look_over(patient.scene([card], [SourceError("pci", "nonsense")]))
    bad = [finding for finding in findings if finding.verdict in ("warn", "fail")]
    assert len(bad) >= 11
    for finding in bad:
        assert finding.why, finding
        assert finding.fix, finding
        assert "\n" not in finding.why + finding.fix


def test_a_check_that_cannot_look_does_not_stop_the_others(patient: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from dibs.doctor import kernel, ledger

    def no(scene: Scene) -> list[Finding]:
        raise PermissionError(13, "Permission denied", "/proc/sys")

    def neither(scene: Scene) -> list[Finding]:
        raise StateError("no state")

    monkeypatch.setattr(kernel, "check", no)
    monkeypatch.setattr(ledger, "check", neither)
    findings = {finding.id: finding for finding in look_over(patient.scene())}
    assert "Permission denied" in findings["kernel"].why
    assert "no state" in findings["ledger"].why
    assert "simulated" in findings


def test_this_very_host_can_be_examined(patient: Any) -> None:
    findings = examine(patient.home)
    ids = {finding.id.partition(".")[0] for finding in findings}
    assert ids >= {"kernel", "bubblewrap", "cgroup", "ledger", "nvidia", "cdi", "devices", "simulated"}


def test_a_host_in_files_can_be_examined(patient: Any) -> None:
    findings = examine(patient.home, roots=patient.roots, spec_dirs=[str(patient.specs)])
    assert patient.verdicts(findings)["cgroup"] == "skip"
