"""The port: the interface between the core and the systems that run workloads.

`workloads` calls it, each backend implements it, and `dibs.testing` has one suite for all of them. `Backend` is
required. The other protocols are optional: the core refuses a verb that a backend lacks, always in the same way
(`must`). `declaration` has the facts about a backend that are needed before it is constructed.

Terms
    workload      what to run: command, environment, devices, limits. Nothing is left to choose.
    realisation   the native form of a workload for one backend, made by `render` without side effects.
    handle        identifies a created workload on its backend, across restarts of dibs. Stored in the ledger.
    expectation   what must be observed in the workload; an `observation` is what was, from outside.

Life
    render → finalise → create → observe → start → … → stop → delete        where the backend `holds`
    render → finalise → create → start → observe → … → stop → delete        where it does not
    render → finalise → create → placement … → start → observe → …          where a scheduler chooses the devices

    `create` sets everything up, devices and limits included, but holds the command back until `start`. If the caller
    dies in between, the workload goes away by itself. An engine cannot show a container that does not run: there
    `observe` follows the start, and a difference ends the container. `discard` removes what an unfinished creation
    left; only then is its lease freed. `status` does not raise for a workload that is gone: it returns `absent`, and
    only if that is proved.

Failure
    A verb raises the DibsError that fits what the caller can do: BackendUnavailable (retry later), NotFound, Conflict
    (wrong state), CommandFailed, Unsupported. The reason keeps the engine's own message.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, cast, runtime_checkable

import msgspec

from dibs.devices.model import CdiAttachment, DelegatedAttachment, DeviceId
from dibs.errors import Problem, Unsupported
from dibs.receipt import NodeFact
from dibs.request.model import Request
from dibs.request.sandbox_spec import PassedFields
from dibs.sandbox import Exit, ExitReason, Handle

if TYPE_CHECKING:
    import socket  # loading it takes longer than the rest of this file

__all__ = [
    "Backend",
    "Capability",
    "CopiesFiles",
    "EnforcesLimits",
    "Exec",
    "ExecutesCommands",
    "Exit",
    "ExitReason",
    "Expectation",
    "Expires",
    "Forecast",
    "Forecasts",
    "ForwardsPorts",
    "GivesNetworks",
    "GrantedDevice",
    "Handle",
    "ImageStore",
    "Isolation",
    "KeepsTime",
    "KeepsVolumes",
    "Limits",
    "LogRecord",
    "MeasuresUsage",
    "Mount",
    "MountFact",
    "Network",
    "NodeFact",
    "Observation",
    "Output",
    "Pauses",
    "Phase",
    "PlacedDevice",
    "Placement",
    "PreparesImages",
    "PublishedPort",
    "Realisation",
    "Scheduler",
    "SeesForeignHolders",
    "Session",
    "SharedEngine",
    "Status",
    "StoredImage",
    "Surveys",
    "TakesSnapshots",
    "Usage",
    "Volume",
    "Watch",
    "Watches",
    "Workload",
    "must",
    "scheduler_of",
    "survey",
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
    attachment: CdiAttachment
    simulated: bool = False


class Mount(msgspec.Struct, frozen=True):
    """A folder or file of the host that the workload sees."""

    source: str
    target: str
    writable: bool = False


class Volume(msgspec.Struct, frozen=True):
    """A named volume of the backend that the workload sees, or a folder in it. It has to be there, unless `create`."""

    name: str  # as the backend knows it
    target: str
    sub_path: str = ""
    writable: bool = True
    create: bool = False
    size_bytes: int | None = None  # this and what follows: of one that is created, where the backend knows such things
    storage_class: str = ""
    access_modes: tuple[str, ...] = ()

    @property
    def mode(self) -> Literal["ro", "rw"]:
        return "rw" if self.writable else "ro"

    def __str__(self) -> str:
        return f"{self.name}/{self.sub_path}" if self.sub_path else self.name


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


class Workload(PassedFields, frozen=True, kw_only=True):
    """Everything that a backend needs to realise one sandbox: the fields that are passed as they were asked for, and
    what has been decided about the others.

    root          "host", a folder, or a tar file
    image         engines: what the root is made from
    entrypoint    None: the image's own; (): none, the command stands alone
    user          "uid", "uid:gid" or a name; empty: the backend's default
    platform      as in linux/amd64; empty: the host's
    interactive   stdin stays open for a client that attaches
    """

    id: str
    name: str
    command: tuple[str, ...]
    env: dict[str, str]
    workdir: str
    network: Network = "host"
    publish: tuple[PublishedPort, ...] = ()
    tenant: str = ""  # containers of two tenants never share a private network
    limits: Limits = Limits()
    foreground: bool = False  # when the one attached goes away, the workload ends
    devices: tuple[GrantedDevice, ...] = ()
    mounts: tuple[Mount, ...] = ()
    volumes: tuple[Volume, ...] = ()
    options: dict[str, Any] = msgspec.field(default_factory=dict)  # for this backend alone, already checked
    private: bool = (
        False  # asked for by a remote caller: no folder of the host is shared, not even the working directory
    )
    owner: int = -1  # the uid it is made for; a host service runs it as that one. -1: the caller's own
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
    size: tuple[int, int] | None = None  # rows and columns of its terminal from the first moment, where that can be had
    user: str = ""  # "uid" or "uid:gid"; empty: the user of the workload's command


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
    attachment: DelegatedAttachment | None = None


class Placement(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a scheduler says of a workload now: it looks for a place (and why there is none yet), it has found one (it
    may change), or there will be none. `unreported`: for each device that was given and is not named, what it is of.
    `started`: it runs there already, or has ended."""

    state: Literal["pending", "bound", "refused"]
    reason: str = ""
    node: str = ""
    devices: tuple[PlacedDevice, ...] = ()
    unreported: tuple[str, ...] = ()
    started: bool = False


class Watch(Protocol):
    """A thread that follows a backend's events."""

    def close(self) -> None: ...


class StoredImage(Protocol):
    """What a backend knows of an image that it has."""

    @property
    def snapshot(self) -> str: ...  # of which snapshot it was made; "" if of none
    @property
    def names(self) -> tuple[str, ...]: ...  # tags and digests


class Forecast(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a workload could be placed, before it is created. `waits_for`: why it could not be now; empty if it could,
    or if that is not known. What could never be placed is refused by `render`."""

    waits_for: str = ""
    notes: tuple[str, ...] = ()  # the form of its request and why, and what each node says to it


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

    def render(self, workload: Workload, folder: Path) -> Realisation:
        """The native form; looks, touches nothing. Raises Unsupported or InvalidRequest with all reasons."""
        ...

    def create(self, workload: Workload, realisation: Realisation, folder: Path) -> Handle:
        """Make it ready and hold the command back. On failure nothing is left behind."""
        ...

    def observe(self, handle: Handle) -> Observation: ...

    def start(self, handle: Handle) -> None:
        """Let the command run. Raises CommandFailed if it cannot be executed."""
        ...

    def status(self, handle: Handle) -> Status: ...
    def wait(self, handle: Handle, timeout: float | None = None) -> Status: ...
    def attach(self, handle: Handle) -> Session: ...

    def logs(self, handle: Handle, *, follow: bool = False) -> Iterator[LogRecord]:
        """What the command has written, oldest first. `follow`: go on until it ends.

        While it follows, a record without data comes every second or so in which nothing was written, so that a
        reader in a thread can stop there.
        """
        ...

    def stop(self, handle: Handle, grace_seconds: float) -> None:
        """Ask, then force. Returns when the workload is gone."""
        ...

    def delete(self, handle: Handle) -> None:
        """Remove what is left of an ended workload. Idempotent."""
        ...

    def discard(self, handle: Handle) -> None:
        """See to it that nothing is left of an unfinished creation, no matter which process began it. Idempotent.

        The handle may say no more than the sandbox's id and folder. Raises BackendUnavailable if it cannot be proved.
        """
        ...


# --- what a backend may have beside that; `Scheduler` above is another


@runtime_checkable
class EnforcesLimits(Protocol):
    """Whether it can enforce a limit depends on the host. Without it the delivery table alone decides."""

    def can_limit(self, limit: Literal["cpu", "memory", "pids"]) -> Capability:
        """Whether this limit would really be enforced."""
        ...


@runtime_checkable
class GivesNetworks(Protocol):
    """Which networks it can give depends on the host. Without it a workload has the host's network, and no other."""

    def can_network(self, network: Network) -> Capability:
        """Whether a workload can have this network here."""
        ...


@runtime_checkable
class PreparesImages(Protocol):
    """What is rendered depends on something that has to be fetched or looked up first, such as an image."""

    def inspect_image(self, image: str) -> None:
        """Find out what `render` has to know of an image. That may take time; `render` is called while all others
        wait for the ledger. Raises BackendUnavailable."""
        ...

    def finalise(self, workload: Workload, realisation: Realisation) -> Realisation:
        """Fetch what the plan needs and is not here yet, and give the final form: the one that is sent, recorded and
        compared. That may take time."""
        ...

    def outdated(self, realisation: Realisation) -> bool:
        """Whether what it was rendered from has changed since, so that `finalise` would give another form."""
        ...


@runtime_checkable
class KeepsVolumes(Protocol):
    """It keeps named volumes, which outlive workloads."""

    def check_volumes(self, volumes: Sequence[Volume]) -> list[Problem]:
        """What stands against these volumes now, above all that one is missing which must not be created. Makes none:
        `finalise` or `create` does. Not called while others wait for the ledger. Raises BackendUnavailable."""
        ...


@runtime_checkable
class Forecasts(Protocol):
    """A scheduler that can say beforehand where a workload could be placed."""

    def forecast(self, workload: Workload) -> Forecast:
        """For `explain`: creates nothing. Raises as `render` does."""
        ...


@runtime_checkable
class ImageStore(Protocol):
    """It has images of its own, snapshots of sandboxes among them."""

    def image(self, reference: str) -> StoredImage | None:
        """None if it is not here. Raises BackendUnavailable."""
        ...


@runtime_checkable
class Surveys(Protocol):
    """It tells of many workloads in one answer. Without it each is asked for its status."""

    def survey(self, handles: Sequence[Handle]) -> dict[str, Status]:
        """By sandbox id."""
        ...


@runtime_checkable
class ExecutesCommands(Protocol):
    def exec(self, handle: Handle, command: Exec) -> Session: ...


@runtime_checkable
class CopiesFiles(Protocol):
    def copy_in(self, handle: Handle, archive: Iterator[bytes], path: str) -> None:
        """Unpack a tar stream below `path`, as the workload's user, never outside its root."""
        ...

    def copy_out(self, handle: Handle, path: str) -> Iterator[bytes]:
        """`path` as a tar stream; its entries are relative, named after the last part of the path."""
        ...


@runtime_checkable
class Pauses(Protocol):
    def pause(self, handle: Handle) -> None: ...
    def resume(self, handle: Handle) -> None: ...


@runtime_checkable
class Expires(Protocol):
    """The end of a running workload can be moved."""

    def set_expiry(self, handle: Handle, at: float | None) -> None:
        """Give a running workload another end, in seconds since the epoch; None: it does not end by itself."""
        ...


@runtime_checkable
class KeepsTime(Protocol):
    """It counts a time to live by a clock of its own, which does not jump."""

    def overdue(self, handle: Handle) -> bool: ...


@runtime_checkable
class MeasuresUsage(Protocol):
    def usage(self, handle: Handle) -> Usage: ...


@runtime_checkable
class ForwardsPorts(Protocol):
    def connect(self, handle: Handle, port: int) -> socket.socket:
        """A TCP connection to a port of the workload's own loopback. Raises NotFound if nothing listens there."""
        ...


@runtime_checkable
class TakesSnapshots(Protocol):
    def snapshot(self, handle: Handle, name: str) -> str:
        """Keep the workload's files as an image; its reference."""
        ...

    def remove_snapshot(self, image: str) -> None:
        """Remove what `snapshot` has made. Idempotent. Raises Conflict while something is made of it."""
        ...


@runtime_checkable
class Watches(Protocol):
    """It tells by itself what happens to its workloads."""

    def watch(self, on_change: Callable[[str, str], None]) -> Watch:
        """Follow it in a thread: `on_change(sandbox id, what)`; an id of "" says: look at all."""
        ...


@runtime_checkable
class SeesForeignHolders(Protocol):
    """It knows of workloads on this host that are not dibs' own and may have devices."""

    def external_holders(self, ours: Callable[[], Collection[str]]) -> list[Any]:
        """Those that run and have devices, but for those with an id of `ours`. Raises BackendUnavailable."""
        ...


class SharedEngine(Backend, SeesForeignHolders, Protocol):
    """A backend whose engine others use, too."""


P = TypeVar("P")
_REFUSED: dict[type, tuple[str, str, str]] = {
    ExecutesCommands: ("run a further command in a sandbox", "exec", "NOT_SUPPORTED"),
    CopiesFiles: ("copy files into or out of a sandbox", "files", "NOT_SUPPORTED"),
    Pauses: ("pause a sandbox", "pause", "PAUSE_UNSUPPORTED"),
    Expires: ("move the end of a sandbox", "expires", "NOT_SUPPORTED"),
    MeasuresUsage: ("say what a sandbox uses", "usage", "NOT_SUPPORTED"),
    ForwardsPorts: ("connect to a port of a sandbox", "port", "NOT_SUPPORTED"),
    TakesSnapshots: ("keep the files of a sandbox as an image", "snapshot", "SNAPSHOT_UNSUPPORTED"),
}


def must(backend: Backend, protocol: type[P]) -> P:
    """The backend as one that has these verbs. Raises Unsupported where it has not."""
    if isinstance(backend, protocol):
        return backend
    what, field, code = _REFUSED[protocol]
    raise Unsupported(
        f"the {backend.name} backend cannot {what}", field=field, value=backend.name, code=code,
        remedy="use another backend; `dibs table` says what each of them delivers",
    )  # fmt: skip


def survey(backend: Backend, handles: Sequence[Handle]) -> dict[str, Status]:
    """The status of many workloads, by sandbox id: in one answer where the backend can."""
    if isinstance(backend, Surveys):
        return backend.survey(handles)
    return {handle.sandbox_id: backend.status(handle) for handle in handles}
