"""Images for the nodes of a test cluster, made without a registry: an OCI archive from files that are at hand.

`node` imports busybox and a pause image; tests add their own (`write`).
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.engines import images, installing

BUSYBOX = "localhost/dibs-busybox:1"
PAUSE = "localhost/dibs-pause:1"
_LAYER = "application/vnd.oci.image.layer.v1.tar"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CHUNK = 1 << 20


def basic(root: Path) -> list[Path]:
    """Busybox and pause, made once per machine from the busybox of a Debian root."""
    layer = images.root_archive(root)
    folder = installing.cache()
    made = [(BUSYBOX, ("sh",), folder / "oci-busybox.tar"), (PAUSE, ("sleep", "2147483647"), folder / "oci-pause.tar")]
    for reference, command, file in made:
        if not file.exists():
            write(file, layer, reference, command=command)
    return [file for _, _, file in made]


def write(
    file: Path,
    layer: Path,
    reference: str,
    *,
    command: Sequence[str] = (),
    entrypoint: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    user: str = "",
) -> None:
    """An image of one layer, which is a plain tar of a root file system."""
    digest = _digest(layer)
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)
    said = {"PATH": "/usr/local/bin:/usr/bin:/bin", **(environment or {})}
    run = {
        "Env": [f"{key}={value}" for key, value in said.items()],
        **({"Cmd": list(command)} if command else {}),
        **({"Entrypoint": list(entrypoint)} if entrypoint else {}),
        **({"User": user} if user else {}),
    }
    rootfs = {"type": "layers", "diff_ids": [f"sha256:{digest}"]}
    config = json.dumps({"architecture": machine, "os": "linux", "config": run, "rootfs": rootfs}).encode()
    layers = [{"mediaType": _LAYER, "digest": f"sha256:{digest}", "size": layer.stat().st_size}]
    manifest = json.dumps(
        {"schemaVersion": 2, "mediaType": _MANIFEST, "config": _descriptor(config, _CONFIG), "layers": layers}
    ).encode()
    named = {"io.containerd.image.name": reference, "org.opencontainers.image.ref.name": reference}
    index = {"schemaVersion": 2, "manifests": [{**_descriptor(manifest, _MANIFEST), "annotations": named}]}
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    with tarfile.open(draft, "w") as tar:
        _add(tar, "oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
        _add(tar, "index.json", json.dumps(index).encode())
        for blob in (config, manifest):
            _add(tar, f"blobs/sha256/{hashlib.sha256(blob).hexdigest()}", blob)
        info = tarfile.TarInfo(f"blobs/sha256/{digest}")
        info.size = layer.stat().st_size
        with layer.open("rb") as stream:
            tar.addfile(info, stream)
    draft.replace(file)


def _descriptor(blob: bytes, kind: str) -> dict[str, object]:
    return {"mediaType": kind, "digest": f"sha256:{hashlib.sha256(blob).hexdigest()}", "size": len(blob)}


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))


def _digest(file: Path) -> str:
    found = hashlib.sha256()
    with file.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            found.update(chunk)
    return found.hexdigest()
