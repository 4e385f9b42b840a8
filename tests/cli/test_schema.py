"""Every answer as data is what its published schema says, and nothing more."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import jsonschema_rs
import pytest

from dibs.cli.answers import ANSWERS, FOREIGN
from dibs.cli.main import dibs as command_line
from dibs.cli.schema import schema_of
from dibs.home import Home

from .conftest import Dibs


def validate(name: str, text: str) -> Any:
    found = json.loads(text)
    validator = jsonschema_rs.validator_for(schema_of(name))
    assert [error.message for error in validator.iter_errors(found)] == []
    return found


def verbs_with_data(group: click.Group, before: str = "") -> list[str]:
    """Every command that has `-o json`."""
    found = []
    context = click.Context(group)
    for name in group.list_commands(context):
        one = group.get_command(context, name)
        assert one is not None
        formats = [p.type.choices for p in one.params if p.name == "output" and isinstance(p.type, click.Choice)]
        if any("json" in choices for choices in formats):
            found.append(before + name)
        if isinstance(one, click.Group):
            found += verbs_with_data(one, f"{before}{name} ")
    return found


def test_every_command_that_prints_data_has_a_schema() -> None:
    known = {name.removesuffix(" --check") for name in (*ANSWERS, *FOREIGN)}
    missing = [name for name in verbs_with_data(command_line) if name not in known and name.split()[0] != "cdi"]
    assert missing == []


def test_a_schema_refuses_what_it_does_not_name() -> None:
    validator = jsonschema_rs.validator_for(schema_of("queue"))
    assert validator.is_valid({"queue": []})
    assert not validator.is_valid({"queue": [], "more": 1})
    ticket = {"ticket": "tk-1", "place": 1, "user": "a", "request": {}, "since": "2026-05-04T12:00:00.000Z"}
    assert validator.is_valid({"queue": [ticket]})
    assert not validator.is_valid({"queue": [{**ticket, "since": 1777896000.0}]})
    assert not validator.is_valid({"queue": [{**ticket, "username": "a"}]})


def test_schemas_are_printed_one_by_one_or_all_at_once(dibs: Dibs) -> None:
    printed = json.loads(dibs("schema").stdout)
    assert list(printed) == list(ANSWERS)
    for name, schema in printed.items():
        jsonschema_rs.meta.validate(schema)
        assert schema["title"] == f"dibs {name}"
    assert json.loads(dibs("schema", "sandbox", "show").stdout) == printed["sandbox show"]
    refused = dibs("schema", "claims", "solve")
    assert refused.returncode == 89
    assert "Kubernetes" in refused.stderr


def test_what_is_told_of_sandboxes(eight_gpus: Home, dibs: Dibs) -> None:
    run = dibs("run", "-o", "json", "--gpu", "2", "--", "sh", "-c", "echo out; echo err >&2; kill -9 $$")
    assert validate("run", run.stdout)["exit"]["signal"] == 9
    validate("run", dibs("run", "-d", "-o", "json", "--name", "far", "--ttl", "1h", "--", "sleep", "100").stdout)
    words = ("--name", "lab", "--gpu", "1", "--label", "created=1", "--label", "username=x", "-o", "json")
    made = validate("sandbox create", dibs("sandbox", "create", *words).stdout)
    assert made["labels"] == {"created": "1", "username": "x"}  # what users have named stays as it is
    listed = validate("sandbox ls", dibs("sandbox", "ls", "--all", "-o", "json").stdout)
    assert {one["name"] for one in listed["sandboxes"]} >= {"far", "lab"}
    validate("ps", dibs("ps", "-o", "json").stdout)
    assert validate("sandbox show", dibs("sandbox", "show", "lab", "-o", "json").stdout)["events"]
    receipt = validate("receipt", dibs("receipt", "lab", "-o", "json").stdout)
    assert (receipt["sandbox"], receipt["sandbox_id"]) == ("lab", made["id"])
    dibs("stop", "--grace", "0s", "far")
    assert validate("wait", dibs("wait", "far", "-o", "json").stdout)[0]["name"] == "far"


def test_what_is_told_of_devices(eight_gpus: Home, dibs: Dibs) -> None:
    dibs("sandbox", "create", "--name", "lab", "--gpu", "2")
    dibs("gpus", "taint", "gpu-5", "maintenance=fan")
    cards = validate("gpus", dibs("gpus", "-o", "json").stdout)["devices"]
    assert cards[0]["holder"]["sandbox"] == "lab"
    lease = validate("leases", dibs("leases", "-o", "json").stdout)["leases"][0]
    assert (lease["sandbox"], lease["user"]) == ("lab", cards[0]["holder"]["user"])
    for request in ("2", "99", "L4:1", "all"):
        validate("explain", dibs("explain", "--gpu", request, "-o", "json").stdout)
    validate("queue", dibs("queue", "-o", "json").stdout)
    for name in ("run", "explain", "sandbox create"):
        refused = dibs(*name.split(), "--gpu", "1.5", "-o", "json", "--", "true")
        assert validate("error", refused.stderr)["problems"][0]["code"] == "GPU_COUNT_INVALID"


def test_what_is_told_of_a_host_and_a_gateway(home: Home, dibs: Dibs, tmp_path: Path) -> None:
    validate("doctor", dibs("doctor", "-o", "json").stdout)
    validate("table", dibs("table", "-o", "json").stdout)
    validate("host status", dibs("--gateway", "none", "host", "status", "-o", "json").stdout)
    validate("serve --check", dibs("serve", "--check", "-o", "json", "--socket", str(tmp_path / "s")).stdout)
    validate("context ls", dibs("context", "ls", "-o", "json").stdout)
    made = validate("token create", dibs("token", "create", "ci", "--ttl", "1h", "-o", "json").stdout)
    assert validate("token ls", dibs("token", "ls", "-o", "json").stdout)["tokens"][0]["id"] == made["id"]
    validate("claims ls", dibs("claims", "ls", "-o", "json").stdout)


def test_what_is_told_of_a_simulated_world(home: Home, dibs: Dibs) -> None:
    shown = dibs("gpus", "simulate", "2", "--model", "A100-80GB", "--partitions", "7", "--unhealthy", "1", "-o", "json")
    if shown.returncode:
        pytest.skip(f"not over a gateway: {shown.stderr.splitlines()[0]}")
    validate("gpus simulate", shown.stdout)
    validate("gpus", dibs("gpus", "-o", "json").stdout)
    validate("gpus simulate", dibs("gpus", "simulate", "off", "-o", "json").stdout)
