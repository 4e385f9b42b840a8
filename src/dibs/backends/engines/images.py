"""Images: present, pulled with progress, or loaded from a file.

`backend` asks for an image before it makes a container from it. A file is loaded once and found again by its digest.
What an image is made for is compared with what the host is: an engine would start it and let it fail later.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from dibs.backends.engines.client import Client, EngineError
from dibs.errors import DibsError, InvalidRequest, Problem, StateError
from dibs.http import query, segment

Progress = Callable[[str], None]
SNAPSHOT = "dibs.snapshot"  # the label of an image that says of which snapshot it is
_PIECE = 1 << 20
# Programs that are an init already; two of them would get into each other's way.
INITS = frozenset(("tini", "dumb-init", "catatonit", "docker-init", "s6-svscan", "init", "systemd"))


class Image(msgspec.Struct, frozen=True):
    """What an image says about itself."""

    id: str
    os: str = "linux"
    architecture: str = ""
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    user: str = ""
    workdir: str = ""
    volumes: tuple[str, ...] = ()
    healthcheck: dict[str, Any] | None = None
    names: tuple[str, ...] = ()  # tags and digests
    snapshot: str = ""  # what a snapshot was called when it was made; images built on it have it too

    @property
    def platform(self) -> str:
        return f"{self.os}/{self.architecture}"

    @property
    def path(self) -> str:
        return next((line[5:] for line in self.env if line.startswith("PATH=")), "")


def is_file(reference: str) -> bool:
    return reference.startswith("/")


def qualified(reference: str) -> str:
    """A reference with its registry: a short one is Docker Hub's, on every engine."""
    first, slash, _ = reference.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        return reference
    return f"docker.io/{reference}" if slash else f"docker.io/library/{reference}"


def tagged(reference: str) -> tuple[str, str]:
    """Repository and tag; a digest stays with the repository."""
    if "@" in reference:
        return reference, ""
    repository, colon, tag = reference.rpartition(":")
    return (repository, tag) if colon and "/" not in tag else (reference, "latest")


def image_of(document: dict[str, Any]) -> Image:
    config = document.get("Config") or {}

    def words(name: str) -> tuple[str, ...]:
        value = config.get(name) or ()
        return (value,) if isinstance(value, str) else tuple(value)

    return Image(
        id=str(document.get("Id", "")),
        os=document.get("Os") or "linux",
        architecture=document.get("Architecture") or "",
        entrypoint=words("Entrypoint"),
        command=words("Cmd"),
        env=words("Env"),
        user=config.get("User") or "",
        workdir=config.get("WorkingDir") or "",
        names=tuple(str(name) for key in ("RepoTags", "RepoDigests") for name in document.get(key) or ()),
        snapshot=str((config.get("Labels") or {}).get(SNAPSHOT) or ""),
        volumes=tuple(config.get("Volumes") or ()),
        healthcheck=config.get("Healthcheck") or document.get("HealthCheck") or None,
    )


def find(client: Client, reference: str) -> Image | None:
    """The image, if the engine has it."""
    for name in dict.fromkeys((reference, qualified(reference))):
        try:
            return image_of(client.call("GET", f"/images/{segment(name)}/json"))
        except EngineError as error:
            if error.status != 404:
                raise
    return None


def check_platform(image: Image, wanted: str, host: str, reference: str) -> Problem | None:
    """`wanted`: what was asked for; empty: whatever the host is."""
    have = image.platform
    if not image.architecture or have == (wanted or f"linux/{host}") or (wanted and wanted.startswith(f"{have}/")):
        return None
    if wanted:
        reason, remedy = f"the image is for {have}", f"leave the platform out, or use an image for {wanted}"
        return Problem("PLATFORM_MISMATCH", "platform", wanted, reason, remedy)
    reason = f"the image is for {have}, and this host is linux/{host}"
    remedy = f"use an image for linux/{host}; with an emulator installed, insist: --platform {have}"
    return Problem("PLATFORM_MISMATCH", "image", reference, reason, remedy)


def pull(client: Client, engine: str, reference: str, platform: str, progress: Progress | None) -> None:
    """Fetch an image; EngineError in the engine's words where that fails."""
    system, _, machine = platform.partition("/")
    name = qualified(reference)
    if engine == "docker":
        repository, tag = tagged(name)
        path = "/images/create" + query(fromImage=repository, tag=tag or None, platform=platform or None)
    else:
        path = "/images/pull" + query(
            reference=name, policy="always", OS=system or None, Arch=machine or None, quiet=False
        )
    connection, response = client.stream("POST", path)
    try:
        for line in response.lines():
            if not line.strip():
                continue
            try:
                news = msgspec.json.decode(line)
            except msgspec.DecodeError:
                continue
            if news.get("error"):
                raise EngineError(500, str(news["error"]), f"POST {path}")
            text = news.get("stream") or " ".join(
                str(news[key]) for key in ("id", "status", "progress") if news.get(key)
            )
            if text and progress is not None:
                progress(text.strip())
    finally:
        connection.close()


# --- from a file


def load(client: Client, engine: str, path: str, store: Path) -> str:
    """The id of the image in a file: as `save` writes one, or a plain root as `export` does. Loaded once."""
    digest = _digest(path)
    note = store / f"{engine}-{digest}"
    try:
        known = note.read_text().strip()
    except OSError:
        known = ""
    if known and find(client, known) is not None:
        return known
    found = _import(client, engine, path, digest) if _is_root(path) else _load(client, path)
    image = find(client, found)
    if image is None:
        raise InvalidRequest(
            "the engine loaded it and does not have it", field="image", value=path, code="IMAGE_INVALID"
        )
    try:
        store.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft = store / f".{note.name}.{os.getpid()}"
        draft.write_text(image.id)
        draft.replace(note)
    except OSError as error:
        raise StateError(f"the image cannot be noted: {error.strerror}", value=str(store)) from error
    return image.id


def unusable(path: str) -> DibsError | None:
    """Why a file cannot be an image, before anything is sent."""
    try:
        with open(path, "rb") as file:
            start = file.read(512)
    except OSError as error:
        reason = f"the file cannot be read: {(error.strerror or '').lower()}"
        return InvalidRequest(reason, field="image", value=path, code="IMAGE_INVALID")
    if start[257:262] != b"ustar" and start[:2] != b"\x1f\x8b":
        reason = "the file is no tar archive"
        return InvalidRequest(reason, field="image", value=path, code="IMAGE_INVALID", remedy="make it with `save`")
    return None


def _digest(path: str) -> str:
    from hashlib import sha256

    info = os.stat(path)
    stamp = f"{os.path.realpath(path)} {info.st_ino} {info.st_size} {info.st_mtime_ns}"
    return sha256(stamp.encode()).hexdigest()[:32]


def _is_root(path: str) -> bool:
    """Whether a tar is the files of a root, not a saved image."""
    import tarfile

    try:
        with tarfile.open(path, "r:*") as tar:
            for number, member in enumerate(tar):
                name = member.name.removeprefix("./")
                if name in ("manifest.json", "index.json", "oci-layout", "repositories"):
                    return False
                if number > 10_000:
                    break
    except (tarfile.TarError, OSError, EOFError) as error:
        raise InvalidRequest(
            f"the file cannot be read: {error}", field="image", value=path, code="IMAGE_INVALID"
        ) from error
    return True


def _pieces(path: str) -> Iterator[bytes]:
    with open(path, "rb") as file:
        while piece := file.read(_PIECE):
            yield piece


def _body(path: str) -> dict[str, str]:
    return {"Content-Type": "application/x-tar", "Content-Length": str(os.path.getsize(path))}


def _load(client: Client, path: str) -> str:
    answer = client.call("POST", "/images/load", body=_pieces(path), headers=_body(path), timeout=600.0)
    if isinstance(answer, dict) and answer.get("Names"):  # Podman
        return str(answer["Names"][0])
    documents = answer.splitlines() if isinstance(answer, bytes) else [msgspec.json.encode(answer)]
    for line in documents:
        try:
            news = msgspec.json.decode(line)
        except msgspec.DecodeError:
            continue
        if news.get("error"):
            raise EngineError(400, str(news["error"]), "POST /images/load")
        text = str(news.get("stream", "")).strip()
        for start in ("Loaded image ID: ", "Loaded image: "):
            if text.startswith(start):
                return text.removeprefix(start)
    raise InvalidRequest("there is no image in the file", field="image", value=path, code="IMAGE_INVALID")


def _import(client: Client, engine: str, path: str, digest: str) -> str:
    name = f"localhost/dibs-root:{digest}"
    repository, _, tag = name.rpartition(":")
    where = (
        "/images/create" + query(fromSrc="-", repo=repository, tag=tag)
        if engine == "docker"
        else "/images/import" + query(reference=name)
    )
    client.call("POST", where, body=_pieces(path), headers=_body(path), timeout=600.0)
    return name
