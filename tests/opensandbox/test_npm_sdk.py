"""The npm SDK, unmodified, through the whole life of a sandbox. Skipped without node, npm or a registry.

The package is installed once, below the user's cache folder.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from tests import needs
from tests.opensandbox.conftest import Place

PACKAGE = "@alibaba-group/opensandbox"
VERSION = "0.1.11"


@pytest.fixture(scope="session")
def modules() -> Path:
    """A folder in which node finds the package."""
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            pytest.skip(f"there is no {program} here")
    folder = Path.home() / ".cache" / "dibs-npm" / VERSION
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "node_modules" / PACKAGE / "package.json").exists():
            (folder / "package.json").write_text('{"private": true, "type": "module"}')
            words = ["npm", "install", "--no-audit", "--no-fund", f"{PACKAGE}@{VERSION}"]
            done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
            if done.returncode != 0:
                pytest.skip(f"npm cannot install {PACKAGE}: {done.stderr.strip().splitlines()[-1:]}")
    return folder


def test_a_whole_life_with_the_npm_sdk(anywhere: Place, proxy: bool, modules: Path) -> None:
    needs.limits(anywhere.backend)
    script = modules / f"life-{os.getpid()}.mjs"
    script.write_text((Path(__file__).parent / "life.mjs").read_text())
    try:
        done = subprocess.run(
            ["node", script], env=anywhere.environment(proxy=proxy), cwd=modules, capture_output=True, text=True,
            timeout=300, check=False,
        )  # fmt: skip
    finally:
        script.unlink()
    assert (done.returncode, done.stdout.strip()) == (0, "ok"), done.stderr[-4000:]
