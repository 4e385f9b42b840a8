"""The released controllers of JobSet and Kubeflow Trainer for the test cluster, built once through the Go module proxy.

`installed` gives a program and the folder of its module, where its CRDs and webhooks are. They are kept in the cache
folder by version. `scripts/test-needs` builds them before the tests (`python -m tests.cluster.controllers`); where they
cannot be had, tests are skipped with the reason.
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


JOBSET = Controller("jobset", "sigs.k8s.io/jobset", "v0.12.0", "sigs.k8s.io/jobset")
TRAINER = Controller(
    "trainer", "github.com/kubeflow/trainer/v2", "v2.3.0",
    "github.com/kubeflow/trainer/v2/cmd/trainer-controller-manager",
)  # fmt: skip


class Installed(NamedTuple):
    program: Path
    module: Path  # the files of its module: CRDs, webhooks


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
            **os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=mod -buildvcs=false -trimpath", "GOWORK": "off",
            "PATH": f"{Path(command).parent}:{os.environ.get('PATH', '')}",
        }  # fmt: skip
        source = _download(command, one, place, environment)
        head = [line for line in (source / "go.mod").read_text().splitlines() if re.match(r"(go [0-9]|godebug )", line)]
        lines = ["module dibs.test/controller", *head, f"require {one.module} {one.version}", ""]
        (place / "go.mod").write_text("\n".join(lines))
        shutil.copyfile(source / "go.sum", place / "go.sum")
        words = ["nice", "-n", "5", command, "build", "-ldflags", "-s -w", "-o", "program", one.package]
        done = subprocess.run(words, cwd=place, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise CannotBuild(f"go build of {one.name} failed: " + " | ".join(done.stderr.splitlines()[-5:]))
        manifests = source / ("config" if (source / "config").is_dir() else "manifests")
        shutil.rmtree(folder / "config", ignore_errors=True)
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


def main() -> int:
    for one in (JOBSET, TRAINER):
        try:
            folder = installed(one, build=True).program.parent
        except CannotBuild as reason:
            print(f"tests: no {one.name}: {reason}; the tests that need it are skipped")
            continue
        print(f"tests: {one.name} in {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
