"""The canonical request for resources.

Made by `parse`, used by `plan`, stored in the ledger and printed in receipts. A value of these types is always valid.
`None` means not asked for; 0 never occurs (it is refused at the edge); "all" is a value of its own.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from dibs.quantity import NANO, Quantity

ALL: Literal["all"] = "all"


def family(backend: str) -> str:
    """The kind of a backend: there may be several clusters, `kubernetes` and `kubernetes-NAME`."""
    return "kubernetes" if backend.startswith("kubernetes-") else backend


class MemoryRange(msgspec.Struct, frozen=True):
    """How much memory a GPU must have, in bytes, both ends included. `text` is the canonical spelling."""

    text: str
    low: int | None = None
    high: int | None = None


class GpuSelector(msgspec.Struct, frozen=True):
    """A number of GPUs of one description. Nothing but a count: any whole GPU."""

    count: int | Literal["all"] = 1
    vendor: str | None = None
    models: tuple[str, ...] = ()
    memory: MemoryRange | None = None
    profile: str = ""  # a MIG profile, such as 1g.10gb: partitions of that size only

    def __str__(self) -> str:
        memory = self.memory.text if self.memory else ""
        parts = [self.vendor or "", ",".join(self.models), self.profile, memory, str(self.count)]
        return ":".join(part for part in parts if part)


class MountSpec(msgspec.Struct, frozen=True):
    """A folder or file of the host, `SOURCE:TARGET[:rw]`. Read-only unless it says rw."""

    source: str
    target: str
    writable: bool = False

    def __str__(self) -> str:
        return f"{self.source}:{self.target}{':rw' if self.writable else ''}"


class VolumeSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """A named volume, `NAME[/SUBPATH]:TARGET[:OPTION,…]`. Writable unless it says ro. It has to exist, unless it says
    `create`; size, class and access modes describe what is then made."""

    name: str
    target: str
    sub_path: str = ""
    writable: bool = True
    create: bool = False
    size_bytes: int | None = None
    storage_class: str = ""
    access_modes: tuple[str, ...] = ()

    def __str__(self) -> str:
        words = [
            *(() if self.writable else ("ro",)),
            *(("create",) if self.create else ()),
            *((f"size={self.size_bytes}",) if self.size_bytes is not None else ()),
            *((f"class={self.storage_class}",) if self.storage_class else ()),
            *(f"access={mode}" for mode in self.access_modes),
        ]
        source = f"{self.name}/{self.sub_path}" if self.sub_path else self.name
        return f"{source}:{self.target}{':' + ','.join(words) if words else ''}"


class PublishedPort(msgspec.Struct, frozen=True):
    """A TCP port of the host that leads to one of the sandbox, `[ADDRESS:]PORT:PORT`. On loopback unless it says so."""

    host_port: int
    port: int
    address: str = "127.0.0.1"

    def __str__(self) -> str:
        where = f"[{self.address}]" if ":" in self.address else self.address
        return f"{where}:{self.host_port}:{self.port}"


class Request(msgspec.Struct, frozen=True, omit_defaults=True):
    """The resources of one sandbox."""

    gpus: tuple[GpuSelector, ...] = ()
    devices: tuple[str, ...] = ()  # exact devices, by CDI name, UUID or id
    where: tuple[str, ...] = ()  # CEL over the devices that the selectors take
    claim: dict[str, Any] | None = None  # the spec of a ResourceClaim, instead of selectors
    cpu_millis: int | None = None
    memory_bytes: int | None = None
    pids: int | None = None
    allow_busy: bool = False
    parts: tuple[Request, ...] = ()  # what several sandboxes want at once, each for itself; then nothing else is set
    members: int = 1  # how many sandboxes want this together

    @property
    def wants_devices(self) -> bool:
        return bool(self.gpus or self.devices or self.claim or self.parts)

    @property
    def needs_allocator(self) -> bool:
        """Whether it says more than the short forms can: then it is solved as a claim."""
        return bool(self.where or self.claim or self.parts)

    def short(self) -> dict[str, Any]:
        """The short form; `parse_request` of it gives this request again."""
        form: dict[str, Any] = {}
        if len(self.gpus) == 1:
            form["gpu"] = str(self.gpus[0])
        elif self.gpus:
            form["gpu"] = [str(selector) for selector in self.gpus]
        if self.devices:
            form["device"] = list(self.devices)
        if self.where:
            form["where"] = list(self.where) if len(self.where) > 1 else self.where[0]
        if self.claim is not None:
            form["claim"] = self.claim
        if self.cpu_millis is not None:
            form["cpu"] = str(Quantity(self.cpu_millis * NANO // 1000))
        if self.memory_bytes is not None:
            form["memory"] = str(Quantity(self.memory_bytes * NANO, binary=self.memory_bytes % 1024 == 0))
        if self.pids is not None:
            form["pids"] = self.pids
        if self.allow_busy:
            form["allow_busy"] = True
        return form

    def written(self) -> tuple[str, str]:
        """The field that asks for devices, with its value as it was written, for a refusal."""
        if self.claim is not None:
            return "claim", ", ".join(one["name"] for one in self.claim["devices"]["requests"])
        return "gpu", ", ".join(map(str, self.gpus)) or self.flags()

    def flags(self) -> str:
        """The same as command-line flags, for a person."""
        if self.parts:
            counted: dict[str, int] = {}
            for part in self.parts:
                counted[part.flags()] = counted.get(part.flags(), 0) + 1
            return " and ".join(f"{number} × ({flags})" if number > 1 else flags for flags, number in counted.items())
        words = [f"--gpu {selector}" for selector in self.gpus]
        words += [f"--device {name}" for name in self.devices]
        words += [f"--where '{expression}'" for expression in self.where]
        if self.claim is not None:
            words.append(f"--claim ({', '.join(one['name'] for one in self.claim['devices']['requests'])})")
        short = self.short()
        words += [f"--{key} {short[key]}" for key in ("cpu", "memory", "pids") if key in short]
        if self.allow_busy:
            words.append("--allow-busy")
        return " ".join(words) or "no devices, no limits"
