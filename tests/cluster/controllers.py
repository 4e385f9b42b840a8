"""Released programs for the test cluster, built once through the Go module proxy: controllers, NVIDIA's drivers, Helm.

`installed` gives a program and the folder of its module, where its CRDs and webhooks are. They are kept in the cache
folder by version. `python -m tests.cluster.controllers [NAME...]` builds them; where they cannot be had, tests are
skipped with the reason.
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
from typing import NamedTuple

from tests.cluster.binaries import OFF, CannotBuild, go

_ROOM = 4 << 30  # bytes that a cold build of one of them needs


class Controller(NamedTuple):
    name: str
    module: str
    version: str
    package: str
    cgo: bool = False


JOBSET = Controller("jobset", "sigs.k8s.io/jobset", "v0.12.0", "sigs.k8s.io/jobset")
TRAINER = Controller(
    "trainer", "github.com/kubeflow/trainer/v2", "v2.3.0",
    "github.com/kubeflow/trainer/v2/cmd/trainer-controller-manager",
)  # fmt: skip


AGENT_SANDBOX = Controller(
    "agent-sandbox", "sigs.k8s.io/agent-sandbox", "v0.4.6", "sigs.k8s.io/agent-sandbox/cmd/agent-sandbox-controller"
)
HELM = Controller("helm", "helm.sh/helm/v4", "v4.3.1", "helm.sh/helm/v4/cmd/helm")
NVIDIA_DEVICE_PLUGIN = Controller(
    "nvidia-device-plugin", "github.com/NVIDIA/k8s-device-plugin", "v0.19.1",
    "github.com/NVIDIA/k8s-device-plugin/cmd/nvidia-device-plugin", cgo=True,
)  # fmt: skip
NVIDIA_CDI_HOOK = Controller(
    "nvidia-cdi-hook", "github.com/NVIDIA/k8s-device-plugin", "v0.19.1",  # whose dependency it is
    "github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-cdi-hook", cgo=True,
)  # fmt: skip
NVIDIA_DRA = Controller(
    "nvidia-dra", "sigs.k8s.io/dra-driver-nvidia-gpu", "v0.4.1",
    "sigs.k8s.io/dra-driver-nvidia-gpu/cmd/gpu-kubelet-plugin", cgo=True,
)  # fmt: skip
ALL = {
    one.name: one for one in (JOBSET, TRAINER, AGENT_SANDBOX, HELM, NVIDIA_DEVICE_PLUGIN, NVIDIA_CDI_HOOK, NVIDIA_DRA)
}
_MANIFESTS = ("config", "manifests", "k8s", "deployments")  # where modules keep their CRDs and charts
_LAZY = "-extldflags=-Wl,-z,lazy"  # NVML is loaded while running: its symbols are not there at the start


class Installed(NamedTuple):
    program: Path
    module: Path  # the manifests of its module: CRDs, webhooks; absent where it has none


def cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "dibs" / "controllers"


def installed(one: Controller, *, build: bool = False) -> Installed:
    """The program, and its module. Without `build` only what is there already is used."""
    if OFF:
        raise CannotBuild("switched off (DIBS_CLUSTER=off)")
    folder = cache() / f"{one.name}-{one.version}"
    found = Installed(folder / one.name, folder / "config")
    if not found.program.exists() and not build:
        raise CannotBuild(f"{one.name} {one.version} is not built yet; run: python -m tests.cluster.controllers")
    if not found.program.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not found.program.exists():
                _build(one, folder)
    return found


def _build(one: Controller, folder: Path) -> None:
    command = go()
    free = shutil.disk_usage(folder).free
    if free < _ROOM:
        raise CannotBuild(f"{free >> 30} GiB are free in {folder}, and a build needs {_ROOM >> 30}")
    started = time.monotonic()
    print(f"cluster: building {one.name} {one.version} through the Go module proxy, once; some minutes", flush=True)
    with tempfile.TemporaryDirectory(prefix="dibs-controller-") as work:
        place = Path(work)
        environment = {
            **os.environ, "CGO_ENABLED": str(int(one.cgo)), "GOWORK": "off",
            "GOFLAGS": "-mod=mod -buildvcs=false -trimpath",
            "PATH": f"{Path(command).parent}:{os.environ.get('PATH', '')}",
        }  # fmt: skip
        source = _download(command, one, place, environment)
        head = [line for line in (source / "go.mod").read_text().splitlines() if re.match(r"(go [0-9]|godebug )", line)]
        lines = ["module dibs.test/controller", *head, f"require {one.module} {one.version}", ""]
        (place / "go.mod").write_text("\n".join(lines))
        shutil.copyfile(source / "go.sum", place / "go.sum")
        flags = f"-s -w {_LAZY}" if one.cgo else "-s -w"
        words = ["nice", "-n", "5", command, "build", "-ldflags", flags, "-o", "program", one.package]
        done = subprocess.run(words, cwd=place, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise CannotBuild(f"go build of {one.name} failed: " + " | ".join(done.stderr.splitlines()[-5:]))
        shutil.rmtree(folder / "config", ignore_errors=True)
        for manifests in [source / name for name in _MANIFESTS if (source / name).is_dir()][:1]:
            shutil.copytree(manifests, folder / "config", copy_function=shutil.copyfile)
            subprocess.run(["chmod", "-R", "u+w", str(folder / "config")], check=True)
        staged = folder / f".{one.name}.new"
        shutil.copyfile(place / "program", staged)
        staged.chmod(0o755)
        staged.rename(folder / one.name)  # last: it says that everything is there
    print(f"cluster: {one.name} after {time.monotonic() - started:.0f} s, in {folder}", flush=True)


def _download(command: str, one: Controller, place: Path, environment: dict[str, str]) -> Path:
    (place / "go.mod").write_text("module dibs.test/controller\n")
    done = subprocess.run(
        [command, "mod", "download", "-json", f"{one.module}@{one.version}"],
        cwd=place, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    try:
        return Path(json.loads(done.stdout)["Dir"])
    except (ValueError, KeyError):
        said = (done.stdout + done.stderr).strip().splitlines()
        raise CannotBuild(f"{one.module} cannot be had: {' | '.join(said[-3:])}") from None


def main(names: list[str]) -> int:
    for one in [ALL[name] for name in names] or ALL.values():
        try:
            folder = installed(one, build=True).program.parent
        except CannotBuild as reason:
            print(f"tests: no {one.name}: {reason}; the tests that need it are skipped")
            continue
        print(f"tests: {one.name} in {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
