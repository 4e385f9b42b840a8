"""Renders a workload for bubblewrap.

`backend` calls `render` for the plan and `shim_spec` for the order to the shim. Nothing is changed; a root archive is
read for its digest.
"""

from __future__ import annotations

import os
import shlex
import zlib
from pathlib import Path
from typing import Any

import msgspec

from dibs.backends import mounts, plain_fields
from dibs.backends.local import bubblewrap, cgroups, edits, hidden_paths, mount_plan, rootfs, roots, validation
from dibs.backends.local.plain_fields import FIELDS
from dibs.backends.local.probes import Probes
from dibs.backends.local.rootfs import Bind, Layout
from dibs.backends.local.userns import FILE_POWERS
from dibs.backends.port import Expectation, Realisation, Workload
from dibs.backends.proc import below
from dibs.errors import BackendUnavailable, InvalidRequest, Problem, Unsupported
from dibs.home import Home

_MASK = sum(1 << number for number in FILE_POWERS)
_POWERS = f"permitted {_MASK:x}, effective {_MASK:x}, inheritable {_MASK:x}, bounding {_MASK:x}"


def render(workload: Workload, home: Home, bwrap: bubblewrap.Bubblewrap, probes: Probes) -> Realisation:
    """The native form of a workload. Raises with all its problems."""
    if not bwrap.path:
        raise BackendUnavailable(bwrap.reason, field="backend", value="local", remedy=bwrap.remedy)
    applied = edits.apply(workload.devices)
    hidden_folders = hidden_paths.folders(home)
    host_root = workload.root == "host"
    host: list[Any] = []  # what the layout of the host's root was made from
    # A root archive has not been unpacked yet when a name would have to be looked up in it.
    user, trouble = validation.wrong_user(workload, "/" if host_root else workload.root, all_ids=bwrap.all_ids)
    problems = [*validation.wrong(workload, hidden_folders), *validation.wrong_for_local(workload), *trouble]
    problems += [*applied.problems, *validation.wrong_limits(workload)]
    if _joins(workload) and os.geteuid() != 0:
        reason = "an ordinary user's sandboxes cannot share a private network here"
        problems.append(Problem("NETWORK_UNAVAILABLE", "network", workload.network, reason, "say network host"))
    if problems:
        unsupported = all(problem.code in validation.UNSUPPORTED_CODES for problem in problems)
        raise (Unsupported if unsupported else InvalidRequest)(problems)
    table = mounts.Table.of(_mountinfo())
    if host_root:
        layout = _host_layout(bwrap.path, probes)
        host = [zlib.crc32(_known[bwrap.path][0].encode()), *([seen.path, *seen.state] for seen in layout.folders)]
        workdir = os.path.realpath(workload.workdir)
        binds = [] if workload.private else [Bind(workdir, workdir, writable=True)]
        root = "/"
    else:
        root = os.path.realpath(workload.root)
        if os.path.isfile(root):
            root = str(home.state / "roots" / roots.known(Path(root), home.state / "roots"))
        layout = rootfs.folder_layout(root)
        workdir = os.path.normpath(workload.workdir)
        binds = []
    host_network = workload.network == "host"
    rootfs.add_own(layout, host_network=host_network, host_root=host_root, root=root, shm=workload.shm_bytes)
    uplink: dict[str, Any] = {}
    if workload.network == "private":
        uplink = _uplink(workload, probes)
        rootfs.add_name_servers(layout, root="/" if host_root else root)
    if workload.peers is not None:
        rootfs.add_hosts(layout)
    if not host_root:
        layout.folder(workdir)
    wanted = _wanted(workload, applied, root, home)
    binds = _in_order([*binds, *wanted.binds])
    _check_mounts(workload, binds, wanted.targets, table)
    if not bwrap.all_ids:
        _check_places(binds, wanted.targets, layout, root)
    for bind in binds:
        if bind.source:
            layout.bind(bind)
        else:
            layout.tmpfs(bind.target)
    rootfs.hide(layout, hidden_folders, [bind for bind in binds if bind.source], host_root=host_root)
    for node in applied.nodes:
        layout.args += ["--dev-bind", node.source, node.fact.path]
    if workload.read_only:
        # Its own scratch folders and whatever was mounted writable stay so, the working directory among them.
        layout.seal()
    env = {**workload.env, "PWD": workdir}  # bubblewrap sets it
    args = [*(() if bwrap.all_ids else (*bubblewrap.ONE_ID, *bwrap.flags)), *bubblewrap.SEPARATION]
    powers = has_powers(bwrap, user, host_root=host_root)
    if powers:
        args += [word for name in FILE_POWERS.values() for word in ("--cap-add", name)]
    if not host_network and not _joins(workload):
        args.append("--unshare-net")
    if workload.peers is not None:
        args += ["--hostname", workload.peers.hosts[workload.peers.rank].partition(".")[0]]
    if not workload.tty:
        args.append("--new-session")
    args += layout.args
    for name, value in env.items():
        if bubblewrap.is_loader_variable(name):
            args += ["--setenv", name, value]
    args += ["--chdir", workdir]
    limits = {**cgroups.expected(workload.limits), **plain_fields.expected(FIELDS, workload)}
    native: dict[str, Any] = {
        "bwrap": bwrap.path,
        "host": host,
        "version": bwrap.version,
        "args": args,
        "command": list(workload.command),
        "workdir": workdir,
        "root": root,
        "targets": wanted.targets,
        "binds": {bind.source: _named(bind.source, table) for bind in binds if bind.source},
        "limits": limits,
        "ids": "all" if bwrap.all_ids else "one",
        "user": list(user) if user is not None else [],
        "powers": bwrap.all_ids and not host_root,
        "hooks": [msgspec.to_builtins(hook) for hook in applied.hooks],
        "notes": layout.notes,
        "uplink": uplink,
    }
    expectation = Expectation(
        nodes=tuple(sorted(node.fact for node in applied.nodes)),
        env=env,
        limits=limits,
        isolation={
            **dict.fromkeys(("ipc", "mount", "pid", "user", "uts"), "own"),
            "network": "host" if workload.network == "host" else "own",
        },
        process={**_process(workload, workdir, bwrap, user, powers=powers), **_network(workload, uplink)},
    )
    return with_mounts(Realisation("local", native, expectation), table)


def with_mounts(realisation: Realisation, table: mounts.Table | None = None) -> Realisation:
    """Expect everything that the rendered options mount. To be called again if any are added."""
    args = realisation.native["args"]
    try:
        must, may = mount_plan.expected(args, table or mounts.Table.of(_mountinfo()))
    except OSError as error:
        raise _gone(str(error.filename or ""), error) from error
    expectation = msgspec.structs.replace(realisation.expectation, mounts=must, may_mount=may)
    return msgspec.structs.replace(realisation, expectation=expectation)


def _joins(workload: Workload) -> bool:
    """Whether it has the network of another sandbox, that of the first rank of its job."""
    peers = workload.peers
    return peers is not None and workload.network != "host" and peers.leader != workload.id


def hosts(workload: Workload) -> str:
    """Its /etc/hosts: all ranks are on one loopback, each under its names."""
    assert workload.peers is not None
    lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost ip6-loopback"]
    lines += [f"127.0.0.1 {host} {host.partition('.')[0]}" for host in workload.peers.hosts]
    return "\n".join([*lines, ""])


def _process(
    workload: Workload, workdir: str, bwrap: bubblewrap.Bubblewrap, user: tuple[int, int] | None, *, powers: bool
) -> dict[str, str]:
    """Facts of the command's process. With all ids mapped, another user than root has no further groups."""
    uid, gid = user if user is not None else (os.getuid(), os.getgid())
    alone = bwrap.all_ids and any((uid, gid))
    return {
        "command": shlex.join(workload.command),
        "workdir": workdir,
        "user": f"{uid}:{gid}",
        "groups": "none" if alone else ",".join(map(str, sorted(os.getgroups()))) or "none",
        "capabilities": _POWERS if powers else "none",
        "no_new_privileges": "yes",
        "seccomp": "filter",
        "runtime": mounts.identity(os.stat(bwrap.path)),
    }


def has_powers(bwrap: bubblewrap.Bubblewrap, user: tuple[int, int] | None, *, host_root: bool) -> bool:
    """Whether the command may change files that are not its own: root, in a root that is not the host's."""
    return bwrap.all_ids and not host_root and (user or (0, 0))[0] == 0


class _Wanted(msgspec.Struct):
    """Mounts that were asked for, or that a device brings along; `targets` is where each asked-for one really is."""

    binds: list[Bind]
    targets: dict[str, str]


def _wanted(workload: Workload, applied: edits.Applied, root: str, home: Home) -> _Wanted:
    """A bind without a source is a tmpfs."""
    mounts = [*workload.mounts]
    if workload.volumes:
        from dibs.backends.local import volumes

        mounts += volumes.mounts_of(home, workload.volumes)
    targets = {mount.target: rootfs.place(mount.target, root) for mount in mounts}
    binds = [Bind(mount.source, targets[mount.target], mount.writable) for mount in mounts]
    for one in applied.mounts:
        source = os.path.realpath(one.source) if one.source else ""
        binds.append(Bind(source, rootfs.place(one.target, root), one.writable))
    return _Wanted(binds, targets)


def _in_order(binds: list[Bind]) -> list[Bind]:
    """Outer ones first, so that none hides another. A mount on the working directory itself takes its place."""
    taken = [bind.target for bind in binds[1:]]
    kept = [bind for at, bind in enumerate(binds) if at or bind.source != bind.target or bind.target not in taken]
    return sorted(kept, key=lambda bind: bind.target.count("/"))


def _check_mounts(workload: Workload, binds: list[Bind], targets: dict[str, str], table: mounts.Table) -> None:
    problems = []
    asked = {place: target for target, place in targets.items()}
    seen: dict[str, Bind] = {}
    for bind in binds:
        field = "mounts" if bind.target in asked else "devices"
        shown = asked.get(bind.target, bind.target)
        if bind.target in seen and seen[bind.target] != bind:
            reason = f"two mounts have this target, of {seen[bind.target].source} and of {bind.source}"
            problems.append(Problem("MOUNT_INVALID", field, shown, reason, "give each a target of its own"))
        around = next((one for one in reversed(binds) if one != bind and below(bind.target, one.target)), None)
        if around is not None and around.source and not around.writable:
            inside = around.source.rstrip("/") + bind.target[len(around.target.rstrip("/")) :]
            if not os.path.exists(inside):
                reason = f"it is mounted read-only and has no place for {bind.target}, which is to be mounted in it"
                remedy = f"make {inside} first, or mount it writable"
                shown_around = asked.get(around.target, around.target)
                problems.append(Problem("MOUNT_INVALID", "mounts", shown_around, reason, remedy))
        seen[bind.target] = bind
        over = table.at(bind.source) if bind.source else None
        if bind.writable and over is not None and over.sealed and any(bind.source == m.source for m in workload.mounts):
            reason = f"it cannot be mounted writable: {over.point} is mounted read-only on this host"
            problems.append(Problem("MOUNT_INVALID", field, bind.source, reason, "mount it read-only: append :ro"))
    if problems:
        raise InvalidRequest(problems)


def _check_places(binds: list[Bind], targets: dict[str, str], layout: Layout, root: str) -> None:
    """A target that does not exist is created in the private layer. With one id mapped, that can be done at its top and
    in folders of our own: the kernel does not copy those of other users into it."""
    problems = []
    asked = {place: target for target, place in targets.items()}
    points = [*layout.points, *(bind.target for bind in binds)]
    for bind in binds:
        around = max((one for one in points if one != bind.target and below(bind.target, one)), key=len, default="")
        inside = root.rstrip("/") + bind.target
        if around not in layout.overlaid or os.path.lexists(inside):
            continue
        folder = os.path.dirname(inside)
        while not os.path.lexists(folder):
            folder = os.path.dirname(folder)
        if folder != root.rstrip("/") + around.rstrip("/") and os.stat(folder).st_uid != os.geteuid():
            field = "mounts" if bind.target in asked else "devices"
            shown = asked.get(bind.target, bind.target)
            reason = f"it does not exist, and you cannot create it in {folder}, which is not yours"
            remedy = "use a target that exists, or one below /run or /tmp"
            problems.append(Problem("MOUNT_INVALID", field, shown, reason, remedy))
    if problems:
        raise InvalidRequest(problems)


def _named(source: str, table: mounts.Table) -> str:
    """What a source is, found without following a link: it is opened once more, and compared, when it is mounted."""
    over = table.at(source)
    try:
        info = mounts.look_beneath(source)
    except OSError as error:
        raise _gone(source, error) from error
    return (
        f"{over.kind} on {over.device}" if over is not None and over.kind.startswith("fuse") else mounts.identity(info)
    )


def _gone(source: str, error: OSError) -> InvalidRequest:
    changed = isinstance(error, mounts.Changed)
    reason = f"it cannot be mounted: {(error.strerror or str(error)).lower()}"
    remedy = "name the folder itself, not a link to it" if changed else "make it first"
    return InvalidRequest(reason, field="mounts", value=source, code="MOUNT_INVALID", remedy=remedy)


def _mountinfo() -> str:
    return mounts.read()


def _uplink(workload: Workload, probes: Probes) -> dict[str, Any]:
    """How the network is connected. Raises Unsupported where it cannot be, InvalidRequest for ports in use."""
    from dibs.backends import sockets
    from dibs.backends.local import networks

    helper = networks.find(probes)
    if not helper.name:
        raise Unsupported(
            f"a private network cannot be had: {helper.reason}", field="network", value="private",
            code="NETWORK_UNAVAILABLE", remedy=helper.remedy,
        )  # fmt: skip
    taken = sockets.unpublishable(workload.publish)
    if taken:
        raise InvalidRequest(taken)
    text, forwarded = networks.resolv_conf(helper)
    if _joins(workload):
        return {"helper": "", "args": [], "publish": [], "resolv_conf": text}
    return {
        "helper": helper.name,
        "args": networks.arguments(helper, workload.publish, dns=forwarded),
        "publish": [f"{port.address} {port.host_port} {port.port}" for port in workload.publish],
        "resolv_conf": text,
    }


def _network(workload: Workload, uplink: dict[str, Any]) -> dict[str, str]:
    helper = uplink.get("helper", "")  # the first rank's connects the others too
    found = {"network": f"{workload.network}, through {helper}" if helper else workload.network}
    return {**found, "published": ", ".join(map(str, workload.publish))} if workload.publish else found


_known: dict[str, tuple[str, Layout]] = {}  # by bubblewrap: the mounts, and what was made of them


def _host_layout(bwrap: str, probes: Probes) -> Layout:
    """How the host's root is put together. As it was the last time, if nothing in it has changed since."""
    text = _mountinfo()
    before, layout = _known.get(bwrap, ("", Layout()))
    if before != text or not _unchanged(layout):
        layout = _look_at_host(bwrap, probes, rootfs.mount_points(text))
        _known[bwrap] = (text, layout)
    return layout.copy()


def host_has_changed(host: list[Any] | None) -> bool:
    """Whether a mount or a folder of the host's root has come or gone since a layout was made from it."""
    if not host:
        return False
    mounted, *folders = host
    if zlib.crc32(_mountinfo().encode()) != mounted:
        return True
    return not _unchanged(Layout(folders=[rootfs.Seen(path, tuple(state)) for path, *state in folders]))


def _unchanged(layout: Layout) -> bool:
    try:
        return all(rootfs.Seen.of(seen.path) == seen for seen in layout.folders)
    except OSError:
        return False  # one of them is gone


def _look_at_host(bwrap: str, probes: Probes, points: dict[str, str]) -> Layout:
    layout = rootfs.host_layout(points)

    def find_out() -> str:
        refused = rootfs.refused_overlays(layout, lambda args: bubblewrap.try_out(bwrap, args))
        return "\n".join(["refused", *refused])

    known = probes.get(f"overlays {bwrap} {rootfs.fingerprint(layout)}", find_out)
    refused = frozenset(known.splitlines()[1:])
    return rootfs.host_layout(points, refused) if refused else layout


def shim_spec(
    workload: Workload, realisation: Realisation, folder: Path, group: cgroups.Group, log_limit: int
) -> list[tuple[str, str]]:
    native = realisation.native
    spec = [
        ("id", workload.id),
        ("folder", str(folder)),
        ("bwrap", native["bwrap"]),
        ("tty", str(int(workload.tty))),
        ("interactive", str(int(workload.interactive))),
        ("foreground", str(int(workload.foreground))),
        ("grace", repr(float(workload.grace_seconds))),
        ("logmax", str(log_limit)),
        ("freezer", group.freezer),
        ("oom", group.oom),
    ]
    spec.append(("ids", native["ids"]))
    if native["user"]:
        spec += [("uid", str(native["user"][0])), ("gid", str(native["user"][1]))]
    if workload.ttl_seconds is not None:
        spec.append(("ttl", repr(float(workload.ttl_seconds))))
    spec += [("arg", word) for word in native["args"]]
    for source, identity in native["binds"].items():
        spec += [("source", source), ("identity", identity)]
    spec += [("cmd", word) for word in native["command"]]
    env = realisation.expectation.env
    spec += [("env", f"{name}={value}") for name, value in env.items() if not bubblewrap.is_loader_variable(name)]
    spec += [("cgroup", path) for path in group.folders]
    if workload.peers is not None:
        spec.append(("hosts", hosts(workload)))
    if native["uplink"]:
        spec += [("uplink", word) for word in native["uplink"]["args"]]
        spec.append(("nameservers", native["uplink"]["resolv_conf"]))
        spec += [("publish", port) for port in native["uplink"]["publish"]]
    for hook in native["hooks"]:
        if hook["hookName"] == "poststop":
            spec.append(("hook", hook["path"]))
            spec += [("hookarg", word) for word in hook.get("args", ())]
            spec += [("hookenv", item) for item in hook.get("env", ())]
            spec.append(("hooktimeout", str(hook.get("timeout") or 0)))
    return spec
