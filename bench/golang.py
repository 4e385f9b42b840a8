"""Kubernetes' own allocator and CEL, as a program to compare with. Built once, where a Go toolchain is there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

MODULE = "k8s.io/dynamic-resource-allocation"
VERSION = "v0.37.0-rc.1"
SOURCE = Path(__file__).parent / "reference" / "main.go"


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "dibs-bench"


def reference() -> list[str] | str:
    """The command of the reference, built if need be; or why there is none."""
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if go is None:
        return "no go toolchain was found"
    cache = cache_folder()
    binary = cache / f"reference-{VERSION}-{sha256(SOURCE.read_bytes()).hexdigest()[:12]}"
    if binary.exists():
        return [str(binary)]
    cache.mkdir(parents=True, exist_ok=True)
    shutil.copy(SOURCE, cache / "main.go")
    print(f"building Kubernetes' allocator in {cache} (once, some minutes) …", file=sys.stderr)
    (cache / "go.mod").unlink(missing_ok=True)
    for command in (
        ["mod", "init", "reference"],
        ["get", f"{MODULE}@{VERSION}", f"k8s.io/api@{VERSION}", f"k8s.io/apimachinery@{VERSION}"],
        ["mod", "tidy"],
        ["build", "-o", str(binary), "."],
    ):
        done = subprocess.run([go, *command], cwd=cache, capture_output=True, text=True, check=False)
        if done.returncode:
            return f"go {' '.join(command)}: {done.stderr.strip().splitlines()[-1]}"
    return [str(binary)]


def ask(command: list[str], described: dict[str, Any], milliseconds: int) -> float:
    """Microseconds of one decision (or of one evaluation, where `described` has an expression)."""
    text = json.dumps({**described, "milliseconds": milliseconds})
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout)["microseconds"])
