"""The port between dibs and whatever runs workloads.

`workloads` calls it; each backend implements it; `tests/conformance` runs one suite against all of them.

Terms
    workload      what shall run: a command, its environment, its devices, its limits. Nothing is left to choose.
    realisation   the native form of a workload for one backend, made by `render` without touching anything.
    handle        what names a created workload on its backend, now and after a restart of dibs. Stored in the ledger.
    expectation   what must be seen in the workload; `observation` is what was seen, from outside.

Life
    render → finalise → create → observe → start → … → stop → delete        where the backend `holds`
    render → finalise → create → start → observe → … → stop → delete        where it does not
    render → finalise → create → placement … → start → observe → …          where a scheduler chooses the devices

    `create` makes everything ready, devices and limits included, but holds the command back. `observe` looks. Only
    `start` lets the command run. If the caller dies between `create` and `start`, the workload goes away by itself.
    An engine cannot show a container that does not run: there the look comes right after the start, and a difference
    ends it. Whatever is left of a creation that was not finished, `discard` removes; only then is its lease freed.
    `status` never raises for a workload that is gone: it says `absent`, and only when that is proved.

Failure
    A verb raises a DibsError by what the caller can do: BackendUnavailable (retry later), NotFound, Conflict (wrong
    state), CommandFailed, Unsupported. An engine's own words are kept in the reason.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

import msgspec

from dibs.devices.model import Attachment, DeviceId
from dibs.receipt import NodeFact
from dibs.request.model import Request
from dibs.sandbox import Exit, ExitReason, Handle

if TYPE_CHECKING:
    import socket  # loading it takes longer than the rest of this file

__all__ = [
    "Backend",
    "Capability",
    "Exec",
    "Exit",
    "ExitReason",
    "Expectation",
    "GrantedDevice",
    "Handle",
    "Isolation",
    "Limits",
    "LogRecord",
    "Mount",
    "MountFact",
    "Network",
    "NodeFact",
    "Observation",
    "Output",
    "Phase",
    "PlacedDevice",
    "Placement",
    "PublishedPort",
    "Realisation",
    "Scheduler",
    "Session",
    "Status",
    "Usage",
    "Workload",
    "scheduler_of",
]

Network = Literal["host", "none", "private"]


class Limits(msgspec.Struct, frozen=True):
    """None means not asked for; the backend then sets no limit."""

    cpu_millis: int | None = None
    memory_bytes: int | None = None
    pids: int | None = None

    @property
    def any(self) -> bool:
        return self != Limits()


class GrantedDevice(msgspec.Struct, frozen=True):
    """A leased device, with the way it is attached."""

    id: DeviceId
    attachment: Attachment
    simulated: bool = False


class Mount(msgspec.Struct, frozen=True):
    """A folder or file of the host that the workload sees."""

    source: str
    target: str
    writable: bool = False


class PublishedPort(msgspec.Struct, frozen=True):
    """A TCP port of the host, at one of its addresses, that leads to a port of the workload's private network."""

    address: str
    host_port: int
    port: int

    def __str__(self) -> str:
        where = f"[{self.address}]" if ":" in self.address else self.address
        return f"{where}:{self.host_port}->{self.port}"


class Peers(msgspec.Struct, frozen=True):
    """The ranks that a workload meets in one network, by the names under which they look each other up.

    In a private network they share it, and no other workload is in it; on the host's network all of them are this host.
    `leader`: the workload that was made first, whose network the others join where a backend has no networks to give.
    """

    group: str
    hosts: tuple[str, ...]
    rank: int  # which of them is this one
    leader: str


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a backend needs to realise one sandbox."""

    id: str
    name: str
    command: tuple[str, ...]
    env: dict[str, str]
    workdir: str
    root: str = "host"  # "host", a folder, or a tar file
    network: Network = "host"
    publish: tuple[PublishedPort, ...] = ()
    tenant: str = ""  # containers of two tenants never share a private network
    limits: Limits = Limits()
    tty: bool = False
    interactive: bool = False  # keep stdin open for whoever attaches
    foreground: bool = False  # when the one attached goes away, the workload ends
    ttl_seconds: float | None = None
    grace_seconds: float = 10.0
    devices: tuple[GrantedDevice, ...] = ()
    mounts: tuple[Mount, ...] = ()
    image: str = ""  # engines: what the root is made from
    entrypoint: tuple[str, ...] | None = None  # None: the image's own; (): none, the command stands alone
    user: str = ""  # "uid", "uid:gid" or a name; empty: the backend's default
    shm_bytes: int | None = None
    read_only: bool = False
    platform: str = ""  # as in linux/amd64; empty: the host's
    labels: dict[str, str] = {}
    options: dict[str, Any] = {}  # for this backend alone, already checked
    private: bool = (
        False  # asked for by a remote caller: no folder of the host is shared, not even the working directory
    )
    owner: int = -1  # the uid it is made for; a host service runs it as that one. -1: whoever makes it
    peers: Peers | None = None  # of a job of several ranks
    delegated: Request | None = None  # what a scheduler has to find; None: its devices are booked, and are in `devices`


class MountFact(msgspec.Struct, frozen=True, order=True):
    """A mount that can be reached in the workload. `source` says what is mounted, in words that can be compared:

    inode 4711 on 254:0     a file or folder of the host
    c 1:3                   a device node of the host
    overlay of /usr         a private layer over a folder
    tmpfs, proc, devpts …   a file system of the workload's own, by its type
    """

    target: str
    mode: Literal["ro", "rw"]
    source: str

    def __str__(self) -> str:
        return f"{self.target} {self.mode} ({self.source})"


Isolation = Literal["host", "own"]


class Expectation(msgspec.Struct, frozen=True):
    """What must be seen: this, nothing less and nothing more.

    nodes       all device nodes apart from the standard ones (null, zero, tty …)
    env         the environment of the command, complete
    mounts      all mounts that can be reached, complete
    limits      cpu_millis, memory_bytes, pids, shm_bytes
    isolation   of each namespace (network, pid, ipc, uts, user, mount) whether it is the host's or its own
    process     facts of the command's process by name: command, workdir, user, groups, capabilities, no_new_privileges,
                seccomp, root (ro or rw), network (its kind, and what connects it), published …; a name that is
                expected must be observed, and one observed must be expected
    may_env     variables that the runtime sets by itself, to values of its own
    may_mount   mounts that the runtime may add by itself; they only take something away
    open        parts of which more may be seen than is expected: "env" where the image's own variables are not known,
                "nodes" where a driver on a cluster's node decides which nodes a device has; then there must be some
    """

    nodes: tuple[NodeFact, ...] = ()
    env: dict[str, str] = {}
    mounts: tuple[MountFact, ...] = ()
    limits: dict[str, int] = {}
    isolation: dict[str, Isolation] = {}
    process: dict[str, str] = {}
    may_env: tuple[str, ...] = ()
    may_mount: tuple[MountFact, ...] = ()
    open: tuple[Literal["env", "nodes"], ...] = ()


class Observation(msgspec.Struct, frozen=True):
    """What was seen from outside. The shape of an expectation.

    `origin` says of each part (nodes, env, … and the names in `process`) where it comes from: "before start" (the
    kernel, while the command was held back), "after start" (the kernel, while it ran), or "engine" (what the engine
    reports). "" stands for all parts that are not named. `unseen` are the parts that could not be looked at, because
    the command had ended; they are not compared. What was seen counts, whatever became of the command.
    """

    nodes: tuple[NodeFact, ...] = ()
    env: dict[str, str] = {}
    mounts: tuple[MountFact, ...] = ()
    limits: dict[str, int] = {}
    isolation: dict[str, Isolation] = {}
    process: dict[str, str] = {}
    origin: dict[str, str] = {}
    unseen: tuple[str, ...] = ()


class Realisation(msgspec.Struct, frozen=True):
    """What the backend will be told, and what must then be seen. `native` is plain data, fit for a receipt."""

    backend: str
    native: dict[str, Any]
    expectation: Expectation
    order: dict[str, Any] = {}  # what is sent, values of the environment included; it is never kept


class Phase(enum.StrEnum):
    HELD = "held"  # created, the command not started
    RUNNING = "running"
    PAUSED = "paused"
    EXITED = "exited"
    ABSENT = "absent"  # proved gone, and left no exit status behind
    UNKNOWN = "unknown"  # cannot be looked at from here


class Status(msgspec.Struct, frozen=True):
    phase: Phase
    exit: Exit | None = None
    detail: str = ""


class Exec(msgspec.Struct, frozen=True, kw_only=True):
    """One more command in a running workload."""

    command: tuple[str, ...]
    env: dict[str, str] = {}
    workdir: str | None = None
    tty: bool = False
    user: str = ""  # "uid" or "uid:gid"; empty: whoever the workload's command is


class Usage(msgspec.Struct, frozen=True):
    """What a workload has used, and what it may use: its own limits where it has some, else the host's."""

    cpu_seconds: float
    memory_bytes: int
    memory_limit: int
    cpus: float


class Output(msgspec.Struct, frozen=True):
    stream: Literal["stdout", "stderr"]
    data: bytes


class LogRecord(msgspec.Struct, frozen=True):
    at: float
    stream: Literal["stdout", "stderr"]
    data: bytes


class Session(Protocol):
    """A conversation with a process of the workload: its main command (attach) or another one (exec).

    `receive` gives what has come, waiting for at most `timeout` seconds (None: until something comes): output pieces,
    and last the Exit. An empty list means that nothing came in time.
    """

    def fileno(self) -> int: ...
    def send(self, data: bytes) -> None: ...
    def end_of_input(self) -> None: ...
    def signal(self, number: int) -> None: ...
    def resize(self, rows: int, columns: int) -> None: ...
    def receive(self, timeout: float | None = None) -> list[Output | Exit]: ...
    def close(self) -> None: ...


class Capability(msgspec.Struct, frozen=True):
    """Whether a backend can deliver a field here and now, and why not."""

    ok: bool
    reason: str = ""
    remedy: str = ""
    code: str = ""  # of the problem, where there is a better one than that the backend is not available


class PlacedDevice(msgspec.Struct, frozen=True, omit_defaults=True):
    """A device that a scheduler has chosen, as it reports it. Its id is unique in the domain of the scheduler."""

    id: str
    model: str = ""
    uuid: str = ""
    memory: int | None = None


class Placement(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a scheduler says of a workload now: it looks for a place (and why there is none yet), it has found one (it
    may change), or there will be none."""

    state: Literal["pending", "bound", "refused"]
    reason: str = ""
    node: str = ""
    devices: tuple[PlacedDevice, ...] = ()


class Scheduler(Protocol):
    """Optional, beside `Backend`: the devices belong to a domain of their own (a cluster), whose scheduler chooses them
    after `create`. What was created outlives its creator, and `create` finds it again by its id."""

    domain: str  # "cluster:" and a name; the ledger's rows and its unique index are keyed by it
    patience: float  # seconds that a request may wait for a place if it does not say

    def placement(self, handle: Handle) -> Placement:
        """Asked again and again; it must not wait. Raises NotFound if the workload is gone."""
        ...

    def nodes(self, placement: Placement) -> tuple[NodeFact, ...] | None:
        """The device nodes that must be seen in a workload with this placement; None: its driver decides on them."""
        ...

    def await_change(self, handle: Handle, timeout: float) -> None:
        """Return as soon as `placement` may have something new to say, after `timeout` seconds at the latest."""
        ...


def scheduler_of(backend: Backend) -> Scheduler | None:
    """The scheduler of a backend that has one; None where this ledger decides on devices."""
    return cast("Scheduler", backend) if getattr(backend, "domain", "") else None


class Backend(Protocol):
    """One way to run workloads. Stateless: everything it must remember is in the handle or with the engine."""

    name: str
    holds: bool  # whether `create` leaves a workload that can be looked at before its command runs

    def available(self) -> Capability:
        """Whether workloads can run here at all."""
        ...

    def can_limit(self, limit: Literal["cpu", "memory", "pids"]) -> Capability:
        """Whether this limit would really be enforced."""
        ...

    def can_network(self, network: Network) -> Capability:
        """Whether a workload can have this network here."""
        ...

    def inspect_image(self, image: str) -> None:
        """Find out what `render` has to know of an image. That may take time; `render` is called while everybody else
        waits for the ledger. Raises BackendUnavailable."""
        ...

    def render(self, workload: Workload, folder: Path) -> Realisation:
        """The native form; looks, touches nothing. Raises Unsupported or InvalidRequest with all reasons."""
        ...

    def finalise(self, workload: Workload, realisation: Realisation) -> Realisation:
        """Fetch what the plan needs and is not here yet, such as an image, and give the final form: the one that is
        sent, recorded and compared. That may take time."""
        ...

    def outdated(self, realisation: Realisation) -> bool:
        """Whether what it was rendered from has changed since, so that `finalise` would give another form."""
        ...

    def create(self, workload: Workload, realisation: Realisation, folder: Path) -> Handle:
        """Make it ready and hold the command back. On failure nothing is left behind."""
        ...

    def observe(self, handle: Handle) -> Observation: ...

    def start(self, handle: Handle) -> None:
        """Let the command run. Raises CommandFailed if it cannot be executed."""
        ...

    def status(self, handle: Handle) -> Status: ...

    def survey(self, handles: Sequence[Handle]) -> dict[str, Status]:
        """Many at once, by sandbox id: one question to an engine, not one for each."""
        ...

    def wait(self, handle: Handle, timeout: float | None = None) -> Status: ...
    def attach(self, handle: Handle) -> Session: ...
    def exec(self, handle: Handle, command: Exec) -> Session: ...

    def logs(self, handle: Handle, *, follow: bool = False) -> Iterator[LogRecord]:
        """What the command has written, oldest first. `follow`: go on until it ends.

        While it follows, a record without data comes every second or so in which nothing was written: whoever reads in
        a thread can stop there.
        """
        ...

    def copy_in(self, handle: Handle, archive: Iterator[bytes], path: str) -> None:
        """Unpack a tar stream below `path`, as the workload's user, never outside its root."""
        ...

    def copy_out(self, handle: Handle, path: str) -> Iterator[bytes]:
        """`path` as a tar stream; its entries are relative, named after the last part of the path."""
        ...

    def pause(self, handle: Handle) -> None: ...
    def resume(self, handle: Handle) -> None: ...

    def stop(self, handle: Handle, grace_seconds: float) -> None:
        """Ask, then force. Returns when the workload is gone."""
        ...

    def delete(self, handle: Handle) -> None:
        """Remove what is left of an ended workload. Idempotent."""
        ...

    def discard(self, handle: Handle) -> None:
        """See to it that nothing is left of a creation that was not finished, whoever began it. Idempotent.

        The handle may say no more than the sandbox's id and folder. Raises BackendUnavailable if it cannot be proved.
        """
        ...

    def set_expiry(self, handle: Handle, at: float | None) -> None:
        """Give a running workload another end, in seconds since the epoch; None: it does not end by itself."""
        ...

    def usage(self, handle: Handle) -> Usage: ...

    def connect(self, handle: Handle, port: int) -> socket.socket:
        """A TCP connection to a port of the workload's own loopback. Raises NotFound if nothing listens there."""
        ...

    def snapshot(self, handle: Handle, name: str) -> str:
        """Keep the workload's files as an image; its reference. Raises Unsupported where the backend cannot."""
        ...

    def remove_snapshot(self, image: str) -> None:
        """Remove what `snapshot` has made. Idempotent. Raises Conflict while something is made of it."""
        ...
