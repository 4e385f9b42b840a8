"""`dibs claims solve`: what the allocator would do with files, or on this host, and why."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from dibs.claims import explanation
from dibs.cli.claims_output import REASONS, slices_text
from dibs.devices.names import pool_name
from dibs.devices.simulated import parse_world, simulate
from dibs.devices.slices import slices_of
from dibs.home import Home
from dibs.ledger.rows import Taint
from dibs.workloads.service import Workloads

from .cases import BOX, claim, given, save, solve, world
from .conftest import Dibs


def slices_file(path: Path, spec: str = "H100:4", partitions: int | None = None, unhealthy: str | None = None) -> str:
    path.write_text(slices_text(slices_of(world(spec, partitions, unhealthy), node=BOX)))
    return str(path)


def answer(dibs: Dibs, *words: str) -> Any:
    result = dibs("claims", "solve", *words, "-o", "json")
    return json.loads(result.out)


def devices(node: Any) -> list[str]:
    results = [result for one in node["claims"] for result in one["status"]["allocation"]["devices"]["results"]]
    return [result["device"] for result in results]


@pytest.mark.parametrize(
    ("spec", "partitions", "unhealthy"), [("H100:4", None, "0"), ("A100-80GB:2", 7, None), ("H100:1,MI300X:2", 2, "2")]
)
def test_files_are_solved_as_the_same_slices_in_memory(
    dibs: Dibs, tmp_path: Path, spec: str, partitions: int | None, unhealthy: str | None
) -> None:
    slices = slices_file(tmp_path / "slices.yaml", spec, partitions, unhealthy)
    inventory = world(spec, partitions, unhealthy)
    for number, wanted in enumerate(
        [claim(1), claim(2), claim(3), claim(None), claim(2, "part"), claim(1, "gpu.amd.com"), claim(40)]
    ):
        expected = None
        try:
            expected = given(solve(inventory, wanted))
        except Exception as error:  # noqa: BLE001
            expected_error = str(error)
        node = answer(dibs, "-f", slices, "-f", save(tmp_path / f"{number}.yaml", wanted))["nodes"][0]
        if node["outcome"] == "allocated":
            assert devices(node) == expected
        elif node["outcome"] == "unsatisfiable":
            assert expected is None
        else:
            assert node["error"] == expected_error


def test_a_claim_that_can_be_had_is_printed_with_its_allocation(dibs: Dibs, tmp_path: Path) -> None:
    path = save(tmp_path / "claim.yaml", claim(2))
    result = dibs("claims", "solve", "-f", slices_file(tmp_path / "s.yaml"), "-f", path, "-o", "yaml")
    assert result.code == 0
    (node,) = yaml.safe_load(result.out)["nodes"]
    assert (node["node"], node["outcome"]) == (BOX, "allocated")
    (found,) = node["claims"]
    assert found["kind"] == "ResourceClaim"
    allocation = found["status"]["allocation"]
    assert [result["device"] for result in allocation["devices"]["results"]] == ["gpu-0", "gpu-1"]
    assert allocation["nodeSelector"]["nodeSelectorTerms"][0]["matchFields"][0]["values"] == [BOX]
    assert node["explanation"]["requests"][0]["given"] == [f"gpu.nvidia.com/{BOX}/gpu-{i}" for i in (0, 1)]


def test_an_allocation_that_was_printed_is_in_use_when_it_is_read(dibs: Dibs, tmp_path: Path) -> None:
    slices = slices_file(tmp_path / "s.yaml")
    first = answer(dibs, "-f", slices, "-f", save(tmp_path / "a.yaml", claim(3, name="first")))["nodes"][0]["claims"][0]
    held = save(tmp_path / "held.yaml", first)
    node = answer(dibs, "-f", slices, "-f", held, "-f", save(tmp_path / "b.yaml", claim(1, name="second")))["nodes"][0]
    assert devices(node) == ["gpu-3"]
    result = dibs("claims", "solve", "-f", slices, "-f", held, "-f", save(tmp_path / "c.yaml", claim(2, name="two")))
    assert result.code == 82
    assert "gpu-0, gpu-1, gpu-2  in use  first" in result.out


def test_the_table_says_why_nearest_miss_first(dibs: Dibs, tmp_path: Path) -> None:
    slices = slices_file(tmp_path / "s.yaml", "H100:3,L4:2,MI300X:1", None, "1=Xid 79")
    wanted = claim(3, "gpu.nvidia.com", 'device.attributes[device.driver].productName.contains("H100")')
    result = dibs("claims", "solve", "-f", slices, "-f", save(tmp_path / "c.yaml", wanted))
    assert result.code == 82
    lines = [line.rstrip() for line in result.out.splitlines()]
    assert lines[0] == "simulated devices: not hardware"
    assert lines[2].startswith("node box: cannot")
    assert lines[4:6] == [
        "CLAIM  REQUEST  CLASS           WANTED  SEEN  OF CLASS  SELECTED  FREE  GIVEN",
        "claim  gpus     gpu.nvidia.com       3     6         5         3     3  –",
    ]
    assert lines[7:12] == [
        "not given to gpus:",
        "DEVICE        WHY                             DETAIL",
        "gpu-1         tainted                         dibs/unhealthy=Xid-79:NoSchedule",
        'gpu-3, gpu-4  the request\'s selector says no  device.attributes[device.driver].productName.contains("H100")',
        'gpu-5         not of the class                device.driver == "gpu.nvidia.com"',
    ]


def test_claims_are_allocated_together(dibs: Dibs, tmp_path: Path) -> None:
    slices = slices_file(tmp_path / "s.yaml", "H100:2")
    both = save(tmp_path / "c.yaml", claim(1, name="a"), claim(1, name="b"))
    assert devices(answer(dibs, "-f", slices, "-f", both)["nodes"][0]) == ["gpu-0", "gpu-1"]
    many = save(tmp_path / "d.yaml", claim(1, name="a"), claim(2, name="b"))
    assert dibs("claims", "solve", "-f", slices, "-f", many).code == 82


def test_a_template_is_solved_as_one_claim(dibs: Dibs, tmp_path: Path) -> None:
    wanted = claim(2)
    template = {**wanted, "kind": "ResourceClaimTemplate", "spec": {"spec": wanted["spec"]}}
    path = save(tmp_path / "t.yaml", template)
    assert devices(answer(dibs, "-f", slices_file(tmp_path / "s.yaml"), "-f", path)["nodes"][0]) == ["gpu-0", "gpu-1"]


# -- nodes


def cluster(tmp_path: Path, *sizes: int) -> str:
    """Nodes n0, n1 … with so many devices each, in one file."""
    text = ""
    for number, size in enumerate(sizes):
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"n{number}", "labels": {"at": f"z{number}"}}}
        text += "---\n" + yaml.safe_dump(node)
        if size:
            published = slices_text(slices_of(world(f"H100:{size}"), node=f"n{number}"))
            text += published.replace("name: box\n", f"name: n{number}\n")
    path = tmp_path / "cluster.yaml"
    path.write_text(text)
    return str(path)


def test_each_node_is_solved_alone_and_one_is_enough(dibs: Dibs, tmp_path: Path) -> None:
    files = ("-f", cluster(tmp_path, 1, 3, 0, 3), "-f", save(tmp_path / "c.yaml", claim(2)))
    result = answer(dibs, *files)
    assert [(node["node"], node["outcome"]) for node in result["nodes"]] == [
        ("n0", "unsatisfiable"),
        ("n1", "allocated"),
        ("n2", "unsatisfiable"),
        ("n3", "allocated"),
    ]
    text = dibs("claims", "solve", *files)
    assert text.code == 0
    assert "nodes n1, n3: allocated" in text.out
    assert dibs("claims", "solve", *files, "--node", "n1").code == 0
    assert dibs("claims", "solve", *files, "--node", "n0").code == 82


def test_an_unknown_node_is_refused_with_the_known_ones(dibs: Dibs, tmp_path: Path) -> None:
    files = ("-f", cluster(tmp_path, 1, 1), "-f", save(tmp_path / "c.yaml", claim(1)))
    result = dibs("claims", "solve", *files, "--node", "n9")
    assert result.code == 80
    assert 'node "n9": there is no such node' in result.err
    assert "the nodes are n0, n1" in result.err


def test_the_labels_of_a_node_count(dibs: Dibs, tmp_path: Path) -> None:
    published = yaml.safe_load(slices_text(slices_of(world("H100:1"), node=BOX)))
    del published["spec"]["nodeName"]
    term = {"matchExpressions": [{"key": "at", "operator": "In", "values": ["z1"]}]}
    published["spec"]["nodeSelector"] = {"nodeSelectorTerms": [term]}
    files = ("-f", cluster(tmp_path, 0, 0), "-f", save(tmp_path / "s.yaml", published, claim(1)))
    assert [node["outcome"] for node in answer(dibs, *files)["nodes"]] == ["unsatisfiable", "allocated"]


# -- taints, classes, gates


def test_a_taint_rule_keeps_devices_back_unless_it_is_switched_off(dibs: Dibs, tmp_path: Path) -> None:
    rule = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceTaintRule",
        "metadata": {"name": "off"},
        "spec": {"deviceSelector": {"device": "gpu-0"}, "taint": {"key": "a/b", "effect": "NoSchedule"}},
    }
    files = ("-f", slices_file(tmp_path / "s.yaml"), "-f", save(tmp_path / "c.yaml", rule, claim(1)))
    assert devices(answer(dibs, *files)["nodes"][0]) == ["gpu-1"]
    for gate in ("DRADeviceTaintRules=false", "DRADeviceTaints=false"):
        assert devices(answer(dibs, *files, "--feature-gates", gate)["nodes"][0]) == ["gpu-0"]


def test_a_class_in_the_files_stands_in_for_a_built_in_one(dibs: Dibs, tmp_path: Path) -> None:
    own = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": "gpu"},
        "spec": {"selectors": [{"cel": {"expression": "device.attributes[device.driver].index == 2"}}]},
    }
    files = ("-f", slices_file(tmp_path / "s.yaml"), "-f", save(tmp_path / "c.yaml", own, claim(1)))
    assert devices(answer(dibs, *files)["nodes"][0]) == ["gpu-2"]


def test_an_unknown_class_is_an_error_that_names_the_known_ones(dibs: Dibs, tmp_path: Path) -> None:
    files = ("-f", slices_file(tmp_path / "s.yaml"), "-f", save(tmp_path / "c.yaml", claim(1, "nothing")))
    result = dibs("claims", "solve", *files)
    assert result.code == 80
    assert "there is no such class" in result.out
    assert "the classes are gpu, gpu.nvidia.com" in result.out


@pytest.mark.parametrize(
    ("gates", "said"),
    [
        ("Nothing=true", 'feature-gates "Nothing=true": there is no such feature gate'),
        ("DRADeviceTaints", "must be true or false"),
        ("DRADeviceTaints=maybe", "must be true or false"),
        ("DRADeviceTaints+DRAAdminAccess=true", "there is no such feature gate"),
        ("=true", "there is no such feature gate"),
    ],
)
def test_a_gate_that_is_wrong_is_refused_with_the_known_ones(dibs: Dibs, tmp_path: Path, gates: str, said: str) -> None:
    result = dibs("claims", "solve", "-f", save(tmp_path / "c.yaml", claim(1)), "--feature-gates", gates)
    assert result.code == 80
    assert said in result.err
    assert "DRADeviceTaints" in result.err


def test_gates_switch_parts_of_the_model_on_and_off(dibs: Dibs, tmp_path: Path) -> None:
    files = ("-f", slices_file(tmp_path / "s.yaml", "H100:1", 4), "-f", save(tmp_path / "c.yaml", claim(1)))
    assert dibs("claims", "solve", *files).code == 0
    assert dibs("claims", "solve", *files, "--feature-gates", "DRAPartitionableDevices=false").code == 82


# -- failures


def test_a_selector_that_fails_on_a_device_is_an_error_with_its_place(dibs: Dibs, tmp_path: Path) -> None:
    wanted = claim(1, "gpu", 'device.attributes["x.com"].y == 1')
    files = ("-f", slices_file(tmp_path / "s.yaml"), "-f", save(tmp_path / "c.yaml", wanted))
    result = dibs("claims", "solve", *files)
    assert result.code == 80
    assert (
        "node box: error: claim claim: selector #0 on device gpu.nvidia.com/box/gpu-0: CEL runtime error" in result.out
    )
    assert 'device.attributes["x.com"].y == 1' in result.out
    assert "^" in result.out
    node = answer(dibs, *files)["nodes"][0]
    assert (node["outcome"], node["code"]) == ("undecided", "CLAIM_INVALID")


def test_giving_up_is_reported_with_how_far_it_came(dibs: Dibs, tmp_path: Path) -> None:
    files = ("-f", slices_file(tmp_path / "s.yaml", "H100:8"), "-f", save(tmp_path / "c.yaml", claim(4)))
    result = dibs("claims", "solve", *files, "--steps", "2")
    assert result.code == 90
    assert "undecided: gave up after 2 steps" in result.out
    assert answer(dibs, *files, "--steps", "2")["nodes"][0]["code"] == "ALLOCATION_GAVE_UP"


def test_an_incomplete_pool_is_reported(dibs: Dibs, tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    slices_file(path)
    path.write_text(path.read_text().replace("resourceSliceCount: 1", "resourceSliceCount: 2"))
    files = (
        "-f",
        str(path),
        "-f",
        save(tmp_path / "c.yaml", claim(1)),
        "-f",
        save(tmp_path / "d.yaml", claim(None, name="all")),
    )
    result = dibs("claims", "solve", *files)
    assert result.code == 80
    assert "currently being updated" in result.out
    result = dibs("claims", "solve", *files[:4])
    assert result.code == 82
    assert "pool gpu.nvidia.com/box cannot be used: incomplete" in result.out


def test_every_mistake_in_the_files_is_reported_before_anything_is_solved(dibs: Dibs, tmp_path: Path) -> None:
    files = ("-f", save(tmp_path / "c.yaml", claim(1, "gpu", "device.x")), "-f", str(tmp_path / "none.yaml"))
    result = dibs("claims", "solve", *files)
    assert (result.code, result.out) == (80, "")
    assert "ERROR: <input>:1:7: undefined field 'x'" in result.err
    assert " | ......^" in result.err
    assert "No such file" in result.err
    data = json.loads(dibs("claims", "solve", *files, "-o", "json").err)
    assert data["error"] == "InvalidRequest"
    assert len(data["problems"]) == 2


def test_nothing_to_solve_is_refused(dibs: Dibs, tmp_path: Path) -> None:
    result = dibs("claims", "solve", "-f", slices_file(tmp_path / "s.yaml"))
    assert result.code == 80
    assert "there is no claim to solve" in result.err


# -- this host


def test_without_slices_the_devices_of_this_host_are_taken(eight_gpus: Home, dibs: Dibs, tmp_path: Path) -> None:
    path = save(tmp_path / "c.yaml", claim(8))
    result = dibs("claims", "solve", "-f", path)
    assert result.code == 0
    assert result.out.startswith("simulated GPUs: not hardware")
    assert f"node {pool_name()}: allocated" in result.out
    assert dibs("claims", "solve", "-f", path, "--node", "elsewhere").code == 80
    assert dibs("claims", "solve", "-f", save(tmp_path / "d.yaml", claim(9))).code == 82


def test_what_is_held_here_is_in_use(home: Home, dibs: Dibs, tmp_path: Path) -> None:
    simulate(home, parse_world("3", model="A100-80GB", partitions=7))
    from dibs.request.spec import parse_spec

    with Workloads(home) as service:
        lab = service.create(parse_spec({"gpu": "1", "name": "lab", "command": ["sleep", "60"]}))
        bit = service.create(parse_spec({"gpu": "..12GB:1", "name": "bit", "command": ["sleep", "60"]}))
        try:
            assert devices(answer(dibs, "-f", save(tmp_path / "a.yaml", claim(1)))["nodes"][0]) == ["gpu-2"]
            node = answer(dibs, "-f", save(tmp_path / "b.yaml", claim(13, "part")))["nodes"][0]
            assert devices(node)[0] == "gpu-1-part-1"
            result = dibs("claims", "solve", "-f", save(tmp_path / "c.yaml", claim(2)))
            assert result.code == 82
            assert "lab (" in result.out
        finally:
            service.remove(lab.id, 0.0)
            service.remove(bit.id, 0.0)


def test_taints_and_shares_of_this_host_count(home: Home, dibs: Dibs, tmp_path: Path) -> None:
    simulate(home, parse_world("2", model="H100", shared=True))
    from dibs.request.spec import parse_spec

    def share(amount: str, name: str) -> Any:
        wanted = claim(1, name=name)
        wanted["spec"]["devices"]["requests"][0]["exactly"]["capacity"] = {"requests": {"memory": amount}}
        return wanted

    with Workloads(home) as service:
        service.taint("gpu-1", Taint("lab/keep-off"))
        row = service.create(parse_spec({"claim": share("60Gi", "most"), "name": "most", "command": ["sleep", "60"]}))
        try:
            assert devices(answer(dibs, "-f", save(tmp_path / "a.yaml", share("10Gi", "a")))["nodes"][0]) == ["gpu-0"]
            result = dibs("claims", "solve", "-f", save(tmp_path / "b.yaml", share("30Gi", "b")))
            assert result.code == 82
            assert "lab/keep-off:NoSchedule" in result.out
            assert "not enough memory left" in result.out
        finally:
            service.remove(row.id, 0.0)


def test_the_slices_of_this_host_give_the_same_as_the_host_itself(eight_gpus: Home, dibs: Dibs, tmp_path: Path) -> None:
    printed = dibs("gpus", "-o", "slices")
    assert (printed.code, printed.err) == (0, "")
    (tmp_path / "host.yaml").write_text(printed.out)
    path = save(tmp_path / "c.yaml", claim(3))
    from_file = answer(dibs, "-f", str(tmp_path / "host.yaml"), "-f", path)
    assert from_file["nodes"] == answer(dibs, "-f", path)["nodes"]
    assert (from_file["host"], from_file["simulated"]) == (False, True)


def test_a_class_of_the_configuration_is_known(eight_gpus: Home, dibs: Dibs, tmp_path: Path) -> None:
    folder = eight_gpus.config / "classes"
    folder.mkdir(parents=True)
    own = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": "last"},
        "spec": {"selectors": [{"cel": {"expression": "device.attributes[device.driver].index == 7"}}]},
    }
    save(folder / "last.yaml", own)
    path = save(tmp_path / "c.yaml", claim(1, "last"))
    assert devices(answer(dibs, "-f", path)["nodes"][0]) == ["gpu-7"]
    (folder / "broken.yaml").write_text("kind: DeviceClass")
    result = dibs("claims", "solve", "-f", path)
    assert result.code == 80
    assert "broken.yaml: DeviceClass: apiVersion" in result.err


def test_control_c_stops_it(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    process = subprocess.Popen(
        [sys.executable, "-m", "dibs", "claims", "solve", "-f", str(pipe)], stderr=subprocess.PIPE, text=True
    )
    with pipe.open("w"):  # returns once it waits for the claim
        process.send_signal(signal.SIGINT)
        assert "interrupted" in process.communicate(timeout=60)[1]
    assert process.returncode == 130


# -- what is written twice, and must agree


def test_every_reason_of_the_allocator_has_words_and_a_place() -> None:
    assert list(REASONS) == sorted(explanation._CLOSENESS, key=lambda reason: -explanation._CLOSENESS[reason])
