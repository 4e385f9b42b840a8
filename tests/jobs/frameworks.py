"""Real training frameworks without GPUs, for tests: PyTorch as Debian builds it, and JAX.

Both live in one Debian root below the cache folder, made once; nothing of it goes onto the host. Jobs see its /usr as a
read-only volume, in an image (`skeleton`) that has nothing but links into it: so the image is a few kilobytes, and the
same on every backend. It says in plain words why it cannot be had here; tests then skip with that reason.

`python -m tests.jobs.frameworks` makes it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

from tests.engines.installing import PRIVATE, CannotInstall, mirror
from tests.jobs.submitting import objects, replicated, runtime

from dibs.workloads.jobs.model import Objects

Json = dict[str, Any]
IMAGE = "localhost/dibs-frameworks:1"

# Its launcher trips over Python 3.11 unless these are set: an enumeration of flags is printed in another way there.
TORCH_ENV = {"PET_REDIRECTS": "1", "PET_TEE": "1"}
JAX_PATH = "/usr/lib/jax"
_LINKS = {"bin": "usr/bin", "lib": "usr/lib", "lib64": "usr/lib64"}


def cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "dibs" / "frameworks"


def install() -> Path:
    """The root, made if it is not there."""
    if os.geteuid() != 0:
        raise CannotInstall("a Debian root needs root")
    if sys.version_info[:2] != (3, 11):
        raise CannotInstall("JAX is installed for the Python of Debian bookworm by the same version, 3.11")
    folder = cache()
    folder.mkdir(parents=True, exist_ok=True)
    root = folder / "root"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for step, make in (("debian", _make_root), ("complete", _add_jax)):
            if not (folder / step).exists():
                make(root, folder / "install.log")
                (folder / step).touch()
    return root


def _make_root(root: Path, log: Path) -> None:
    if shutil.which("debootstrap") is None:
        _run("apt-get", "-q", "update", log=log)
        _run("apt-get", "install", "-yq", "--no-install-recommends", "debootstrap", log=log)
    shutil.rmtree(root, ignore_errors=True)
    # In mounts of its own: cut off, it leaves its /proc mounted, and every later attempt fails for it.
    _run(
        *PRIVATE,
        "debootstrap",
        "--variant=minbase",
        "--include=ca-certificates",
        "bookworm",
        str(root),
        mirror(),
        log=log,
    )
    policy = root / "usr/sbin/policy-rc.d"
    policy.write_text("#!/bin/sh\nexit 101\n")
    policy.chmod(0o755)
    packages = "python3-torch openmpi-bin openssh-server openssh-client python3-mpi4py"
    inside = f"mount -t proc proc /proc; exec apt-get install -yq --no-install-recommends {packages}"
    _run(*PRIVATE, "chroot", str(root), "/bin/sh", "-c", inside, log=log)
    # What Debian keeps behind alternatives in /etc would dangle in an image that has an /etc of its own.
    for path in (root / "usr").rglob("*"):
        if path.is_symlink() and os.readlink(path).startswith("/etc/alternatives/"):
            target = os.readlink(f"{root}{os.readlink(path)}")
            path.unlink()
            path.symlink_to(target)
    shutil.rmtree(root / "var/cache/apt", ignore_errors=True)


def _add_jax(root: Path, log: Path) -> None:
    _run(*_installer(), "install", "-q", "--target", f"{root}{JAX_PATH}", "jax", log=log)


def _installer() -> tuple[str, ...]:
    """pip of this environment; one that uv has made comes without."""
    same = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for words in ((sys.executable, "-m", "pip"), ("uv", "pip"), (f"/usr/bin/{same}", "-m", "pip")):
        try:
            done = subprocess.run([*words, "--help"], capture_output=True, check=False)
        except FileNotFoundError:
            continue
        if done.returncode == 0:
            return words
    raise CannotInstall("there is neither pip nor uv to install JAX with")


def skeleton(folder: Path) -> Path:
    """The root folder of an image that has its programs in a volume."""
    for name, target in _LINKS.items():
        link = folder / name
        folder.mkdir(parents=True, exist_ok=True)
        if not link.is_symlink():
            link.symlink_to(target)
    for name in ("sbin", "etc", "usr", "tmp", "root", "proc", "sys", "dev", "run", "var", "work"):
        (folder / name).mkdir(exist_ok=True)
    (folder / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\nsshd:x:100:65534::/run/sshd:/usr/sbin/nologin\n")
    (folder / "etc/group").write_text("root:x:0:\nnogroup:x:65534:\n")
    (folder / "etc/nsswitch.conf").write_text("hosts: files dns\n")
    (folder / "etc/ssh").mkdir(exist_ok=True)
    (folder / "etc/ssh/ssh_config").write_text("Host *\n    StrictHostKeyChecking no\n    LogLevel ERROR\n")
    (folder / "etc/ssh/sshd_config").write_text("PermitRootLogin yes\n")
    return folder


def skeleton_tar(folder: Path) -> Path:
    """The same as a tar that an engine can import."""
    path = folder.with_suffix(".tar")
    with tarfile.open(path, "w") as tar:
        for name in sorted(os.listdir(folder)):
            tar.add(folder / name, name)
    return path


def training(programs: Path, policy: str, command: list[str], env: dict[str, str], pod: Json | None = None) -> Objects:
    """A job of two nodes with two GPUs each; `programs`: where the frameworks and the examples are on its host."""
    volumes = [
        {"name": "usr", "hostPath": {"path": f"{programs}/usr"}},
        {"name": "work", "hostPath": {"path": f"{programs}/examples"}},
    ]
    mounts = [
        {"name": "usr", "mountPath": "/usr", "readOnly": True},
        {"name": "work", "mountPath": "/programs", "readOnly": True},
    ]
    made = runtime(
        replicated(pod={"volumes": volumes, **(pod or {})}, volumeMounts=mounts), policy={"numNodes": 1, policy: {}}
    )
    del made["metadata"]["annotations"]
    trainer = {"image": IMAGE, "env": [{"name": name, "value": value} for name, value in env.items()]}
    return objects(command, runtime=made, nodes=2, gpus=2, trainer=trainer)


def _run(*command: str, log: Path) -> None:
    with log.open("ab") as out:
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment, check=False)
    if done.returncode:
        tail = log.read_text(errors="replace").strip().splitlines()[-1:]
        raise CannotInstall(f"{command[0]} failed ({' '.join(tail)}); its log is {log}")


def main() -> None:
    begun = time.monotonic()
    if not (cache() / "complete").exists():
        print("tests: installing PyTorch and JAX (once; some minutes)", flush=True)
    try:
        root = install()
    except CannotInstall as error:
        print(f"tests: no training frameworks here: {error}")
    else:
        print(f"tests: training frameworks are in {root} after {time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
