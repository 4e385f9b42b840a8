"""A valid request as typed values.

Written by scripts/generate_fields.py from `request.fields`: edit that instead. `request.spec` fills it, the
ledger keeps it, and `backends.port.Workload` has the same passed fields.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from dibs.request.model import MountSpec, PublishedPort, Request, VolumeSpec


class PassedFields(msgspec.Struct, frozen=True, kw_only=True):
    """What reaches a backend as it was asked for."""

    root: str = "host"
    image: str = ""
    entrypoint: tuple[str, ...] | None = None
    user: str = ""
    shm_bytes: int | None = None
    read_only: bool = False
    platform: str = ""
    ttl_seconds: float | None = None
    grace_seconds: float = 10.0
    labels: dict[str, str] = {}
    tty: bool = False
    interactive: bool = False


class SandboxSpec(PassedFields, frozen=True, kw_only=True, omit_defaults=True):
    """A valid request. No device is chosen yet."""

    resources: Request = Request()
    backend: str = "auto"
    name: str = ""
    env: dict[str, str] = {}
    workdir: str = ""
    network: Literal["", "host", "none", "private"] = ""
    publish: tuple[PublishedPort, ...] = ()
    mounts: tuple[MountSpec, ...] = ()
    volumes: tuple[VolumeSpec, ...] = ()
    wait_seconds: float | None = None
    command: tuple[str, ...] = ()
    # By backend, what only that one understands.
    options: dict[str, dict[str, Any]] = msgspec.field(default_factory=dict)
    # A folder of this host that comes along unasked: mounted, and the working directory, where folders can be seen.
    brought: str = ""
