"""An image of dibs as it is in this checkout, made without a registry.

This machine's Python, what dibs depends on, and a small root. Tests load it into the nodes of the test cluster, where
the chart runs it.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from tests.cluster import images
from tests.engines.images import root_archive

REFERENCE = "localhost/dibs-under-test:1"
_PLACE = "opt/dibs"
_ROOT = Path(__file__).parents[2]
_LAUNCHER = """#!/bin/sh
exec {python} -m dibs "$@"
"""


def write(folder: Path, root: Path) -> Path:
    """The archive of the image, in a folder of the caller's. `root`: a Debian root, for its busybox."""
    layer = folder / "dibs-layer.tar"
    with tarfile.open(layer, "w") as tar, tarfile.open(root_archive(root)) as base:
        for member in base:
            tar.addfile(member, base.extractfile(member) if member.isfile() else None)
        _Layer(tar).fill()
    archive = folder / "dibs-image.tar"
    environment = {"PYTHONPATH": f"/{_PLACE}", "PYTHONDONTWRITEBYTECODE": "1", "HOME": "/tmp", "LC_ALL": "C.UTF-8"}
    images.write(archive, layer, REFERENCE, command=("dibs",), environment=environment)
    layer.unlink()
    return archive


class _Layer:
    def __init__(self, tar: tarfile.TarFile) -> None:
        self._tar = tar
        self._seen: set[str] = set()
        self._libraries: set[str] = set()

    def fill(self) -> None:
        interpreter = os.path.realpath(sys.executable)
        self._add(interpreter, interpreter.lstrip("/"))
        standard = sysconfig.get_path("stdlib")
        self._tree(Path(standard), standard.lstrip("/"), skip=("test", "dist-packages", "site-packages", "idlelib"))
        for file, name in _installed():
            self._add(file, f"{_PLACE}/{name}")
        self._tree(_ROOT / "src" / "dibs", f"{_PLACE}/dibs")
        for library in sorted(self._libraries):
            for one in _needs(library):
                self._add(one, one.lstrip("/"))
        launcher = _LAUNCHER.format(python=interpreter).encode()
        info = tarfile.TarInfo("usr/bin/dibs")
        info.size, info.mode = len(launcher), 0o755
        self._tar.addfile(info, io.BytesIO(launcher))

    def _tree(self, folder: Path, name: str, skip: tuple[str, ...] = ()) -> None:
        for place, folders, files in os.walk(folder):
            top = Path(place) == folder
            folders[:] = sorted(one for one in folders if one != "__pycache__" and not (top and one in skip))
            for one in sorted(files):
                self._add(f"{place}/{one}", f"{name}/{Path(place, one).relative_to(folder)}")

    def _add(self, file: str, name: str) -> None:
        real = os.path.realpath(file)
        if name in self._seen or not os.path.isfile(real):
            return
        self._seen.add(name)
        if ".so" in os.path.basename(real) or name.startswith("usr/bin/"):
            self._libraries.add(real)
        with open(real, "rb") as stream:
            info = tarfile.TarInfo(name)
            found = os.fstat(stream.fileno())
            info.size, info.mode = found.st_size, found.st_mode & 0o755 | 0o444
            self._tar.addfile(info, stream)


def _installed() -> Iterator[tuple[str, str]]:
    """The files of everything that `dibs[node,postgres]` depends on."""
    todo = [("dibs", frozenset({"node", "postgres"}))]
    done: set[str] = set()
    while todo:
        name, extras = todo.pop()
        key = re.sub(r"[-_.]+", "-", name).lower()
        if key in done:
            continue
        done.add(key)
        found = metadata.distribution(name)
        for text in found.requires or ():
            wanted = Requirement(text)
            if wanted.marker is None or any(wanted.marker.evaluate({"extra": one}) for one in (*extras, "")):
                todo.append((wanted.name, frozenset(wanted.extras)))
        if key != "dibs":
            for file in found.files or ():
                if "__pycache__" not in file.parts and ".." not in file.parts:
                    yield str(found.locate_file(file)), str(file)


def _needs(library: str) -> list[str]:
    """The shared objects that one needs, by the paths at which it looks for them."""
    done = subprocess.run(["ldd", library], capture_output=True, text=True, check=False)
    return re.findall(r"(?:=> |^\s+)(/\S+) \(0x", done.stdout, re.MULTILINE)
