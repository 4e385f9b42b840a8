"""The delivery table: each field of a request, on each backend, is delivered, delegated or refused. There is no fourth.

This table is the promise. The planner refuses by it, the docs page and the capability listing are printed from it, and
a test fails when a field of `SandboxSpec` or `Request` has no row, or a row has a blank cell.
"""

from __future__ import annotations

import enum

import msgspec


class Outcome(enum.StrEnum):
    DELIVERED = "delivered"
    DELEGATED = "delegated"
    REFUSED = "refused"


class Cell(msgspec.Struct, frozen=True):
    """What happens to a field on a backend, and how it is known. `probe`: only if the backend finds it can, here."""

    outcome: Outcome
    how: str
    probe: bool = False


def _yes(how: str, *, probe: bool = False) -> Cell:
    return Cell(Outcome.DELIVERED, how, probe)


def _no(why: str) -> Cell:
    return Cell(Outcome.REFUSED, why)


_CHOSEN = _yes("chosen by dibs, booked in the ledger")
_MEMORY_ONLY = _yes("kept in memory; nothing runs")

TABLE: dict[str, dict[str, Cell]] = {
    "gpu.count": {
        "local": _yes("leased in the ledger; exactly these device nodes are in the sandbox's /dev"),
        "fake": _MEMORY_ONLY,
    },
    "gpu.vendor": {"local": _CHOSEN, "fake": _CHOSEN},
    "gpu.models": {"local": _CHOSEN, "fake": _CHOSEN},
    "gpu.memory": {"local": _CHOSEN, "fake": _CHOSEN},
    "gpu.all": {
        "local": _yes("resolved to a list when planned; the list is in the plan and the receipt"),
        "fake": _CHOSEN,
    },
    "devices": {"local": _yes("exactly the named devices, or a refusal that names the holder"), "fake": _CHOSEN},
    "where": {"local": _yes("CEL, evaluated by dibs on the devices that it found"), "fake": _CHOSEN},
    "claim": {
        "local": _yes("solved by dibs' own DRA allocator; admin access and driver configuration are refused"),
        "fake": _CHOSEN,
    },
    "allow_busy": {
        "local": _yes("cards that processes outside dibs use may be given; the receipt says so"),
        "fake": _CHOSEN,
    },
    "cpu": {"local": _yes("cgroup quota, read back", probe=True), "fake": _MEMORY_ONLY},
    "memory": {"local": _yes("cgroup limit, read back", probe=True), "fake": _MEMORY_ONLY},
    "pids": {"local": _yes("cgroup limit, read back", probe=True), "fake": _MEMORY_ONLY},
    "command": {"local": _yes("started in the sandbox after the devices were seen in it"), "fake": _MEMORY_ONLY},
    "name": {"local": _yes("unique among live sandboxes, by the ledger"), "fake": _yes("unique, by the ledger")},
    "backend": {"local": _yes("this one"), "fake": _yes("this one; never taken by auto")},
    "env": {"local": _yes("read back from the sandbox's first process"), "fake": _MEMORY_ONLY},
    "workdir": {"local": _yes("bound writable; must exist"), "fake": _MEMORY_ONLY},
    "root": {"local": _yes("the host's own, a folder or a tar; never written to"), "fake": _MEMORY_ONLY},
    "network": {"local": _yes("host, or none: a network namespace without interfaces"), "fake": _MEMORY_ONLY},
    "mounts": {"local": _yes("bind mounts, read back from mountinfo"), "fake": _MEMORY_ONLY},
    "ttl": {"local": _yes("kept by the sandbox's own shim, whether dibs runs or not"), "fake": _MEMORY_ONLY},
    "wait": {"local": _yes("a place in the ledger's queue, first come first served"), "fake": _yes("the same queue")},
    "grace": {"local": _yes("SIGTERM, then SIGKILL after it"), "fake": _MEMORY_ONLY},
    "tty": {"local": _yes("a pseudo-terminal held by the shim"), "fake": _no("nothing runs, so there is no terminal")},
    "interactive": {
        "local": _yes("stdin stays open for whoever attaches"),
        "fake": _no("nothing runs that reads"),
    },
    "labels": {"local": _yes("kept in the ledger"), "fake": _yes("kept in the ledger")},
}

BACKENDS: tuple[str, ...] = ("local", "fake")


def cell(field: str, backend: str) -> Cell:
    return TABLE[field][backend]
