"""Images of programs that this machine has, made without a registry: files of the host over a small root.

`dibs_image` and `postgres_image` say which files.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import tarfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.cluster import images
from tests.engines.images import root_archive


def write(
    folder: Path, root: Path, reference: str, fill: Callable[[Layer], None], *, command: Sequence[str],
    environment: Mapping[str, str],
) -> Path:  # fmt: skip
    """The archive of the image, in a folder of the caller's. `root`: a Debian root, for its busybox."""
    layer = folder / "layer.tar"
    with tarfile.open(layer, "w") as tar, tarfile.open(root_archive(root)) as base:
        for member in base:
            tar.addfile(member, base.extractfile(member) if member.isfile() else None)
        fill(Layer(tar))
    archive = folder / f"{re.sub(r'[^a-z0-9]+', '-', reference)}.tar"
    images.write(archive, layer, reference, command=command, environment=environment)
    layer.unlink()
    return archive


class Layer:
    def __init__(self, tar: tarfile.TarFile) -> None:
        self._tar = tar
        self._seen: set[str] = set()
        self._programs: set[str] = set()

    def tree(self, folder: Path, name: str = "", skip: tuple[str, ...] = ()) -> None:
        """All files of a folder; `skip`: folders directly below it."""
        for place, folders, files in os.walk(folder):
            top = Path(place) == folder
            folders[:] = sorted(one for one in folders if one != "__pycache__" and not (top and one in skip))
            for one in sorted(files):
                inside = Path(place, one).relative_to(folder)
                self.add(f"{place}/{one}", f"{name or str(folder).lstrip('/')}/{inside}")

    def add(self, file: str, name: str) -> None:
        real = os.path.realpath(file)
        if name in self._seen or not os.path.isfile(real):
            return
        self._seen.add(name)
        if ".so" in os.path.basename(real) or "/bin/" in name:
            self._programs.add(real)
        with open(real, "rb") as stream:
            info = tarfile.TarInfo(name)
            found = os.fstat(stream.fileno())
            info.size, info.mode = found.st_size, found.st_mode & 0o755 | 0o444
            self._tar.addfile(info, stream)

    def write(self, name: str, text: str, mode: int = 0o644) -> None:
        data = text.encode()
        info = tarfile.TarInfo(name)
        info.size, info.mode = len(data), mode
        self._tar.addfile(info, io.BytesIO(data))

    def libraries(self) -> None:
        """The shared objects that everything so far needs."""
        for program in sorted(self._programs):
            for one in _needs(program):
                self.add(one, one.lstrip("/"))


def _needs(program: str) -> list[str]:
    """The shared objects that one needs, by the paths at which it looks for them."""
    done = subprocess.run(["ldd", program], capture_output=True, text=True, check=False)
    return re.findall(r"(?:=> |^\s+)(/\S+) \(0x", done.stdout, re.MULTILINE)
