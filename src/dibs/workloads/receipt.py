"""The receipt: what was asked, planned, rendered and observed, field by field.

Written before the command starts, kept in the ledger after the sandbox has ended. `differences` compares what was
observed with the plan; if they differ, the command never runs.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from dibs.backends.port import Expectation, NodeFact, Observation, Realisation, Workload
from dibs.devices.model import Device
from dibs.errors import Problem, quoted
from dibs.ledger.rows import Share
from dibs.plan.delivery import cell
from dibs.quantity import human_bytes
from dibs.receipt import Facts, Outcome, Receipt, ReceiptDevice, ReceiptLine
from dibs.request.claim import claim_of
from dibs.request.fields import BY_NAME, FIELDS
from dibs.request.spec import RESERVED_ENV, SandboxSpec

HIDDEN = "(not kept)"

TOO_SHORT = "its command had ended before it could be observed; `rendered` is what the engine was told and has accepted"


def moved(receipt: Receipt, devices: tuple[Device, ...], seen: tuple[NodeFact, ...], note: str) -> Receipt:
    """The same receipt of a sandbox that its cluster has put elsewhere, where it was looked at again."""
    return msgspec.structs.replace(
        receipt,
        devices=tuple(_device(device, None) for device in devices),
        observed=msgspec.structs.replace(receipt.observed, nodes=seen),
        expected=msgspec.structs.replace(receipt.expected, nodes=seen),
        notes=(*receipt.notes, note),
    )


def not_started(receipt: Receipt, problems: Iterable[Problem]) -> Receipt:
    """The receipt of a delivery that was as planned, and whose command then could not be executed."""
    return msgspec.structs.replace(receipt, verdict="not started", problems=(*receipt.problems, *problems))


def differences(expected: Expectation, observed: Observation) -> list[Problem]:
    """Every way in which the workload is not what was planned. More than planned is as wrong as less.

    Only what could not be looked at is left out.
    """
    comparisons = {"nodes": _nodes, "env": _env, "mounts": _mounts, "limits": _amounts, "isolation": _isolation}
    problems: list[Problem] = []
    for part, compare in comparisons.items():
        if part not in observed.unseen:
            problems += compare(expected, observed)
    return problems + list(_process(expected, observed))


def _nodes(expected: Expectation, observed: Observation) -> Iterator[Problem]:
    want, have = set(expected.nodes), set(observed.nodes)
    if "nodes" in expected.open:
        if not have:
            yield _mismatch("devices", "", "no device node is there")
        return
    for node in sorted(want - have):
        there = next((f"{other} is there instead" for other in have if other.path == node.path), "it is not there")
        yield _mismatch("devices", str(node), there)
    for node in sorted(have - want):
        if all(node.path != other.path for other in want):
            yield _mismatch("devices", str(node), "it is there, but was not asked for")


def _env(expected: Expectation, observed: Observation) -> Iterator[Problem]:
    """Values that dibs did not set may be secret: they are compared, and not told."""
    for name, value in sorted(expected.env.items()):
        if observed.env.get(name) != value:
            told = name in RESERVED_ENV or name.startswith("DIBS_")
            seen = (repr(observed.env[name]) if told else "another value") if name in observed.env else "unset"
            yield _mismatch(f"env.{name}", value if told else HIDDEN, f"it is {seen}")
    if "env" in expected.open:
        return
    for name in sorted(observed.env.keys() - expected.env.keys() - set(expected.may_env)):
        yield _mismatch(f"env.{name}", "unset", "it is set, but was not asked for")


def _mounts(expected: Expectation, observed: Observation) -> Iterator[Problem]:
    want, have = set(expected.mounts), set(observed.mounts)
    there = {mount.target: mount for mount in observed.mounts}
    for mount in sorted(want - have):
        other = there.get(mount.target)
        yield _mismatch("mounts", str(mount), f"{other} is there instead" if other else "it is not mounted")
    planned = {mount.target for mount in expected.mounts}
    for mount in sorted(have - want - set(expected.may_mount)):
        if mount.target not in planned:
            yield _mismatch("mounts", str(mount), "it is mounted, but was not asked for")


def _amounts(expected: Expectation, observed: Observation) -> Iterator[Problem]:
    for name, amount in sorted(expected.limits.items()):
        if observed.limits.get(name) != amount:
            yield _mismatch(
                _LIMITS.get(name, name), str(amount), f"the limit is {observed.limits.get(name, 'not set')}"
            )
    for name in sorted(observed.limits.keys() - expected.limits.keys()):
        yield _mismatch(_LIMITS.get(name, name), "no limit", f"it is limited to {observed.limits[name]}")


def _isolation(expected: Expectation, observed: Observation) -> Iterator[Problem]:
    for name, place in sorted(expected.isolation.items()):
        if observed.isolation.get(name) != place:
            field = name if name == "network" else f"isolation.{name}"
            yield _mismatch(field, place, f"its {name} namespace is {observed.isolation.get(name, 'not known')}")


def _process(expected: Expectation, observed: Observation) -> Iterator[Problem]:
    for name, value in sorted(expected.process.items()):
        if observed.process.get(name) != value and name not in observed.unseen:
            seen = repr(observed.process[name]) if name in observed.process else "not known"
            yield _mismatch(name, value, f"it is {seen}")
    for name in sorted(observed.process.keys() - expected.process.keys()):
        yield _mismatch(name, "", f"it is {quoted(observed.process[name])}, and nothing was planned for it")


_LIMITS = {field.attribute: field.name for field in FIELDS if field.limit}  # by what an expectation calls them


def _mismatch(field: str, value: str, reason: str) -> Problem:
    return Problem("DELIVERY_MISMATCH", field, value, reason, "run `dibs doctor`")


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
) -> Receipt:
    """`told_env`: the variables that dibs itself has set; of all others only the names are kept."""
    expected = realisation.expectation
    looked = not observed.unseen
    lines = _Lines(realisation, observed, problems)
    lines.devices(spec, devices)
    lines.limits(spec, workload)
    lines.environment(spec)
    lines.process(spec, workload)
    lines.mounts(workload)
    lines.separation(spec, workload)
    return Receipt(
        sandbox=workload.id,
        name=workload.name,
        backend=realisation.backend,
        at=at,
        verdict="mismatch" if problems else "delivered" if looked else "not observed",
        simulated=simulated,
        asked={**spec.resources.short(), "command": list(spec.command)},
        devices=tuple(_device(device, shares.get(device.id)) for device in devices),
        lines=tuple(lines.rows),
        rendered=realisation.native,
        observed=_kept(observed, told_env, observed.origin),
        expected=_kept(expected, told_env, {}),
        claim=claim_of(spec.resources, workload.name),
        problems=tuple(problems),
        notes=notes if looked else (*notes, TOO_SHORT),
    )


def _kept(facts: Expectation | Observation, told: frozenset[str], origin: dict[str, str]) -> Facts:
    """Receipts are kept and shown; what the user's environment holds may be secret."""
    env = {name: value if name in told else HIDDEN for name, value in facts.env.items()}
    shown = tuple(str(mount) for mount in facts.mounts)
    isolation: dict[str, str] = dict(facts.isolation)
    return Facts(facts.nodes, env, shown, facts.limits, isolation, facts.process, origin)


def _amount(key: str, amount: int) -> str:
    """A limit as people write it."""
    if key.endswith("_millis"):
        return f"{amount / 1000:g}"
    return human_bytes(amount) if key.endswith("_bytes") else str(amount)


def _asked(name: str, workload: Workload) -> str:
    """What was asked for a fact of the process that is a field of requests."""
    field = BY_NAME.get(name)
    value = getattr(workload, field.attribute) if field is not None and field.passed else None
    return "yes" if value is True else str(value) if value else "–"


class _Lines:
    """The lines of a receipt: one for each field. A field with a problem is a mismatch, the others are what the
    delivery table says."""

    def __init__(self, realisation: Realisation, observed: Observation, problems: list[Problem]) -> None:
        self.backend = realisation.backend
        self.native = realisation.native
        self.expected = realisation.expectation
        self.observed = observed
        self.bad = [(problem.field, problem.value) for problem in problems]
        self.rows: list[ReceiptLine] = []

    def add(
        self, field: str, asked: str, planned: str, rendered: str, observed: str, *, row: str = "", part: str = "",
        wrong: bool | None = None,
    ) -> None:  # fmt: skip
        """`row`: of the delivery table; `part`: of the observation; `wrong`: known by more than the field."""
        seen = (part or field) not in self.observed.unseen
        outcome: Outcome = "delivered" if seen else "not observed"
        if self.wrong(field) if wrong is None else wrong:
            outcome = "mismatch"
        elif row and cell(row, self.backend).outcome == "delegated":
            outcome = "delegated"
        origin = self.observed.origin.get(part or field, self.observed.origin.get("", "")) if seen else ""
        told = observed if seen else "it had ended"
        self.rows.append(ReceiptLine(field, asked, planned, rendered, told, outcome, origin))

    def wrong(self, field: str) -> bool:
        return any(name == field or name.startswith(f"{field}.") for name, _ in self.bad)

    def fact(self, name: str, asked: str, *, row: str = "") -> None:
        planned = self.expected.process.get(name)
        if planned is not None or self.wrong(name):
            told = planned if planned is not None else "not planned"
            self.add(name, asked, told, told, self.observed.process.get(name, "not known"), row=row)

    def devices(self, spec: SandboxSpec, devices: tuple[Device, ...]) -> None:
        request = spec.resources
        seen = ", ".join(map(str, self.observed.nodes)) or "no device nodes"
        if not request.wants_devices:
            self.add("devices", "none", "none", "none", seen, row="gpu.count", part="nodes")
            return
        asked = " + ".join([*map(str, request.gpus), *request.devices]) or request.flags()
        chosen = ", ".join(f"{device.name} {device.model}".strip() for device in devices)
        names = ", ".join(dict.fromkeys(str(device.attachment) for device in devices if device.attachment))
        self.add("devices", asked, chosen, names, seen, row="gpu.count" if request.gpus else "devices", part="nodes")

    def limits(self, spec: SandboxSpec, workload: Workload) -> None:
        for key, field in _LIMITS.items():
            amount = getattr(workload.limits if hasattr(workload.limits, key) else workload, key)
            if amount is None and not self.wrong(field):
                continue
            limit, seen = self.expected.limits.get(key), self.observed.limits.get(key)
            asked = "–" if amount is None else str(spec.resources.short().get(field, _amount(key, amount)))
            rendered = _amount(key, limit) if limit is not None else "no limit"
            planned = _amount(key, amount) if amount is not None else "no limit"
            told = _amount(key, seen) if seen is not None else "not set"
            self.add(field, asked, planned, rendered, told, part="limits")

    def environment(self, spec: SandboxSpec) -> None:
        expected, observed = self.expected.env, self.observed.env
        for name in ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"):
            if name in expected:
                planned = expected[name] or "(empty)"
                seen = observed.get(name, "unset") or "(empty)"
                self.add(f"env.{name}", "–", planned, planned, seen, row="env", part="env")
        count = len(expected)
        differ = sum(name.startswith("env.") for name, _ in self.bad)
        planned = f"{count} variable{'' if count == 1 else 's'}"
        self.add(
            "env", str(len(spec.env) or "–"), planned, planned, f"{differ} differ" if differ else planned, row="env"
        )

    def process(self, spec: SandboxSpec, workload: Workload) -> None:
        import shlex

        self.fact("command", shlex.join(spec.command) if spec.command else "–", row="command")
        self.fact("workdir", spec.workdir or "–", row="workdir")
        self.fact("user", workload.user or "–", row="user")
        for name in sorted(
            self.expected.process.keys() | {name for name, _ in self.bad if name in self.observed.process}
        ):
            if name not in ("command", "workdir", "user", "network"):
                self.fact(name, ", ".join(map(str, spec.publish)) if name == "published" else _asked(name, workload))

    def mounts(self, workload: Workload) -> None:
        places = self.native.get("targets") or {}
        planned = {mount.target: mount for mount in self.expected.mounts}
        seen = {mount.target: mount for mount in self.observed.mounts}
        asked = [("mount", one.source, one.target, "rw" if one.writable else "ro") for one in workload.mounts]
        asked += [("volume", str(one), one.target, one.mode) for one in workload.volumes]
        for field, source, target, mode in asked:
            place = places.get(target, os.path.normpath(target))
            want = str(planned[place]) if place in planned else f"{place} {mode}"
            have = str(seen[place]) if place in seen else "not mounted"
            self.add(
                field,
                f"{source}:{target}:{mode}",
                want,
                want,
                have,
                row=f"{field}s",
                part="mounts",
                wrong=want != have and "mounts" not in self.observed.unseen,
            )
        count = f"{len(self.expected.mounts)} in all"
        differ = sum(name == "mounts" for name, _ in self.bad)
        self.add("mounts", "–", count, count, f"{differ} differ" if differ else count, row="mounts")

    def separation(self, spec: SandboxSpec, workload: Workload) -> None:
        expected, observed = self.expected.isolation, self.observed.isolation
        own = {"own": "its own mounts", "host": "the host's mounts"}.get(observed.get("mount", ""), "not looked at")
        field, said, used = ("image", spec.image, workload.image) if spec.image else ("root", spec.root, workload.root)
        self.add(field, said, used, used, own, row=field, part="isolation", wrong=self.wrong("isolation.mount"))
        network = self.expected.process.get("network", workload.network)
        same = network if observed.get("network") == expected.get("network") else observed.get("network", "")
        seen = self.observed.process.get("network", "") or same or "not looked at"
        self.add("network", spec.network or "–", network, network, seen, row="network")
        planned = ", ".join(sorted(name for name, place in expected.items() if place == "own"))
        seen = ", ".join(sorted(name for name, place in observed.items() if place == "own" and name in expected))
        if planned:
            self.add("isolation", "–", planned, planned, seen or "none")


def _device(device: Device, share: Share | None) -> ReceiptDevice:
    cdi = device.cdi
    nodes = tuple(node.path for node in cdi.edits.device_nodes or ()) if cdi else ()
    return ReceiptDevice(
        id=device.id,
        model=device.model,
        uuid=device.uuid,
        cdi_name=cdi.cdi_name if cdi else "",
        attached_as="" if cdi or device.attachment is None else str(device.attachment),
        nodes=nodes,
        memory=device.memory,
        share={name: human_bytes(amount // 10**9) for name, amount in share.consumed.items()} if share else {},
        used_outside=tuple(map(str, device.used_by)),
    )
