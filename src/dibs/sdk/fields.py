"""The keyword arguments of the Python API, typed.

Written by scripts/generate_fields.py from `request.fields`: edit that instead. `sandbox` and `aio` unpack
them, so that a type checker and an editor know every name.
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

    # a count, `all`, or vendor:models:memory:count, as in nvidia:H100:80GB..:2; or a list of these
    gpu: Gpu | Sequence[Gpu]
    device: str | Sequence[str]  # exact devices, as in nvidia.com/gpu=0
    where: str | Sequence[str]  # CEL expressions that each device must fulfil
    claim: Mapping[str, Any]  # a ResourceClaim or ResourceClaimTemplate of Kubernetes
    cpu: Amount  # processors: 2, 0.5 or 500m
    memory: Amount  # 4Gi, 512Mi or 4G
    pids: int | str  # Limit on the number of processes.
    allow_busy: bool  # also cards that processes outside of dibs use
    backend: str  # auto, or one of those that GET /api/v1/capabilities lists
    name: str  # Name of the sandbox. Default: its id.
    env: Mapping[str, str | int | float] | Sequence[str]  # Set a variable; without a value, copy your own.
    workdir: str  # Working directory, writable. Default: the current one.
    root: str  # Root file system. Default: this host's.
    image: str  # Container image, or an image from the configuration.
    entrypoint: str | Sequence[str]  # Replace the image's entrypoint; empty: none.
    user: str  # User in the sandbox.
    shm: Amount  # Size of /dev/shm: 1Gi.
    read_only: bool  # Make the root file system read-only.
    platform: str  # as in linux/amd64
    # private: own namespace with outbound access. Default: host; private at a gateway.
    network: Literal["host", "none", "private"]
    publish: str | Sequence[str]  # [ADDRESS:]PORT:PORT: a port of the host that leads to one of the sandbox
    mounts: Sequence[str]  # SOURCE:TARGET[:rw], as far as the gateway allows
    # named volumes: NAME[/SUBPATH]:TARGET[:ro,create,size=SIZE,class=NAME,access=MODE]
    volumes: str | Sequence[str | Mapping[str, Any]]
    ttl: Duration  # Time to live: 90s, 10m, 2h.
    grace: Duration  # Time between SIGTERM and SIGKILL. Default: 10s.
    wait: Duration  # how long it may wait in the queue; without it a busy device is a refusal
    labels: Mapping[str, str]  # Label to find it by.
    tty: bool  # With a terminal.
    interactive: bool  # Its stdin stays open for clients that attach.
    docker: Mapping[str, Any]  # Options for Docker alone.
    podman: Mapping[str, Any]  # Options for Podman alone.
    kubernetes: Mapping[str, Any]  # Options for Kubernetes alone.


class SandboxFields(RequestFields, total=False):
    """A sandbox also takes its main command."""

    command: Command
