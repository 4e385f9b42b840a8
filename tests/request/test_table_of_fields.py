"""A field is declared once. What reads, offers, sends, shows and documents it follows from the table."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from dibs.cli.options import REQUEST
from dibs.errors import InvalidRequest
from dibs.plan.delivery import table
from dibs.remote.conversion import mapping_of
from dibs.request import fields
from dibs.request.fields import BY_NAME, FIELDS, KINDS, PASSED, ROWS
from dibs.request.model import Request
from dibs.request.spec import SandboxSpec, _Reader, parse_spec
from dibs.sdk.fields import RequestFields
from dibs.wire.requests import REQUEST_SCHEMA

ROOT = Path(__file__).resolve().parents[2]
# A value of each kind, and of fields whose texts have a shape of their own.
KIND = {
    "flag": True, "words": ["x"], "path": "/srv", "choice": "private", "bytes": "1Gi", "duration": 5, "env": {"A": "1"},
    "labels": {"a": "b"}, "mounts": ["/a:/b:rw"], "publish": ["8080:80"],
    "volumes": ["v/a:/c:ro,create"],
}  # fmt: skip
SHAPED = {"backend": "local", "name": "a", "user": "1:2", "platform": "linux/amd64", "cpu": "500m", "memory": "1Gi",
          "pids": 64}  # fmt: skip
# Resources are tried by tests of their own; an image excludes a root.
APART = {"gpu", "device", "where", "claim", "allow_busy", "image", "docker", "podman", "kubernetes"}
EVERYTHING = {name: SHAPED.get(name, KIND.get(field.kind)) for name, field in BY_NAME.items() if name not in APART}


def test_the_generated_sources_are_current() -> None:
    words = [sys.executable, str(ROOT / "scripts" / "generate_fields.py"), "--check"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_table_is_plain_data_that_imports_nothing() -> None:
    tree = ast.parse(Path(fields.__file__).read_text())
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    assert [node.module for node in found if isinstance(node, ast.ImportFrom)] == ["__future__"]
    assert len(found) == 1


def test_every_kind_has_a_reader() -> None:
    assert all(callable(getattr(_Reader, kind)) for kind in KINDS if kind not in ("resource", "options"))
    assert {field.kind for field in FIELDS} == set(KINDS)


def test_every_field_is_an_attribute_and_every_attribute_a_field() -> None:
    spec = {one.name for one in msgspec.structs.fields(SandboxSpec)} - {"resources", "options", "brought"}
    request = {one.name for one in msgspec.structs.fields(Request)} - {"parts", "members"}
    assert spec == {field.attribute for field in FIELDS if field.kind not in ("resource", "options")}
    assert request == {field.attribute for field in FIELDS if field.kind == "resource"}


def test_every_field_is_in_the_schema_the_python_api_and_the_delivery_table() -> None:
    assert set(BY_NAME) <= set(REQUEST_SCHEMA["properties"])
    assert set(BY_NAME) - {"command"} == set(RequestFields.__annotations__)
    assert set(ROWS) == set(table())


def test_every_option_of_the_table_is_one_of_the_command_line() -> None:
    spelled = {word for option in REQUEST for word in option.names}
    assert spelled == {word for field in FIELDS for word in field.option} | {"--gres", "--clean-env", "-f", "--file"}


def test_every_field_comes_back_as_it_was_sent_to_a_gateway() -> None:
    spec = parse_spec(EVERYTHING)
    assert parse_spec(mapping_of(spec, here=False)) == spec
    defaults = SandboxSpec()
    unsaid = [name for name in PASSED if getattr(spec, name) == getattr(defaults, name)]
    assert unsaid == ["image"]


@pytest.mark.parametrize("name", [field.name for field in FIELDS if field.kind not in ("resource", "options", "env")])
def test_a_value_of_the_wrong_kind_is_refused_under_the_name_of_its_field(name: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_spec({name: 3 + 4j})
    assert [problem.field for problem in caught.value.problems] == [name]
