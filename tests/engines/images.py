"""Images for tests, made here: there is no registry.

One is busybox under all of its names, saved as engines save images; the other is the same files as a plain root.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import tarfile
from pathlib import Path

from tests.engines import installing

REFERENCE = "localhost/dibs-test:1"
_FOLDERS = ("bin", "etc", "dev", "proc", "sys", "tmp", "root", "run", "home")


def root_archive(root: Path) -> Path:
    """The files alone, as a tar."""
    path = installing.cache() / "root.tar"
    if not path.exists():
        _write(path, _files(root / "bin/busybox"))
    return path


def saved(root: Path, *, architecture: str = "", entrypoint: tuple[str, ...] = ()) -> Path:
    """The image as `docker save` would write it."""
    path = installing.cache() / f"image{'-' + architecture if architecture else ''}{'-entry' if entrypoint else ''}.tar"
    if path.exists():
        return path
    layer = _files(root / "bin/busybox")
    digest = hashlib.sha256(layer).hexdigest()
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)
    config = json.dumps(
        {
            "architecture": architecture or machine,
            "os": "linux",
            "config": {
                "Env": ["PATH=/usr/bin:/bin", "FROM_IMAGE=1"],
                "Cmd": ["sh"],
                "WorkingDir": "/tmp",
                **({"Entrypoint": list(entrypoint)} if entrypoint else {}),
            },
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        }
    ).encode()
    name = hashlib.sha256(config).hexdigest()
    suffix = f"-{architecture}" if architecture else "-entry" if entrypoint else ""
    repository, _, tag = REFERENCE.partition(":")
    manifest = [
        {"Config": f"{name}.json", "RepoTags": [f"{repository}{suffix}:{tag}"], "Layers": [f"{digest}/layer.tar"]}
    ]
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
    _write(path, out.getvalue())
    return path


def _files(busybox: Path) -> bytes:
    applets = subprocess.run([str(busybox), "--list"], check=True, capture_output=True, text=True).stdout.split()
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for folder in _FOLDERS:
            info = tarfile.TarInfo(folder)
            info.type, info.mode = tarfile.DIRTYPE, 0o1777 if folder == "tmp" else 0o755
            tar.addfile(info)
        info = tarfile.TarInfo("bin/busybox")
        data = busybox.read_bytes()
        info.size, info.mode = len(data), 0o755
        tar.addfile(info, io.BytesIO(data))
        for applet in sorted(set(applets) - {"busybox"}):
            info = tarfile.TarInfo(f"bin/{applet}")
            info.type, info.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(info)
        for file, text in (
            ("etc/passwd", "root:x:0:0::/root:/bin/sh\nworker:x:1000:1000::/home:/bin/sh\n"),
            ("etc/group", "root:x:0:\nworker:x:1000:\n"),
        ):
            info = tarfile.TarInfo(file)
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))
    return out.getvalue()


def _write(path: Path, data: bytes) -> None:
    draft = path.with_suffix(f".{os.getpid()}")
    draft.write_bytes(data)
    draft.replace(path)
