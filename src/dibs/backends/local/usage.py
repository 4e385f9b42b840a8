"""What a sandbox uses, as limited: its control groups where it has some, else its processes.

`backend.usage` calls it. Limits that were not set are the host's. Nothing here is ever guessed: what cannot be read is
an error.
"""

from __future__ import annotations

import os

from dibs.backends.local import cgroups
from dibs.backends.local.kernel import inside
from dibs.backends.port import Usage
from dibs.backends.proc import unreadable

TICKS = os.sysconf("SC_CLK_TCK")


def measure(init: int, folders: list[str]) -> Usage:
    try:
        limits = cgroups.read_back(folders)
        cpu, memory = _by_groups(folders)
        if cpu is None or memory is None:
            used, resident = _by_processes(init)
            cpu = used if cpu is None else cpu
            memory = resident if memory is None else memory
    except OSError as error:
        raise unreadable("what it uses", error) from error
    host = os.sysconf("SC_PHYS_PAGES") * cgroups.PAGE
    processors = len(os.sched_getaffinity(0))
    millis = limits.get("cpu_millis")
    return Usage(
        cpu_seconds=cpu,
        memory_bytes=memory,
        memory_limit=min(limits.get("memory_bytes", host), host),
        cpus=processors if millis is None else min(millis / 1000, processors),
    )


def _by_groups(folders: list[str]) -> tuple[float | None, int | None]:
    cpu: float | None = None
    memory: int | None = None
    for folder in folders:
        names = set(os.listdir(folder))
        if "cpuacct.usage" in names:
            cpu = int(cgroups.read(f"{folder}/cpuacct.usage")) / 1e9
        elif "cpu.stat" in names and (usage := _field(f"{folder}/cpu.stat", "usage_usec")) is not None:
            cpu = usage / 1e6
        for current, idle in (("memory.current", "inactive_file"), ("memory.usage_in_bytes", "total_inactive_file")):
            if current in names:
                # What the kernel would give back at once is not in use; engines count alike.
                cached = _field(f"{folder}/memory.stat", idle) or 0
                memory = max(0, int(cgroups.read(f"{folder}/{current}")) - cached)
    return cpu, memory


def _field(path: str, name: str) -> int | None:
    for line in cgroups.read(path).splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return None


def _by_processes(init: int) -> tuple[float, int]:
    ticks = pages = 0
    for pid in (init, *inside(init)):
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        ticks += sum(int(number) for number in fields[11:15])  # its own, and those of its children that have ended
        pages += int(fields[21])
    return ticks / TICKS, pages * cgroups.PAGE
