"""The receipt: what was asked, planned, rendered and observed, field by field.

Written before the command starts, kept in the ledger after the end. If what was observed is not what was planned, the
receipt says so and the command never runs: `differences` is what decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from dibs.backends.port import Expectation, Observation, Realisation, Workload
from dibs.devices.model import Device
from dibs.errors import Problem
from dibs.ledger.rows import Share
from dibs.plan.delivery import cell
from dibs.quantity import human_bytes
from dibs.request.claim import claim_of
from dibs.request.spec import SandboxSpec

HIDDEN = "(not kept)"


Outcome = Literal["delivered", "delegated", "refused", "mismatch", "not observed"]
TOO_SHORT = "its command had ended before anybody could look; `rendered` is what the engine was told and has accepted"


class ReceiptLine(msgspec.Struct, frozen=True):
    field: str
    asked: str
    planned: str
    rendered: str
    observed: str
    outcome: Outcome


class ReceiptDevice(msgspec.Struct, frozen=True, omit_defaults=True):
    id: str
    model: str
    uuid: str
    cdi_name: str
    nodes: tuple[str, ...]
    memory: int | None = None
    share: dict[str, str] = {}  # what of its capacity the sandbox has, where that is not all of it
    used_outside: tuple[str, ...] = ()


class Receipt(msgspec.Struct, frozen=True, omit_defaults=True):
    """The proof of one delivery."""

    sandbox: str
    name: str
    backend: str
    at: float
    verdict: Literal["delivered", "mismatch", "not observed"]
    simulated: bool
    asked: dict[str, Any]
    devices: tuple[ReceiptDevice, ...]
    lines: tuple[ReceiptLine, ...]
    rendered: dict[str, Any]
    observed: Observation
    expected: Expectation
    claim: dict[str, Any] | None = None
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()


def differences(expected: Expectation, observed: Observation) -> list[Problem]:
    """Every way in which the workload is not what was planned. More devices than planned is as wrong as fewer."""
    problems = []
    want, have = set(expected.nodes), set(observed.nodes)
    for node in sorted(want - have):
        there = next((f"{other} is there instead" for other in have if other.path == node.path), "it is not there")
        problems.append(_mismatch("devices", str(node), there))
    for node in sorted(have - want):
        if all(node.path != other.path for other in want):
            problems.append(_mismatch("devices", str(node), "it is there, but nobody asked for it"))
    for name, value in sorted(expected.env.items()):
        if observed.env.get(name) != value:
            seen = repr(observed.env[name]) if name in observed.env else "unset"
            problems.append(_mismatch(f"env.{name}", value, f"it is {seen}"))
    for path in expected.mounts:
        if path not in observed.mounts:
            problems.append(_mismatch("mounts", path, "it is not mounted"))
    for name, amount in sorted(expected.limits.items()):
        if observed.limits.get(name) != amount:
            problems.append(_mismatch(name, str(amount), f"the limit is {observed.limits.get(name, 'not set')}"))
    for name, place in sorted(expected.isolation.items()):
        if observed.isolation.get(name) != place:
            seen = observed.isolation.get(name, "not known")
            problems.append(_mismatch(name, place, f"its {name} namespace is {seen}"))
    return problems


def _mismatch(field: str, value: str, reason: str) -> Problem:
    remedy = "run `dibs doctor`; the command was not started"
    return Problem("DELIVERY_MISMATCH", field, value, reason, remedy)


def write_receipt(
    spec: SandboxSpec,
    workload: Workload,
    devices: tuple[Device, ...],
    realisation: Realisation,
    observed: Observation,
    problems: list[Problem],
    *,
    at: float,
    simulated: bool,
    notes: tuple[str, ...],
    told_env: frozenset[str],
    shares: Mapping[str, Share],
    looked: bool = True,
) -> Receipt:
    """`told_env`: the variables that dibs itself has set; of all others only the names are kept.

    `looked`: False where the command had ended before it could be looked at, which an engine cannot prevent.
    """
    expected = realisation.expectation
    bad = {problem.field.partition(".")[0] for problem in problems}
    lines = _Lines(workload, realisation.backend, bad, seen=looked)
    request = spec.resources
    if request.wants_devices:
        asked = " + ".join([*map(str, request.gpus), *request.devices]) or request.flags()
        lines.add(
            "devices",
            asked,
            ", ".join(f"{d.name} {d.model}".strip() for d in devices),
            ", ".join(d.attachment.cdi_name for d in devices if d.attachment),
            ", ".join(map(str, observed.nodes)) or "no device nodes",
            "gpu.count" if request.gpus else "devices",
        )
    else:
        seen = ", ".join(map(str, observed.nodes)) or "no device nodes"
        lines.add("devices", "none", "none", "none", seen, "gpu.count")
    for field, key, amount, show in (
        ("cpu", "cpu_millis", workload.limits.cpu_millis, lambda n: f"{n / 1000:g}"),
        ("memory", "memory_bytes", workload.limits.memory_bytes, human_bytes),
        ("pids", "pids", workload.limits.pids, str),
    ):
        if amount is not None:
            limit, seen_limit = expected.limits.get(key), observed.limits.get(key)
            asked_text = str(request.short().get(field, amount))
            rendered = show(limit) if limit is not None else "not rendered"
            lines.add(
                field, asked_text, show(amount), rendered, show(seen_limit) if seen_limit is not None else "not set"
            )
    told = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")
    for name in told:
        if name in expected.env:
            planned = expected.env[name] or "(empty)"
            seen = observed.env.get(name, "unset") or "(empty)"
            lines.add(f"env.{name}", "–", planned, planned, seen, "env", shown=f"env.{name}")
    if spec.env:
        kept = sum(observed.env.get(name) == value for name, value in spec.env.items())
        count = f"{len(spec.env)} variable{'' if len(spec.env) == 1 else 's'}"
        lines.add("env", count, count, count, f"{kept} as asked")
    workdir = workload.workdir or "the image's own"
    there = observed.env.get("PWD", "not told") if workload.workdir else workdir
    lines.add("workdir", spec.workdir or "–", workdir, workdir, there)
    for mount in workload.mounts:
        mode = "rw" if mount.writable else "ro"
        seen = next((item for item in observed.mounts if item.startswith(f"{mount.target} ")), "not mounted")
        lines.add("mounts", f"{mount.source}:{mount.target}", f"{mount.target} {mode}", mode, seen)
    private = {"own": "its own mounts", "host": "the host's mounts"}.get(
        observed.isolation.get("mount", ""), "not looked at"
    )
    if spec.image:
        lines.add("image", spec.image, workload.image, workload.image, private)
    else:
        lines.add("root", spec.root, workload.root, workload.root, private)
    shown = {"host": "host", "own": "none"}.get(observed.isolation.get("network", ""), "not looked at")
    lines.add("network", spec.network, workload.network, workload.network, shown)
    return Receipt(
        sandbox=workload.id,
        name=workload.name,
        backend=realisation.backend,
        at=at,
        verdict="mismatch" if problems else "delivered" if looked else "not observed",
        simulated=simulated,
        asked={**request.short(), "command": list(spec.command)},
        devices=tuple(_device(device, shares.get(device.id)) for device in devices),
        lines=tuple(lines.rows),
        rendered=realisation.native,
        observed=msgspec.structs.replace(observed, env=_told(observed.env, told_env)),
        expected=msgspec.structs.replace(expected, env=_told(expected.env, told_env)),
        claim=claim_of(request, workload.name),
        problems=tuple(problems),
        notes=notes if looked else (*notes, TOO_SHORT),
    )


def _told(env: dict[str, str], told: frozenset[str]) -> dict[str, str]:
    """Receipts are kept and shown; what the user's environment holds may be secret."""
    return {name: value if name in told else HIDDEN for name, value in env.items()}


class _Lines:
    """Collects receipt lines; a field with a problem is a mismatch, the others are what the delivery table says."""

    def __init__(self, workload: Workload, backend: str, bad: set[str], *, seen: bool) -> None:
        self.seen = seen
        self.workload = workload
        self.backend = backend
        self.bad = bad
        self.rows: list[ReceiptLine] = []

    def add(
        self, field: str, asked: str, planned: str, rendered: str, observed: str, row: str = "", shown: str = ""
    ) -> None:
        outcome: Outcome = "delivered" if self.seen else "not observed"
        observed = observed if self.seen else "it had ended"
        if field.partition(".")[0] in self.bad and planned != observed:
            outcome = "mismatch"
        elif cell(row or field, self.backend).outcome == "delegated":
            outcome = "delegated"
        self.rows.append(ReceiptLine(shown or field, asked, planned, rendered, observed, outcome))


def _device(device: Device, share: Share | None) -> ReceiptDevice:
    attachment = device.attachment
    nodes = tuple(node.path for node in attachment.edits.device_nodes or ()) if attachment else ()
    return ReceiptDevice(
        id=device.id,
        model=device.model,
        uuid=device.uuid,
        cdi_name=attachment.cdi_name if attachment else "",
        nodes=nodes,
        memory=device.memory,
        share={name: human_bytes(amount // 10**9) for name, amount in share.consumed.items()} if share else {},
        used_outside=tuple(f"{use.command} (pid {use.pid}, {use.user})" for use in device.used_by),
    )
