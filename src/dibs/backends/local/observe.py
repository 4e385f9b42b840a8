"""Observation of a sandbox from outside.

`backend.observe` calls it while the command is held back, and on request later. Everything comes from the
kernel's view of the sandbox's first process (`dibs.backends.proc`, `dibs.backends.mounts`), never from what was
planned. What cannot be read is an error, not an empty observation.

Until the command runs, that process is bubblewrap: devices, mounts, limits, namespaces, user and capabilities are those
that the command will have. Its environment, working directory and arguments are part of bubblewrap's own,
which the kernel shows as they were at its start; nothing in the sandbox can change them.
"""

from __future__ import annotations

import os
import shlex
import stat

from dibs.backends import mounts, plain_fields, proc, safe_open
from dibs.backends.local import cgroups, mount_plan
from dibs.backends.local.handles import groups, living_init
from dibs.backends.local.plain_fields import FIELDS
from dibs.backends.port import Handle, Isolation, Observation
from dibs.errors import BackendUnavailable

unreadable = proc.unreadable
ORIGIN = "before start"
_SECCOMP = frozenset(("--seccomp", "--add-seccomp-fd"))


def look(handle: Handle) -> Observation:
    """All of it."""
    init = living_init(handle)
    words = _words(init)
    options = mount_plan.split(words[1 : words.index("--")])
    try:
        limits = {**limits_of(init, groups(handle)), **plain_fields.observed(FIELDS, init, handle.data)}
        host = mounts.Table.of(mounts.read())
        entries = mounts.reachable(mounts.parse(mounts.read(init)))
        seen = mounts.facts(init, host, [entry for entry in entries if not _mirrored(entry, entries, host)])
        nodes = {*proc.device_nodes(init), *mounts.nodes_elsewhere(init, entries)}
        workdir = _workdir(init, options)
        env = _environment(init, options, workdir)
        process = {**_process(init, options, words, workdir), **_network(init, handle)}
    except OSError as error:
        raise unreadable("the sandbox", error) from error
    except KeyError as error:  # a line of its status is missing: it is just ending
        raise unreadable("the sandbox", ProcessLookupError(3, "no such process")) from error
    found = Observation(tuple(sorted(nodes)), env, seen, limits, isolation(init), process, {"": ORIGIN})
    living_init(handle)  # or the pid may have been reused
    return found


def _network(init: int, handle: Handle) -> dict[str, str]:
    """Its kind and what connects it to the outside, and which ports of the host lead to it."""
    if proc.isolation(init)["network"] == "host":
        return {"network": "host"}
    kind = "private" if proc.connected(init) else "none"
    if "uplink" not in handle.data:
        return {"network": kind}
    from dibs.backends.local import uplinks

    process = uplinks.of(handle)
    published = uplinks.published(handle, process)
    found = {"network": f"{kind}, through {uplinks.name(process) or 'nothing: its helper has ended'}"}
    return {**found, "published": ", ".join(published)} if published else found


def environment(init: int) -> dict[str, str]:
    """The environment that the command was given."""
    words = _words(init)
    options = mount_plan.split(words[1 : words.index("--")])
    try:
        return _environment(init, options, _workdir(init, options))
    except OSError as error:
        raise unreadable("its environment", error) from error


def _words(init: int) -> list[str]:
    try:
        words = [os.fsdecode(word) for word in proc.words(init, "cmdline")[:-1]]  # each ends with a NUL
    except OSError as error:
        raise unreadable("its words", error) from error
    if "--" not in words:
        raise BackendUnavailable("the sandbox's init is not bubblewrap", code="OBSERVATION_FAILED")
    return words


def limits_of(init: int, folders: list[str]) -> dict[str, int]:
    """The limits of those groups that the process is really in. OSError if they cannot be read."""
    inside = []
    for folder in folders:
        with open(f"{folder}/cgroup.procs") as file:
            if str(init) in file.read().split():
                inside.append(folder)
    return cgroups.read_back(inside)


def _mirrored(entry: mounts.Entry, entries: list[mounts.Entry], host: mounts.Table) -> bool:
    """Whether it is a mount of the host, read-only in its own place, that came along with the folder it is in."""
    above = next((one for one in entries if one.id == entry.parent), None)
    if above is None or entry.mode != "ro" or above.mode != "ro" or above.device not in host.devices:
        return False
    own = host.entries.get(entry.point)
    around = host.at(above.point)
    return own is not None and own.device == entry.device and around is not None and around.device == above.device


def _workdir(init: int, options: list[tuple[str, list[str]]]) -> str:
    """Where the command will start: bubblewrap goes there last, so what is told is whether it can."""
    path = next((values[0] for option, values in reversed(options) if option == "--chdir"), "/")
    try:
        with safe_open.opened(f"/proc/{init}/root", path) as fd:
            there = stat.S_ISDIR(os.fstat(fd).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        there = False
    return path if there else f"{path} (no such folder in the sandbox)"


def _environment(init: int, options: list[tuple[str, list[str]]], workdir: str) -> dict[str, str]:
    """What bubblewrap was started with, and what it was told to change."""
    found = proc.variables(proc.words(init, "environ"))
    for option, values in options:
        if option == "--clearenv":
            found = {}
        elif option == "--setenv":
            found[values[0]] = values[1]
        elif option == "--unsetenv":
            found.pop(values[0], None)
    return {**found, "PWD": workdir}  # bubblewrap sets it when it goes there


def _process(init: int, options: list[tuple[str, list[str]]], words: list[str], workdir: str) -> dict[str, str]:
    lines = proc.status(init)
    filtered = lines.get("Seccomp") == "2" or any(option in _SECCOMP for option, _ in options)
    return {
        "command": shlex.join(words[words.index("--") + 1 :]),
        "workdir": workdir,
        "user": proc.user(init, lines),
        "groups": proc.groups(lines),
        "capabilities": proc.capabilities(lines),
        "no_new_privileges": "yes" if lines["NoNewPrivs"] == "1" else "no",
        "seccomp": "filter" if filtered else "none",
        "runtime": mounts.identity(os.stat(f"/proc/{init}/exe")),
    }


def isolation(init: int) -> dict[str, Isolation]:
    """Of each namespace, whether it is the one that dibs itself is in."""
    try:
        return proc.isolation(init)
    except OSError as error:
        raise unreadable("its namespaces", error) from error


def check_command(init: int, command: str, path: str, workdir: str) -> None:
    """Raise if the command could not be executed."""
    try:
        proc.check_command(init, command, path, workdir, lambda file: os.access(file, os.X_OK))
    except OSError as error:
        raise unreadable("its files", error) from error
