"""Debian roots with real engines in them, for tests.

`running` starts what is in them. A root is made once, by debootstrap, below the cache folder; nothing of it goes onto
the host. It must say in plain words why it cannot be done here (no root, no mirror): tests then skip with that reason.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

FULL_SIZE = bool(os.environ.get("DIBS_SOAK"))  # read now: a test has no DIBS_ variables of ours
MIRROR = os.environ.get("DIBS_ENGINES_MIRROR", "http://deb.debian.org/debian")
PACKAGES = {
    "trixie": (
        "docker.io docker-cli podman containerd runc crun netavark nftables iptables iproute2 "
        "containernetworking-plugins busybox-static tini catatonit"
    ),
    "bookworm": "podman runc iproute2 iptables containernetworking-plugins busybox-static catatonit",
    "sid": "docker.io docker-cli containerd runc nftables iptables iproute2 busybox-static tini",
}


class CannotInstall(Exception):
    """There are no engines here; the text says why."""


def cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(os.environ.get("DIBS_ENGINES_CACHE") or f"{base}/dibs-engines")


def postponed(suite: str) -> str:
    """Why a suite is not made now, though it could be; empty if it is there, or shall be made.

    One is enough for an ordinary run. Another takes one to two minutes the first time.
    """
    if suite == "trixie" or FULL_SIZE or (cache() / suite / ".complete").exists():
        return ""
    return f"Debian {suite} with it is not installed yet: DIBS_SOAK=1 does it, once, in about two minutes"


def install(suite: str = "trixie") -> Path:
    """The root of a suite, made if it is not there."""
    if os.geteuid() != 0:
        raise CannotInstall("real engines need root")
    folder = cache()
    folder.mkdir(parents=True, exist_ok=True)
    root = folder / suite
    with (folder / f"{suite}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (root / ".complete").exists():
            _make(root, suite, folder)
    return root


def _make(root: Path, suite: str, folder: Path) -> None:
    if shutil.which("debootstrap") is None:
        _run("apt-get", "-q", "update", log=folder / "apt.log")
        _run("apt-get", "install", "-yq", "--no-install-recommends", "debootstrap", log=folder / "apt.log")
    shutil.rmtree(root, ignore_errors=True)
    _run(
        "debootstrap", "--variant=minbase", "--include=ca-certificates", suite, str(root), MIRROR,
        log=folder / f"{suite}-debootstrap.log",
    )  # fmt: skip
    policy = root / "usr/sbin/policy-rc.d"
    policy.write_text("#!/bin/sh\nexit 101\n")  # no service is started while packages are installed
    policy.chmod(0o755)
    inside = "mount -t proc proc /proc; exec apt-get install -yq --no-install-recommends " + PACKAGES[suite]
    _run(
        "unshare", "--mount", "--propagation", "private", "chroot", str(root), "/bin/sh", "-c", inside,
        log=folder / f"{suite}-apt.log",
    )  # fmt: skip
    (root / ".complete").touch()


def _run(*command: str, log: Path) -> None:
    with log.open("ab") as out:
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment, check=False)
    if done.returncode:
        tail = log.read_text(errors="replace").strip().splitlines()[-1:]
        raise CannotInstall(f"{command[0]} failed ({' '.join(tail)}); its log is {log}")


if __name__ == "__main__":
    import sys

    for one in sys.argv[1:] or ["trixie"]:
        print(install(one))
