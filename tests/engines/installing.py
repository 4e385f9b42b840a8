"""Debian roots with real engines in them, for tests.

`running` starts what is in them. A root is made once, by debootstrap, below the cache folder; nothing of it goes onto
the host. `scripts/test-needs` makes all of them before the tests (`python -m tests.engines.installing`). It must say in
plain words why it cannot be done here (no root, no mirror): tests then skip with that reason.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import time
from pathlib import Path

MIRROR = os.environ.get("DIBS_ENGINES_MIRROR", "")  # read now: a test has no DIBS_ variables of ours
ENGINES = {"trixie": "docker 26, podman 5", "bookworm": "podman 4.3", "sid": "docker 28"}
PACKAGES = {
    "trixie": (
        "docker.io docker-cli podman containerd runc crun netavark nftables iptables iproute2 "
        "containernetworking-plugins busybox-static tini catatonit uidmap passt docker-registry"
    ),
    "bookworm": "podman runc iproute2 iptables containernetworking-plugins busybox-static catatonit",
    "sid": "docker.io docker-cli containerd runc nftables iptables iproute2 busybox-static tini",
}
PRIVATE = ("unshare", "--mount", "--propagation", "private")  # what is mounted goes with the process


class CannotInstall(Exception):
    """There are no engines here; the text says why."""


def cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(os.environ.get("DIBS_ENGINES_CACHE") or f"{base}/dibs-engines")


def mirror() -> str:
    """Where this machine's apt gets Debian's packages from, or what DIBS_ENGINES_MIRROR says."""
    if MIRROR:
        return MIRROR
    listed = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"],
        capture_output=True, text=True, check=False,
    ).stdout.split() if shutil.which("apt-get") else []  # fmt: skip
    # The archive itself, not the one of security updates or of another vendor beside it.
    found = next((uri for uri in listed if uri.rstrip("/").rpartition("/")[2] == "debian"), "")
    if not found:
        raise CannotInstall("apt knows no mirror of Debian here; DIBS_ENGINES_MIRROR=URL names one")
    return found.rstrip("/")


def install(suite: str = "trixie") -> Path:
    """The root of a suite, made if it is not there."""
    if os.geteuid() != 0:
        raise CannotInstall("real engines need root")
    folder = cache()
    folder.mkdir(parents=True, exist_ok=True)
    root = folder / suite
    with (folder / f"{suite}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_complete(suite):
            if not (root / ".complete").exists():
                _make(root, suite, folder)
            _add_packages(root, suite, folder)
    return root


def is_complete(suite: str) -> bool:
    """Whether the root has the packages that are wanted today: those of an older list are added to."""
    try:
        return (cache() / suite / ".complete").read_text() == PACKAGES[suite]
    except FileNotFoundError:
        return False


def _make(root: Path, suite: str, folder: Path) -> None:
    if shutil.which("debootstrap") is None:
        _run("apt-get", "-q", "update", log=folder / "apt.log")
        _run("apt-get", "install", "-yq", "--no-install-recommends", "debootstrap", log=folder / "apt.log")
    shutil.rmtree(root, ignore_errors=True)
    # In mounts of its own: cut off, it leaves its /proc mounted, and every later attempt fails for it.
    _run(
        *PRIVATE, "debootstrap", "--variant=minbase", "--include=ca-certificates", suite, str(root), mirror(),
        log=folder / f"{suite}-debootstrap.log",
    )  # fmt: skip
    policy = root / "usr/sbin/policy-rc.d"
    policy.write_text("#!/bin/sh\nexit 101\n")  # no service is started while packages are installed
    policy.chmod(0o755)


def _add_packages(root: Path, suite: str, folder: Path) -> None:
    inside = "mount -t proc proc /proc; exec apt-get install -yq --no-install-recommends " + PACKAGES[suite]
    _run(*PRIVATE, "chroot", str(root), "/bin/sh", "-c", inside, log=folder / f"{suite}-apt.log")
    (root / ".complete").write_text(PACKAGES[suite])


def _run(*command: str, log: Path) -> None:
    with log.open("ab") as out:
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment, check=False)
    if done.returncode:
        tail = log.read_text(errors="replace").strip().splitlines()[-1:]
        program = command[len(PRIVATE)] if command[: len(PRIVATE)] == PRIVATE else command[0]
        raise CannotInstall(f"{program} failed ({' '.join(tail)}); its log is {log}")


def main() -> None:
    """Make the roots that are missing, and say how that goes."""
    failed = False
    for suite, engines in ENGINES.items():
        if is_complete(suite):
            continue
        print(f"tests: Debian {suite} for {engines}, once, two minutes or so … ", end="", flush=True)
        begun = time.monotonic()
        try:
            install(suite)
        except CannotInstall as error:
            failed = True
            print(f"not possible: {error}")
        else:
            print(f"there after {time.monotonic() - begun:.0f} s, in {cache() / suite}")
    if failed:
        print("tests: those that need what is missing are skipped, and say so")


if __name__ == "__main__":
    main()
