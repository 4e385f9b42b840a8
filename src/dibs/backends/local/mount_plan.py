"""What a list of bubblewrap options mounts, worked out without running it.

`rendering` asks, so that everything that is mounted is expected, whichever part of dibs has added the option. What one
mount hides of another is gone here as it is there.
"""

from __future__ import annotations

import os

from dibs.backends import mounts
from dibs.backends.port import MountFact
from dibs.errors import Internal

_ARITY = {
    **dict.fromkeys(
        (
            "--unshare-user", "--unshare-user-try", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts",
            "--unshare-cgroup", "--unshare-cgroup-try", "--disable-userns", "--assert-userns-disabled", "--clearenv",
            "--new-session", "--die-with-parent", "--as-pid-1",
        ),
        0,
    ),
    **dict.fromkeys(
        (
            "--chdir", "--unsetenv", "--lock-file", "--sync-fd", "--remount-ro", "--overlay-src", "--tmp-overlay",
            "--ro-overlay", "--proc", "--dev", "--tmpfs", "--mqueue", "--dir", "--seccomp", "--add-seccomp-fd",
            "--cap-add", "--cap-drop", "--perms", "--size", "--hostname", "--uid", "--gid", "--userns", "--block-fd",
            "--info-fd", "--json-status-fd", "--userns2", "--pidns", "--argv0",
        ),
        1,
    ),
    **dict.fromkeys(
        (
            "--setenv", "--bind", "--bind-try", "--dev-bind", "--dev-bind-try", "--ro-bind", "--ro-bind-try",
            "--bind-fd", "--ro-bind-fd", "--symlink", "--chmod", "--file", "--bind-data", "--ro-bind-data",
        ),
        2,
    ),
    "--overlay": 3,
}  # fmt: skip
NODES = {"null": "c 1:3", "zero": "c 1:5", "full": "c 1:7", "random": "c 1:8", "urandom": "c 1:9", "tty": "c 5:0"}
_COVERED = ("sys", "sysrq-trigger", "irq", "bus")  # parts of /proc that bubblewrap makes read-only where it can


def split(args: list[str]) -> list[tuple[str, list[str]]]:
    """Options with their arguments."""
    found = []
    at = 0
    while at < len(args):
        count = _ARITY.get(args[at])
        if count is None:
            raise Internal(f"it is not known what {args[at]} mounts", field="args", value=args[at])
        found.append((args[at], args[at + 1 : at + 1 + count]))
        at += 1 + count
    return found


def expected(args: list[str], host: mounts.Table) -> tuple[tuple[MountFact, ...], tuple[MountFact, ...]]:
    """What must be there, and what bubblewrap may add by itself. OSError if a source is not there."""
    world = _World(host)
    sources: list[str] = []
    for option, values in split(args):
        if option == "--overlay-src":
            sources.append(values[0])
        elif option in ("--tmp-overlay", "--ro-overlay"):
            mode = "rw" if option == "--tmp-overlay" else "ro"
            world.put(values[0], mode, f"overlay of {':'.join(reversed(sources))}")
            sources = []
        elif option in ("--bind", "--dev-bind", "--ro-bind"):
            world.bind(values[0], values[1], read_only=option == "--ro-bind")
        elif option in ("--bind-try", "--dev-bind-try", "--ro-bind-try"):
            if os.path.exists(values[0]):
                world.bind(values[0], values[1], read_only=option == "--ro-bind-try")
        elif option == "--tmpfs":
            world.put(values[0], "rw", "tmpfs")
        elif option == "--mqueue":
            world.put(values[0], "rw", "mqueue")
        elif option == "--proc":
            world.put(values[0], "rw", "proc")
            world.may += [MountFact(f"{values[0]}/{part}", "ro", "proc") for part in _COVERED]
        elif option == "--dev":
            world.dev(values[0])
        elif option == "--remount-ro":
            world.seal(values[0])
        elif option == "--ro-bind-data":
            world.put(values[1], "ro", "tmpfs")  # a file of the sandbox's own
        elif option in ("--overlay", "--bind-fd", "--ro-bind-fd", "--bind-data"):
            raise Internal(f"it is not known what {option} mounts", field="args", value=" ".join(values))
    must = tuple(sorted(world.tree.values()))
    return must, tuple(one for one in world.may if one.target not in world.tree)


class _World:
    def __init__(self, host: mounts.Table) -> None:
        self.host = host
        self.tree = {"/": MountFact("/", "rw", "tmpfs")}
        self.may: list[MountFact] = []

    def put(self, target: str, mode: str, source: str) -> None:
        top = target.rstrip("/") + "/"
        for point in [point for point in self.tree if point.startswith(top)]:
            del self.tree[point]
        self.may = [one for one in self.may if not one.target.startswith(top)]
        self.tree[target] = MountFact(target, "ro" if mode == "ro" else "rw", source)

    def bind(self, source: str, target: str, *, read_only: bool) -> None:
        """Recursive, as bubblewrap does it: mounts below the source come along, read-only if it is.

        Those below a folder of the host that is shown read-only in its own place are not listed: they come and go with
        the host's own (a busy engine mounts and unmounts all the time), and add nothing.
        """
        over = self.host.at(source)
        kind, device = (over.kind, over.device) if over is not None else ("", "")
        mode = "ro" if read_only or (over is not None and over.mode == "ro") else "rw"
        self.put(target, mode, mounts.named(source, kind, device))
        if source == target and read_only:
            return  # a part of the host as it is: see `observe`
        for entry in self.host.under(source):
            place = target.rstrip("/") + entry.point[len(source.rstrip("/")) :]
            try:
                what = mounts.named(entry.point, entry.kind, entry.device)
            except OSError:
                continue  # not ours to reach, so bubblewrap does not reach it either
            self.put(place, "ro" if read_only else entry.mode, what)

    def dev(self, target: str) -> None:
        self.put(target, "rw", "tmpfs")
        for name, numbers in NODES.items():
            self.put(f"{target}/{name}", "rw", numbers)
        self.put(f"{target}/pts", "rw", "devpts")
        self.may.append(MountFact(f"{target}/console", "rw", "terminal"))

    def seal(self, target: str) -> None:
        if target in self.tree:
            self.tree[target] = MountFact(target, "ro", self.tree[target].source)
