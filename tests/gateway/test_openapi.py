"""The OpenAPI document is what the gateway does: route by route, and under fuzzing."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from litestar import Litestar
from litestar.routes import HTTPRoute

from dibs.gateway.native import route_handlers
from dibs.gateway.openapi import OPERATIONS, document

from .conftest import RunningGateway

# The grammar of these bodies is richer than JSON Schema can say: what fits it may still be refused, with reasons.
RICH = ("createSandbox", "explain", "keepClaim", "solveClaim", "uploadFiles")
CONFIG = """
[checks]
positive_data_acceptance.expected-statuses = ["2xx", 401, 403, 404, 409, 504]
[[operations]]
include-operation-id = {rich}
checks.positive_data_acceptance.expected-statuses = ["2xx", 400, 401, 403, 404, 409]
"""


def test_the_document_has_every_route_of_the_native_api_and_no_other() -> None:
    app = Litestar(route_handlers=route_handlers(), openapi_config=None)
    served = {
        (method, route.path_format)
        for route in app.routes
        if isinstance(route, HTTPRoute)
        for method in route.methods
        if method != "OPTIONS"
    }
    assert {(op.method, op.path) for op in OPERATIONS} == served


def test_every_parameter_of_a_path_is_described() -> None:
    for path, operations in json.loads(document())["paths"].items():
        for op in operations.values():
            described = [one["name"] for one in op.get("parameters", ()) if one["in"] == "path"]
            assert described == re.findall(r"{(\w+)}", path), path


def test_a_token_without_the_scope_that_the_document_names_is_refused(served: RunningGateway) -> None:
    scopes = ["sandboxes:read", "sandboxes:write", "devices:write"]
    tokens = {}
    for lacking in [*scopes, "admin"]:
        given = [word for scope in scopes if scope != lacking for word in ("--scope", scope)]
        tokens[lacking] = served.make_token(f"no-{lacking.replace(':', '-')}", *given)
    for op in OPERATIONS:
        path = re.sub(r"{\w+}", "x", op.path)
        if op.scope in tokens:
            reply = served.ask(op.method, path, token=tokens[op.scope])
            assert (op.name, reply.status) == (op.name, 403)
            assert op.scope in reply.body.decode(), op.name
        elif op.scope:
            assert [served.ask(op.method, path, token=token).status for token in tokens.values()] == [200] * 4
            assert served.ask(op.method, path, token=None).status == 401


def test_the_document_is_served_and_whole(served: RunningGateway) -> None:
    reply = served.ask("GET", "/openapi.json", token=None)
    assert reply.body == document()
    data = reply.data
    assert data["openapi"] == "3.1.0"
    known = set(data["components"]["schemas"])
    for text in json.dumps(data).split('"$ref": "#/components/schemas/')[1:]:
        assert text.partition('"')[0] in known
    names = [op["operationId"] for path in data["paths"].values() for op in path.values()]
    assert len(names) == len(set(names))
    for path in data["paths"].values():
        for op in path.values():
            assert "405" in op["responses"]


@pytest.fixture
def fuzzer(served: RunningGateway, tmp_path: Path) -> Iterator[list[str]]:
    config = tmp_path / "schemathesis.toml"
    config.write_text(CONFIG.format(rich=json.dumps(list(RICH))))
    yield [
        str(Path(sys.executable).with_name("schemathesis")), "--config-file", str(config), "run",
        f"{served.url}/openapi.json", "-H", f"Authorization: Bearer {served.token}", "--checks", "all",
        "--continue-on-failure", "--suppress-health-check", "all", "--request-timeout", "30", "--seed", "1",
        "--generation-database", "none", "--warnings", "off",
    ]  # fmt: skip
    for one in served.ask("GET", "/api/v1/sandboxes?page_size=1000").data["sandboxes"]:
        served.ask("DELETE", f"/api/v1/sandboxes/{one['id']}?grace=0s")


def run(words: list[str], folder: Path) -> None:
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, timeout=600, cwd=folder,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )  # fmt: skip
    print(done.stdout[-2000:])
    assert done.returncode == 0, done.stdout[-12000:] + done.stderr[-2000:]


@pytest.mark.stress
def test_fuzzing_with_right_and_wrong_data_finds_nothing(fuzzer: list[str], tmp_path: Path) -> None:
    # An event stream does not end, and a schema cannot say so.
    skipped = ["--exclude-operation-id", "followEvents"]
    run([*fuzzer, "--mode", "all", "--phases", "coverage,fuzzing", "-n", "4", *skipped], tmp_path)


@pytest.mark.stress
def test_fuzzing_a_sandbox_that_is_there_finds_nothing(
    served: RunningGateway, fuzzer: list[str], tmp_path: Path
) -> None:
    made = served.ask("POST", "/api/v1/sandboxes", {"gpu": 1, "name": "lab", "command": ["sleep", "600"]})
    served.sandbox(made.data["id"], "running")
    config = Path(fuzzer[2])
    known = '[parameters]\n"path.ref" = "lab"\n"query.path" = "/tmp"\n'
    config.write_text(known + config.read_text())
    asked = ("getSandbox", "changeSandbox", "getReceipt", "listSandboxEvents", "downloadFiles", "uploadFiles")
    chosen = [word for name in asked for word in ("--include-operation-id", name)]
    run([*fuzzer, "--mode", "all", "--phases", "fuzzing", "-n", "15", *chosen], tmp_path)
    assert served.ask("GET", "/api/v1/sandboxes/lab").data["state"] == "running"
