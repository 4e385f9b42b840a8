"""`dibs claims check`: every mistake with its place, and an exit code for scripts."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest
import yaml

from .cases import claim, save
from .conftest import Dibs

CLASS_NAME = "spec.devices.requests[0].exactly.deviceClassName"
RULE = (
    """Invalid value: "UPPER": must be lower case letters, digits, '-' and '.', each part like a label, at most 253"""
)


def test_right_files_are_reported_with_what_is_in_them(dibs: Dibs, tmp_path: Path) -> None:
    path = save(tmp_path / "a.yaml", claim(name="a"), claim(name="b"))
    result = dibs("claims", "check", path)
    assert (result.code, result.out, result.err) == (0, f"{path}: ok, 2 ResourceClaims\n", "")


def test_every_mistake_of_every_file_is_printed_at_once(dibs: Dibs, tmp_path: Path) -> None:
    first = save(tmp_path / "a.yaml", claim(name="good"), claim(-1, "UPPER", name="bad"))
    second = save(tmp_path / "b.yaml", claim(1, "gpu", "device.drver == 'x'", name="cel"))
    result = dibs("claims", "check", first, second)
    assert result.code == 80
    assert result.out.splitlines() == [
        f"{first}:",
        "  ResourceClaim bad (document 2)",
        f"    {CLASS_NAME}: {RULE}",
        "    spec.devices.requests[0].exactly.count: Invalid value: -1: must be greater than zero",
        f"{second}:",
        "  ResourceClaim cel (document 1)",
        "    spec.devices.requests[0].exactly.selectors[0].cel.expression: Invalid value",
        "      ERROR: <input>:1:7: undefined field 'drver'",
        "       | device.drver == 'x'",
        "       | ......^",
        "",
        "3 problems",
    ]


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_the_answer_is_also_data(dibs: Dibs, tmp_path: Path, form: str) -> None:
    path = save(tmp_path / "a.yaml", claim(name="good"), claim(0, name="bad"))
    result = dibs("claims", "check", path, "-o", form)
    assert result.code == 80
    data = json.loads(result.out) if form == "json" else yaml.safe_load(result.out)
    assert data["ok"] is False
    (file,) = data["files"]
    assert file["objects"] == [{"kind": "ResourceClaim", "name": "good", "namespace": "", "document": 1}]
    (problem,) = file["problems"]
    assert problem["field"] == "spec.devices.requests[0].exactly.count"
    assert problem["type"] == "Invalid value"
    assert problem["document"] == 2
    assert dibs("claims", "check", save(tmp_path / "b.yaml", claim()), "-o", form).code == 0


def test_the_standard_input_is_a_file_too(dibs: Dibs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(yaml.safe_dump(claim()).encode())))
    assert dibs("claims", "check", "-").out == "-: ok, 1 ResourceClaim\n"


def test_a_file_that_is_not_there_is_a_problem(dibs: Dibs) -> None:
    result = dibs("claims", "check", "nothing.yaml")
    assert result.code == 80
    assert "cannot be read: No such file" in result.out


def test_no_file_at_all_is_wrong_usage(dibs: Dibs) -> None:
    assert dibs("claims", "check").code == 2
