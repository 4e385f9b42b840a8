"""The choice of a way for devices, where no engine is needed: NVIDIA's own request, folders, and files of settings."""

from __future__ import annotations

from pathlib import Path

from dibs.backends.engines.device_injection import decide
from dibs.backends.engines.external import holder_of
from dibs.backends.engines.facts import Facts, podman_spec_dirs
from dibs.backends.engines.images import qualified, tagged
from dibs.backends.engines.states import exit_of, seconds
from dibs.backends.port import ExitReason, GrantedDevice
from dibs.cdi.spec import ContainerEdits, DeviceNode, Hook
from dibs.devices.model import CdiAttachment, Device, DeviceId

HOOK = Hook(hook_name="createContainer", path="/usr/bin/nvidia-cdi-hook")
NODE = DeviceNode(path="/dev/nvidia0", host_path="/dev/null")


def card(name: str, kind: str = "nvidia.com/gpu", hooks: tuple[Hook, ...] = (HOOK,)) -> GrantedDevice:
    edits = ContainerEdits(device_nodes=(NODE,), hooks=hooks)
    return GrantedDevice(DeviceId(f"x/y/{name}"), CdiAttachment(f"{kind}={name}", edits, "s"))


def facts(**more: object) -> Facts:
    values = {"version": "1", "architecture": "amd64", "peer": None, "cdi": False, "cdi_dirs": (), **more}
    return Facts(**values)  # type: ignore[arg-type]


def test_sd_10_without_cdi_nvidias_request_names_exact_devices_never_a_count() -> None:
    found = decide((card("GPU-1"),), facts(legacy=True), {}, ())
    assert (found.way, found.names, found.problems) == ("legacy", ["GPU-1"], [])
    assert "NVIDIA's own request" in found.notes[0]


def test_where_only_all_can_be_had_all_is_asked_for() -> None:
    assert decide((card("all"),), facts(legacy=True), {}, ()).names == ["all"]


def test_with_cdi_on_nvidias_own_request_is_never_used() -> None:
    found = decide((card("0"),), facts(cdi=True, legacy=True, cdi_dirs=("/no/such",)), {}, ())
    assert found.way != "legacy"
    assert [problem.code for problem in found.problems] == ["CDI_NAME_UNKNOWN"]


def test_other_vendors_cards_do_not_go_by_nvidias_request() -> None:
    found = decide((card("0", "amd.com/gpu", hooks=()),), facts(legacy=True), {}, ())
    assert found.way == "nodes"


def test_a_name_that_the_engine_lists_is_passed_even_if_its_folder_cannot_be_seen(tmp_path: Path) -> None:
    known = frozenset({"nvidia.com/gpu=0"})
    found = decide((card("0"),), facts(cdi=True, cdi_dirs=(str(tmp_path),), discovered=known), {}, ())
    assert (found.way, found.names) == ("cdi", ["nvidia.com/gpu=0"])


def test_podmans_folders_are_read_where_it_would_read_them(tmp_path: Path) -> None:
    file = tmp_path / "containers.conf"
    file.write_text('[engine]\ncdi_spec_dirs = ["/a", "/b"]\n')
    env = {"CONTAINERS_CONF": str(file)}
    assert podman_spec_dirs("5.5.0", "", env) == ("/a", "/b")
    assert podman_spec_dirs("5.4.2", "", env) == ("/etc/cdi", "/var/run/cdi")


def test_short_references_mean_the_same_everywhere() -> None:
    assert qualified("python:3.12") == "docker.io/library/python:3.12"
    assert qualified("team/x") == "docker.io/team/x"
    assert qualified("localhost/x:1") == "localhost/x:1"
    assert tagged("localhost:5000/x") == ("localhost:5000/x", "latest")
    assert tagged("x@sha256:1") == ("x@sha256:1", "")


def test_a_reason_counts_only_if_the_end_came_after_it_was_asked_for() -> None:
    state = {"Status": "exited", "ExitCode": 0, "FinishedAt": "2026-01-01T00:00:10.5Z"}
    at = seconds("2026-01-01T00:00:10.5Z")
    assert exit_of(state, (ExitReason.STOPPED, at - 1)).reason == "stopped"
    assert exit_of(state, (ExitReason.STOPPED, at + 1)).reason == "exited"


def test_every_way_to_hold_a_card_is_seen() -> None:
    gpu = Device(
        driver="d", pool="p", name="gpu-1", vendor="nvidia", uuid="GPU-b", index=1, aliases=("1", "nvidia.com/gpu=1"),
        attachment=CdiAttachment(
            "nvidia.com/gpu=GPU-b", ContainerEdits(device_nodes=(DeviceNode(path="/dev/nvidia1"),))
        ),
    )  # fmt: skip
    cases = {
        "cdi": {"DeviceRequests": [{"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=1"]}]},
        "cdi all": {"DeviceRequests": [{"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=all"]}]},
        "count": {"DeviceRequests": [{"Driver": "", "Count": 2, "Capabilities": [["gpu"]]}]},
        "all": {"DeviceRequests": [{"Driver": "nvidia", "Count": -1}]},
        "id": {"DeviceRequests": [{"Driver": "nvidia", "DeviceIDs": ["GPU-b"], "Capabilities": [["gpu"]]}]},
        "path": {"Devices": [{"PathOnHost": "/dev/nvidia1"}]},
    }
    for name, host in cases.items():
        holder = holder_of("docker", {"Id": "x", "Name": "/x", "HostConfig": host})
        assert holder is not None, name
        assert holder.holds(gpu), name
    for host in (
        {"DeviceRequests": [{"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=0"]}]},
        {"DeviceRequests": [{"Driver": "", "Count": 1, "Capabilities": [["gpu"]]}]},
        {"Devices": [{"PathOnHost": "/dev/nvidia0"}]},
        {"Privileged": True},  # it could open every card; `dibs doctor` names it, but it has asked for none
    ):
        holder = holder_of("docker", {"Id": "x", "Name": "/x", "HostConfig": host})
        assert holder is not None
        assert not holder.holds(gpu)
    assert holder_of("docker", {"Id": "x", "Name": "/x", "HostConfig": {}}) is None
