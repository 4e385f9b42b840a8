"""An image with Python and bash in it, from this host's own files: there is no registry.

The interpreter that runs the tests, its standard library and the shared libraries of both, at their own places;
`python` is a link. cloudpickle is there for functions that a client sends. As a folder it is a root for `local`, as an
archive it is what engines load. Made once per version.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

import cloudpickle  # type: ignore[import-untyped]
from tests.engines import installing

REFERENCE = "localhost/dibs-python:1"
_LEFT_OUT = (
    "__pycache__",
    "test",
    "tests",
    "idlelib",
    "tkinter",
    "dist-packages",
    "site-packages",
    "ensurepip",
    "config-*",
)
_PROGRAMS = ("bash", "sleep", "ls", "cat", "env", "grep", "echo", "tail", "true")
_FOLDERS = ("etc", "dev", "proc", "sys", "tmp", "root", "run", "home", "usr/bin")


def root() -> Path:
    """The root folder."""
    program = Path(os.path.realpath(sys.executable))
    contents = f"{program} {sys.version} {_PROGRAMS} cloudpickle {cloudpickle.__version__}"
    folder = installing.cache() / f"python-{hashlib.sha256(contents.encode()).hexdigest()[:12]}"
    installing.cache().mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            draft = folder.with_suffix(".draft")
            shutil.rmtree(draft, ignore_errors=True)
            _fill(draft, program)
            draft.rename(folder)
    return folder


def archive() -> Path:
    """The image as `docker save` would write it."""
    folder = root()
    path = folder.with_suffix(".tar")
    if not path.exists():
        layer = io.BytesIO()
        with tarfile.open(fileobj=layer, mode="w") as tar:
            for name in sorted(os.listdir(folder)):
                tar.add(folder / name, name)
        draft = path.with_suffix(f".{os.getpid()}")
        draft.write_bytes(_saved(layer.getvalue()))
        draft.replace(path)
    return path


def _fill(folder: Path, program: Path) -> None:
    for name in _FOLDERS:
        (folder / name).mkdir(parents=True)
    for name in ("bin", "lib", "lib64"):
        (folder / "usr" / name).mkdir(exist_ok=True)
        (folder / name).symlink_to(f"usr/{name}")
    library = Path(sysconfig.get_path("stdlib", vars={"installed_base": sys.base_prefix}))
    shutil.copytree(library, _inside(folder, library), ignore=shutil.ignore_patterns(*_LEFT_OUT))
    package = Path(cloudpickle.__file__).parent
    shutil.copytree(package, _inside(folder, library) / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    programs = [
        program,
        *(Path(found) for name in _PROGRAMS if (found := shutil.which(name))),
    ]
    for one in programs:
        _copy(folder, one)
    for one in [*programs, *(library / "lib-dynload").glob("*.so")]:
        for needed in _libraries(one):
            _copy(folder, needed)
    for name in ("python", "python3"):
        (folder / "usr/bin" / name).symlink_to(program) if not (folder / "usr/bin" / name).exists() else None
    (folder / "usr/bin/sh").symlink_to("bash")
    (folder / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\n")
    (folder / "etc/group").write_text("root:x:0:\n")
    (folder / "tmp").chmod(0o1777)


def _libraries(program: Path) -> list[Path]:
    listed = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=False).stdout
    return [Path(word) for line in listed.splitlines() for word in line.split() if word.startswith("/")]


def _inside(folder: Path, path: Path) -> Path:
    """Where a file of the host is below the folder: /bin and /lib are links there."""
    text = str(path)
    if text.startswith(("/bin/", "/lib/", "/lib64/")):
        text = f"/usr{text}"
    return Path(f"{folder}{text}")


def _copy(folder: Path, path: Path) -> None:
    target = _inside(folder, path)
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)


def _saved(layer: bytes) -> bytes:
    digest = hashlib.sha256(layer).hexdigest()
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)
    config = json.dumps(
        {
            "architecture": machine,
            "os": "linux",
            "config": {"Env": ["PATH=/usr/bin:/bin"], "Cmd": ["bash"], "WorkingDir": "/tmp"},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        }
    ).encode()
    name = hashlib.sha256(config).hexdigest()
    manifest = [{"Config": f"{name}.json", "RepoTags": [REFERENCE], "Layers": [f"{digest}/layer.tar"]}]
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for file, data in (
            (f"{digest}/layer.tar", layer),
            (f"{name}.json", config),
            ("manifest.json", json.dumps(manifest).encode()),
        ):
            info = tarfile.TarInfo(file)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()
