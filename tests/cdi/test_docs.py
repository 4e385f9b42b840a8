"""The commands of docs/cdi.md run, in order, and print what the page says they print."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "cdi.md"
DIBS = f"""#!{sys.executable}
import click
from dibs.cli.cdi import cdi
click.Group("dibs", commands=[cdi])()
"""


def commands() -> list[tuple[str, list[str]]]:
    """Each command of the page with the output shown for it; none shown means that any will do."""
    found: list[tuple[str, list[str]]] = []
    inside = False
    for line in PAGE.read_text().splitlines():
        if line.startswith("```"):
            inside = line == "```console"
        elif inside and line.startswith("$ "):
            found.append((line[2:], []))
        elif inside:
            found[-1][1].append(line)
    return found


def test_every_command_of_the_page_works_as_shown(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "dibs").write_text(DIBS)
    (tmp_path / "bin" / "dibs").chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    verbs = set()
    for command, shown in commands():
        result = subprocess.run(
            ["sh", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert result.returncode == 0, f"{command}\n{result.stderr}"
        if shown:
            assert result.stdout.splitlines() == shown
        verbs |= set(command.split())
    assert {"devices", "dirs", "vendors", "classes", "specs", "inject", "resolve", "validate", "monitor"} <= verbs
