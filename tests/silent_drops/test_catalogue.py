"""Ways in which others take a request and do not deliver. Each is a test here: it cannot happen in dibs.

The ids are those of docs/silent-drops.md. Lines about parts that dibs does not have yet are not here yet.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dibs.backends.local.backend import LocalBackend
from dibs.backends.port import Handle, NodeFact, Observation
from dibs.devices.simulated import parse_world, simulate
from dibs.errors import Busy, DeliveryMismatch, DibsError, InvalidRequest, NoMatch, Unsupported
from dibs.home import Home
from dibs.process import absent
from dibs.request import parse_request, parse_spec
from dibs.workloads.reconcile import handle_of
from dibs.workloads.service import Workloads


def refusal(mapping: dict[str, Any]) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parse_spec(mapping)
    return caught.value


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "two", ""])
def test_sd_01_a_gpu_value_that_is_no_count_is_refused(value: str) -> None:
    problem = refusal({"gpu": value}).problems[0]
    assert problem.field == "gpu"
    assert problem.value == value
    assert problem.remedy


def test_sd_01_a_spelling_that_dibs_knows_is_understood() -> None:
    assert str(parse_request({"gpu": "H100:1"}).gpus[0]) == "H100:1"


@pytest.mark.parametrize("key", ["disk", "ephemeral-storage", "habana.ai/gaudi", "nvidia.com/mig-1g.10gb", "GPU"])
def test_sd_05_an_unknown_key_is_refused_and_never_ignored(key: str) -> None:
    error = refusal({key: "1"})
    assert error.problems[0].field == key
    assert error.problems[0].code in ("UNKNOWN_FIELD", "UNKNOWN_RESOURCE")


@pytest.mark.parametrize(("key", "short"), [("nvidia.com/gpu", "nvidia:1"), ("amd.com/gpu", "amd:1")])
def test_sd_05_a_vendors_key_is_understood(key: str, short: str) -> None:
    assert parse_request({key: "1"}).short() == {"gpu": short}


def test_sd_06_requests_beside_limits_are_refused_while_no_backend_has_them() -> None:
    assert refusal({"resourceRequests": {"cpu": "1"}}).problems[0].code == "UNKNOWN_FIELD"


@pytest.mark.parametrize(("text", "amount"), [("1.5Gi", 1610612736), ("1e9", 10**9), ("512Mi", 512 << 20)])
def test_sd_07_a_quantity_has_kubernetes_meaning(text: str, amount: int) -> None:
    assert parse_request({"memory": text}).memory_bytes == amount


def test_sd_07_half_a_byte_of_memory_is_refused_with_what_was_meant() -> None:
    assert "512Mi?" in str(refusal({"memory": "512m"}))


def test_sd_09_a_client_that_dies_leaves_no_orphan(service: Workloads) -> None:
    child = subprocess.Popen(
        [sys.executable, "-m", "dibs", "run", "--gpu", "8", "--", "sh", "-c", "echo ready; sleep 1000"],
        env={**os.environ, "DIBS_HOME": str(service.home.state)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    child.stdout.readline()
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    row = service.create(parse_spec({"gpu": 8, "wait": "60s"}))
    assert row.state == "running"


def test_sd_10_two_sandboxes_never_get_the_same_card(service: Workloads) -> None:
    rows = [service.create(parse_spec({"gpu": 1})) for _ in range(8)]
    devices = [device.id for lease in service.leases() for device in lease.devices]
    assert len(set(devices)) == len(rows) == 8


def test_sd_11_one_too_many_is_refused_or_queued_never_shared(service: Workloads) -> None:
    service.create(parse_spec({"gpu": 8, "name": "greedy"}))
    with pytest.raises(Busy, match="held by greedy"):
        service.create(parse_spec({"gpu": 1}))
    assert len(service.sandboxes()) == 1


@pytest.mark.parametrize(("key", "value"), [("cpu", "lots"), ("memory", "big"), ("cpu", None), ("memory", [])])
def test_sd_12_an_unparsable_limit_gets_no_default(key: str, value: Any) -> None:
    assert refusal({key: value}).problems[0].code == "QUANTITY_INVALID"


def test_sd_13_raw_resources_are_refused_with_the_known_fields() -> None:
    error = refusal({"resources": {"limits": {"cpu": "1"}}})
    assert "the known ones are gpu" in str(error)


def test_sd_16_two_answers_to_one_question_are_refused_with_both() -> None:
    error = refusal({"gpu": 1, "nvidia.com/gpu": 4})
    assert error.problems[0].code == "CONFLICT"
    assert "1" in error.problems[0].value
    assert "4" in error.problems[0].value


def test_sd_17_a_misspelt_backend_is_refused_with_the_known_ones(service: Workloads) -> None:
    with pytest.raises(InvalidRequest, match="the backends are local, docker, podman, kubernetes, fake"):
        service.create(parse_spec({"backend": "dokcer"}))


def test_sd_21_the_receipt_says_what_was_delivered(service: Workloads) -> None:
    row = service.create(parse_spec({"gpu": "H100:2"}))
    receipt = service.receipt(row.id)
    assert receipt.verdict == "delivered"
    assert [device.id.rpartition("/")[2] for device in receipt.devices] == ["gpu-0", "gpu-1"]
    assert [str(node) for node in receipt.observed.nodes] == ["/dev/simgpu0 c 1:3", "/dev/simgpu1 c 1:3"]
    service.remove(row.id, 0.0)
    assert service.receipt(row.id) == receipt, "it is kept after the end"


def write_spec(folder: Path, **node: Any) -> None:
    folder.mkdir()
    spec = {
        "cdiVersion": "0.5.0",
        "kind": "vendor.example/gpu",
        "devices": [{"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/vendor0", **node}]}}],
    }
    (folder / "vendor.json").write_text(json.dumps(spec))


def real_devices(home: Home, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Workloads:
    """Devices that a CDI spec declares, on host nodes that are there on every machine."""
    from dibs.devices import simulated

    simulated.off(home)
    monkeypatch.setenv("DIBS_CDI_DIRS", str(folder))
    return Workloads(home)


def test_sd_23_devices_are_looked_at_in_the_sandbox_itself(
    eight_gpus: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_spec(tmp_path / "cdi", hostPath="/dev/zero", type="c", major=1, minor=5)
    with real_devices(eight_gpus, tmp_path / "cdi", monkeypatch) as service:
        row = service.create(parse_spec({"device": "vendor.example/gpu=0", "workdir": str(tmp_path)}))
        assert [str(node) for node in service.receipt(row.id).observed.nodes] == ["/dev/vendor0 c 1:5"]
        service.remove(row.id, 0.0)


class Astray(LocalBackend):
    """The real backend, in whose sandbox something else is seen than was planned."""

    change: Callable[[Observation], Observation] = staticmethod(lambda seen: seen)

    def observe(self, handle: Handle) -> Observation:
        return self.change(super().observe(handle))


OTHER_NODE = NodeFact("/dev/vendor0", "c", 1, 99)
FURTHER_NODE = NodeFact("/dev/vendor1", "c", 1, 5)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda seen: replace(seen, nodes=()), id="no-node"),
        pytest.param(lambda seen: replace(seen, nodes=(OTHER_NODE,)), id="another-node"),
        pytest.param(lambda seen: replace(seen, nodes=(*seen.nodes, FURTHER_NODE)), id="one-node-more"),
        pytest.param(lambda seen: replace(seen, env={}), id="no-environment"),
        pytest.param(lambda seen: replace(seen, mounts=()), id="no-mount"),
        pytest.param(lambda seen: replace(seen, isolation=dict.fromkeys(seen.isolation, "host")), id="no-namespace"),
    ],
)
def test_sd_23_whatever_is_not_as_planned_never_starts_the_command(
    eight_gpus: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Observation], Observation]
) -> None:
    write_spec(tmp_path / "cdi", hostPath="/dev/zero", type="c", major=1, minor=5)
    (tmp_path / "data").mkdir()
    mapping = {
        "device": "vendor.example/gpu=0", "workdir": str(tmp_path), "mounts": [f"{tmp_path}/data:/data"],
        "network": "none", "command": ["touch", "ran"],
    }  # fmt: skip
    with real_devices(eight_gpus, tmp_path / "cdi", monkeypatch) as service:
        backend = service.registry._made["local", None] = Astray(service.home)
        backend.change = change
        with pytest.raises(DeliveryMismatch):
            service.create(parse_spec(mapping))
        assert not (tmp_path / "ran").exists()
        assert service.leases() == []
        backend.change = lambda seen: seen
        row = service.create(parse_spec(mapping))
        service.wait(row.id, 60)
        assert (tmp_path / "ran").exists(), "as planned, it runs"


def test_sd_45_a_stale_spec_never_starts_the_command(
    eight_gpus: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The spec says 1:99, as an old driver had it; the host's node is 1:5."""
    write_spec(tmp_path / "cdi", hostPath="/dev/zero", type="c", major=1, minor=99)
    with real_devices(eight_gpus, tmp_path / "cdi", monkeypatch) as service:
        mapping = {"device": "vendor.example/gpu=0", "workdir": str(tmp_path), "command": ["touch", "ran"]}
        with pytest.raises((DeliveryMismatch, Unsupported, InvalidRequest)) as caught:
            service.create(parse_spec(mapping))
        assert "1:99" in str(caught.value)
        assert "1:5" in str(caught.value)
        assert not (tmp_path / "ran").exists()
        assert service.leases() == []
        assert service.sandboxes() == []


def test_sd_24_a_count_is_a_count_and_not_the_name_of_a_device(service: Workloads) -> None:
    service.create(parse_spec({"gpu": "1"}))
    assert [device.id.rpartition("/")[2] for lease in service.leases() for device in lease.devices] == ["gpu-0"]


def test_sd_42_nothing_asked_means_nothing_seen(service: Workloads) -> None:
    row = service.create(parse_spec({}))
    observed = service.receipt(row.id).observed
    assert observed.nodes == ()
    assert observed.env["NVIDIA_VISIBLE_DEVICES"] == "void"


def test_sd_42_zero_is_refused_with_the_hint_to_leave_it_out() -> None:
    assert "leave it out to get no GPU" in str(refusal({"gpu": 0}))


def test_sd_43_all_is_a_list_in_the_plan_and_the_receipt(service: Workloads) -> None:
    service.create(parse_spec({"gpu": 3}))
    plan = service.explain(parse_spec({"gpu": "all"}))
    row = service.create(parse_spec({"gpu": "all"}))
    planned = [device.rpartition("/")[2] for device in plan.backends[0].devices]
    assert planned == ["gpu-3", "gpu-4", "gpu-5", "gpu-6", "gpu-7"]
    assert [device.id.rpartition("/")[2] for device in service.receipt(row.id).devices] == planned


def test_sd_46_eighty_gigabytes_takes_what_is_sold_as_eighty(home: Home) -> None:
    simulate(home, parse_world("H100:1,A100-80GB:1,L4:1"))
    with Workloads(home) as service:
        marketing = service.explain(parse_spec({"gpu": "80GB..:2"}))
        exact = service.explain(parse_spec({"gpu": "80Gi..:2"}))
    assert marketing.backends[0].ok
    assert not exact.backends[0].ok
    assert "79.65Gi < 80Gi" in exact.backends[0].problems[0].reason


def test_sd_47_a_device_is_held_as_long_as_its_workload_lives(service: Workloads) -> None:
    """The process that made the sandbox dies; the sandbox does not: its GPUs stay booked."""
    words = ["run", "--detach", "--name", "lasting", "--gpu", "8", "--", "sleep", "1000"]
    subprocess.run(
        [sys.executable, "-m", "dibs", *words],
        env={**os.environ, "DIBS_HOME": str(service.home.state)},
        check=True,
        capture_output=True,
    )
    with pytest.raises(Busy):
        service.create(parse_spec({"gpu": 1}))
    handle = handle_of(service.sandbox("lasting"))
    kill_all(handle)
    row = service.create(parse_spec({"gpu": 1, "wait": "60s"}))
    assert row.state == "running"
    assert service.sandbox("lasting").state == "failed"


def kill_all(handle: Handle) -> None:
    assert handle.keeper is not None
    os.kill(handle.keeper.pid, signal.SIGKILL)
    while not absent(handle.keeper):
        time.sleep(0.005)


def test_sd_48_a_simulated_world_shows_no_real_device_and_says_so(service: Workloads) -> None:
    inventory = service.inventory()
    assert inventory.simulated
    assert all(device.simulated for device in inventory.devices)
    row = service.create(parse_spec({"gpu": 1}))
    assert service.receipt(row.id).simulated
    assert service.receipt(row.id).observed.env["DIBS_SIMULATED"] == "1"


def test_a_refusal_changes_nothing(service: Workloads) -> None:
    before = (service.leases(), service.sandboxes(all=True), service.queue())
    for mapping in ({"gpu": 9}, {"gpu": "NoSuch:1"}, {"device": "no.such/gpu=1"}, {"gpu": 1, "mounts": ["/nope:/x"]}):
        with pytest.raises((NoMatch, InvalidRequest, DibsError)):
            service.create(parse_spec(mapping))
    assert (service.leases(), service.sandboxes(all=True), service.queue()) == before
    assert list(service.home.sandboxes.iterdir()) == []
