"""A Linux kernel that runs as an ordinary program (User Mode Linux), for tests that need another host than this one.

`guest` boots it. Debian's package is fetched with apt and unpacked below the cache folder; nothing is installed. Where
that cannot be done, `CannotFetch` says why, and the tests are skipped with that reason.
"""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

PACKAGE = "user-mode-linux"


class CannotFetch(Exception):
    """There is no such kernel here; the text says why."""


def cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "dibs" / "guest"


def fetch() -> Path:
    """The folder of the unpacked package: the kernel is `usr/bin/linux.uml` in it."""
    if platform.machine() != "x86_64":
        raise CannotFetch(f"Debian has {PACKAGE} for x86_64 only")
    folder = cache()
    folder.mkdir(parents=True, exist_ok=True)
    root = folder / PACKAGE
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (root / "usr/bin/linux.uml").exists():
            _unpack(root, folder)
    return root


def _unpack(root: Path, folder: Path) -> None:
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise CannotFetch(f"{PACKAGE} comes as a package of Debian, and there is no apt-get here")
    with tempfile.TemporaryDirectory(dir=folder) as work:
        _run(["apt-get", "-q", "download", PACKAGE], work)
        (package,) = Path(work).glob("*.deb")
        _run(["dpkg-deb", "-x", str(package), f"{work}/root"], work)
        shutil.rmtree(root, ignore_errors=True)
        Path(work, "root").rename(root)


def _run(command: list[str], cwd: str) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=600)
    if done.returncode:
        raise CannotFetch(f"{' '.join(command[:3])} failed: {done.stderr.strip()[-300:]}")


if __name__ == "__main__":
    try:
        print(f"tests: a kernel for guests is in {fetch()}")
    except CannotFetch as error:
        print(f"tests: no kernel for guests: {error}")
