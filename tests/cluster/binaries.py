"""Real Kubernetes binaries for tests, built once through the Go module proxy.

`running` starts them. They are kept in the cache folder by version: a second call finds them there.
`scripts/test-needs` builds them before the tests (`python -m tests.cluster.binaries`). `KUBEBUILDER_ASSETS` names a
folder that has them already. It must say in plain words why it cannot be done here (no Go, no proxy): tests then skip
with that reason.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

VERSION = os.environ.get("DIBS_CLUSTER_VERSION", "v1.37.1")
OFF = os.environ.get("DIBS_CLUSTER") == "off"  # read now: a test has no DIBS_ variables of ours
ASSETS = os.environ.get("KUBEBUILDER_ASSETS", "")
CONTROL_PLANE = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "etcd")
ALL = (*CONTROL_PLANE, "kubelet")
_ROOM = 12 << 30  # bytes that a cold build needs: modules, build cache, objects in between
_STAGING = re.compile(r"^\t(k8s\.io/[a-z-]+) => \./staging/", re.MULTILINE)
_ETCD_MAIN = """package main

import (
\t"os"

\t"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
"""


class CannotBuild(Exception):
    """There are no binaries here; the text says why."""


def cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(os.environ.get("DIBS_CLUSTER_CACHE") or f"{base}/dibs-cluster")


def binaries(*, build: bool = False) -> Path:
    """The folder with all of them. Without `build` only what is there already is used."""
    if OFF:
        raise CannotBuild("switched off (DIBS_CLUSTER=off)")
    if ASSETS:
        missing = [name for name in CONTROL_PLANE if not os.access(Path(ASSETS) / name, os.X_OK)]
        if not missing:
            return Path(ASSETS)
        print(f"cluster: KUBEBUILDER_ASSETS has no {', '.join(missing)}; using our own build", file=sys.stderr)
    folder = cache() / VERSION
    if complete(folder):
        return folder
    if not build:
        raise CannotBuild(f"Kubernetes {VERSION} is not built yet; run: python -m tests.cluster.binaries")
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not complete(folder):
            _build(folder)
    return folder


def complete(folder: Path) -> bool:
    return all(os.access(folder / name, os.X_OK) for name in ALL)


def go() -> str:
    found = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin:/usr/lib/go/bin")
    if found is None:
        raise CannotBuild("there is no go command here; install Go, or set KUBEBUILDER_ASSETS")
    return found


def _build(folder: Path) -> None:
    command = go()
    free = shutil.disk_usage(folder).free
    if free < _ROOM:
        raise CannotBuild(f"{free >> 30} GiB are free in {folder}, and a build needs {_ROOM >> 30}")
    started = time.monotonic()

    def say(text: str) -> None:
        print(f"cluster: {time.monotonic() - started:4.0f}s  {text}", flush=True)

    say(f"building Kubernetes {VERSION} through the Go module proxy, once; some 10 minutes on two cores")
    with tempfile.TemporaryDirectory(prefix="dibs-kube-build-") as work:
        place = Path(work)
        environment = {
            **os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=mod -buildvcs=false", "GOWORK": "off",
            "PATH": f"{Path(command).parent}:{os.environ.get('PATH', '')}",
        }  # fmt: skip
        source = _download(command, f"k8s.io/kubernetes@{VERSION}", place, environment)
        _write_module(place, source)
        say("modules")
        flags = " ".join(
            ("-s", "-w", *(f"-X {package}.{name}={value}" for package in _VERSIONED for name, value in _stamp()))
        )
        packages = [f"k8s.io/kubernetes/cmd/{name}" for name in ALL if name != "etcd"]
        (place / "out").mkdir()
        process = subprocess.Popen(
            ["nice", "-n", "5", command, "build", "-v", "-trimpath", "-ldflags", flags, "-o", "out/", *packages,
             "./etcd"],
            cwd=place, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stderr is not None
        last: list[str] = []
        compiled = 0
        for line in process.stderr:
            last = [*last[-9:], line.rstrip()]
            compiled += not line.startswith(("go:", "#", "\t"))
            if compiled and compiled % 200 == 0:
                say(f"{compiled} packages compiled")
        if process.wait():
            raise CannotBuild("go build failed: " + " | ".join(last))
        for name in ALL:
            staged = folder / f".{name}.new"
            shutil.copyfile(place / "out" / name, staged)
            staged.chmod(0o755)
            staged.rename(folder / name)
    say(f"done: {folder}")


_VERSIONED = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")


def _stamp() -> list[tuple[str, str]]:
    """What the binaries say of themselves; without it no parser of versions takes what they say."""
    major, minor, _ = VERSION.removeprefix("v").split(".")
    return [("gitVersion", VERSION), ("gitMajor", major), ("gitMinor", minor), ("gitTreeState", "archive")]


def _download(command: str, module: str, place: Path, environment: dict[str, str]) -> Path:
    (place / "go.mod").write_text("module dibs.test/kube\n")
    done = subprocess.run(
        [command, "mod", "download", "-json", module],
        cwd=place, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    try:
        return Path(json.loads(done.stdout)["Dir"])
    except (ValueError, KeyError):
        said = (done.stdout + done.stderr).strip().splitlines()
        raise CannotBuild(f"{module} cannot be had: {' | '.join(said[-3:])}") from None


def _write_module(place: Path, source: Path) -> None:
    """A module that requires Kubernetes. Its `replace` lines do not count here: each staging folder is named again."""
    upstream = (source / "go.mod").read_text()
    staging_version = "v0." + VERSION.removeprefix("v1.")
    head = [line for line in upstream.splitlines() if re.match(r"(go [0-9]|godebug )", line)]
    etcd = re.search(r"^\t(go\.etcd\.io/etcd/server/v3 \S+)", upstream, re.MULTILINE)
    required = [f"\tk8s.io/kubernetes {VERSION}", *([f"\t{etcd[1]}"] if etcd else [])]
    replaced = [f"\t{name} => {name} {staging_version}" for name in _STAGING.findall(upstream)]
    lines = ["module dibs.test/kube", *head, "require (", *required, ")", "replace (", *replaced, ")", ""]
    (place / "go.mod").write_text("\n".join(lines))
    shutil.copyfile(source / "go.sum", place / "go.sum")
    (place / "etcd").mkdir()
    (place / "etcd" / "main.go").write_text(_ETCD_MAIN)


def main() -> int:
    try:
        folder = binaries(build=True)
    except CannotBuild as reason:
        print(f"tests: no Kubernetes: {reason}; the tests on a real cluster are skipped")
        return 0
    print(f"tests: Kubernetes in {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
