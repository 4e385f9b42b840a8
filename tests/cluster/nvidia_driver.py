"""A simulated installation of NVIDIA's driver: a root with the libraries and device nodes that its programs look for.

The cards are those of `nvml.c`. Their device nodes are /dev/null under other names.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
from pathlib import Path

CARDS = 4
VERSION = "570.86.15"
_SOURCE = Path(__file__).with_name("nvml.c")
_NULL = os.makedev(1, 3)
_CONTROL = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")


class CannotSimulate(Exception):
    """There can be no such installation here; the text says why."""


def install(root: Path, program: Path) -> Path:
    """The root, for a program that is linked against NVML."""
    if shutil.which("gcc") is None or shutil.which("nm") is None:
        raise CannotSimulate("there is no C compiler")
    libraries = root / "usr/lib/x86_64-linux-gnu"
    libraries.mkdir(parents=True)
    _compile(libraries / f"libnvidia-ml.so.{VERSION}", program, root)
    shutil.copyfile(libraries / f"libnvidia-ml.so.{VERSION}", libraries / f"libcuda.so.{VERSION}")
    for name in ("libnvidia-ml", "libcuda"):
        (libraries / f"{name}.so.1").symlink_to(f"{name}.so.{VERSION}")
    binaries = root / "usr/bin"
    binaries.mkdir()
    (binaries / "nvidia-smi").write_text("#!/bin/sh\n")
    (binaries / "nvidia-smi").chmod(0o755)
    devices = root / "dev"
    devices.mkdir()
    try:
        for name in (*_CONTROL, *(f"nvidia{index}" for index in range(CARDS))):
            os.mknod(devices / name, stat.S_IFCHR | 0o666, _NULL)
    except PermissionError as error:
        raise CannotSimulate("device nodes cannot be made here") from error
    return root


def _compile(library: Path, program: Path, folder: Path) -> None:
    """Every function of NVML that a program may call is there: a real library has all of them."""
    wanted = set(re.findall(r" U (nvml\w+)", _symbols(program, "--undefined-only")))
    stubs = folder / "stubs.c"
    done = _gcc("-c", "-o", str(folder / "nvml.o"), str(_SOURCE))
    defined = set(re.findall(r" T (nvml\w+)", _symbols(folder / "nvml.o", "--defined-only", dynamic=False)))
    stubs.write_text("".join(f"int {name}(void) {{ return 3; }}\n" for name in sorted(wanted - defined)))
    done = done or _gcc("-shared", "-o", str(library), str(folder / "nvml.o"), str(stubs))
    if done:
        raise CannotSimulate(f"gcc: {done}")


def _gcc(*words: str) -> str:
    done = subprocess.run(["gcc", "-fPIC", *words], capture_output=True, text=True, check=False)
    return done.stderr if done.returncode else ""


def _symbols(file: Path, which: str, *, dynamic: bool = True) -> str:
    words = ["nm", *(["-D"] if dynamic else []), which, str(file)]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout
