"""Which kernel a ledger belongs to. A process can be proved gone only by the kernel that it ran on.

`store.Ledger` calls `register` when it opens a ledger. Every host has one current kernel, known by its boot id; all
processes that see the same boot id are on the same host, whatever machine id or host name their container shows them.
The host name that was registered is part of the names of devices, so that they do not change while they are held.
Another boot id under the same name is either the same machine after a restart, whose processes are all gone, or another
machine: a clone, or one that reaches the file over a network. The second must never pass for the first:

- a ledger in a file on a local disk: a disk is mounted by one kernel at a time, so the earlier boot is over;
- a ledger in a file on a network or host-shared file system: refused, unless it is forced; then nothing tells the two
  apart, and a person has to say that the earlier boot is over;
- PostgreSQL: it is the same machine if it has the same network hardware, or, where there is none to be seen, if the
  state folder is the one that was registered.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from dibs.errors import Conflict, StateError
from dibs.home import Home, write_private
from dibs.ledger.rows import CLUSTER, decoded, unsealed
from dibs.process import ProcessName, boot_id, ended_boots, host_id, known_as

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dibs.ledger.database import Database

FORCED = "DIBS_LEDGER_ON_NETWORK"
ENDED = "DIBS_ENDED_BOOT"
KEPT = 20  # how many earlier boots of a host are remembered
# File systems that several kernels can see at once, or whose locks are not to be trusted.
NETWORK = frozenset(
    ["9p", "afs", "beegfs", "ceph", "cifs", "coda", "fuse.ceph", "fuse.glusterfs", "fuse.s3fs", "fuse.sshfs", "gfs2",
     "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "panfs", "pvfs2", "smb2", "smb3", "smbfs",
     "vboxsf", "virtiofs", "wekafs"]
)  # fmt: skip


def register(database: Database, home: Home, *, in_file: bool) -> tuple[str, bool]:
    """The name under which this host's rows are kept, and whether the ledger has learnt it just now. Raises if another
    kernel has that name, and is not proved to be an earlier boot of this one."""
    host = _current(database, in_file)
    if host:
        return host, False
    seen = _Kernel.this(home, in_file)
    if in_file and seen.filesystem in NETWORK and not os.environ.get(FORCED):
        raise StateError(
            f"the ledger is on {seen.filesystem}, which other kernels may see too: each would take the other's "
            "sandboxes for ended",
            field="ledger", value=str(home.ledger), code="LEDGER_ON_NETWORK",
            remedy=f"set DIBS_HOME to a folder on a local disk; {FORCED}=1 forces it, if only this kernel uses it",
        )  # fmt: skip
    with database.write():
        host = _current(database, in_file)  # another process may have been faster
        if host:
            return host, False
        before = _earlier(database, in_file)
        host = before.host if before is not None else _first_name(database, in_file)
        for boot in _unregistered(database, host) if before is None else [before.boot]:
            old = before or msgspec.structs.replace(seen, boot=boot, addresses=(), home="?")
            _prove_over(old, seen, in_file=in_file, where=str(home.ledger) if in_file else "PostgreSQL")
            ended_boots.add(boot)
        if before is not None and before.host == seen.host:
            seen = msgspec.structs.replace(seen, hostname=before.hostname)  # devices keep their names, and their taints
        _write(database, host, before, seen)
        known_as(seen.hostname)
    return host, True


class _Kernel(msgspec.Struct, frozen=True):
    host: str
    boot: str
    hostname: str
    addresses: tuple[str, ...]  # of network hardware
    home: str  # names a state folder, not where it is
    filesystem: str

    @classmethod
    def this(cls, home: Home, in_file: bool) -> _Kernel:
        try:
            mounts = Path("/proc/self/mountinfo").read_text(errors="replace")
        except OSError:
            mounts = ""
        kind = file_system_of(home.state, mounts)
        return cls(
            host_id(), boot_id(), os.uname().nodename, hardware_addresses(), "" if in_file else _home_name(home), kind
        )


def _current(database: Database, in_file: bool) -> str:
    """The name of the host, if its current kernel is this one."""
    rows = database.rows(
        "SELECT host, boot, hostname, ended_at FROM kernels WHERE boot = :boot OR host = :host OR :in_file = 1",
        boot=boot_id(), host=host_id(), in_file=int(in_file),
    )  # fmt: skip
    for row in rows:
        if row["boot"] == boot_id() and row["ended_at"] is None:
            ended_boots.update(
                other["boot"] for other in rows if other["ended_at"] is not None and other["host"] == row["host"]
            )
            known_as(row["hostname"])
            return str(row["host"])
    return ""


def _earlier(database: Database, in_file: bool) -> _Kernel | None:
    rows = database.rows(
        "SELECT * FROM kernels WHERE ended_at IS NULL AND (host = :host OR :in_file = 1)",
        host=host_id(), in_file=int(in_file),
    )  # fmt: skip
    return _kernel(rows[0]) if rows else None


def _kernel(row: Mapping[str, Any]) -> _Kernel:
    addresses = tuple(word for word in row["addresses"].split(" ") if word)
    return _Kernel(row["host"], row["boot"], row["hostname"], addresses, row["home"], row["filesystem"])


def _first_name(database: Database, in_file: bool) -> str:
    """A ledger of an older dibs has rows already; those of a file are all this host's."""
    if in_file:
        rows = database.rows(
            f"SELECT domain FROM sandboxes WHERE domain NOT LIKE '{CLUSTER}%'"  # noqa: S608 - ours
            " ORDER BY domain <> :host, created_at DESC LIMIT 1",
            host=host_id(),
        )
        if rows:
            return str(rows[0]["domain"])
    return host_id()


def _unregistered(database: Database, host: str) -> list[str]:
    """The boots whose sandboxes live, according to a ledger of a dibs that did not register them."""
    rows = database.rows("SELECT owner FROM sandboxes WHERE domain = :host AND ended_at IS NULL", host=host)
    found = {decoded(ProcessName, unsealed(row["owner"], "owner"), "owner of a sandbox").boot for row in rows}
    return sorted(found - {boot_id()})


def _prove_over(old: _Kernel, new: _Kernel, *, in_file: bool, where: str) -> None:
    """Raises unless the old kernel is an earlier boot of this machine."""
    if os.environ.get(ENDED) == old.boot:
        return
    acknowledge = f"if it is this machine before its last start, say so once: {ENDED}={old.boot} dibs leases"
    if in_file:
        if NETWORK.isdisjoint((old.filesystem, new.filesystem)):
            return
        raise Conflict(
            f"it belongs to another kernel ({old.hostname}, boot {old.boot}) that may still run", field="ledger",
            value=where, code="LEDGER_OTHER_KERNEL", remedy=f"give each kernel a DIBS_HOME of its own; {acknowledge}",
        )  # fmt: skip
    if old.addresses and new.addresses:
        same = not set(old.addresses).isdisjoint(new.addresses)
    else:
        same = old.home == new.home and new.filesystem not in NETWORK
    if not same:
        raise Conflict(
            f"another machine ({old.hostname}, boot {old.boot}) is registered under this host's identity",
            field="host", value=old.host, code="HOST_IDENTITY_TAKEN",
            remedy="give this machine a machine id of its own (rm /etc/machine-id; systemd-machine-id-setup), or set "
            f"DIBS_HOST_ID; {acknowledge}",
        )  # fmt: skip


def _write(database: Database, host: str, before: _Kernel | None, seen: _Kernel) -> None:
    now = time.time()
    if before is not None:
        database.execute(
            "UPDATE kernels SET ended_at = :now WHERE host = :host AND ended_at IS NULL", now=now, host=host
        )
    database.execute("DELETE FROM kernels WHERE host = :host AND boot = :boot", host=host, boot=seen.boot)
    database.execute(
        "INSERT INTO kernels (host, boot, hostname, addresses, home, filesystem, since)"
        " VALUES (:host, :boot, :hostname, :addresses, :home, :filesystem, :now)",
        host=host, boot=seen.boot, hostname=seen.hostname, addresses=" ".join(seen.addresses), home=seen.home,
        filesystem=seen.filesystem, now=now,
    )  # fmt: skip
    database.execute(
        "DELETE FROM kernels WHERE host = :host AND ended_at IS NOT NULL AND boot NOT IN"
        " (SELECT boot FROM kernels WHERE host = :host AND ended_at IS NOT NULL ORDER BY ended_at DESC LIMIT :kept)",
        host=host, kept=KEPT,
    )  # fmt: skip


def hardware_addresses(root: str = "/sys/class/net") -> tuple[str, ...]:
    """The addresses of network cards; those of bridges and of containers' ends are made up anew every time."""
    found = set()
    try:
        names = os.listdir(root)
    except OSError:
        return ()
    for name in names:
        try:
            if os.path.exists(f"{root}/{name}/device"):
                with open(f"{root}/{name}/address") as file:
                    found.add(file.read().strip())
        except OSError:
            continue  # taken away while it was looked at
    return tuple(sorted(found - {"", "00:00:00:00:00:00"}))


def _home_name(home: Home) -> str:
    path = home.state / "instance"
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        name = os.urandom(16).hex()
        write_private(path, name)
        return name


def file_system_of(path: Path, mountinfo: str) -> str:
    """The type of the file system that holds a path; empty if the mounts do not say."""
    place = os.path.realpath(path)
    best, kind = -1, ""
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields = left.split(" ")
        if len(fields) < 5 or not right:
            continue
        point = fields[4].encode().decode("unicode_escape").rstrip("/") or "/"
        inside = point in ("/", place) or place.startswith(point + "/")
        if inside and len(point) >= best:  # of two mounts on one point the later one is seen
            best, kind = len(point), right.split(" ")[0]
    return kind
