"""Proof by processes that a container is gone, and force for those that an engine has forgotten.

An engine that was killed, restarted with an empty /run, or out of disk space says "exited" or "no such container" of a
container whose processes run. So its answer frees no device: `status` checks `left` first, and `stop` calls `end` for
what the engine does not end. A container is known by the record that was made at its start (in `ttl`: its first
process, its shim, its control groups) and by its id, after which engines name its control group. The starter may have
been killed before it wrote that record: then only the id is known.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from pathlib import Path

from dibs.backends.engines import ttl
from dibs.backends.engines.cgroups import groups_of, is_of
from dibs.errors import BackendUnavailable
from dibs.process import ProcessName, absent, name_of, start_time

PATIENCE = 10.0  # seconds for killed processes to be gone
_SHIM = 1.0  # seconds for a shim to go by itself after its container; conmon does, containerd's does not
_SHIMS = (b"containerd-shim", b"conmon")


def left(folder: Path, container: str) -> str:
    """Why a container is not proved gone; empty if it is. `container`: its id."""
    init = ttl.init_of(folder)
    if init is not None and not absent(init):
        return f"its first process, {init.pid}, is not gone"
    found = members(folder, container)
    return f"processes of it are not gone: {', '.join(map(str, found))}" if found else ""


def members(folder: Path, container: str) -> list[int]:
    """Live processes in the control groups of a container.

    Where its groups were recorded only those are read; else every process of the host is looked at.
    """
    record = ttl.record_of(folder)
    if record is not None and record.groups:
        listed = {pid for group in set(record.groups.values()) for pid in _listed(group)}
        return sorted(pid for pid in listed if start_time(pid) is not None)
    if not container:
        return []
    return sorted(
        int(entry)
        for entry in os.listdir("/proc")
        if entry.isdigit() and is_of(int(entry), container) and start_time(int(entry)) is not None
    )


def _listed(group: str) -> list[int]:
    found: list[int] = []
    for folder, _, _ in os.walk(group):
        try:
            with open(f"{folder}/cgroup.procs") as file:
                found += [int(line) for line in file]
        except (FileNotFoundError, NotADirectoryError):
            continue  # a group goes when it is empty
        except OSError as error:
            if error.errno == 19:  # ENODEV: it goes while it is read
                continue
            reason = f"the control group {folder} cannot be read: {(error.strerror or str(error)).lower()}"
            raise BackendUnavailable(reason, field="sandbox", value=group, code="OBSERVATION_FAILED") from error
    return found


def end(folder: Path, container: str, grace: float = 0.0, *, forgotten: bool) -> bool:
    """End every process of a container past its engine; returns when none is left, and whether there was any.

    `forgotten`: the engine does not know that it runs, so its shim and its control groups are left to us as well.
    Raises BackendUnavailable if something stays.
    """
    init = ttl.init_of(folder)
    lives = init is not None and not absent(init)
    some = lives or bool(members(folder, container))
    around = _around(folder, container)
    if some:
        _thaw(around)
    if init is not None and lives and grace > 0:
        _signal(init, signal.SIGTERM, grace)
    deadline = time.monotonic() + PATIENCE
    while (init is not None and not absent(init)) or members(folder, container):
        if init is not None:
            _signal(init, signal.SIGKILL)
        for pid in members(folder, container):
            _kill_member(pid, folder, container)
        if time.monotonic() > deadline:
            raise BackendUnavailable(
                f"the container does not end: {left(folder, container)}", field="sandbox", value=folder.name,
                code="ENGINE_FAILED", remedy="see what keeps its processes: a device or a file system that hangs",
            )  # fmt: skip
        _thaw(around)
        time.sleep(0.005)
    if forgotten:
        _end_shims(around, container)
        _remove_groups(around)
    return some


def _around(folder: Path, container: str) -> ttl.Record:
    """What is around a container: as it was recorded, or as far as it can be seen now."""
    record = ttl.record_of(folder)
    if record is not None and record.groups:
        return record
    groups: dict[str, str] = {}
    for pid in members(folder, container):
        groups |= groups_of(pid, container)
    return ttl.Record(record.shim if record is not None else None, groups)


# --- signals


def _signal(process: ProcessName, number: int, patience: float = 0.0) -> None:
    """Send a signal to exactly this process, and wait up to `patience` seconds for it to end."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    try:
        if not absent(process):  # else the number is another process's by now
            signal.pidfd_send_signal(descriptor, number)
            if patience > 0:
                select.select([descriptor], [], [], patience)
    except ProcessLookupError:
        return
    except PermissionError as error:
        raise _not_permitted(process.pid) from error
    finally:
        os.close(descriptor)


def _kill_member(pid: int, folder: Path, container: str) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if pid in members(folder, container):  # still: the number may be another process's by now
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    except ProcessLookupError:
        return
    except PermissionError as error:
        raise _not_permitted(pid) from error
    finally:
        os.close(descriptor)


def _not_permitted(pid: int) -> BackendUnavailable:
    reason = f"process {pid} of the container is left, and you may not end it"
    remedy = "ask root, or the user of the engine, to stop the sandbox"
    return BackendUnavailable(reason, field="sandbox", value=str(pid), code="ENGINE_FAILED", remedy=remedy)


def _thaw(around: ttl.Record) -> None:
    """A frozen process of cgroup v1 does not even hear SIGKILL."""
    for controller, group in around.groups.items():
        name, word = {"freezer": ("freezer.state", "THAWED"), "": ("cgroup.freeze", "0")}.get(controller, ("", ""))
        if not name:
            continue
        try:
            with open(f"{group}/{name}", "w") as file:
                file.write(word)
        except FileNotFoundError:
            continue  # it is gone, or the tree has no freezer
        except OSError as error:
            reason = f"the container cannot be thawed: {(error.strerror or str(error)).lower()}"
            raise BackendUnavailable(reason, field="sandbox", value=group, code="ENGINE_FAILED") from error


# --- what is around it


def _end_shims(around: ttl.Record, container: str) -> None:
    """containerd's shim and conmon: they hold no device, but nothing else would end them."""
    shims = [around.shim] if around.shim is not None else _seen_shims(container)
    for shim in shims:
        try:
            descriptor = os.pidfd_open(shim.pid)
        except ProcessLookupError:
            continue
        try:
            select.select([descriptor], [], [], _SHIM)
            if not absent(shim) and _is_shim(shim.pid, container):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                select.select([descriptor], [], [], PATIENCE)
        except ProcessLookupError:
            continue
        except PermissionError as error:
            raise _not_permitted(shim.pid) from error
        finally:
            os.close(descriptor)


def _seen_shims(container: str) -> list[ProcessName]:
    pids = (int(entry) for entry in os.listdir("/proc") if entry.isdigit())
    names = (name_of(pid) for pid in pids if container and _is_shim(pid, container))
    return [name for name in names if name is not None]


def _is_shim(pid: int, container: str) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read().split(b"\0")
    except OSError:
        return False
    return words[0].rpartition(b"/")[2].startswith(_SHIMS) and container.encode() in words


def _remove_groups(around: ttl.Record) -> None:
    """Empty groups of a container that its engine does not remember; one that cannot be removed does no harm."""
    for group in set(around.groups.values()):
        for path, _, _ in os.walk(group, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(path)
