"""The page about the gateway says what the code does: every setting, every metric, every path."""

from __future__ import annotations

import re
from pathlib import Path

from dibs import settings as module
from dibs.gateway.openapi import OPERATIONS
from dibs.workloads.identity import SCOPES

from .conftest import RunningGateway

PAGE = (Path(__file__).parents[2] / "docs" / "gateway.md").read_text()


def rows(heading: str) -> list[list[str]]:
    """The tables below a heading, row by row, cell by cell."""
    text = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    found = [line.strip().strip("|").split("|") for line in text.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in row] for row in found]


def test_every_setting_is_on_the_page_with_its_variable_default_and_meaning() -> None:
    wanted: dict[str, list[str]] = {}
    for prefix, table in (
        ("", module.TOP), ("mounts.", module.MOUNTS), ("docker.", module.DOCKER), ("podman.", module.PODMAN),
        ("kubernetes.", module.KUBERNETES), ("gateway.", module.GATEWAY), ("tenants.NAME.", module.TENANT),
    ):  # fmt: skip
        for one in table:
            variable = one.variable or (f"DIBS_GATEWAY_{one.key.upper()}" if prefix == "gateway." else "")
            wanted[f"`{prefix}{one.key}`"] = [f"`{variable}`" if variable else "", one.default, one.meaning]
    found = {row[0]: row[1:] for row in rows("Settings")}
    assert found.pop("`images.NAME`")
    assert found == wanted


def test_every_metric_is_on_the_page_and_no_other(served: RunningGateway) -> None:
    text = served.ask("GET", "/metrics").body.decode()
    real = {name.removesuffix("_total") for name in re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)}
    listed = {row[0].strip("`").removesuffix("_total") for row in rows("Metrics")}
    assert listed == real


def test_every_scope_is_on_the_page() -> None:
    assert {row[0].strip("`") for row in rows("Tokens")} == set(SCOPES)


def test_every_path_of_the_api_is_on_the_page() -> None:
    text = PAGE.partition("\n## The native API\n")[2].partition("\n## ")[0]
    for op in OPERATIONS:
        if op.path.startswith("/api/v1/") and op.path != "/api/v1/version":
            last = op.path.removeprefix("/api/v1").replace("{ref}", "NAME").replace("{name}", "NAME")
            last = last.replace("{device}", "NAME")
            assert last in text or f"`/{last.rpartition('/')[2]}`" in text or f"/{last.rpartition('/')[2]}?" in text, (
                last
            )
