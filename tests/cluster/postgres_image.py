"""An image of the PostgreSQL that this machine has, made without a registry, for the chart."""

from __future__ import annotations

from pathlib import Path

from tests.cluster import host_image
from tests.cluster.host_image import Layer

REFERENCE = "localhost/dibs-postgresql:1"
USER = 999  # as in the image that the chart names


def programs() -> Path | None:
    """The newest version's folder; None if there is none."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda one: int(one.parts[4]))
    return found[-1].parent if found else None


def write(folder: Path, root: Path, binaries: Path) -> Path:
    """The archive of the image, in a folder of the caller's."""

    def fill(layer: Layer) -> None:
        for name in ("initdb", "postgres"):
            layer.add(str(binaries / name), str(binaries / name).lstrip("/"))
        for module in (binaries.parent / "lib").glob("*.so"):
            if not module.name.startswith("llvmjit"):  # 100 MB with its compiler
                layer.add(str(module), str(module).lstrip("/"))
        layer.tree(Path("/usr/share/postgresql") / binaries.parent.name, skip=("man", "extension"))
        for control in Path("/usr/share/postgresql", binaries.parent.name, "extension").glob("plpgsql*"):
            layer.add(str(control), str(control).lstrip("/"))
        layer.tree(Path("/usr/share/zoneinfo"), skip=("posix", "right"))
        layer.libraries()
        layer.write("etc/passwd", f"root:x:0:0::/:/bin/sh\npostgres:x:{USER}:{USER}::/:/bin/sh\n")

    environment = {"PATH": f"{binaries}:/usr/bin:/bin"}
    return host_image.write(folder, root, REFERENCE, fill, command=("postgres",), environment=environment)
