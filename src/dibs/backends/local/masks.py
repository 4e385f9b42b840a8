"""Files of the kernel that a sandbox must not read or must not write, as container runtimes have it.

`rootfs.add_own` asks for them after /proc and /sys have their place. Without them a sandbox made by root could write
the host's sysctls: their files belong to root, and being root is enough to write them, capabilities or not.

A masked file is /dev/null on a mount without devices, so that it cannot be opened; a masked folder is empty. Both
cannot be changed. What a kernel does not have needs no mask.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable

# The usual list of runtimes, and three files about physical memory that only root can read: here that may be its user.
MASKED = (
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/key-users",
    "/proc/keys",
    "/proc/kpagecgroup",
    "/proc/kpagecount",
    "/proc/kpageflags",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
)
# Everything in /proc that root may write and that is not a process's own. In /proc/driver there are switches too:
# that of NVIDIA's puts all GPUs to sleep.
READ_ONLY = (
    "/proc/bus",
    "/proc/driver",
    "/proc/dynamic_debug",
    "/proc/fs",
    "/proc/irq",
    "/proc/mtrr",
    "/proc/sys",
    "/proc/sysrq-trigger",
    "/proc/tty",
)


def masked(mount_points: Iterable[str]) -> list[str]:
    """What is masked on this host: the list, and whatever is mounted below /sys.

    A runtime mounts a sysfs of its own, without the trees that a host has in it (control groups, debugfs, tracefs,
    securityfs, bpf, pstore); bubblewrap can only bind the host's, with all of them.
    """
    inner = [point for point in mount_points if point.startswith("/sys/")]
    wanted = sorted({*MASKED, *inner})
    # One that is in another one is out of sight already.
    return [path for path in wanted if _exists(path) and not any(path.startswith(f"{top}/") for top in wanted)]


def read_only() -> list[str]:
    return [path for path in READ_ONLY if _exists(path)]


def options(hidden: Iterable[str], sealed: Iterable[str]) -> list[str]:
    """bubblewrap's options for them."""
    args: list[str] = []
    for path in sealed:
        args += ["--ro-bind", path, path]
    for path in hidden:
        if stat.S_ISDIR(os.stat(path).st_mode):
            args += ["--perms", "0555", "--tmpfs", path, "--remount-ro", path]
        else:
            args += ["--ro-bind", os.devnull, path]
    return args


def _exists(path: str) -> bool:
    """Raises OSError if it cannot be found out: then it cannot be left out either."""
    try:
        os.lstat(path)
    except FileNotFoundError:
        return False
    return True
