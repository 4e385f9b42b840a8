"""An image of dibs as it is in this checkout, made without a registry.

This machine's Python, what dibs depends on, and a small root. Tests load it into the nodes of the test cluster, where
the chart runs it.
"""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from tests.cluster import host_image
from tests.cluster.host_image import Layer

REFERENCE = "localhost/dibs-under-test:1"
_PLACE = "opt/dibs"
_ROOT = Path(__file__).parents[2]
_LAUNCHER = """#!/bin/sh
exec {python} -m dibs "$@"
"""


def write(folder: Path, root: Path) -> Path:
    """The archive of the image, in a folder of the caller's. `root`: a Debian root, for its busybox."""
    environment = {"PYTHONPATH": f"/{_PLACE}", "PYTHONDONTWRITEBYTECODE": "1", "HOME": "/tmp", "LC_ALL": "C.UTF-8"}
    return host_image.write(folder, root, REFERENCE, _fill, command=("dibs",), environment=environment)


def _fill(layer: Layer) -> None:
    interpreter = os.path.realpath(sys.executable)
    layer.add(interpreter, interpreter.lstrip("/"))
    standard = sysconfig.get_path("stdlib")
    layer.tree(Path(standard), skip=("test", "dist-packages", "site-packages", "idlelib"))
    for file, name in _installed():
        layer.add(file, f"{_PLACE}/{name}")
    layer.tree(_ROOT / "src" / "dibs", f"{_PLACE}/dibs")
    layer.libraries()
    layer.write("usr/bin/dibs", _LAUNCHER.format(python=interpreter), 0o755)


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
