"""The limits and the use of a container, read from the control groups of its first process.

Version 1 (one tree for each controller), version 2, and both at once. Only what was really set is told: a limit that
says "unlimited" is none.
"""

from __future__ import annotations

import os
from functools import lru_cache

from dibs.backends.engines.process_view import unreadable
from dibs.backends.port import Usage

_UNLIMITED = 1 << 62  # version 1 writes the largest number of pages instead of "max"


@lru_cache(maxsize=1)
def _mounts() -> dict[str, str]:
    """Controller → where its tree is mounted; "" is version 2."""
    found: dict[str, str] = {}
    with open("/proc/self/mountinfo") as file:
        for line in file:
            left, _, right = line.partition(" - ")
            kind, _, options = right.split(" ", 2)
            point = left.split(" ")[4]
            if kind == "cgroup2":
                found.setdefault("", point)
            elif kind == "cgroup":
                for name in options.strip().split(","):
                    found.setdefault(name, point)
    return found


def trees() -> list[str]:
    """Where to look for a group by its name: one tree is enough, version 2's or a controller's."""
    found = _mounts()
    return [found[name] for name in ("pids", "memory", "") if name in found]


def is_of(pid: int, container: str) -> bool:
    """Whether a process is in the groups of a container, by its id. Podman's conmon is beside it, not in it."""
    try:
        with open(f"/proc/{pid}/cgroup") as file:
            return any(_names(line, container) for line in file)
    except OSError:
        return False


def _names(path: str, container: str) -> bool:
    return any(container in part and "conmon" not in part for part in path.split("/"))


_TOLD_BY = ("pids", "memory", "freezer", "")  # the trees in which a container's processes are counted and thawed


def groups_of(pid: int, container: str) -> dict[str, str]:
    """The folders of a container's control groups, by controller ("" for version 2): those named after it."""
    found: dict[str, str] = {}
    try:
        with open(f"/proc/{pid}/cgroup") as file:
            lines = file.read().splitlines()
    except OSError:
        return {}  # it has ended
    for line in lines:
        _, names, path = line.split(":", 2)
        for name in names.split(","):
            point = _mounts().get(name) if name in _TOLD_BY else None
            if point is None or not _names(path, container):
                continue
            # Processes may be in a group below the container's own.
            parts = path.split("/")
            last = max(index for index, part in enumerate(parts) if _names(part, container))
            folder = point + "/".join(parts[: last + 1])
            if os.path.isdir(folder):
                found[name] = folder
    return found


class Groups:
    """The groups of one process."""

    def __init__(self, pid: int) -> None:
        self._paths: dict[str, str] = {}
        try:
            with open(f"/proc/{pid}/cgroup") as file:
                for line in file.read().splitlines():
                    _, names, path = line.split(":", 2)
                    for name in names.split(","):
                        self._paths[name] = path
        except OSError as error:
            raise unreadable("its limits", error) from error

    def _read(self, controller: str, file: str) -> str | None:
        """A file of version 1's tree of that controller, or of version 2's; None if there is none."""
        for name in (controller, ""):
            point, path = _mounts().get(name), self._paths.get(name)
            if point is None or path is None:
                continue
            one, _, two = file.partition("|")
            wanted = one if name else two or one
            try:
                with open(f"{point}{path.rstrip('/')}/{wanted}") as opened:
                    return opened.read().strip()
            except FileNotFoundError:
                continue
            except OSError as error:
                raise unreadable("its limits", error) from error
        return None

    def limits(self) -> dict[str, int]:
        found: dict[str, int] = {}
        memory = self._read("memory", "memory.limit_in_bytes|memory.max")
        if memory and memory != "max" and int(memory) < _UNLIMITED:
            found["memory_bytes"] = int(memory)
        pids = self._read("pids", "pids.max")
        if pids and pids != "max":
            found["pids"] = int(pids)
        cpu = self._cpu_millis()
        if cpu is not None:
            found["cpu_millis"] = cpu
        return found

    def _cpu_millis(self) -> int | None:
        both = self._read("cpu", "cpu.cfs_quota_us|cpu.max")
        if both is None:
            return None
        quota, _, period = both.partition(" ")
        if not period:
            period = self._read("cpu", "cpu.cfs_period_us|cpu.max") or "100000"
        if quota in ("max", "-1"):
            return None
        return round(int(quota) * 1000 / int(period.split(" ")[-1]))

    def usage(self) -> Usage | None:
        """None where the host does not count."""
        memory = self._read("memory", "memory.usage_in_bytes|memory.current")
        spent = self._read("cpuacct", "cpuacct.usage|cpu.stat")
        if memory is None or spent is None:
            return None
        if " " in spent:
            numbers = dict(line.split(" ", 1) for line in spent.splitlines())
            seconds = int(numbers["usage_usec"]) / 1e6
        else:
            seconds = int(spent) / 1e9
        limits = self.limits()
        host = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        cpus = limits["cpu_millis"] / 1000 if "cpu_millis" in limits else float(os.cpu_count() or 1)
        return Usage(
            cpu_seconds=seconds,
            memory_bytes=int(memory),
            memory_limit=min(host, limits.get("memory_bytes", host)),
            cpus=cpus,
        )
