"""Found devices as Kubernetes' ResourceSlices, and back.

`plan` hands the slices to the allocator, `dibs gpus -o slices` prints them, `dibs claims solve` solves on them. What is
made here passes Kubernetes' own rules: a name that they forbid is spelled anew (always the same way, so `device_of`
finds the device again), a value that they forbid is left out and named in an annotation of its slice. Slices say what
there is, not who holds it: that is `in_use`. Nothing here looks at the host.

Units become counters: each unit that several devices share is a counter of value 1, and every device consumes its own.
So a card and its parts exclude each other in the allocator exactly as they do in the ledger.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING

import msgspec

from dibs.claims.fielderrors import FieldErrors
from dibs.claims.identity import Allocated, DeviceId
from dibs.claims.meta import ObjectMeta
from dibs.claims.names import check_driver, check_label, check_pool, check_qualified, check_version
from dibs.claims.slice_validation import (
    MAX_COUNTER_SETS,
    MAX_DEVICES,
    MAX_DEVICES_WITH_DETAILS,
    MAX_ENTRIES,
    MAX_TAINTS,
    MAX_VALUE,
)
from dibs.claims.slices import (
    CapacityRequestPolicy,
    CapacityRequestPolicyRange,
    Counter,
    CounterSet,
    DeviceAttribute,
    DeviceCapacity,
    DeviceCounterConsumption,
    DeviceTaint,
    ResourcePool,
    ResourceSlice,
    ResourceSliceSpec,
)
from dibs.claims.slices import Device as PublishedDevice
from dibs.devices.model import Attribute, Device, Inventory
from dibs.devices.shared_counters import Consumption, Counting
from dibs.errors import NotFound
from dibs.quantity import NANO, Quantity

if TYPE_CHECKING:
    from dibs.claims.claim import DeviceRequestAllocationResult

UNHEALTHY = "dibs/unhealthy"  # the value is the reason
UNATTACHABLE = "dibs/unattachable"  # it is there, but cannot be put into a workload
OVERLAP = "dibs/overlap"  # it shares hardware in a way that counters cannot say; never given, so never given twice
LEFT_OUT = "dibs/left-out"  # annotation: what of the devices could not be published

_NO_SCHEDULE = "NoSchedule"
_INT64 = 1 << 63
_NOT_IN_A_NAME = re.compile(r"[^a-z0-9]+")
_NOT_IN_A_DOMAIN = re.compile(r"[^a-z0-9.]+")
_NOT_IN_A_VALUE = re.compile(r"[^A-Za-z0-9_.]+")
Known = dict[tuple[str, Attribute, type], DeviceAttribute | str]
_Last = tuple[tuple[Device, ...], str, list[ResourceSlice]]

# The last answer: a plan, a table and an explanation ask for the same devices one after the other.
_last: _Last | None = None


def slices_of(
    inventory: Inventory, *, node: str, taints: Mapping[str, Sequence[DeviceTaint]] | None = None
) -> list[ResourceSlice]:
    """The devices as slices of this node; one pool per driver and pool. `taints` are further ones, by device id."""
    global _last  # noqa: PLW0603
    known = _last
    if not taints and known is not None and known[0] is inventory.devices and known[1] == node:
        return list(known[2])
    slices = _slices(inventory, node, taints or {})
    if not taints:
        _last = (inventory.devices, node, slices)
    return list(slices)


def published_id(device: Device) -> DeviceId:
    """How the device is called in a slice and in an allocation: its own names, where Kubernetes allows them."""
    return DeviceId(_driver(device.driver), _pool(device.pool), _name(device.name))


def device_of(results: Iterable[DeviceRequestAllocationResult], inventory: Inventory) -> tuple[Device, ...]:
    """The devices that an allocation names, in its order. NotFound if there is one that the inventory has not."""
    by_id = {published_id(device): device for device in inventory.devices}
    found = []
    for result in results:
        wanted = DeviceId(result.driver, result.pool, result.device)
        if wanted not in by_id:
            raise NotFound("there is no such device", field="device", value=str(wanted), code="DEVICE_NOT_FOUND")
        found.append(by_id[wanted])
    return tuple(found)


def in_use(inventory: Inventory, held: Mapping[str, str]) -> Allocated:
    """What the allocator must count as taken. `held`: device id -> holder, for every device that is held
    something of; what was really leased comes first.

    Of a held card and its parts only the first is told: its counters say the rest. Both together would be more than
    there is, and a pool whose counters are overdrawn gives nothing.
    """
    devices = {device.id: (number, device) for number, device in enumerate(inventory.devices)}
    counting = Counting(inventory.devices)
    taken: dict[DeviceId, str] = {}
    consumed: dict[DeviceId, dict[str, int | str | float]] = {}
    drawn: set[tuple[object, ...]] = set()
    for device_id, holder in held.items():
        entry = devices.get(device_id)  # type: ignore[call-overload]
        if entry is None:
            continue  # leased, and gone since; whatever it left behind is held under its own name
        number, device = entry
        own = {
            (device.driver, device.pool, use.name, counter) for use in counting.of(number) for counter in use.counters
        }
        if not own & drawn:
            taken[published_id(device)] = holder
            drawn |= own
            if device.shareable:  # a lease of the whole device takes all of its capacity
                consumed[published_id(device)] = dict(device.capacity)
    return Allocated(taken, consumed=consumed)


def published(device: Device, known: Known | None = None) -> tuple[PublishedDevice, list[str]]:
    """One device as it stands in a slice, without counters and taints; and what of it could not be published.

    `known` keeps what was made of a value, for the many devices that have it too.
    """
    known = {} if known is None else known
    left_out: list[str] = []
    attributes: dict[str, DeviceAttribute] = {}
    for key, value in device.attributes.items():
        seen = (key, value, type(value))  # with its type, because True and 1 are equal
        made = known.get(seen)
        if made is None:
            made = known[seen] = _attribute(key, value)
        if isinstance(made, str):
            left_out.append(f"{device.name} {key} ({made})")
        else:
            attributes[key] = made
    capacity: dict[str, DeviceCapacity] = {}
    for key, amount in device.capacity.items():
        wrong = _key_problem(key) or ("" if 0 <= amount < _INT64 else "not an amount")
        if wrong:
            left_out.append(f"{device.name} {key} ({wrong})")
        else:
            capacity[key] = _shared_capacity(amount) if device.shareable else _capacity(amount)
    while len(attributes) + len(capacity) > MAX_ENTRIES:
        key = attributes.popitem()[0] if attributes else capacity.popitem()[0]
        left_out.append(f"{device.name} {key} (more than {MAX_ENTRIES} attributes)")
    shared = True if device.shareable else None
    made_of = PublishedDevice(
        name=_name(device.name), attributes=attributes, capacity=capacity, allow_multiple_allocations=shared
    )
    return made_of, left_out


def _slices(inventory: Inventory, node: str, extra: Mapping[str, Sequence[DeviceTaint]]) -> list[ResourceSlice]:
    counting = Counting(inventory.devices)
    known: Known = {}
    pools: dict[tuple[str, str], list[tuple[PublishedDevice, list[str]]]] = {}
    for number, device in enumerate(inventory.devices):
        shown, left_out = published(device, known)
        uses = counting.of(number)
        taints = _taints(device, counting.unsaid.get(number, ""), extra.get(device.id, ()))
        if uses or taints:
            shown = msgspec.structs.replace(
                shown, consumes_counters=tuple(_consumption(use) for use in uses), taints=taints
            )
        pools.setdefault((device.driver, device.pool), []).append((shown, left_out))
    found: list[ResourceSlice] = []
    for (driver, pool), devices in pools.items():
        found += _pool_slices(driver, pool, node, devices, counting.sets.get((driver, pool), []))
    return found


def _pool_slices(
    driver: str, pool: str, node: str, devices: list[tuple[PublishedDevice, list[str]]], sets: list[Consumption]
) -> list[ResourceSlice]:
    chunks = list(_chunks(devices))
    counted = [sets[start : start + MAX_COUNTER_SETS] for start in range(0, len(sets), MAX_COUNTER_SETS)]
    about = ResourcePool(name=_pool(pool), generation=1, resource_slice_count=len(chunks) + len(counted))
    start = _slice_name(node, driver, pool)
    # The allocator takes slices by name and devices as they stand: padded numbers keep the order of the inventory.
    digits = len(str(max(len(chunks), len(counted))))
    found = []
    for number, chunk in enumerate(chunks):
        left_out = "; ".join(note for _, notes in chunk for note in notes)
        found.append(
            ResourceSlice(
                metadata=ObjectMeta(
                    name=f"{start}-{number:0{digits}}", annotations={LEFT_OUT: left_out} if left_out else {}
                ),
                spec=ResourceSliceSpec(
                    driver=_driver(driver), pool=about, node_name=node, devices=tuple([shown for shown, _ in chunk])
                ),
            )
        )
    for number, part in enumerate(counted):
        found.append(
            ResourceSlice(
                metadata=ObjectMeta(name=f"{start}-counters-{number:0{digits}}"),
                spec=ResourceSliceSpec(
                    driver=_driver(driver), pool=about, node_name=node, shared_counters=tuple(map(_counter_set, part))
                ),
            )
        )
    return found


def _chunks(
    devices: list[tuple[PublishedDevice, list[str]]],
) -> Iterable[list[tuple[PublishedDevice, list[str]]]]:
    """As many devices together as a slice may have: fewer where one of them has taints or counters."""
    chunk: list[tuple[PublishedDevice, list[str]]] = []
    limit = MAX_DEVICES
    for entry in devices:
        detailed = bool(entry[0].taints or entry[0].consumes_counters)
        within = min(limit, MAX_DEVICES_WITH_DETAILS) if detailed else limit
        if len(chunk) >= within:
            yield chunk
            chunk = []
            within = MAX_DEVICES_WITH_DETAILS if detailed else MAX_DEVICES
        chunk.append(entry)
        limit = within
    if chunk:
        yield chunk


_ONE = Counter(value="1")


def _consumption(use: Consumption) -> DeviceCounterConsumption:
    return DeviceCounterConsumption(counter_set=_label(use.name), counters=dict.fromkeys(use.counters, _ONE))


def _counter_set(use: Consumption) -> CounterSet:
    return CounterSet(name=_label(use.name), counters=dict.fromkeys(use.counters, _ONE))


def _taints(device: Device, unsaid: str, extra: Sequence[DeviceTaint]) -> tuple[DeviceTaint, ...]:
    if device.health.ok and device.cdi is not None and not unsaid and not extra:
        return ()
    taints = []
    if not device.health.ok:
        taints.append(DeviceTaint(key=UNHEALTHY, value=_taint_value(device.health.reason), effect=_NO_SCHEDULE))
    if device.cdi is None:
        taints.append(DeviceTaint(key=UNATTACHABLE, value=_taint_value(device.unattachable), effect=_NO_SCHEDULE))
    if unsaid:
        taints.append(DeviceTaint(key=OVERLAP, value=unsaid, effect=_NO_SCHEDULE))
    # What keeps a device from being given comes first: it must not be what does not fit any more.
    taints += sorted(extra, key=lambda taint: taint.effect == "None")
    return tuple(taints[:MAX_TAINTS])


def _taint_value(reason: str) -> str:
    """The reason as near as the rules for a value let it come: `Xid 79` is `Xid-79`."""
    return _NOT_IN_A_VALUE.sub("-", reason).strip("-_.")[:63].rstrip("-_.")


def _attribute(key: str, value: Attribute) -> DeviceAttribute | str:
    """The attribute in its wire form, or why there is none."""
    wrong = _key_problem(key)
    if wrong:
        return wrong
    if isinstance(value, str):
        fits = len(value) * 4 <= MAX_VALUE or len(value.encode(errors="replace")) <= MAX_VALUE
        return DeviceAttribute(string_value=value) if fits else f"longer than {MAX_VALUE} bytes"
    if isinstance(value, bool):
        return DeviceAttribute(bool_value=value)
    if isinstance(value, int):
        return DeviceAttribute(int_value=value) if -_INT64 <= value < _INT64 else "more than 64 bits"
    errors = FieldErrors()
    check_version(errors, "", value.text, MAX_VALUE)
    return "not a version" if errors else DeviceAttribute(version_value=value.text)


@lru_cache(maxsize=4096)
def _capacity(amount: int) -> DeviceCapacity:
    return DeviceCapacity(value=str(Quantity(amount * NANO, binary=True)))


@lru_cache(maxsize=4096)
def _shared_capacity(amount: int) -> DeviceCapacity:
    """A capacity that is given in mebibytes; who does not say how much takes all of it."""
    whole = str(Quantity(amount * NANO, binary=True))
    step = CapacityRequestPolicyRange(min="1Mi", step="1Mi")
    return DeviceCapacity(value=whole, request_policy=CapacityRequestPolicy(default=whole, valid_range=step))


@lru_cache(maxsize=1024)
def _key_problem(key: str) -> str:
    errors = FieldErrors()
    check_qualified(errors, "", key)
    return "not a name for an attribute" if errors or key.count("/") > 1 else ""


@lru_cache(maxsize=64)
def _driver(driver: str) -> str:
    errors = FieldErrors()
    check_driver(errors, "", driver)
    return driver if not errors else _spelled_anew(driver, _NOT_IN_A_DOMAIN, 63)


@lru_cache(maxsize=64)
def _pool(pool: str) -> str:
    errors = FieldErrors()
    check_pool(errors, "", pool)
    return pool if not errors else _spelled_anew(pool, _NOT_IN_A_DOMAIN, 253)


def _name(name: str) -> str:
    return name if len(name) <= 63 and _is_label(name) else _spelled_anew(name, _NOT_IN_A_NAME, 63)


_is_label = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?", re.ASCII).fullmatch


def _label(name: str) -> str:
    errors = FieldErrors()
    check_label(errors, "", name)
    return name if not errors else _spelled_anew(name, _NOT_IN_A_NAME, 63)


def _slice_name(node: str, driver: str, pool: str) -> str:
    """Unique among all slices: node and driver, and the pool where it is not called after the node."""
    said = "-".join(part for part in (node, pool if pool != node else "", driver) if part)
    plain = ".".join(filter(None, (_NOT_IN_A_NAME.sub("-", part).strip("-") for part in said.split("."))))
    return plain if plain == said and len(plain) <= 200 else _spelled_anew(said, _NOT_IN_A_NAME, 200)


def _spelled_anew(text: str, odd: re.Pattern[str], length: int) -> str:
    """A name that the rules allow, with a hash of the original: two names never become one."""
    digest = blake2b(text.encode(errors="surrogatepass"), digest_size=5).hexdigest()
    words = [word.strip("-") for word in odd.sub("-", text.lower()).split(".")]
    kept = ".".join(word for word in words if word)[: length - len(digest) - 2].rstrip("-.")
    return f"{kept}-x{digest}" if kept else f"x{digest}"
