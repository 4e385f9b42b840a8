"""Claims on a cluster's slices: can this node serve them, and if not, which request fails, by what, and who holds it.

`pending` asks for each node. The allocator decides; here its notes become reasons. A request is first judged alone,
then its claim with its constraints, then all claims together, so that the reason names the smallest thing that fails.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property

import msgspec

from dibs.claims import (
    Allocated,
    Allocator,
    BadClaim,
    BadPool,
    DeviceId,
    Explanation,
    GaveUp,
    Inventory,
    Node,
    RequestExplanation,
    ResourceClaim,
    Verdict,
)
from dibs.claims.claim import DeviceClaim, ResourceClaimSpec
from dibs.claims.slices import Device
from dibs.kube.inventory import ClusterInventory
from dibs.kube.verdicts import Reason
from dibs.patterns import lazy_pattern

_NAMED = 4  # devices of one kind in a sentence; -o json has them all
_BUDGET = 200_000  # steps per question; there are many nodes
_WORDS = {
    "in-use": ("in use", "DEVICE_IN_USE"),
    "taken": ("given to another request of the same pod", "DEVICES_TOGETHER"),
    "taint": ("tainted", "DEVICE_TAINTED"),
    "counters": ("drawing on shared counters that are used up", "DEVICE_COUNTERS_USED_UP"),
    "capacity": ("without enough capacity left", "DEVICE_CAPACITY_SHORT"),
    "constraint": ("breaking a constraint", "DEVICE_CONSTRAINT"),
    "counters-off": ("in need of DRAPartitionableDevices, which is off", "DEVICE_UNUSABLE"),
    "compatibility-groups": ("incompatible with what is in use", "DEVICE_UNUSABLE"),
    "node-operations": ("in need of a newer kubelet", "DEVICE_UNUSABLE"),
    "binding-conditions": ("in need of binding conditions, which are off", "DEVICE_UNUSABLE"),
    "other-node": ("for other nodes", "DEVICE_UNUSABLE"),
}
_REMEDIES = {
    "DEVICE_IN_USE": "wait until they are free, end what holds them, or ask for fewer",
    "DEVICE_TAINTED": "tolerate the taint in the request (tolerations), or have the device repaired and untainted",
    "DEVICE_COUNTERS_USED_UP": "end what draws on the same counters, or ask for a smaller partition",
    "DEVICE_CAPACITY_SHORT": "ask for less capacity, or end what shares the device",
    "DEVICE_CONSTRAINT": "loosen the constraint, or ask for fewer devices",
    "DEVICES_TOGETHER": "ask for fewer devices in all: each request fits alone, but not beside the others",
    "DEVICE_UNUSABLE": "see the feature gates and versions of the cluster: dibs doctor --cluster",
}
_RUNTIME = lazy_pattern(r"selector #(\d+) on device (\S+): CEL runtime error: (.*)", re.DOTALL)


class DeviceJudge:
    """The devices of one cluster at one moment, asked for many nodes."""

    def __init__(self, inventory: ClusterInventory, devices: Inventory | None = None) -> None:
        """`devices`: those of the inventory, where they have been prepared before."""
        self._inventory = inventory
        self._prepared = devices or Inventory(inventory.slices, inventory.rules)
        self._allocator = Allocator(self._prepared, inventory.classes, Allocated.of_claims(inventory.claims))

    def of(self, inventory: ClusterInventory) -> DeviceJudge:
        """A judge of the same devices with other claims. What selectors said of them is not asked again."""
        return DeviceJudge(inventory, self._prepared)

    @cached_property
    def _holders(self) -> dict[DeviceId, list[ResourceClaim]]:
        return self._inventory.holders()

    @cached_property
    def _devices(self) -> dict[DeviceId, Device]:
        return {
            DeviceId(one.spec.driver, one.spec.pool.name, device.name): device
            for one in self._inventory.slices
            for device in one.spec.devices
        }

    def judge(self, node: Node, claims: Sequence[ResourceClaim]) -> tuple[tuple[Reason, ...], tuple[Explanation, ...]]:
        """Why the claims cannot all be had on a node, and what was noted; nothing where they can."""
        if not claims:
            return (), ()
        answer = self._ask(node, claims)
        if answer is None:
            return (), ()
        single: list[tuple[ResourceClaim, Explanation | Reason]] = []
        parts = [part for claim in claims for part in _requests_of(claim)]
        for part in parts if len(parts) > 1 else ():
            found = self._ask(node, [part])
            if found is not None:
                single.append((part, found))
        if single:
            return self._reasons([found for _, found in single])
        if len(claims) > 1:
            for claim in claims:
                found = self._ask(node, [claim])
                if found is not None:
                    single.append((claim, found))
            if single:
                return self._reasons([found for _, found in single])
        return self._reasons([answer], together=len(parts) > 1)

    def _ask(self, node: Node, claims: Sequence[ResourceClaim]) -> Explanation | Reason | None:
        """None: it can be had. Else what the allocator noted, or why it cannot be decided."""
        try:
            outcome = self._allocator.allocate(node, claims, budget=_BUDGET)
        except BadClaim as failure:
            return _undecidable(str(failure), self._inventory)
        except BadPool as failure:
            return Reason("POOL_UNUSABLE", str(failure), "see the driver that publishes the pool; it may be starting")
        except GaveUp as failure:
            return Reason("CLAIM_UNDECIDABLE", str(failure), "simplify the claim; the scheduler has a limit too")
        return None if outcome.results is not None else outcome.explanation

    def _reasons(
        self, found: Sequence[Explanation | Reason], *, together: bool = False
    ) -> tuple[tuple[Reason, ...], tuple[Explanation, ...]]:
        reasons: list[Reason] = []
        explanations: list[Explanation] = []
        for one in found:
            if isinstance(one, Reason):
                reasons.append(one)
                continue
            explanations.append(one)
            short = [self._reason(request) for request in one.requests if _short(request) or not together]
            if not short:
                short = [
                    Reason(
                        "DEVICES_TOGETHER",
                        one.note or "the requests do not fit together",
                        _REMEDIES["DEVICES_TOGETHER"],
                    )
                ]
                short += [self._reason(request) for request in one.requests if "constraint" in request.tally]
            reasons += short
            reasons += [
                Reason(
                    "POOL_UNUSABLE",
                    f"pool {pool.pool} cannot be used: {pool.reason}",
                    "see the driver that publishes it",
                )
                for pool in one.pools
            ]
        return tuple(dict.fromkeys(reasons)), tuple(explanations)

    def _reason(self, one: RequestExplanation) -> Reason:
        """One request that cannot be had on this node, in a sentence."""
        wanted = "all devices" if one.wanted is None else f"{one.wanted} device{'' if one.wanted == 1 else 's'}"
        head = f"request {one.request} of claim {one.claim} wants {wanted} of class {one.device_class}"
        if one.seen == 0:
            return Reason(
                "NO_DEVICES",
                f"{head}, and no driver publishes devices there",
                "install the DRA driver of these devices on the node, or see why it publishes nothing",
            )
        if one.selected == 0:
            return self._no_match(one, head)
        fallen: dict[str, list[Verdict]] = {}
        for verdict in one.fell:
            if verdict.reason in _WORDS and verdict.reason != "binding-conditions":
                fallen.setdefault(verdict.reason, []).append(verdict)
        groups = sorted(fallen.items(), key=lambda item: -len(item[1]))
        parts = [
            f"{len(verdicts)} {_WORDS[reason][0]} ({self._named(reason, verdicts)})" for reason, verdicts in groups
        ]
        matching = f"{one.selected} match" if one.selected != 1 else "1 matches"
        code = _WORDS[groups[0][0]][1] if groups else "DEVICE_NO_MATCH"
        if not groups:
            return Reason(code, f"{head}; only {matching}", f"ask for at most {one.selected}, or loosen the selectors")
        return Reason(code, f"{head}; {matching}, of these {', '.join(parts)}", _REMEDIES.get(code, ""))

    def _no_match(self, one: RequestExplanation, head: str) -> Reason:
        nearest = one.nearest
        if one.of_class == 0:
            selector = nearest.detail if nearest is not None else ""
            return Reason(
                "DEVICE_NO_MATCH",
                f"{head}; none of the {one.seen} devices there is of that class ({_flat(selector)})",
                "take another class (kubectl get deviceclasses), or see which devices the driver publishes",
            )
        text = f"{head}; of {one.of_class} devices of the class none matches its selectors"
        if nearest is None:
            return Reason("DEVICE_NO_MATCH", text, "loosen the selectors")
        values = self._values(nearest)
        text += f"; nearest: {_short_name(nearest.device)} fails {_flat(nearest.detail)}"
        return Reason(
            "DEVICE_NO_MATCH",
            text,
            f"change the selector to what is there: {values}" if values else "change or drop that selector",
        )

    def _values(self, verdict: Verdict) -> str:
        """What the nearest device has for the names that the selector mentions."""
        device = self._devices.get(_device_id(verdict.device))
        if device is None:
            return ""
        words = set(re.findall(r"[A-Za-z0-9_-]+", verdict.detail))
        found = []
        for name, attribute in device.attributes.items():
            if name.rpartition("/")[2] in words:
                value = next(iter(msgspec.to_builtins(attribute).values()), "")
                found.append(f"{name} is {value!r}" if isinstance(value, str) else f"{name} is {value}")
        for name, capacity in device.capacity.items():
            if name.rpartition("/")[2] in words:
                found.append(f"{name} is {capacity.value}")
        return ", ".join(found)

    def _named(self, reason: str, verdicts: Sequence[Verdict]) -> str:
        said = []
        for verdict in verdicts[:_NAMED]:
            name = _short_name(verdict.device)
            detail = self._held_by(verdict) if reason == "in-use" else _flat(verdict.detail)
            if reason in ("counters", "capacity"):
                held = self._held_by(verdict)
                detail = f"{detail}; {held}" if held and detail else held or detail
            said.append(f"{name}: {detail}" if detail else name)
        more = len(verdicts) - _NAMED
        return "; ".join(said) + (f"; and {more} more" if more > 0 else "")

    def _held_by(self, verdict: Verdict) -> str:
        """The claims that hold a device, or draw on what it draws on, and their pods."""
        device = _device_id(verdict.device)
        claims = list(self._holders.get(device, ()))
        if verdict.reason == "counters" and not claims:
            claims = [claim for other in self._sharing(device) for claim in self._holders.get(other, ())]
        said = []
        for claim in {(one.metadata.namespace, one.metadata.name): one for one in claims}.values():
            users = self._inventory.users_of(claim)
            name = f"{claim.metadata.namespace}/{claim.metadata.name}"
            said.append(f"held by claim {name}" + (f" of {', '.join(users[:2])}" if users else ""))
        return ", ".join(said[:3])

    def _sharing(self, device: DeviceId) -> list[DeviceId]:
        """The devices of the same pool that draw on the same counter sets."""
        own = self._devices.get(device)
        if own is None:
            return []
        sets = {one.counter_set for one in own.consumes_counters}
        return [
            other
            for other, found in self._devices.items()
            if other[:2] == device[:2]
            and other != device
            and sets & {one.counter_set for one in found.consumes_counters}
        ]


def _short(one: RequestExplanation) -> bool:
    """Whether a request lacks devices for reasons of its own, not because others were given them."""
    lost = sum(1 for verdict in one.fell if verdict.reason in _WORDS and verdict.reason not in ("taken", "constraint"))
    return one.selected - lost < (one.wanted or 1)


def _undecidable(text: str, inventory: ClusterInventory) -> Reason:
    if "there is no such class" in text:
        listed = ", ".join(one.metadata.name for one in inventory.classes[:8]) or "none"
        return Reason("CLASS_MISSING", text, f"create the DeviceClass, or take one that is there: {listed}")
    if runtime := _RUNTIME.search(text):
        return Reason(
            "SELECTOR_FAILS",
            text,
            f"selector #{runtime[1]} fails on {_short_name(runtime[2])}, and the scheduler gives up on that: guard it, "
            "with has(x) && …, or with .?x.orValue(…)",
        )
    return Reason("CLAIM_UNDECIDABLE", text, "change the claim: the scheduler cannot decide it either")


def _requests_of(claim: ResourceClaim) -> list[ResourceClaim]:
    """Each request of a claim as a claim of its own, without constraints."""
    return [
        msgspec.structs.replace(claim, spec=ResourceClaimSpec(devices=DeviceClaim(requests=(request,))))
        for request in claim.spec.devices.requests
    ]


def _device_id(text: str) -> DeviceId:
    driver, _, rest = text.partition("/")
    pool, _, device = rest.rpartition("/")
    return DeviceId(driver, pool, device)


def _short_name(device: str) -> str:
    return device.partition("/")[2]


def _flat(text: str) -> str:
    return " ".join(text.split())
