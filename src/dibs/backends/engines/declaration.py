"""What the engines say of themselves. See `dibs.backends.declaration`."""

from __future__ import annotations

from pathlib import Path

from dibs.backends.declaration import BOOKED, Cell, Declaration, Place, delivered, refused
from dibs.backends.engines.discovery import Found, find
from dibs.backends.engines.plain_fields import FIELDS
from dibs.backends.port import Backend
from dibs.errors import Problem, StateError
from dibs.process import ProcessName
from dibs.sandbox import Handle
from dibs.settings import Settings

_IN_CONTAINER = "the nodes are seen in the container. Where the engine does not know the name: as nodes, and said so"

_COLUMN: dict[str, Cell] = {
    **BOOKED,
    **{field.name: delivered(field.how) for field in FIELDS},
    "cpu": delivered("the engine's quota, read back from the cgroup", probe=True),
    "memory": delivered("the engine's limit, read back from the cgroup", probe=True),
    "pids": delivered("the engine's limit, read back from the cgroup", probe=True),
    "command": delivered("started by the engine; looked at just before or right after, and a difference ends it"),
    "backend": delivered("this one"),
    "env": delivered(
        "read back from its first process; of one that ends at once, from what the runtime was told just before"
    ),
    "workdir": delivered("a folder in the container, made if it is not there; the image's own if it is left out"),
    "root": refused("a container's root is an image: say image"),
    "image": delivered("present, pulled, or loaded from a tar of `save` or `export`; its platform is checked"),
    "entrypoint": delivered("in place of the image's own"),
    "user": delivered("a number, or a name of the image's own users; the ids are read back from the process"),
    "read_only": delivered("the engine mounts the image read-only, read back; /tmp, /run and /dev/shm stay writable"),
    "platform": delivered("the image must be of it, and the engine able to run it"),
    "network": delivered(
        "host: the engine's own; none: loopback only; private: a bridge of the tenant's own. Read back"
    ),
    "publish": delivered("the engine listens on it; read back from the engine"),
    "mounts": delivered(
        "bind mounts, read back from mountinfo with device and inode of their source; two on one target are refused"
    ),
    "volumes": delivered(
        "the engine's volume of that name, read back like a mount; there, or made because it says create"
    ),
    "ttl": delivered("kept by a small process beside the container, whether dibs runs or not"),
    "grace": delivered(
        "the image's stop signal (SIGTERM unless it names one), then SIGKILL; whole seconds, rounded up"
    ),
    "tty": delivered("the engine's terminal"),
    "interactive": delivered("stdin stays open for clients that attach"),
    "labels": delivered("kept in the ledger, and on the container"),
}


def _options(engine: str) -> Cell:
    return delivered(f"{engine}.cdi_devices: exact CDI devices, as many as were asked for")


def _docker(place: Place) -> Backend:
    from dibs.backends.engines.docker import DockerBackend

    return DockerBackend(place.home, place.settings.docker_socket)


def _podman(place: Place) -> Backend:
    from dibs.backends.engines.podman import PodmanBackend

    return PodmanBackend(place.home, place.settings.podman_socket)


def _no_docker(settings: Settings) -> Problem | None:
    return _listens_nowhere("docker", find("docker", settings.docker_socket))


def _no_podman(settings: Settings) -> Problem | None:
    return _listens_nowhere("podman", find("podman", settings.podman_socket))


def _listens_nowhere(engine: str, found: Found) -> Problem | None:
    return None if found.target else Problem("ENGINE_NOT_RUNNING", "backend", engine, found.reason, found.remedy)


def _first_process(handle: Handle) -> ProcessName | None:
    from dibs.backends.engines.ttl import init_of

    try:
        return init_of(Path(handle.folder))
    except StateError:
        # Another user's, or damaged: then it counts as a stranger's, and its card is leased all the same.
        return None


DOCKER = Declaration(
    name="docker",
    make=_docker,
    column={
        **_COLUMN,
        "gpu.count": delivered(f"leased in the ledger; passed by exact CDI name, never by count; {_IN_CONTAINER}"),
        "options": _options("docker"),
    },
    auto=True,
    inspects_images=True,
    peer_network="private",
    absent=_no_docker,
    first_process=_first_process,
)

PODMAN = Declaration(
    name="podman",
    make=_podman,
    column={
        **_COLUMN,
        "gpu.count": delivered(f"leased in the ledger; passed by exact CDI name; {_IN_CONTAINER}"),
        "options": _options("podman"),
    },
    auto=True,
    inspects_images=True,
    peer_network="private",
    absent=_no_podman,
    first_process=_first_process,
)
