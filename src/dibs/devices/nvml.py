"""What NVIDIA's management library says about its cards.

`inventory` calls `read`. The library is a `Nvml`, a small part of `pynvml`'s functions; tests give recorded answers
of the library instead. Nothing of NVIDIA on the host means no cards; everything else that goes wrong is told in the
library's own words. An answer "not supported" leaves out that one value and nothing else.

Only compute processes count as use by others: a desktop that is drawn by a card does not take it away.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol, TypeVar

import msgspec

from dibs.devices.host import HOST, Roots, has_nvidia_traces, is_wsl, read_text
from dibs.devices.model import ExternalUse, Health, SourceError
from dibs.devices.names import bus_id

T = TypeVar("T")

# Numbers of the library's public interface.
_NOT_SUPPORTED, _NOT_FOUND, _FUNCTION_NOT_FOUND, _INVALID_ARGUMENT = 3, 6, 13, 2
_GPU_IS_LOST, _RESET_REQUIRED = 15, 16
_DRIVER_NOT_LOADED, _VERSION_MISMATCH = 9, 18
_RECOVERY_ACTION = 230
_ARCHITECTURES = {
    2: "Kepler",
    3: "Maxwell",
    4: "Pascal",
    5: "Volta",
    6: "Turing",
    7: "Ampere",
    8: "Ada Lovelace",
    9: "Hopper",
    10: "Blackwell",
    13: "Rubin",
}
_ACTIONS = {
    1: "reset the GPU",
    2: "reboot the node",
    3: "drain peer-to-peer traffic",
    4: "drain and reset the GPU",
    6: "reset the bus",
    7: "reboot the system",
}


class Nvml(Protocol):
    """The part of `pynvml` that is used; the module itself is one. Failures are `pynvml.NVMLError`s with a `value`."""

    def nvmlInit(self) -> None: ...  # noqa: N802
    def nvmlShutdown(self) -> None: ...  # noqa: N802
    def nvmlSystemGetDriverVersion(self) -> str: ...  # noqa: N802
    def nvmlDeviceGetCount(self) -> int: ...  # noqa: N802
    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any: ...  # noqa: N802
    def nvmlDeviceGetName(self, handle: Any) -> str: ...  # noqa: N802
    def nvmlDeviceGetUUID(self, handle: Any) -> str: ...  # noqa: N802
    def nvmlDeviceGetMinorNumber(self, handle: Any) -> int: ...  # noqa: N802
    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> Any: ...  # noqa: N802
    def nvmlDeviceGetPciInfo(self, handle: Any) -> Any: ...  # noqa: N802
    def nvmlDeviceGetArchitecture(self, handle: Any) -> int: ...  # noqa: N802
    def nvmlDeviceGetCudaComputeCapability(self, handle: Any) -> Sequence[int]: ...  # noqa: N802
    def nvmlDeviceGetRemappedRows(self, handle: Any) -> Sequence[int]: ...  # noqa: N802
    def nvmlDeviceGetRetiredPagesPendingStatus(self, handle: Any) -> int: ...  # noqa: N802
    def nvmlDeviceGetFieldValues(self, handle: Any, fields: Sequence[int]) -> Any: ...  # noqa: N802
    def nvmlDeviceGetComputeRunningProcesses(self, handle: Any) -> Sequence[Any]: ...  # noqa: N802
    def nvmlDeviceGetMigMode(self, handle: Any) -> Sequence[int]: ...  # noqa: N802
    def nvmlDeviceGetMaxMigDeviceCount(self, handle: Any) -> int: ...  # noqa: N802
    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Any, index: int) -> Any: ...  # noqa: N802
    def nvmlDeviceGetGpuInstanceId(self, handle: Any) -> int: ...  # noqa: N802
    def nvmlDeviceGetComputeInstanceId(self, handle: Any) -> int: ...  # noqa: N802


class NvmlPart(msgspec.Struct, frozen=True, kw_only=True):
    """A MIG device. `index` counts within its card; the instances are the hardware's own numbers."""

    index: int
    uuid: str = ""
    product: str = ""
    memory: int | None = None
    gpu_instance: int | None = None
    compute_instance: int | None = None
    used_by: tuple[ExternalUse, ...] = ()

    @property
    def profile(self) -> str:
        """The name of its shape, such as 1g.10gb; empty if the driver does not say."""
        return self.product.rpartition("MIG ")[2] if "MIG " in self.product else ""


class NvmlCard(msgspec.Struct, frozen=True, kw_only=True):
    """A card. What the library would not tell is None or empty."""

    index: int
    minor: int | None = None
    uuid: str = ""
    product: str = ""
    memory: int | None = None
    bus_id: str = ""
    architecture: str = ""
    compute: str = ""
    mig: bool | None = None
    parts: tuple[NvmlPart, ...] = ()
    health: Health = Health()
    used_by: tuple[ExternalUse, ...] = ()


class NvmlReading(msgspec.Struct, frozen=True):
    """One look through the library. `present` is whether there was one that answered."""

    present: bool
    cards: tuple[NvmlCard, ...] = ()
    errors: tuple[SourceError, ...] = ()
    driver_version: str = ""
    unusable: str = ""  # why no card of the host can work now, where the library's failure says so


def read(started_by_dibs: Callable[[int], bool], roots: Roots = HOST, library: Nvml | None = None) -> NvmlReading:
    """Ask the library for all cards. Without any trace of NVIDIA it is not even loaded."""
    traces = has_nvidia_traces(roots)
    if library is None and not traces and not is_wsl(roots):
        return NvmlReading(present=False)
    import pynvml

    nvml: Nvml = library if library is not None else pynvml
    try:
        nvml.nvmlInit()
    except pynvml.NVMLError as error:
        if not traces:
            return NvmlReading(present=False)
        # A missing library alone proves nothing about the cards: a Jetson has none.
        dead = f"NVML: {error}" if error.value in (_DRIVER_NOT_LOADED, _VERSION_MISMATCH) else ""
        return NvmlReading(present=False, errors=(_init_failure(error, roots),), unusable=dead)
    try:
        return _Look(nvml, pynvml.NVMLError, started_by_dibs, roots).all_cards()
    except pynvml.NVMLError as error:
        return NvmlReading(present=False, errors=(SourceError("nvml", f"NVML: {error}", "run nvidia-smi"),))
    finally:
        nvml.nvmlShutdown()


def _init_failure(error: Any, roots: Roots) -> SourceError:
    loaded = read_text(f"{roots.proc}/driver/nvidia/version") or ""
    first_line = loaded.partition("\n")[0]
    remedy = "run nvidia-smi, and reinstall the driver if it fails too"
    if error.value == _VERSION_MISMATCH:
        remedy = "the driver was upgraded and the old module is still loaded: reboot"
    return SourceError("nvml", f"NVML: {error}" + (f" (loaded: {first_line})" if first_line else ""), remedy)


class _Lost(Exception):
    """The card answers no more; carries the library's words."""


class _Look:
    """One walk over the cards, collecting what cannot be read."""

    def __init__(
        self, nvml: Nvml, failure: type[Exception], started_by_dibs: Callable[[int], bool], roots: Roots
    ) -> None:
        self.nvml = nvml
        self.failure = failure
        self.started_by_dibs = started_by_dibs
        self.roots = roots
        self.errors: list[SourceError] = []

    def all_cards(self) -> NvmlReading:
        driver = self.ask("the host", "driver version", self.nvml.nvmlSystemGetDriverVersion) or ""
        cards = tuple(self.card(index) for index in range(self.nvml.nvmlDeviceGetCount()))
        return NvmlReading(present=True, cards=cards, errors=tuple(self.errors), driver_version=driver)

    def card(self, index: int) -> NvmlCard:
        card = NvmlCard(index=index)
        try:
            with self.lost_is_unhealthy():
                handle = self.nvml.nvmlDeviceGetHandleByIndex(index)
        except _Lost as lost:
            return msgspec.structs.replace(card, health=Health(ok=False, reason=str(lost)))
        except self.failure as error:
            self.errors.append(SourceError("nvml", f"card {index}: NVML: {error}"))
            return msgspec.structs.replace(card, health=Health(ok=False, reason=f"NVML: {error}"))
        # What is known before a card turns out to be lost is kept: its uuid is needed to find its lease.
        for step in (self.identity, self.facts, self.state, self.instances):
            try:
                card = step(card, handle)
            except _Lost as lost:
                return msgspec.structs.replace(card, health=Health(ok=False, reason=str(lost)))
        return card

    def identity(self, card: NvmlCard, handle: Any) -> NvmlCard:
        for field, what, call in (
            ("uuid", "uuid", self.nvml.nvmlDeviceGetUUID),
            ("minor", "minor number", self.nvml.nvmlDeviceGetMinorNumber),
        ):
            value = self.ask_card(card, what, call, handle)
            if value is not None:
                card = msgspec.structs.replace(card, **{field: value})
        pci = self.ask_card(card, "PCI address", self.nvml.nvmlDeviceGetPciInfo, handle)
        if pci is not None:
            try:
                card = msgspec.structs.replace(card, bus_id=bus_id(_text(pci.busId)))
            except ValueError as error:
                self.errors.append(SourceError("nvml", f"card {card.index}: PCI address: {error}"))
        return card

    def facts(self, card: NvmlCard, handle: Any) -> NvmlCard:
        product = self.ask_card(card, "name", self.nvml.nvmlDeviceGetName, handle)
        memory = self.ask_card(card, "memory", self.nvml.nvmlDeviceGetMemoryInfo, handle)
        architecture = self.ask_card(card, "architecture", self.nvml.nvmlDeviceGetArchitecture, handle)
        compute = self.ask_card(card, "compute capability", self.nvml.nvmlDeviceGetCudaComputeCapability, handle)
        return msgspec.structs.replace(
            card,
            product=product or "",
            memory=int(memory.total) if memory is not None else None,
            architecture=_ARCHITECTURES.get(architecture, "") if architecture is not None else "",
            compute=f"{compute[0]}.{compute[1]}" if compute is not None else "",
        )

    def state(self, card: NvmlCard, handle: Any) -> NvmlCard:
        reasons: list[str] = []
        rows = self.ask_card(card, "remapped rows", self.nvml.nvmlDeviceGetRemappedRows, handle)
        if rows is not None and rows[3]:
            reasons.append("a memory row could not be remapped: the card needs service")
        elif rows is not None and rows[2]:
            reasons.append("a broken memory row waits to be remapped: reset the GPU")
        if self.ask_card(card, "retired pages", self.nvml.nvmlDeviceGetRetiredPagesPendingStatus, handle):
            reasons.append("broken memory pages wait to be retired: reset the GPU")
        action = self.recovery_action(card, handle)
        if action in _ACTIONS:
            reasons.append(f"the driver asks to {_ACTIONS[action]}")
        health = Health(ok=False, reason="; ".join(reasons)) if reasons else Health()
        return msgspec.structs.replace(card, health=health, used_by=self.users(card, handle))

    def recovery_action(self, card: NvmlCard, handle: Any) -> int:
        values = self.ask_card(
            card, "recovery action", lambda h: self.nvml.nvmlDeviceGetFieldValues(h, [_RECOVERY_ACTION]), handle
        )
        # Each field has a status of its own; an older driver does not know this one.
        return int(values[0].value.uiVal) if values is not None and values[0].nvmlReturn == 0 else 0

    def instances(self, card: NvmlCard, handle: Any) -> NvmlCard:
        mode = self.ask_card(card, "MIG mode", self.nvml.nvmlDeviceGetMigMode, handle)
        if mode is None or not mode[0]:
            return card if mode is None else msgspec.structs.replace(card, mig=False)
        card = msgspec.structs.replace(card, mig=True)
        count = self.ask_card(card, "MIG device count", self.nvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0
        parts = []
        for index in range(count):
            part = self.ask(
                f"card {card.index}",
                f"MIG device {index}",
                partial(self.nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, index),
                empty=(_NOT_FOUND, _INVALID_ARGUMENT),  # a slot that holds no device
            )
            if part is not None:
                parts.append(self.part(card, index, part))
        return msgspec.structs.replace(card, parts=tuple(parts))

    def part(self, card: NvmlCard, index: int, handle: Any) -> NvmlPart:
        memory = self.ask_card(card, f"memory of MIG device {index}", self.nvml.nvmlDeviceGetMemoryInfo, handle)
        return NvmlPart(
            index=index,
            uuid=self.ask_card(card, f"uuid of MIG device {index}", self.nvml.nvmlDeviceGetUUID, handle) or "",
            product=self.ask_card(card, f"name of MIG device {index}", self.nvml.nvmlDeviceGetName, handle) or "",
            memory=int(memory.total) if memory is not None else None,
            gpu_instance=self.ask_card(card, "GPU instance", self.nvml.nvmlDeviceGetGpuInstanceId, handle),
            compute_instance=self.ask_card(card, "compute instance", self.nvml.nvmlDeviceGetComputeInstanceId, handle),
            used_by=self.users(card, handle),
        )

    def users(self, card: NvmlCard, handle: Any) -> tuple[ExternalUse, ...]:
        processes = self.ask_card(card, "processes", self.nvml.nvmlDeviceGetComputeRunningProcesses, handle) or ()
        pids = dict.fromkeys(int(process.pid) for process in processes)
        return tuple(external_use(pid, self.roots) for pid in pids if not self.started_by_dibs(pid))

    def ask_card(self, card: NvmlCard, what: str, call: Callable[[Any], T], handle: Any) -> T | None:
        return self.ask(f"card {card.index}", what, lambda: call(handle))

    def ask(
        self,
        where: str,
        what: str,
        call: Callable[[], T],
        empty: tuple[int, ...] = (),
    ) -> T | None:
        """One question. None if the library does not support it here; another failure is kept as an error."""
        try:
            with self.lost_is_unhealthy():
                return call()
        except self.failure as error:
            if getattr(error, "value", None) not in (_NOT_SUPPORTED, _FUNCTION_NOT_FOUND, *empty):
                self.errors.append(SourceError("nvml", f"{where}: {what}: NVML: {error}"))
            return None

    @contextmanager
    def lost_is_unhealthy(self) -> Iterator[None]:
        try:
            yield
        except self.failure as error:
            if getattr(error, "value", None) in (_GPU_IS_LOST, _RESET_REQUIRED):
                raise _Lost(f"NVML: {error}") from error
            raise


def external_use(pid: int, roots: Roots = HOST) -> ExternalUse:
    """Who runs a process and what it is. A process that cannot be seen from here still counts as a holder."""
    folder = f"{roots.proc}/{pid}"
    try:
        uid = os.stat(folder).st_uid
        command = (read_text(f"{folder}/cmdline", 4096) or "").replace("\0", " ").strip()
        if not command:
            command = read_text(f"{folder}/comm") or ""
    except OSError:
        return ExternalUse(pid, "unknown", "not visible from here")
    return ExternalUse(pid, _user_name(uid), command[:200] or "unknown")


def _user_name(uid: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
