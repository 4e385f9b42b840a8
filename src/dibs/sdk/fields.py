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
    pids: int | str  # Processes at most.
    allow_busy: bool  # also cards that processes outside of dibs use
    backend: str  # auto, or one of those that GET /api/v1/capabilities lists
    name: str  # A name for it; else it gets an id.
    env: Mapping[str, str | int | float] | Sequence[str]  # A variable; alone: with your own value.
    workdir: str  # Where it runs, writable. Default: here.
    root: str  # Another root file system. Default: this host's.
    image: str  # A container image, or an image of the configuration.
    entrypoint: str | Sequence[str]  # In place of the image's own; an empty one: none.
    user: str  # Run as this user of the sandbox.
    shm: Amount  # The size of /dev/shm: 1Gi.
    read_only: bool  # Its root cannot be written to.
    platform: str  # as in linux/amd64
    # private: its own, with a way out. Default: host; at a gateway private.
    network: Literal["host", "none", "private"]
    publish: str | Sequence[str]  # [ADDRESS:]PORT:PORT: a port of the host that leads to one of the sandbox
    mounts: Sequence[str]  # SOURCE:TARGET[:rw], as far as the gateway allows
    # named volumes: NAME[/SUBPATH]:TARGET[:ro,create,size=SIZE,class=NAME,access=MODE]
    volumes: str | Sequence[str | Mapping[str, Any]]
    ttl: Duration  # End it after this time: 90s, 10m, 2h.
    grace: Duration  # Between asking it to stop and killing it. Default: 10s.
    wait: Duration  # how long it may wait in the queue; without it a busy device is a refusal
    labels: Mapping[str, str]  # A note to find it by.
    tty: bool  # With a terminal.
    interactive: bool  # Its stdin stays open for clients that attach.
    docker: Mapping[str, Any]  # Options for Docker alone.
    podman: Mapping[str, Any]  # Options for Podman alone.
    kubernetes: Mapping[str, Any]  # Options for Kubernetes alone.


class SandboxFields(RequestFields, total=False):
    """A sandbox also takes its main command."""

    command: Command
