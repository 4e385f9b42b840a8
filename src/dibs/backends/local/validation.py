"""What is wrong with a workload, before anything is made.

`rendering` asks. Each check adds to the list of problems; nothing is changed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence

from dibs.backends import plain_fields
from dibs.backends.local import cgroups, users
from dibs.backends.local.plain_fields import FIELDS
from dibs.backends.mounts import real
from dibs.backends.port import Workload
from dibs.backends.proc import below
from dibs.errors import Problem

# Problems that another backend may not have; everything else is wrong anywhere.
UNSUPPORTED_CODES = frozenset(
    ("FIELD_NOT_SUPPORTED", "LIMIT_NOT_ENFORCEABLE", "DEVICE_NOT_ACCESSIBLE", "HOOK_NOT_FOUND", "NETWORK_UNAVAILABLE")
)


def wrong(workload: Workload, private: Sequence[str]) -> list[Problem]:
    """What is wrong with a workload's own fields. `private`: folders of the host that it may not have."""
    found: list[Problem] = []

    def problem(code: str, field: str, value: str, reason: str, remedy: str = "") -> None:
        found.append(Problem(code, field, value, reason, remedy))

    if not workload.command or not workload.command[0]:
        problem("INVALID_REQUEST", "command", "", "there is no command")
    words = [("command", word) for word in workload.command]
    words += [(f"env {name}", value) for name, value in workload.env.items()]
    words += [("env", name) for name in workload.env]
    for field, word in words:
        if "\0" in word:
            problem("INVALID_REQUEST", field, word, "it has a NUL character in it")
    for name in workload.env:
        if not name or "=" in name:
            problem("INVALID_REQUEST", "env", name, "the name of a variable is not empty and has no = in it")
    if workload.root == "host":
        if not (workload.private and os.path.realpath(workload.workdir) in ("/", *OWN_SCRATCH)):
            _wrong_workdir(workload.workdir, private, problem)
    else:
        if not os.path.exists(workload.root):
            problem("NOT_FOUND", "root", workload.root, "there is no such folder or archive")
        elif os.path.realpath(workload.root) == "/":
            problem("INVALID_REQUEST", "root", workload.root, "it is the host's own root", 'say root "host"')
        if not workload.workdir.startswith("/"):
            problem("INVALID_REQUEST", "workdir", workload.workdir, "it must be an absolute path")
    for mount in workload.mounts:
        target = os.path.normpath(mount.target)
        if not mount.target.startswith("/") or ".." in mount.target.split("/") or target == "/":
            problem("INVALID_REQUEST", "mounts", mount.target, "the target must be an absolute path other than /")
        elif any(below(target, own) for own in ("/proc", "/sys", "/dev")):
            problem("INVALID_REQUEST", "mounts", mount.target, "the kernel's own folders cannot be mounted over")
        try:
            mode = os.stat(mount.source).st_mode
        except OSError as error:
            reason = f"the source cannot be used: {(error.strerror or str(error)).lower()}"
            problem("NOT_FOUND", "mounts", mount.source, reason)
            continue
        if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)):
            remedy = "ask for devices with --gpu or --device"
            problem("INVALID_REQUEST", "mounts", mount.source, "only folders, files and sockets can be mounted", remedy)
        if any(below(path, folder) for path in (mount.source, real(mount.source)) for folder in private):
            problem("INVALID_REQUEST", "mounts", mount.source, "it is in dibs' own state folder")
    for volume in workload.volumes:
        if any(below(os.path.normpath(volume.target), own) for own in ("/proc", "/sys", "/dev")):
            problem("VOLUME_INVALID", "volumes", volume.target, "the kernel's own folders cannot be mounted over")
    return found


OWN_SCRATCH = ("/tmp", "/var/tmp")  # noqa: S108  # in every sandbox its own


def _wrong_workdir(workdir: str, private: Sequence[str], problem: Callable[..., None]) -> None:
    real = os.path.realpath(workdir)
    if not workdir.startswith("/"):
        problem("INVALID_REQUEST", "workdir", workdir, "it must be an absolute path")
    elif not os.path.isdir(real):
        problem("NOT_FOUND", "workdir", workdir, "there is no such folder")
    elif real == "/":
        reason = "the whole host would be writable"
        problem("INVALID_REQUEST", "workdir", workdir, reason, "choose a folder for the workload to write to")
    elif any(below(real, own) for own in ("/proc", "/sys", "/dev")):
        problem("INVALID_REQUEST", "workdir", workdir, "it is one of the kernel's own folders")
    elif any(below(real, folder) for folder in private):
        problem("INVALID_REQUEST", "workdir", workdir, "it is in dibs' own state folder")


def wrong_user(workload: Workload, root: str, *, all_ids: bool) -> tuple[tuple[int, int] | None, list[Problem]]:
    """The ids of the workload's user, if one was asked for, and what is wrong with it."""
    if not workload.user:
        return None, []
    return users.for_workload(workload.user, root, all_ids=all_ids)


def wrong_for_local(workload: Workload) -> list[Problem]:
    """What only an engine can do. An image was turned into a root before; of its configuration nothing is left."""
    found = []
    if workload.entrypoint:
        words = " ".join(workload.entrypoint)
        reason = "there is no image whose entrypoint it could replace"
        found.append(Problem("FIELD_NOT_SUPPORTED", "entrypoint", words, reason, "put it in front of the command"))
    own = "/".join(("linux", MACHINES.get(os.uname().machine, os.uname().machine)))
    if workload.platform not in ("", own):
        reason = f"the host is {own}, and nothing is emulated"
        found.append(Problem("FIELD_NOT_SUPPORTED", "platform", workload.platform, reason, "leave it out"))
    found += plain_fields.wrong(FIELDS, workload)
    for name in workload.options:
        reason = "this backend has no options of its own"
        found.append(Problem("FIELD_NOT_SUPPORTED", f"local.{name}", str(workload.options[name]), reason))
    return found


LEAST_PIDS = 3  # bubblewrap, its init, and the command
MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}


def wrong_limits(workload: Workload) -> list[Problem]:
    limits = workload.limits
    found = []
    for name, value in (("cpu", limits.cpu_millis), ("memory", limits.memory_bytes), ("pids", limits.pids)):
        if value is None:
            continue
        if value <= 0:
            found.append(Problem("INVALID_REQUEST", name, str(value), "a limit must be more than nothing"))
            continue
        if name == "pids" and value < LEAST_PIDS:
            reason = f"{LEAST_PIDS - 1} processes belong to the sandbox itself"
            found.append(Problem("INVALID_REQUEST", name, str(value), reason, f"say at least {LEAST_PIDS}"))
            continue
        capability = cgroups.can_limit(name)
        if not capability.ok:
            found.append(Problem("LIMIT_NOT_ENFORCEABLE", name, str(value), capability.reason, capability.remedy))
    return found
