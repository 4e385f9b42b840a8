"""The keyword arguments of the Python API, typed: the fields of a request.

`sandbox` and `aio` unpack them, so that a type checker and an editor know every name. A test compares them with what
`request.spec` reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

Command = str | Sequence[str]
Gpu = bool | int | str | Mapping[str, Any]
Amount = int | float | str
Duration = int | float | str


class RequestFields(TypedDict, total=False):
    """What a sandbox can be asked for; docs/requests.md describes each field."""

    gpu: Gpu | Sequence[Gpu]  # 2, "H100:2", "nvidia:H100,A100:80GB..:2", "all"; a list for several kinds
    device: str | Sequence[str]  # exact devices: "nvidia.com/gpu=0", a UUID or an id
    where: str | Sequence[str]  # CEL expressions that each GPU must fulfil
    claim: Mapping[str, Any]  # a ResourceClaim instead of gpu, device and where
    cpu: Amount  # processors at most: 2, 0.5, "500m"
    memory: Amount  # main memory at most: "4Gi"
    pids: int | str  # processes at most
    allow_busy: bool  # also GPUs that processes outside dibs use
    backend: str  # "auto", "local", "docker", "podman", "kubernetes"
    name: str
    env: Mapping[str, str | int | float] | Sequence[str]
    workdir: str
    root: str  # another root file system: a folder or a tar
    image: str
    entrypoint: str | Sequence[str]
    user: str
    shm: Amount  # the size of /dev/shm
    read_only: bool
    platform: str  # "linux/amd64"
    network: Literal["host", "none", "private"]
    publish: str | Sequence[str]  # "[ADDRESS:]PORT:PORT": a port of the host that leads to one of a private network
    mounts: Sequence[str]  # "SOURCE:TARGET" or "SOURCE:TARGET:rw"
    ttl: Duration  # end it after this time: "8h", 90
    wait: Duration  # queue for at most this long if the GPUs are held
    grace: Duration  # between asking it to stop and killing it
    tty: bool
    interactive: bool
    labels: Mapping[str, str]
    docker: Mapping[str, Any]  # what only this backend understands
    podman: Mapping[str, Any]
    kubernetes: Mapping[str, Any]


class SandboxFields(RequestFields, total=False):
    """A sandbox also takes its main command."""

    command: Command
