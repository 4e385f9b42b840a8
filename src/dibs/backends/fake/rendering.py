"""What the fake world would give a workload, and what is wrong with one."""

from __future__ import annotations

import shlex

from dibs.backends.port import Expectation, Limits, MountFact, NodeFact, Workload
from dibs.errors import InvalidRequest, Problem


def asked(limits: Limits) -> dict[str, int]:
    asked = {"cpu": limits.cpu_millis, "memory": limits.memory_bytes, "pids": limits.pids}
    return {name: value for name, value in asked.items() if value is not None}


def wrong(workload: Workload) -> list[Problem]:
    found = []
    if not workload.command or not workload.command[0]:
        found.append(Problem("INVALID_REQUEST", "command", "", "there is no command"))
    if not workload.workdir.startswith("/"):
        found.append(Problem("INVALID_REQUEST", "workdir", workload.workdir, "it must be an absolute path"))
    for name, value in asked(workload.limits).items():
        if value <= 0:
            found.append(Problem("INVALID_REQUEST", name, str(value), "a limit must be more than nothing"))
    found += [] if not workload.user else _wrong_user(workload.user)
    if workload.shm_bytes is not None and workload.shm_bytes <= 0:
        reason = "shared memory must be more than nothing"
        found.append(Problem("INVALID_REQUEST", "shm_size", str(workload.shm_bytes), reason))
    return found


def _wrong_user(text: str) -> list[Problem]:
    """Every number is a user here, and no name is."""
    words = text.split(":")
    if len(words) <= 2 and all(word.isascii() and word.isdigit() for word in words):
        return []
    return [Problem("INVALID_REQUEST", "user", text, "there is no such user", 'say "uid" or "uid:gid"')]


def check_user(text: str) -> None:
    problems = _wrong_user(text) if text else []
    if problems:
        raise InvalidRequest(problems)


def network(workload: Workload) -> dict[str, str]:
    published = {"published": ", ".join(map(str, workload.publish))} if workload.publish else {}
    return {"network": workload.network, **published}


def expected(workload: Workload) -> Expectation:
    nodes = {
        NodeFact(node.path, "b" if node.type == "b" else "c", node.major, node.minor)
        for device in workload.devices
        for edits in (device.attachment.spec_edits, device.attachment.edits)
        for node in edits.device_nodes
    }
    mounts = sorted(MountFact(one.target, "rw" if one.writable else "ro", one.source) for one in workload.mounts)
    limits = {
        key: value
        for key, value in (
            ("cpu_millis", workload.limits.cpu_millis),
            ("memory_bytes", workload.limits.memory_bytes),
            ("pids", workload.limits.pids),
            ("shm_bytes", workload.shm_bytes),
        )
        if value is not None
    }
    process = {"command": shlex.join(workload.command), "workdir": workload.workdir, "user": workload.user or "0:0"}
    process |= network(workload)
    return Expectation(tuple(sorted(nodes)), dict(workload.env), tuple(mounts), limits, process=process)
