"""The plain fields that engines deliver. See `dibs.backends.plain_fields`."""

from __future__ import annotations

from typing import Any

from dibs.backends.plain_fields import PlainField, asked, shared_memory

FIELDS = (
    PlainField(
        "shm",
        "the engine makes /dev/shm of this size; read back",
        shared_memory,
        tell={
            "docker": lambda body, size: body["HostConfig"].update(ShmSize=size),
            "podman": lambda body, size: body.update(shm_size=size),
        },
    ),
)


def tell(engine: str, body: dict[str, Any], workload: Any) -> None:
    """Put all that a workload asks for into the body of a creation."""
    for field, amount in asked(FIELDS, workload):
        field.tell[engine](body, amount)


def sent(engine: str, workload: Any) -> dict[str, Any]:
    """What of it an engine then reports among a container's options."""
    body: dict[str, Any] = {"HostConfig": {}}
    tell(engine, body, workload)
    found: dict[str, Any] = body["HostConfig"]
    return found
