"""Releases of OpenShell's SDK from PyPI, unmodified, each in an environment of its own that holds nothing else.

`test_sdk` and `test_ways_in` run `life.py` with them. An environment is made once, below the cache folder, and used by
every later test run. It must be outside /tmp: a sandbox on this host runs its Python too.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

import pytest

PINNED = "0.1.5"  # the wire contract that the schema was written for


def cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "dibs" / f"openshell-py{sys.version_info.major}.{sys.version_info.minor}"


@lru_cache(maxsize=1)
def releases() -> tuple[str, ...]:
    """The pinned one, and the newest that the package index has; without an index, the newest that is here already."""
    words = [sys.executable, "-m", "pip", "index", "versions", "openshell", "--disable-pip-version-check"]
    told = subprocess.run(words, capture_output=True, text=True, check=False)
    found = re.match(r"openshell \(([0-9.]+)\)", told.stdout)
    there = [path.name for path in cache().glob("[0-9]*") if (path / "bin" / "python").exists()]
    newest = found[1] if found else max(there, key=_order, default=PINNED)
    return tuple(sorted({PINNED, newest}, key=_order))


def _order(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def python(version: str) -> Path:
    """The interpreter of a release's environment. Skips the test, with the reason, where it cannot be made."""
    folder = cache() / version
    program = folder / "bin" / "python"
    cache().mkdir(parents=True, exist_ok=True)
    with (cache() / f"{version}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            draft = cache() / f".{version}"
            shutil.rmtree(draft, ignore_errors=True)
            _run([sys.executable, "-m", "venv", "--without-pip", str(draft)])
            target = draft / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
            _run([sys.executable, "-m", "pip", "install", "-q", "--target", str(target), f"openshell=={version}"])
            draft.rename(folder)
    return program


def _run(words: list[str]) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"the environment of OpenShell's SDK cannot be made: {done.stderr.strip()[-300:]}")


def main() -> None:
    """Make the environments, before the tests ask for them."""
    for release in releases():
        try:
            print(f"tests: OpenShell's SDK {release} in {python(release).parents[1]}")
        except pytest.skip.Exception as reason:
            print(f"tests: {reason}")


if __name__ == "__main__":
    main()
