"""From a workload to what an engine is told, in a form that both engines' dialects are written from.

`backend.render` calls it to say what would happen, `backend.finalise` once more if the image had to be fetched. It
looks at the image, the engine and the host, and changes nothing; all problems are told at once.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator
from typing import Any, Literal

import msgspec

from dibs.backends import mounts as tables
from dibs.backends import plain_fields, proc
from dibs.backends.engines import device_injection, images, networks, states
from dibs.backends.engines.facts import Facts, mount_table
from dibs.backends.engines.plain_fields import FIELDS
from dibs.backends.engines.plain_fields import sent as plain_sent
from dibs.backends.engines.volumes import PlacedVolume
from dibs.backends.port import Capability, Expectation, LogRecord, Mount, MountFact, Realisation, Volume, Workload
from dibs.errors import InvalidRequest, Problem, Unsupported
from dibs.home import Home
from dibs.http import Connection, Response

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"  # what engines set without an image's own
LOG_TYPE = {"docker": "json-file", "podman": "k8s-file"}
LOG_BYTES = 16 << 20  # per file, of which there are two; arbitrary
_OURS_TO_FIX = frozenset(
    ("LIMIT_NOT_ENFORCEABLE", "CDI_NAME_UNKNOWN", "CDI_SPECS_DIFFER", "PLATFORM_MISMATCH", "OBSERVATION_FAILED")
)
FindImage = Callable[[str], images.Image | None]
CanLimit = Callable[[Literal["cpu", "memory", "pids"]], Capability]


class Form(msgspec.Struct, frozen=True, kw_only=True):
    """A container to be, without an engine's spelling."""

    engine: str
    workload: Workload
    image: str
    entrypoint: tuple[str, ...] | None
    init: bool  # whether the engine puts its init before the command, so that signals arrive
    program: str  # what is executed first
    path: str  # where it is looked for
    words: tuple[str, ...]  # all of what is executed, without the engine's init
    workdir: str  # where it runs
    user: str  # who runs it; empty: root
    known: images.Image | None  # the image; None while it is not here
    devices: device_injection.Passing
    volumes: tuple[PlacedVolume, ...]  # none before they are made
    facts: Facts
    labels: dict[str, str]
    home: str
    network: str  # host, none, or the name of the tenant's own, or of its job's
    subnet: str = ""  # the addresses of its job's network, where ranks are found by address
    notes: tuple[str, ...] = ()


def form(
    engine: str,
    workload: Workload,
    facts: Facts,
    find_image: FindImage,
    home: Home,
    image_id: str | None,
    can_limit: CanLimit,
    subnet: str = "",
    volumes: tuple[PlacedVolume, ...] = (),
) -> Form:
    """`image_id`: the image that was found or loaded; None while only looking."""
    problems = [*_wrong(workload), *_limits(workload, can_limit), *_mounts(workload, facts)]
    notes: list[str] = []
    image = _image(engine, workload, facts, find_image, image_id, problems, notes)
    requested = tuple(workload.options.get("cdi_devices", ()))
    devices = device_injection.decide(workload.devices, facts, workload.env, requested)
    problems += [*devices.problems, *_volumes(engine, workload, image, devices)]
    user = workload.user or (image.user if image else "")
    problems += _unseen(facts, user)
    entrypoint = workload.entrypoint
    if entrypoint is None and image is not None:
        entrypoint = image.entrypoint
    first = (*(entrypoint or ()), *(workload.command or (image.command if image else ())))
    if image is not None and not first:
        reason = "neither the request nor the image has a command"
        problems.append(Problem("COMMAND_INVALID", "command", "", reason, "write it after --"))
    if problems:
        mine = all(problem.code in _OURS_TO_FIX for problem in problems)
        raise (Unsupported if mine else InvalidRequest)(problems)
    program = first[0] if first else ""
    return Form(
        engine=engine,
        workload=workload,
        image=image_id if image_id and (images.is_file(workload.image) or engine == "podman") else workload.image,
        entrypoint=workload.entrypoint,
        init=facts.init and os.path.basename(program) not in images.INITS,
        program=program,
        path=workload.env.get("PATH") or (image.path if image else "") or DEFAULT_PATH,
        words=first,
        workdir=os.path.normpath(workload.workdir or (image.workdir if image else "") or "/"),
        user=user,
        known=image,
        devices=devices,
        volumes=volumes,
        facts=facts,
        labels=_labels(workload, home),
        home=str(home.state),
        network=networks.name_for(home, workload) if workload.network == "private" else workload.network,
        subnet=subnet,
        notes=(*notes, *devices.notes),
    )


def _wrong(workload: Workload) -> list[Problem]:
    found = []
    if not workload.image:
        remedy = "say which: --image python:3.12, or the path of a tar; or use --backend local"
        found.append(Problem("IMAGE_INVALID", "image", "", "a container is made from an image", remedy))
    if workload.command and not workload.command[0]:
        found.append(Problem("COMMAND_INVALID", "command", "", "the name of the command is empty"))
    if workload.workdir and not workload.workdir.startswith("/"):
        found.append(Problem("WORKDIR_INVALID", "workdir", workload.workdir, "it must be an absolute path"))
    if workload.root != "host":
        reason = "a container's root is its image"
        remedy = "give a tar as the image: --image /path/root.tar; or use --backend local"
        found.append(Problem("FIELD_NOT_SUPPORTED", "root", workload.root, reason, remedy))
    return found


def _unseen(facts: Facts, user: str) -> list[Problem]:
    """A process that may not be looked at, so that nothing could be proved: it is refused before there is one."""
    if not facts.rootless or facts.peer is None or proc.may_look_at_all():
        return []
    if user.partition(":")[0] in ("", "0", "root"):
        return []
    reason = "a process of another user in a rootless container may be looked at by root only"
    remedy = "leave the user out (root in the container is you), or run dibs as root"
    return [Problem("OBSERVATION_FAILED", "user", user, reason, remedy)]


def _limits(workload: Workload, can_limit: CanLimit) -> list[Problem]:
    found = []
    limits = workload.limits
    asked: tuple[tuple[Literal["cpu", "memory", "pids"], int | None], ...] = (
        ("cpu", limits.cpu_millis),
        ("memory", limits.memory_bytes),
        ("pids", limits.pids),
    )
    for name, amount in asked:
        if amount is None:
            continue
        if amount <= 0:
            found.append(Problem("LIMIT_INVALID", name, str(amount), "a limit must be more than nothing"))
            continue
        able = can_limit(name)
        if not able.ok:
            found.append(Problem("LIMIT_NOT_ENFORCEABLE", name, str(amount), able.reason, able.remedy))
    return found


def _mounts(workload: Workload, facts: Facts) -> list[Problem]:
    found = []

    def problem(value: str, reason: str, remedy: str) -> None:
        found.append(Problem("MOUNT_INVALID", "mounts", value, reason, remedy))

    nodes = {
        node.path
        for device in workload.devices
        for edits in (device.attachment.spec_edits, device.attachment.edits)
        for node in edits.device_nodes
    }
    taken: dict[str, str] = {}
    for mount in workload.mounts:
        target = os.path.normpath(mount.target)
        if not mount.target.startswith("/") or ".." in mount.target.split("/") or target == "/":
            problem(mount.target, "the target must be an absolute path other than /", "name another target")
        elif target in taken:
            reason = f"two mounts have this target, of {taken[target]} and of {mount.source}"
            problem(mount.target, reason, "give each a target of its own")
        elif target in _KERNELS or any(target.startswith(f"{path}/") for path in ("/proc", "/sys")) or target in nodes:
            problem(mount.target, "it is the kernel's own, or a device's", "name another target")
        taken[target] = mount.source
        if _shows_devices(mount.source):
            remedy = "ask for devices with --gpu or --device; mount a folder that does not contain /dev"
            problem(mount.source, "the host's devices would be in it", remedy)
        try:
            _seen(facts, mount.source)
        except tables.Changed as error:
            problem(mount.source, f"it cannot be mounted: {error.strerror}", "name the folder itself, not a link to it")
        except OSError:
            where = "where the engine runs" if facts.root else "on this host"
            problem(mount.source, f"there is no such file or folder {where}", "make it first")
    for volume in workload.volumes:
        target = os.path.normpath(volume.target)
        if target in _KERNELS or any(target.startswith(f"{path}/") for path in ("/proc", "/sys")) or target in nodes:
            reason = "it is the kernel's own, or a device's"
            found.append(Problem("VOLUME_INVALID", "volumes", volume.target, reason, "name another target"))
    return found


_KERNELS = ("/proc", "/sys", "/dev", "/dev/pts", "/dev/mqueue", "/dev/console")


def _shows_devices(source: str) -> bool:
    """Whether the host's device nodes are in a folder: an engine mounts it with all that is mounted below."""
    harmless = ("/dev/shm/", "/dev/hugepages")  # noqa: S108  # no device is in them
    return source in ("/", "/dev") or (source.startswith("/dev/") and not source.startswith(harmless))


def _image(
    engine: str,
    workload: Workload,
    facts: Facts,
    find_image: FindImage,
    image_id: str | None,
    problems: list[Problem],
    notes: list[str],
) -> images.Image | None:
    """What is known of the image; None while it is not here."""
    reference = workload.image
    if not reference:
        return None
    if images.is_file(reference) and image_id is None:
        trouble = images.unusable(reference)
        problems += trouble.problems if trouble is not None else ()
        return None
    found = find_image(image_id or reference)
    if found is None:
        notes.append(f"the image {reference} is not here: {engine} will pull it")
        return None
    trouble_ = images.check_platform(found, workload.platform, facts.architecture, reference)
    if trouble_ is None:
        return found
    if image_id is None and workload.platform:
        notes.append(f"the image {reference} is here for {found.platform}: {engine} will pull it")
        return None
    problems.append(trouble_)
    return found


def _labels(workload: Workload, home: Home) -> dict[str, str]:
    return {
        **workload.labels,
        "dibs.sandbox": workload.id,
        "dibs.name": workload.name,
        "dibs.home": str(home.state),
        **({networks.NETWORK: networks.name_for(home, workload)} if workload.network == "private" else {}),
        "dibs.devices": ",".join(str(device.id) for device in workload.devices),
    }


def unwanted(made: Form) -> list[str]:
    """Variables of the image that would speak for dibs: they are taken out."""
    lines = made.known.env if made.known is not None else ()
    names = {line.partition("=")[0] for line in lines}
    return sorted(name for name in names - set(made.workload.env) if name.startswith("DIBS_"))


def _volumes(
    engine: str, workload: Workload, image: images.Image | None, devices: device_injection.Passing
) -> list[Problem]:
    """Docker makes a volume wherever the image wants one, and lets it be written to; Podman can be told not to."""
    if engine != "docker" or not workload.read_only or image is None:
        return []
    taken = {os.path.normpath(one.target) for one in (*devices.mounts, *workload.mounts)}
    taken |= {os.path.normpath(one.target) for one in workload.volumes}
    return [
        Problem(
            "FIELD_NOT_SUPPORTED", "read_only", path, "the image has a volume there, and docker lets it be written to",
            f"mount a folder there (--mount FOLDER:{path}), leave read_only out, or use podman",
        )
        for path in sorted({os.path.normpath(one) for one in image.volumes} - taken)
    ]  # fmt: skip


def realisation(engine: str, made: Form, body: dict[str, Any]) -> Realisation:
    """What the engine will be told, without the values of the environment, and what must then be seen."""
    workload = made.workload
    limits = {
        key: value
        for key, value in (
            ("cpu_millis", workload.limits.cpu_millis),
            ("memory_bytes", workload.limits.memory_bytes),
            ("pids", workload.limits.pids),
        )
        if value is not None
    }
    limits |= plain_fields.expected(FIELDS, workload)
    image = made.known
    own = dict(line.partition("=")[::2] for line in image.env) if image is not None else {}
    own = {name: value for name, value in own.items() if name not in unwanted(made)}
    must, may = _mounted(engine, made)
    expected = Expectation(
        nodes=tuple(sorted(made.devices.expected)),
        env={**own, **workload.env, **made.devices.env},
        mounts=must,
        limits=limits,
        isolation={
            "network": "host" if workload.network == "host" else "own",
            **dict.fromkeys(("mount", "pid", "ipc", "uts"), "own"),
        },
        process={
            "command": shlex.join(made.words),
            "init": "yes" if made.init else "no",
            "workdir": made.workdir,
            "user": made.user or "0",
            "groups": ",".join(map(str, sorted(made.devices.groups))) or "none",
            "capabilities": "the engine's default",
            "kernel_files": "read-only",
            "read_only": "yes" if workload.read_only else "no",
            "options": "as sent",
            "network": f"private, through {made.network}" if workload.network == "private" else workload.network,
            **({"published": ", ".join(sorted(map(str, workload.publish)))} if workload.publish else {}),
            "image": image.id.removeprefix("sha256:") if image is not None else "not here yet",
            **({"seccomp": "filter"} if made.facts.seccomp else {}),
        },
        may_env=_ENGINES_OWN,
        may_mount=may,
    )
    told = {key: sorted(_names(value)) if key in ("Env", "env") else value for key, value in body.items()}
    native: dict[str, Any] = {
        "engine": f"{engine} {made.facts.version}",
        "create": told,
        "devices": {"none": "none", "cdi": "by CDI name", "legacy": "by NVIDIA's request", "nodes": "as nodes"}[
            made.devices.way
        ],
    }
    if made.notes:
        native["notes"] = list(made.notes)
    final = image is not None and len(made.volumes) == len(workload.volumes)
    order = {"body": body, "data": handle_data(made), "final": final, "subnet": made.subnet}
    return Realisation(engine, native, expected, order)


# Variables that engines set by themselves, if neither the image nor the request does.
_ENGINES_OWN = ("HOME", "HOSTNAME", "PATH", "TERM", "container")
_SCRATCH = {"docker": ("/run", "/tmp"), "podman": ("/run", "/tmp", "/var/tmp")}  # noqa: S108  # of a read-only root


def _mounted(engine: str, made: Form) -> tuple[tuple[MountFact, ...], tuple[MountFact, ...]]:
    """Mounts that must be there, and those that there may be. A bind brings along what is mounted below its source."""
    facts, workload = made.facts, made.workload
    table = mount_table(engine, facts.peer)
    found: dict[str, MountFact] = {}
    volumes = [Mount(one.folder, one.volume.target, one.volume.writable) for one in made.volumes]
    for mount in sorted((*made.devices.mounts, *workload.mounts, *volumes), key=lambda one: one.target.count("/")):
        target = os.path.normpath(mount.target)
        if not mount.source:
            found[target] = MountFact(target, "rw", "tmpfs")
            continue
        over = table.at(mount.source)
        try:
            what = tables.identity(_seen(facts, mount.source))
        except OSError as error:
            reason = f"it is not there any more: {(error.strerror or str(error)).lower()}"
            raise InvalidRequest(reason, field="mounts", value=mount.source, code="MOUNT_INVALID") from error
        if over is not None and over.kind.startswith("fuse"):
            what = f"{over.kind} on {over.device}"
        found[target] = MountFact(target, "rw" if mount.writable else "ro", what)
        for entry in table.under(mount.source):
            place = target + entry.point[len(mount.source.rstrip("/")) :]
            what = tables.named(facts.seen(entry.point), entry.kind, entry.device)
            found[place] = MountFact(place, entry.mode if mount.writable else "ro", what)
    scratch = _SCRATCH[engine] if workload.read_only else ()
    may = tuple(MountFact(path, "rw", "tmpfs") for path in scratch if path not in found)
    return tuple(sorted(found.values())), may


def _seen(facts: Facts, source: str) -> os.stat_result:
    """What a source is, without following a link where its root is ours. Raises OSError if it is not there."""
    try:
        return os.lstat(facts.seen(source)) if facts.root else tables.look_beneath(source)
    except OSError:
        facts.check_alive()
        raise


def whole_volumes(made: Form) -> list[Volume]:
    """Those that the engine mounts by their names."""
    return [one.volume for one in made.volumes if not one.volume.sub_path]


def folders_in_volumes(made: Form) -> list[Mount]:
    """Those of which a folder is mounted: engines before Docker 26 cannot, so it is bound."""
    return [Mount(one.folder, one.volume.target, one.volume.writable) for one in made.volumes if one.volume.sub_path]


def _names(env: Any) -> list[str]:
    return [line.partition("=")[0] for line in env] if isinstance(env, list) else list(env)


def peer_hosts(made: Form) -> list[str]:
    """The names of the ranks that it meets, where the engine has to be told their addresses."""
    peers = made.workload.peers
    if peers is None or made.workload.network == "none":
        return []
    if made.workload.network == "host":
        return networks.names(peers, ["127.0.0.1"] * len(peers.hosts))
    return networks.names(peers, networks.addresses(made.subnet, peers)) if made.subnet else []


def handle_data(made: Form) -> dict[str, str]:
    """What later verbs need to know without asking the engine, but for the container's id and the engine's address."""
    workload = made.workload
    sent: dict[str, Any] = {
        "NetworkMode": "bridge" if made.engine == "podman" and workload.network == "private" else made.network,
        "PortBindings": networks.ports(workload.publish),
        "GroupAdd": [str(group) for group in made.devices.groups],
        **({"ExtraHosts": hosts} if (hosts := peer_hosts(made)) else {}),
        **plain_sent(made.engine, workload),
        "LogConfig": LOG_TYPE[made.engine],
        "Tty": workload.tty,
        "OpenStdin": workload.interactive or workload.tty,
        "Labels": made.labels,
        "Healthcheck": made.known.healthcheck if made.known is not None else None,
    }
    data = {
        "image": workload.image,
        "network": workload.network,
        "workdir": made.workdir,
        "grace": repr(workload.grace_seconds),
        "way": made.devices.way,
        "program": made.program,
        "path": made.path,
        "user": made.user,
        "sent": msgspec.json.encode(sent).decode(),
    }
    for name, there in (
        ("tty", workload.tty),
        ("interactive", workload.interactive),
        ("foreground", workload.foreground),
        ("init", made.init),
        ("seccomp", made.facts.seccomp),
    ):
        if there:
            data[name] = "1"
    data |= plain_fields.marks(FIELDS, workload)
    if made.known is not None and made.known.volumes:
        data["volumes"] = "\n".join(os.path.normpath(path) for path in made.known.volumes)
    if workload.ttl_seconds is not None:
        data["ttl"] = repr(workload.ttl_seconds)
    return data


def records(connection: Connection, response: Response, *, raw: bool) -> Iterator[LogRecord]:
    """A log as it comes: in frames, or with a terminal in lines."""
    try:
        if raw:
            for line in response.lines():
                at, data = states.logged(line)
                yield LogRecord(at, "stdout", data + b"\n")
            return
        box = bytearray()
        for piece in response.iter():
            box += piece
            while len(box) >= 8 and len(box) >= 8 + (size := int.from_bytes(box[4:8], "big")):
                at, data = states.logged(bytes(box[8 : 8 + size]))
                yield LogRecord(at, "stderr" if box[0] == 2 else "stdout", data)
                del box[: 8 + size]
    finally:
        connection.close()
