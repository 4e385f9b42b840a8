"""The CDI spec as data: the types of the file format, with their names on the wire.

Imported by all code that touches CDI; decoding, validation and versions live in their own modules.
It must hold no logic and do no I/O. All types are immutable values; sequences are tuples.
"""

from __future__ import annotations

import msgspec


class _Wire(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """What all wire types share: camelCase keys, defaults left out, nothing unknown accepted."""


class DeviceNode(_Wire, frozen=True):
    """A device node to create in the container."""

    path: str = ""
    host_path: str = ""
    type: str = ""
    major: int = 0
    minor: int = 0
    file_mode: int | None = None
    permissions: str = ""
    uid: int | None = None
    gid: int | None = None


class NetDevice(_Wire, frozen=True):
    """A network interface of the host to move into the container under another name."""

    host_interface_name: str = ""
    name: str = ""


class Mount(_Wire, frozen=True):
    """A mount to add to the container."""

    host_path: str = ""
    container_path: str = ""
    type: str = ""
    options: tuple[str, ...] = ()


class Hook(_Wire, frozen=True):
    """An OCI hook to run; `hook_name` is the moment (`createContainer`, ...)."""

    hook_name: str = ""
    path: str = ""
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    timeout: int | None = None


class IntelRdt(_Wire, frozen=True):
    """Cache and memory bandwidth settings of Intel's resource director."""

    clos_id: str = msgspec.field(default="", name="closID")
    l3_cache_schema: str = ""
    mem_bw_schema: str = ""
    schemata: tuple[str, ...] = ()
    enable_monitoring: bool = False


class ContainerEdits(_Wire, frozen=True):
    """What has to change in a container for it to have a device."""

    env: tuple[str, ...] = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    net_devices: tuple[NetDevice, ...] = ()
    mounts: tuple[Mount, ...] = ()
    hooks: tuple[Hook, ...] = ()
    intel_rdt: IntelRdt | None = None
    additional_gids: tuple[int, ...] = ()

    @property
    def is_empty(self) -> bool:
        return self == _NO_EDITS


_NO_EDITS = ContainerEdits()


class Device(_Wire, frozen=True):
    """One device of a spec: its name within the spec's kind, and its own edits."""

    name: str = ""
    annotations: dict[str, str] = {}
    container_edits: ContainerEdits = _NO_EDITS


class Spec(_Wire, frozen=True):
    """A whole CDI file. Its own edits apply once when any of its devices is asked for."""

    cdi_version: str = ""
    kind: str = ""
    annotations: dict[str, str] = {}
    devices: tuple[Device, ...] = ()
    container_edits: ContainerEdits = _NO_EDITS
