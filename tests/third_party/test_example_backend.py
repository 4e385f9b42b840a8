"""The backend in `examples/backend`, installed beside dibs: found by its entry point, and it passes the suite."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "backend"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """What an installer makes of the project: its package, and what its pyproject says of itself, on a path."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    place = tmp_path / "site"
    shutil.copytree(EXAMPLE / "src", place, ignore=shutil.ignore_patterns("__pycache__"))
    info = place / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    points = project["entry-points"]["dibs.backends"]
    (info / "entry_points.txt").write_text("[dibs.backends]\n" + "".join(f"{k} = {v}\n" for k, v in points.items()))
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("DIBS_", "PYTEST"))}
    return kept | {"PYTHONPATH": str(place), "DIBS_HOME": str(tmp_path / "home")}


def run(environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], env=environment, capture_output=True, text=True, check=False, timeout=900
    )


def test_it_passes_the_suite_of_every_backend(environment: dict[str, str]) -> None:
    result = run(
        environment,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-c",
        f"{EXAMPLE}/pyproject.toml",
        f"{EXAMPLE}/tests",
    )
    assert result.returncode == 0, result.stdout[-4000:]
    assert " passed" in result.stdout
    assert " failed" not in result.stdout


def test_it_is_taken_by_its_name_and_refuses_by_its_column(environment: dict[str, str]) -> None:
    done = run(environment, "-m", "dibs", "run", "--backend", "process", "--", "echo", "hello")
    assert (done.returncode, done.stdout) == (0, "hello\n"), done.stderr
    words = ("run", "--backend", "process", "--gpu", "1", "--memory", "1Gi", "--", "true")
    refused = run(environment, "-m", "dibs", *words)
    assert refused.returncode == 81, refused.stderr
    assert "a plain process sees every device of the host" in refused.stderr
    assert "it does not know this field" in refused.stderr


def test_its_column_is_in_the_table(environment: dict[str, str]) -> None:
    told = run(environment, "-m", "dibs", "table", "-o", "json")
    assert '"process"' in told.stdout, told.stderr
