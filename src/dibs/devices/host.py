"""Where the kernel shows this host, and small reads from there.

Sources and `doctor` read `/dev`, `/proc`, `/sys` and `/etc` only below a `Roots`, so that a test can give them a tree
of its own. Reading is of small files; it must not follow a path out of the given roots by itself.
"""

from __future__ import annotations

import os

import msgspec


class Roots(msgspec.Struct, frozen=True):
    """The four trees, as absolute paths without a slash at the end."""

    dev: str = "/dev"
    proc: str = "/proc"
    sys: str = "/sys"
    etc: str = "/etc"

    def node(self, path: str) -> str:
        """Where a device node that is called `/dev/...` is really looked for."""
        return self.dev + path.removeprefix("/dev") if path.startswith("/dev/") else path

    def file(self, path: str) -> str:
        """Where an absolute path of the host is really looked for."""
        for name, root in (("/dev/", self.dev), ("/proc/", self.proc), ("/sys/", self.sys), ("/etc/", self.etc)):
            if path.startswith(name):
                return f"{root}/{path.removeprefix(name)}"
        return path


HOST = Roots()


def read_text(path: str, limit: int = 65536) -> str | None:
    """The stripped text of a small file; None if there is no such file. Other failures are the caller's to report."""
    try:
        with open(path, "rb") as file:
            return file.read(limit).decode("utf-8", "replace").strip()
    except (FileNotFoundError, NotADirectoryError):
        return None


def has_nvidia_traces(roots: Roots) -> bool:
    """Whether an NVIDIA driver is or was here: its folder in /proc, or any of its nodes."""
    if os.path.isdir(f"{roots.proc}/driver/nvidia"):
        return True
    try:
        names = os.listdir(roots.dev)
    except FileNotFoundError:
        return False
    return any(name.startswith("nvidia") for name in names)


def is_wsl(roots: Roots) -> bool:
    """Windows' subsystem: all GPUs of the host come through one node, and none can be chosen."""
    return os.path.exists(f"{roots.dev}/dxg")
