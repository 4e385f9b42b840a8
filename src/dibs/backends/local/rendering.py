"""A workload in bubblewrap's words.

`backend` calls `render` for the plan and `shim_spec` for the order to the shim. Nothing is touched here, only looked
at; a root archive is read for its digest.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import msgspec

from dibs.backends.local import bubblewrap, cgroups, checking, edits, rootfs, roots
from dibs.backends.local.probes import Probes
from dibs.backends.local.rootfs import Bind, Layout
from dibs.backends.port import Expectation, Realisation, Workload
from dibs.errors import BackendUnavailable, InvalidRequest, Unsupported
from dibs.home import HOST_SOCKETS, Home, find_home

_SECOND = 1.0


def render(workload: Workload, home: Home, bwrap: bubblewrap.Bubblewrap, probes: Probes) -> Realisation:
    """The native form of a workload. Raises with all its problems."""
    if not bwrap.path:
        raise BackendUnavailable(bwrap.reason, field="backend", value="local", remedy=bwrap.remedy)
    applied = edits.apply(workload.devices)
    host_root = workload.root == "host"
    # A root archive has not been unpacked yet when a name would have to be looked up in it.
    user, trouble = checking.wrong_user(workload, "/" if host_root else workload.root, all_ids=bwrap.all_ids)
    problems = [*checking.wrong(workload, home), *checking.wrong_for_local(workload), *trouble]
    problems += [*applied.problems, *checking.wrong_limits(workload)]
    if problems:
        unsupported = all(problem.code in checking.UNSUPPORTED_CODES for problem in problems)
        raise (Unsupported if unsupported else InvalidRequest)(problems)
    if host_root:
        layout = _host_layout(bwrap.path, probes)
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
    if not host_root:
        layout.folder(workdir)
    base = [*layout.points, "/"]
    explicit = [Bind(os.path.realpath(m.source), os.path.normpath(m.target), m.writable) for m in workload.mounts]
    binds += explicit
    binds += [Bind(one.source, one.target, one.writable) for one in applied.mounts if one.source]
    for bind in binds:
        layout.bind(bind)
    for one in applied.mounts:
        if not one.source:
            layout.tmpfs(one.target)
    expected_mounts = {b.target: "rw" if b.writable else "ro" for b in binds}
    expected_mounts |= {one.target: "rw" for one in applied.mounts if not one.source}
    hidden = rootfs.hide(layout, _secrets(home), binds, host_root=host_root)
    for node in applied.nodes:
        layout.args += ["--dev-bind", node.source, node.fact.path]
    if workload.read_only:
        # Its own scratch folders and whatever was mounted writable stay so, the working directory among them.
        sealed = layout.seal()
        base = [point for point in base if point not in sealed]
        expected_mounts |= dict.fromkeys(sealed, "ro")
    env = {**workload.env, "PWD": workdir}  # bubblewrap sets it
    args = [*(() if bwrap.all_ids else (*bubblewrap.ONE_ID, *bwrap.flags)), *bubblewrap.SEPARATION]
    if workload.network == "none":
        args.append("--unshare-net")
    if not workload.tty:
        args.append("--new-session")
    args += layout.args
    for name, value in env.items():
        if bubblewrap.is_loader_variable(name):
            args += ["--setenv", name, value]
    args += ["--chdir", workdir]
    limits = cgroups.expected(workload.limits)
    if workload.shm_bytes is not None:
        limits["shm_bytes"] = -(-workload.shm_bytes // cgroups.PAGE) * cgroups.PAGE  # whole pages
    native: dict[str, Any] = {
        "bwrap": bwrap.path,
        "version": bwrap.version,
        "args": args,
        "command": list(workload.command),
        "workdir": workdir,
        "root": root,
        "base": [*base, *hidden],
        "limits": limits,
        "ids": "all" if bwrap.all_ids else "one",
        "user": list(user) if user is not None else [],
        "hooks": [msgspec.to_builtins(hook) for hook in applied.hooks],
        "notes": layout.notes,
    }
    return Realisation(
        "local",
        native,
        Expectation(
            nodes=tuple(sorted(node.fact for node in applied.nodes)),
            env=env,
            mounts=tuple(sorted(f"{p} {m}" for p, m in expected_mounts.items() if p not in base and p not in hidden)),
            limits=limits,
            isolation={
                **dict.fromkeys(("ipc", "mount", "pid", "user", "uts"), "own"),
                "network": "host" if workload.network == "host" else "own",
            },
        ),
    )


_looked_up: dict[Home, tuple[float, list[str]]] = {}


def _secrets(home: Home) -> list[str]:
    """Folders that no sandbox may see: with the socket of a shim, or of the host service, one commands a sandbox.

    Where they really are is looked up once a second: a gateway renders hundreds of workloads in that time.
    """
    at, found = _looked_up.get(home, (-_SECOND, []))
    if time.monotonic() - at >= _SECOND:
        default = find_home({"HOME": os.path.expanduser("~")}).state
        found = list(dict.fromkeys(os.path.realpath(path) for path in (home.state, default, HOST_SOCKETS)))
        _looked_up[home] = (time.monotonic(), found)
    return found


_known: dict[str, tuple[str, Layout]] = {}  # by bubblewrap: the mounts, and what was made of them


def _host_layout(bwrap: str, probes: Probes) -> Layout:
    """How the host's root is put together. As it was the last time, if nothing in it has changed since."""
    with open("/proc/self/mountinfo") as file:
        text = file.read()
    mounts, layout = _known.get(bwrap, ("", Layout()))
    if mounts != text or not _unchanged(layout):
        layout = _look_at_host(bwrap, probes, rootfs.mount_points(text))
        _known[bwrap] = (text, layout)
    return layout.copy()


def _unchanged(layout: Layout) -> bool:
    try:
        return all(rootfs.Seen.of(seen.path) == seen for seen in layout.folders)
    except OSError:
        return False  # one of them is gone


def _look_at_host(bwrap: str, probes: Probes, mounts: dict[str, str]) -> Layout:
    layout = rootfs.host_layout(mounts)

    def find_out() -> str:
        refused = rootfs.refused_overlays(layout, lambda args: bubblewrap.try_out(bwrap, args))
        return "\n".join(["refused", *refused])

    known = probes.get(f"overlays {bwrap} {rootfs.fingerprint(layout)}", find_out)
    refused = frozenset(known.splitlines()[1:])
    return rootfs.host_layout(mounts, refused) if refused else layout


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
    spec += [("cmd", word) for word in native["command"]]
    env = realisation.expectation.env
    spec += [("env", f"{name}={value}") for name, value in env.items() if not bubblewrap.is_loader_variable(name)]
    spec += [("cgroup", path) for path in group.folders]
    for hook in native["hooks"]:
        if hook["hookName"] == "poststop":
            spec.append(("hook", hook["path"]))
            spec += [("hookarg", word) for word in hook.get("args", ())]
            spec += [("hookenv", item) for item in hook.get("env", ())]
            spec.append(("hooktimeout", str(hook.get("timeout") or 0)))
    return spec
