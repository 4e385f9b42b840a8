"""What the `local` backend says of itself. See `dibs.backends.declaration`."""

from __future__ import annotations

from dibs.backends.declaration import BOOKED, Cell, Declaration, Place, delivered, refused
from dibs.backends.local.plain_fields import FIELDS
from dibs.backends.port import Backend

COLUMN: dict[str, Cell] = {
    **BOOKED,
    **{field.name: delivered(field.how) for field in FIELDS},
    "gpu.count": delivered("leased in the ledger; exactly these device nodes are in the sandbox's /dev"),
    "cpu": delivered("cgroup quota, read back", probe=True),
    "memory": delivered("cgroup limit, read back", probe=True),
    "pids": delivered("cgroup limit, read back", probe=True),
    "command": delivered("started in the sandbox after the devices were seen in it"),
    "backend": delivered("this one"),
    "env": delivered("read back from the sandbox's first process"),
    "workdir": delivered("bound writable; must exist. For a remote caller it is a folder of the sandbox's own layer"),
    "root": delivered("the host's own, a folder or a tar; never written to"),
    "image": delivered("host, or a name of the configuration that stands for a root folder or a tar"),
    "entrypoint": delivered("put before the command"),
    "user": delivered("a user and group that the sandbox's user namespace has"),
    "read_only": delivered("no writable layer; /tmp, /run and the working directory stay writable"),
    "platform": delivered("must be this host's own: nothing is emulated"),
    "options": refused("this backend has no options of its own"),
    "network": delivered(
        "host; none: its own loopback only; private: its own, connected by pasta or slirp4netns, read back"
    ),
    "publish": delivered("the helper of the private network listens on it; its socket is looked for"),
    "mounts": delivered(
        "bind mounts, read back from mountinfo with device and inode of their source; two on one target are refused"
    ),
    "volumes": delivered(
        "a folder of the state, bound and read back like a mount; there already, or made because it says create"
    ),
    "ttl": delivered("kept by the sandbox's own shim, whether dibs runs or not"),
    "grace": delivered("SIGTERM, then SIGKILL after it"),
    "tty": delivered("a pseudo-terminal held by the shim"),
    "interactive": delivered("stdin stays open for clients that attach"),
}


def _make(place: Place) -> Backend:
    from dibs.backends.local.backend import LocalBackend

    return LocalBackend(place.home, long_lived=place.long_lived)


LOCAL = Declaration(name="local", make=_make, column=COLUMN, auto=True, root="host", per_user=True)
