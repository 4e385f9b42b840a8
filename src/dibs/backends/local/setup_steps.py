"""What setting up a sandbox checks, sets and, if it fails, removes: the parts of `create` and `start` of the backend.

`backend` calls it. The order of the steps is there; nothing here remembers anything.
"""

from __future__ import annotations

import os
import select
from pathlib import Path
from typing import Any

import msgspec

from dibs.backends import plain_fields
from dibs.backends.local import cgroups, uplinks
from dibs.backends.local.plain_fields import FIELDS
from dibs.backends.local.shim_client import Connection
from dibs.backends.port import Handle, Workload
from dibs.errors import BackendUnavailable, CommandFailed, DeliveryMismatch, NotFound, Problem
from dibs.process import name_of

SECCOMP_FILTER = "2"  # in /proc/PID/status: system calls are filtered


def apply(field: plain_fields.PlainField, pid: int, amount: int) -> None:
    assert field.apply is not None
    try:
        field.apply(pid, amount)
    except OSError as error:
        raise BackendUnavailable(
            f"it could not be set: {error.strerror}", field=field.name, value=str(amount), code="LIMIT_NOT_ENFORCEABLE"
        ) from error


def make_handle(
    workload: Workload, folder: Path, answer: dict[str, str], group: cgroups.Group, *, powers: bool
) -> Handle:
    keeper, init = name_of(int(answer["keeper"])), name_of(int(answer["init"]))
    if keeper is None or init is None:
        raise setup_failed("it ended at once")
    data = {"groups": "\n".join(group.folders), "freezer": group.freezer.partition(":")[2]}
    if group.scope:
        data["scope"] = group.scope
    data |= plain_fields.marks(FIELDS, workload)
    if powers:
        data["powers"] = "1"  # root inside has power over files: see `userns`
    if "uplink" in answer:
        uplink = name_of(int(answer["uplink"]))
        if uplink is None:
            raise setup_failed("its network was lost at once")
        data["uplink"] = msgspec.json.encode(uplink).decode()
        data["publish"] = msgspec.json.encode(workload.publish).decode()
    return Handle("local", workload.id, str(folder), keeper, init, data)


def check_still_there(fact: Any, args: list[str]) -> None:
    """A node may have vanished since the plan was made."""
    source = args[args.index(fact.path) - 1]
    try:
        info = os.stat(source)
    except OSError:
        info = None
    if info is None or (os.major(info.st_rdev), os.minor(info.st_rdev)) != (fact.major, fact.minor):
        raise NotFound(
            "the device node was there when the plan was made, and is gone"
            if info is None
            else "the device node is another one than when the plan was made",
            field="devices",
            value=source,
            code="DEVICE_GONE",
            remedy="look at the devices again: dibs gpus",
        )


def setup_failed(reason: str) -> BackendUnavailable:
    return BackendUnavailable(
        f"the sandbox could not be set up: {reason}", field="sandbox", code="SANDBOX_SETUP_FAILED"
    )


def check_started(answer: dict[str, str] | None, command: str) -> None:
    """Raise unless the command was executed, under what was promised as far as it was still there to be looked at."""
    if answer is None:
        raise BackendUnavailable("the sandbox's shim ended before the start", code="SHIM_LOST")
    reason = answer.get("error", "")
    if reason.startswith("bwrap: execvp "):
        trouble = reason.rpartition(": ")[2].lower()
        raise CommandFailed(f"it cannot be executed: {trouble}", missing="no such file" in trouble, value=command)
    if reason:
        raise setup_failed(reason)
    wanted = {"seccomp": SECCOMP_FILTER, "no_new_privs": "1"}
    problems = [
        Problem("DELIVERY_MISMATCH", name, answer[name], f"the command should have {value}")
        for name, value in wanted.items()
        if answer.get(name, value) != value
    ]
    if problems:
        raise DeliveryMismatch(problems)


def complaint(folder: Path) -> str:
    try:
        lines = (folder / "shim.err").read_text(errors="replace").strip().splitlines()
    except OSError:
        lines = []
    return lines[-1] if lines else "its shim ended without a word"


def forget(folder: Path, made: bool, group: cgroups.Group) -> None:
    """Leave nothing of a sandbox that could not be made."""
    for _ in range(200):
        if not cgroups.remove(list(group.folders)):
            break
        select.select([], [], [], 0.005)
    if made:
        remove(folder)
        return
    for name in ("shim.sock", "exit.json", "exit.json.new", "shim.err", "log", "log.1", "phase", *uplinks.FILES):
        (folder / name).unlink(missing_ok=True)
    remove(folder / "bundle")


def wait_for_end(folder: Path) -> None:
    """After the hold was let go: until the shim has tidied up."""
    connection = Connection.to(folder)
    if connection is not None:
        try:
            connection.send(b"H", [("mode", "wait")])
            while connection.next(30.0) is not None:
                pass
        except OSError:
            pass
        finally:
            connection.close()


def remove(folder: Path) -> None:
    import shutil  # it brings every compressor along, and most commands remove nothing

    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        shutil.rmtree(folder)  # something was in the way: now say what
