"""Released Go code as programs to compare with. Built once, where a Go toolchain is there.

Kubernetes' own allocator and CEL (`reference`), and Kubeflow Trainer's rendering of jobs (`trainer_reference`). The
benchmarks time them (`ask`), the tests and the fuzzer ask them for answers (`Reference`). The sources, and the versions
that they are built from, are in the folders of these names; the binaries are kept in the user's cache folder.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Any

KUBERNETES, TRAINER = "reference", "trainer_reference"
_WHAT = {KUBERNETES: "Kubernetes' allocator and CEL", TRAINER: "Kubeflow Trainer's rendering"}


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "dibs-bench"


def _toolchain() -> str | None:
    return shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")


def _source(name: str) -> Path:
    return Path(__file__).parent / name


def _binary(name: str) -> Path:
    """Named after everything that it is made of."""
    parts = sorted(path for path in _source(name).iterdir() if path.suffix in (".go", ".mod", ".sum"))
    digest = sha256(b"\0".join(part for path in parts for part in (path.name.encode(), path.read_bytes())))
    return cache_folder() / f"{name}-{digest.hexdigest()[:16]}"


def built(name: str = KUBERNETES) -> list[str] | str:
    """The command of the reference where it has been built before; else why there is none."""
    binary = _binary(name)
    if binary.exists():
        return [str(binary)]
    if _toolchain() is None:
        return "no go toolchain was found"
    return f"{_WHAT[name]} has not been built yet: run scripts/test-needs (or python -m bench.golang), once"


def reference(name: str = KUBERNETES) -> list[str] | str:
    """The command of the reference, built if need be; or why there is none."""
    found, go = built(name), _toolchain()
    if isinstance(found, list) or go is None:
        return found
    binary = _binary(name)
    binary.parent.mkdir(parents=True, exist_ok=True)
    print(f"building {_WHAT[name]} in {binary.parent} (once, some minutes) …", file=sys.stderr)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=binary.parent) as folder:
        made = Path(folder) / "reference"
        command = [go, "build", "-mod=readonly", "-trimpath", "-buildvcs=false", "-o", str(made), "."]
        with subprocess.Popen(
            command, cwd=_source(name), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as build:
            assert build.stdout is not None
            lines = []
            for line in build.stdout:
                lines.append(line.rstrip())
                print(f"  {time.monotonic() - began:4.0f} s  {line.rstrip()}", file=sys.stderr)
        if build.returncode:
            return f"go build: {lines[-1] if lines else f'exit code {build.returncode}'}"
        made.replace(binary)
    print(f"  built in {time.monotonic() - began:.0f} s", file=sys.stderr)
    return [str(binary)]


def ask(command: list[str], described: dict[str, Any], milliseconds: int) -> float:
    """Microseconds of one decision (or of one evaluation, where `described` has an expression)."""
    text = json.dumps({**described, "milliseconds": milliseconds})
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout)["microseconds"])


class Reference:
    """The reference as a process that answers one question after another."""

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """One answer."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(question) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"the reference ended (exit code {process.wait()}) on {json.dumps(question)[:2000]}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)
        self._process.stdout.close()

    def __enter__(self) -> Reference:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


if __name__ == "__main__":
    found = reference()
    if isinstance(found, str):
        print(f"Kubernetes' reference was not built: {found}", file=sys.stderr)
