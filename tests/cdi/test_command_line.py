"""`dibs cdi`: the verbs, their output and their exit codes."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dibs.cli.cdi import cdi

GOOD = {
    "cdiVersion": "0.5.0",
    "kind": "acme.com/gpu",
    "containerEdits": {"env": ["ACME=1"]},
    "devices": [
        {"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/acme0", "hostPath": "/dev/null"}]}},
        {"name": "1:0", "containerEdits": {"env": ["SLICE=1"]}},
    ],
}
NIC = {"cdiVersion": "0.3.0", "kind": "acme.com/nic", "devices": [{"name": "a", "containerEdits": {"env": ["N=1"]}}]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "gpu.json").write_text(json.dumps(GOOD))
    (tmp_path / "etc" / "nic.json").write_text(json.dumps(NIC))
    return tmp_path / "etc"


def run(folder: Path, *args: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(cdi, ["-d", str(folder), *args], input=stdin)


def test_devices_are_listed_by_name_with_their_spec(folder: Path) -> None:
    result = run(folder, "devices")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "DEVICE            SPEC",
        f"acme.com/gpu=0    {folder}/gpu.json",
        f"acme.com/gpu=1:0  {folder}/gpu.json",
        f"acme.com/nic=a    {folder}/nic.json",
    ]


def test_devices_as_json_hold_the_edits_when_asked(folder: Path) -> None:
    brief = json.loads(run(folder, "devices", "-o", "json").stdout)
    assert brief[1] == {"name": "acme.com/gpu=1:0", "spec": f"{folder}/gpu.json", "priority": 0}
    full = json.loads(run(folder, "devices", "-v", "-o", "json").stdout)
    assert full[1]["containerEdits"] == {"env": ["SLICE=1"]}
    assert full[1]["specEdits"] == {"env": ["ACME=1"]}


def test_verbose_devices_show_the_edits(folder: Path) -> None:
    lines = run(folder, "devices", "-v").stdout.splitlines()
    assert lines[0] == f"acme.com/gpu=0  ({folder}/gpu.json)"
    assert '    - path: "/dev/acme0"' in lines
    assert "  with every device of this spec:" in lines


def test_yaml_output_is_yaml(folder: Path) -> None:
    import yaml

    assert yaml.safe_load(run(folder, "specs", "-o", "yaml").stdout)[1]["spec"] == NIC
    assert yaml.safe_load(run(folder / "none", "specs", "-o", "yaml").stdout) == []


def test_dirs_vendors_classes_and_specs(folder: Path) -> None:
    assert run(folder, "dirs").stdout.splitlines()[1].split() == [str(folder), "0", "2", "usable", "specs"]
    assert run(folder / "none", "dirs").stdout.splitlines()[1].split() == [f"{folder}/none", "0", "missing"]
    assert run(folder / "gpu.json", "dirs").stdout.splitlines()[1].split()[-1] == "unreadable"
    assert run(folder, "vendors").stdout.splitlines() == ["VENDOR    SPECS", "acme.com  2"]
    assert run(folder, "classes").stdout.splitlines() == ["CLASS  VENDORS", "gpu    acme.com", "nic    acme.com"]
    assert run(folder, "specs", "acme.com").stdout.splitlines()[1].split() == [
        "acme.com/gpu",
        "0.5.0",
        "2",
        f"{folder}/gpu.json",
    ]


def test_unknown_vendor_is_refused_with_the_known_ones(folder: Path) -> None:
    result = run(folder, "specs", "nobody.com")
    assert result.exit_code == 1
    assert "no specs of vendor nobody.com; known are acme.com" in result.stderr


def test_several_directories_are_given_by_comma_or_by_repeating(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    for args in (["-d", f"{folder},{tmp_path}/run"], ["-d", str(folder), "-d", f"{tmp_path}/run"]):
        result = CliRunner().invoke(cdi, [*args, "dirs"])
        assert [line.split()[0] for line in result.stdout.splitlines()[1:]] == [str(folder), f"{tmp_path}/run"]


def test_empty_world_is_said_and_is_no_error(folder: Path) -> None:
    result = run(folder / "none", "devices")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "no CDI devices\n")


def test_lists_point_to_problems(folder: Path) -> None:
    (folder / "bad.yaml").write_text("x")
    result = run(folder, "devices")
    assert result.exit_code == 0
    assert "1 spec file or directory has problems; to see them: dibs cdi validate" in result.stderr


def test_inject_takes_globs_sorted_and_prints_the_new_spec(folder: Path, tmp_path: Path) -> None:
    oci = tmp_path / "config.json"
    oci.write_text(json.dumps({"process": {"env": ["SLICE=0"]}}))
    result = run(folder, "inject", str(oci), "acme.com/gpu=1*", "acme.com/*=0")
    assert result.exit_code == 0
    made = json.loads(result.stdout)
    assert made["process"]["env"] == ["SLICE=1", "ACME=1"]
    assert made["linux"]["devices"][0]["major"] == 1
    assert result.stderr == "injected: acme.com/gpu=0, acme.com/gpu=1:0\n"


def test_inject_reads_standard_input(folder: Path) -> None:
    made = json.loads(run(folder, "inject", "-", "acme.com/nic=a", stdin="{}").stdout)
    assert made["process"]["env"] == ["N=1"]


def test_star_does_not_cross_the_slash(folder: Path) -> None:
    result = run(folder, "inject", "-", "*", stdin="{}")
    assert result.exit_code == 1
    assert "unresolvable CDI devices * (matches no device)" in result.stderr


def test_inject_refuses_as_a_whole_and_names_everything_missing(folder: Path) -> None:
    result = run(folder, "inject", "-", "acme.com/gpu=0", "acme.com/gpu=7", "x", stdin="{}")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "acme.com/gpu=7, x (not a qualified name" in result.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [("[]", "must be an object"), ("{", "neither JSON nor YAML"), ('{"linux": 1}', "linux: the OCI spec must have")],
)
def test_bad_oci_spec_is_refused(folder: Path, text: str, message: str) -> None:
    result = run(folder, "inject", "-", "acme.com/gpu=0", stdin=text)
    assert (result.exit_code, result.stdout) == (1, "")
    assert message in result.stderr


def test_resolve_replaces_the_names_in_the_spec(folder: Path) -> None:
    oci = {"linux": {"devices": [{"path": "acme.com/gpu=0"}]}}
    made = json.loads(run(folder, "resolve", "-", stdin=json.dumps(oci)).stdout)
    assert [device["path"] for device in made["linux"]["devices"]] == ["/dev/acme0"]


def test_validate_is_quiet_about_good_directories_and_fails_on_bad_ones(folder: Path) -> None:
    good = run(folder, "validate")
    assert (good.exit_code, good.stdout) == (0, "2 specs, 3 devices: no problems\n")
    (folder / "bad.yaml").write_text("cdiVersion: 0.3.0\nkind: acme\n")
    (folder / "twin.json").write_text(json.dumps(NIC))
    bad = run(folder, "validate")
    assert bad.exit_code == 1
    assert bad.stdout.splitlines()[:3] == [
        f"{folder}/bad.yaml:",
        '  kind: invalid kind "acme"; write vendor/class',
        "  devices: no devices; a spec needs at least one",
    ]
    assert bad.stdout.count('conflicting device "acme.com/nic=a"') == 2


def test_validate_checks_each_file_given(folder: Path) -> None:
    (folder / "bad.yaml").write_text("")
    result = run(folder, "validate", f"{folder}/gpu.json", f"{folder}/bad.yaml", f"{folder}/none", "-", stdin="[]")
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        f"{folder}/gpu.json: ok, acme.com/gpu with 2 devices",
        f"{folder}/bad.yaml:",
        "  the spec is empty",
        f"{folder}/none:",
        "  cannot be read: No such file or directory",
        "-:",
        "  must be an object, not a list",
    ]
    assert run(folder, "validate", f"{folder}/gpu.json").exit_code == 0


def test_monitor_prints_the_changes_that_were_asked_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def sleep(_: float) -> None:
        (folder / "nic.json").unlink()

    monkeypatch.setattr("dibs.cdi.watch.time.sleep", sleep)
    before = set(threading.enumerate())  # the test runner may have some of its own
    result = run(folder, "monitor", "devices", "classes", "--polls", "1")
    assert result.stdout.splitlines() == ["removed class nic", "removed device acme.com/nic=a"]
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize("verb", ["", *sorted(cdi.commands)])
def test_every_help_text_has_an_example(verb: str) -> None:
    result = CliRunner().invoke(cdi, [*([verb] if verb else []), "--help"])
    assert result.exit_code == 0
    assert f"  dibs cdi {verb}".rstrip() in result.stdout
