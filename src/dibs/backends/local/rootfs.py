"""What a sandbox sees of the host's files.

`backend.render` asks for a layout: bubblewrap options, what is mounted by them, and notes about anything that is less
than the rule. The rule for the host's own root: every folder under a private writable layer that is gone at the end,
fresh /proc, /dev, /tmp and /run, the working directory as it is, dibs' own state out of sight.

It looks at the host and changes nothing. Overlays that the kernel refuses are found by trying, once.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable

import msgspec

from dibs.backends.local import masks
from dibs.backends.proc import below, unescape

# Made anew in every sandbox, or bound apart.
OWN = ("/proc", "/dev", "/sys", "/tmp", "/run")  # noqa: S108  # names of mount points, no files are made there
SCRATCH = "/var/tmp"  # noqa: S108  # the same
# File systems of the kernel or of a session: nothing in them is a file that a workload came for.
NOT_FILES = frozenset(
    [
        "proc",
        "sysfs",
        "cgroup",
        "cgroup2",
        "devtmpfs",
        "devpts",
        "tmpfs",
        "ramfs",
        "mqueue",
        "hugetlbfs",
        "debugfs",
        "tracefs",
        "securityfs",
        "pstore",
        "bpf",
        "configfs",
        "fusectl",
        "binfmt_misc",
        "efivarfs",
        "autofs",
        "nsfs",
        "rpc_pipefs",
        "selinuxfs",
    ]
)
# A folder with mounts below it is taken apart, entry by entry; beyond this many entries it is bound read-only instead.
MANY = 300


class Bind(msgspec.Struct, frozen=True):
    """A host path at a place in the sandbox."""

    source: str
    target: str
    writable: bool


class Seen(msgspec.Struct, frozen=True):
    """A folder before it was listed: what changes when something in it comes, goes or is replaced."""

    path: str
    state: tuple[int, ...]

    @classmethod
    def of(cls, path: str) -> Seen:
        """Raises OSError if it is gone."""
        found = os.stat(path)
        return cls(path, (found.st_ino, found.st_mtime_ns, found.st_ctime_ns))


class Layout(msgspec.Struct):
    """bubblewrap's options for the files, the mount points they make, and what the user should know."""

    args: list[str] = []
    points: list[str] = []
    notes: list[str] = []
    overlaid: list[str] = []
    folders: list[Seen] = []  # of the host, that were listed

    def copy(self) -> Layout:
        """One that can be added to by itself."""
        return Layout(*(list(getattr(self, name)) for name in self.__struct_fields__))

    def overlay(self, source: str, target: str) -> None:
        self.args += ["--overlay-src", source, "--tmp-overlay", target]
        self.points.append(target)
        self.overlaid.append(target)

    def bind(self, one: Bind) -> None:
        self.args += ["--bind" if one.writable else "--ro-bind", one.source, one.target]
        self.points.append(one.target)

    def tmpfs(self, target: str, mode: str = "0755", size: int | None = None) -> None:
        self.args += [*(["--size", str(size)] if size else []), "--perms", mode, "--tmpfs", target]
        self.points.append(target)

    def seal(self) -> list[str]:
        """Take the private layer's writability away, after everything has its place in it. Gives what is sealed."""
        sealed = [*(path for path in self.overlaid if path != "/"), "/"]
        for path in sealed:
            self.args += ["--remount-ro", path]
        return sealed

    def folder(self, target: str, mode: str = "0755") -> None:
        self.args += ["--perms", mode, "--dir", target]


def mount_points(text: str) -> dict[str, str]:
    """Mount point → type, from the text of a mountinfo. The last mount on a point is the one that is seen."""
    found = {}
    for line in text.splitlines():
        left, _, right = line.partition(" - ")
        found[unescape(left.split(" ")[4])] = right.split(" ")[0]
    return found


def host_layout(mounts: dict[str, str], refused: frozenset[str] = frozenset()) -> Layout:
    """The host's root. `refused` are folders that this kernel will not overlay for us."""
    layout = Layout()
    _take_apart("/", layout, mounts, refused)
    for path in refused:
        layout.notes.append(f"{path} is read-only: this kernel cannot put a writable layer on it for you")
    return layout


def _take_apart(folder: str, layout: Layout, mounts: dict[str, str], refused: frozenset[str]) -> None:
    layout.folders.append(Seen.of(folder))
    with os.scandir(folder) as listing:
        entries = sorted(listing, key=lambda entry: entry.name)
    if len(entries) > MANY and folder != "/":
        layout.bind(Bind(folder, folder, writable=False))
        layout.notes.append(f"{folder} is read-only: it has mounts below it and more than {MANY} entries")
        return
    for entry in entries:
        path = entry.path
        if path in OWN or (path == SCRATCH and not entry.is_symlink()):
            continue  # what is mounted in there on the host would only be covered
        if entry.is_symlink():
            layout.args += ["--symlink", os.readlink(path), path]
        elif entry.is_dir(follow_symlinks=False):
            if mounts.get(path) in NOT_FILES:
                layout.folder(path)
                layout.notes.append(f"{path} is empty: it is a {mounts[path]} mount")
            elif path in refused:
                layout.bind(Bind(path, path, writable=False))
            elif any(point.startswith(path + "/") for point in mounts):
                layout.folder(path, f"{stat.S_IMODE(entry.stat().st_mode):04o}")
                try:
                    _take_apart(path, layout, mounts, refused)
                except PermissionError:
                    layout.notes.append(f"{path} is empty: it has mounts below it and you may not read it")
            else:
                layout.overlay(path, path)
        elif entry.is_file(follow_symlinks=False):
            layout.bind(Bind(path, path, writable=False))
        else:
            layout.notes.append(f"{path} is left out: it is no file, folder or link")


def folder_layout(root: str) -> Layout:
    """A root folder of the user's, under a private writable layer."""
    layout = Layout()
    layout.overlay(root, "/")
    return layout


def add_own(layout: Layout, *, host_network: bool, host_root: bool, root: str = "/", shm: int | None = None) -> None:
    """Fresh kernel and scratch file systems, and the way to name servers."""
    layout.args += ["--proc", "/proc", "--dev", "/dev", "--ro-bind", "/sys", "/sys"]
    layout.tmpfs("/dev/shm", "1777", shm)  # noqa: S108  # the sandbox's own
    layout.tmpfs("/tmp", "1777")  # noqa: S108  # the sandbox's own
    layout.tmpfs("/run")
    if host_root and os.path.isdir(SCRATCH) and not os.path.islink(SCRATCH):
        # An ordinary user could not write through an overlay into a folder of root's.
        layout.tmpfs(SCRATCH, "1777")
    with open("/proc/self/mountinfo") as file:
        masked = masks.masked(mount_points(file.read()))
    layout.args += masks.options(masked, masks.read_only())
    layout.points += ["/proc", "/dev", "/sys"]
    if not host_network:
        return
    servers = os.path.realpath("/etc/resolv.conf")
    if not os.path.isfile(servers):
        return
    if host_root:
        if below(servers, "/run"):
            layout.bind(Bind(servers, servers, writable=False))
    elif os.path.isdir(f"{root}/etc") and not os.path.islink(f"{root}/etc/resolv.conf"):
        layout.bind(Bind(servers, "/etc/resolv.conf", writable=False))


# Stands for the descriptor from which bubblewrap reads the sandbox's own resolv.conf; the shim fills it in.
NAME_SERVERS_FD = "NAMESERVERS"


def add_name_servers(layout: Layout, root: str = "/") -> None:
    """Put a file of its own in the place of /etc/resolv.conf, wherever that leads to inside."""
    target = "/etc/resolv.conf"
    for _ in range(8):  # deeper chains of links do not occur in practice
        try:
            link = os.readlink(f"{root.rstrip('/')}{target}")
        except OSError:
            break  # no link, or nothing at all: then it is made
        target = os.path.normpath(os.path.join(os.path.dirname(target), link))
    layout.args += ["--perms", "0644", "--ro-bind-data", NAME_SERVERS_FD, target]
    layout.points.append(target)


# Stands for the descriptor of the sandbox's own /etc/hosts.
HOSTS_FD = "HOSTS"


def add_hosts(layout: Layout) -> None:
    """Put a file of its own in the place of /etc/hosts: the names of the ranks that it meets."""
    layout.args += ["--perms", "0644", "--ro-bind-data", HOSTS_FD, "/etc/hosts"]
    layout.points.append("/etc/hosts")


def hide(layout: Layout, secrets: Iterable[str], binds: Iterable[Bind], *, host_root: bool) -> list[str]:
    """Cover folders wherever the layout or a bind would show them. Gives the places."""
    places: dict[str, bool] = {}
    all_binds = list(binds)
    for secret in secrets:
        if not os.path.exists(secret):
            continue
        shown = [one.target + secret[len(one.source.rstrip("/")) :] for one in all_binds if below(secret, one.source)]
        covered = any(below(secret, one.target) and not below(secret, one.source) for one in all_binds)
        if host_root and not covered and not any(below(secret, own) for own in OWN):
            shown.append(secret)
        for place in shown:
            places.setdefault(place.rstrip("/"), os.path.isdir(secret))
    for place, is_folder in places.items():
        if is_folder:
            layout.tmpfs(place, "0500")
        else:  # one of its files, mounted by itself
            layout.bind(Bind(os.devnull, place, writable=False))
    return list(places)


def place(target: str, root: str) -> str:
    """Where a mount on this path really is: links of the root are followed, never out of it.

    The folders that are made anew in every sandbox have no links yet.
    """
    parts = [part for part in target.split("/") if part not in ("", ".")]
    done: list[str] = []
    links = 0
    while parts:
        part = parts.pop(0)
        if part == "..":
            del done[-1:]
            continue
        path = "/" + "/".join([*done, part])
        fresh = any(below(path, own) for own in (*OWN, SCRATCH))
        if not fresh and links < 40 and os.path.islink(f"{root.rstrip('/')}{path}"):
            links += 1
            link = os.readlink(f"{root.rstrip('/')}{path}")
            done = [] if link.startswith("/") else done
            parts[:0] = [piece for piece in link.split("/") if piece not in ("", ".")]
        else:
            done.append(part)
    return "/" + "/".join(done)


def refused_overlays(layout: Layout, try_out: Callable[[list[str]], str]) -> list[str]:
    """The overlays of a layout that do not work here. One try when all is well."""
    if not try_out(layout.args):
        return []
    sources = [layout.args[i + 1] for i, word in enumerate(layout.args) if word == "--overlay-src"]
    found = []
    for source in sources:
        alone = Layout()
        alone.overlay(source, source)
        if try_out(alone.args):
            found.append(source)
    return found


def fingerprint(layout: Layout) -> str:
    """Names the overlays of a layout and the file systems they are on."""
    parts = []
    for i, word in enumerate(layout.args):
        if word == "--overlay-src":
            path = layout.args[i + 1]
            parts.append(f"{path} {os.stat(path).st_dev}")
    return ", ".join(parts)
