"""The planner: a request, the devices, who holds them, who waits → a plan, or every reason why not.

Pure. `workloads` calls `plan` inside the ledger's write transaction, so what it decides on cannot change under it, and
`explain` calls it outside of one. The explanation is filled on the way.

Fairness: whoever waits in front is served first in thought. What the one in front would get now is taken; if it cannot
be served now, everything that could ever serve it is kept for it. A later request gets from what is left.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from dibs.devices.model import Device, Inventory
from dibs.devices.names import ALL_OF_HOST
from dibs.errors import (
    Busy,
    DibsError,
    InvalidRequest,
    NoMatch,
    NotFound,
    Problem,
    QuotaExceeded,
    Unhealthy,
    Unsupported,
)
from dibs.ledger.rows import Holder, Share, Taint, unit_key
from dibs.plan.explanation import Fate, Verdict, WishExplanation
from dibs.plan.matching import assign, is_gpu, misfit
from dibs.request.durations import show_duration
from dibs.request.model import ALL, GpuSelector, Request

_SOLD_AS = 0.05  # how much smaller than its nominal size, in binary units, a card's memory is at most
_EXACT_SIZE = re.compile(r"([0-9.]+[MGT])i")


class SharedUse(msgspec.Struct, frozen=True):
    """The shares of one device that are held: the sums, in billionths, and who has them."""

    consumed: dict[str, int]
    holders: tuple[Holder, ...]


class World(msgspec.Struct, frozen=True):
    """Everything that a plan depends on, at one moment."""

    inventory: Inventory
    holders: Mapping[str, Holder]
    ahead: tuple[Request, ...] = ()  # who waits in front, first come first
    now: float = 0.0
    cannot: Mapping[str, str] = {}  # device id -> why this backend cannot attach it
    leased: Mapping[str, Holder] = {}  # device id -> who has the whole of it
    shares: Mapping[str, SharedUse] = {}  # device id -> who has parts of its capacity
    taints: Mapping[str, tuple[Taint, ...]] = {}  # device id -> what people say against it
    node: str = ""
    classes: Callable[[], Sequence[Any]] = tuple  # the device classes, read when a claim needs them


class DevicePlan(msgspec.Struct, frozen=True):
    """The devices that a request gets, and how they were found. A device without a share is had whole."""

    devices: tuple[Device, ...] = ()
    wishes: tuple[WishExplanation, ...] = ()
    shares: Mapping[str, Share] = {}
    parts: tuple[tuple[str, ...], ...] = ()  # the ids of the devices of each part of the request, where it has parts


class Refusal(msgspec.Struct, frozen=True):
    """Why a request gets nothing now. `error` is the class for the caller; waiting helps only if `waitable`."""

    problems: tuple[Problem, ...]
    wishes: tuple[WishExplanation, ...]
    error: str
    waitable: bool
    waits_for: str = ""

    def to_error(self) -> DibsError:
        kinds: dict[str, type[DibsError]] = {
            kind.__name__: kind
            for kind in (Busy, NoMatch, Unhealthy, NotFound, Unsupported, InvalidRequest, QuotaExceeded)
        }
        return kinds[self.error](self.problems)


def plan_devices(request: Request, world: World) -> DevicePlan | Refusal:
    """Choose devices for a request. Nothing is changed."""
    if not request.wants_devices:
        return DevicePlan()
    blocked = _taken_by_those_ahead(world)
    return _decide(request, world, blocked)


def servable(requests: Sequence[Request], world: World) -> list[int]:
    """Which of those who wait could be served now, by their places in the queue, the first being 0."""
    return [place for place, served in _in_turn(requests, world, {}) if served]


def _taken_by_those_ahead(world: World) -> dict[str, str]:
    """Device id → why it is not for us: a request in front gets it, or waits for it."""
    blocked: dict[str, str] = {}
    for _ in _in_turn(world.ahead, world, blocked):
        pass
    return blocked


def _in_turn(requests: Sequence[Request], world: World, blocked: dict[str, str]) -> Iterator[tuple[int, bool]]:
    """Serve requests in thought, first come first: whether each gets its devices. What it gets or waits for is
    `blocked` for those behind it. Ends when nothing is left."""
    refused: set[int] = set()
    for place, request in enumerate(requests):
        if id(request) in refused:
            continue  # the same as one in front of it, which waits for all that it could have
        decision = _decide(request, world, blocked)
        if isinstance(decision, DevicePlan):
            ids: set[str] = {device.id for device in decision.devices}
        else:
            keep = (Fate.BUSY, Fate.EXTERNAL, Fate.FREE, Fate.QUEUED)
            ids = {v.device for wish in decision.wishes for v in wish.verdicts if v.fate in keep}
            refused.add(id(request))
        units = {unit for d in world.inventory.devices if d.id in ids for unit in d.booked_units}
        for device in world.inventory.devices:
            if any(unit in units for unit in device.booked_units):
                blocked.setdefault(device.id, f"number {place + 1} in the queue waits for it ({request.flags()})")
        yield place, isinstance(decision, DevicePlan)
        if len(blocked) == len(world.inventory.devices):
            return


class _Reading(msgspec.Struct):
    """One wish against every device: who is free for it, and what the others said."""

    label: str
    wanted: int | None
    free: list[Device]
    verdicts: list[Verdict]
    field: str = "gpu"


def _decide(request: Request, world: World, blocked: Mapping[str, str]) -> DevicePlan | Refusal:
    if request.needs_allocator:
        from dibs.plan.claims import decide_claim  # brings the allocator and CEL with it

        return decide_claim(request, world, blocked)
    problems: list[Problem] = []
    readings = [_read_wish(wish, request, world, blocked) for wish in request.gpus]
    for name in request.devices:
        reading = _read_exact(name, request, world, blocked, problems)
        if reading is not None:
            readings.append(reading)
    if problems:
        return Refusal(tuple(problems), _explain(readings, ()), "NotFound", waitable=False)
    fixed = [reading for reading in readings if reading.wanted is not None]
    chosen = assign([reading.wanted or 0 for reading in fixed], [reading.free for reading in fixed])
    if chosen is None:
        return _refuse(request, readings, world)
    devices = [device for group in chosen for device in group]
    units = {unit for device in devices for unit in device.booked_units}
    for reading in readings:
        if reading.wanted is None:
            rest = [device for device in reading.free if not units.intersection(device.booked_units)]
            if not rest:
                return _refuse(request, readings, world)
            devices += rest
            units.update(unit for device in rest for unit in device.booked_units)
    order = {device.id: number for number, device in enumerate(world.inventory.devices)}
    devices.sort(key=lambda device: order[device.id])
    return DevicePlan(tuple(devices), _explain(readings, devices))


def _read_wish(wish: GpuSelector, request: Request, world: World, blocked: Mapping[str, str]) -> _Reading:
    reading = _Reading(str(wish), None if wish.count == ALL else int(wish.count), [], [])
    cut = cut_cards(world.holders)
    for device in world.inventory.devices:
        reason, miss = misfit(wish, device)
        if reason:
            reading.verdicts.append(Verdict(device.id, Fate.NO_MATCH, reason, miss))
        else:
            _read_state(device, request, world, blocked, reading, cut)
    return reading


def _read_exact(
    name: str, request: Request, world: World, blocked: Mapping[str, str], problems: list[Problem]
) -> _Reading | None:
    found = world.inventory.find(name)
    if len(found) == 1:
        reading = _Reading(name, 1, [], [], "device")
        _read_state(found[0], request, world, blocked, reading, cut_cards(world.holders))
        return reading
    if found:
        reason = f"several devices answer to it: {', '.join(device.id for device in found)}"
        problems.append(Problem("DEVICE_AMBIGUOUS", "device", name, reason, "write one of these"))
        return None
    names = [d.attachment.cdi_name if d.attachment else d.id for d in world.inventory.devices[:8]]
    there = f"there are {', '.join(names)}{' …' if len(world.inventory.devices) > 8 else ''}" if names else ""
    remedy = "; ".join(part for part in (there, "`dibs gpus -o wide` shows all names") if part)
    kind = "simulated device" if world.inventory.simulated else "device"
    problems.append(Problem("DEVICE_NOT_FOUND", "device", name, f"there is no such {kind}", remedy))
    return None


def _read_state(
    device: Device,
    request: Request,
    world: World,
    blocked: Mapping[str, str],
    reading: _Reading,
    cut: Mapping[str, Holder],
) -> None:
    """A device that fits: whether it can be had now."""
    say = reading.verdicts.append
    holder = holder_of(device, world.holders, cut)
    against = [taint for taint in world.taints.get(device.id, ()) if taint.effect != "None"]
    shared = world.shares.get(device.id)
    if not device.health.ok:
        say(Verdict(device.id, Fate.UNHEALTHY, device.health.reason))
    elif against:
        say(Verdict(device.id, Fate.TAINTED, f"tainted {', '.join(map(str, against))} by {against[0].username}"))
    elif device.attachment is None:
        say(Verdict(device.id, Fate.CANNOT, device.unattachable or "it cannot be attached"))
    elif device.id in world.cannot:
        say(Verdict(device.id, Fate.CANNOT, world.cannot[device.id]))
    elif holder is not None:
        say(Verdict(device.id, Fate.BUSY, held_by(holder, world.now)))
    elif shared is not None:
        say(
            Verdict(
                device.id, Fate.BUSY, "shares of it are " + ", ".join(held_by(h, world.now) for h in shared.holders)
            )
        )
    elif device.used_by and not request.allow_busy:
        uses = ", ".join(map(str, device.used_by[:3]))
        say(Verdict(device.id, Fate.EXTERNAL, f"used outside dibs by {uses}"))
    elif device.id in blocked:
        say(Verdict(device.id, Fate.QUEUED, blocked[device.id]))
    else:
        reading.free.append(device)
        say(Verdict(device.id, Fate.FREE))


def cut_cards(holders: Mapping[str, Holder]) -> dict[str, Holder]:
    """The cards of which parts are held, by key, each with one of those who hold a part."""
    found: dict[str, Holder] = {}
    for key, holder in holders.items():
        card, mark, _ = key.partition("#")
        if mark:
            found.setdefault(card, holder)
    return found


def holder_of(device: Device, holders: Mapping[str, Holder], cut: Mapping[str, Holder]) -> Holder | None:
    """Who has the device, or a part of it, or the whole of which it is a part. `cut`: `cut_cards` of the holders.

    The units say it all, unless a card was cut or joined while it was leased: then its booked unit is the uncut card
    (or parts that are no more), and is recognised by its name.
    """
    keys = [unit_key(unit, simulated=device.simulated) for unit in device.booked_units]
    if device.parent is not None:
        keys.append(unit_key(device.parent, simulated=device.simulated))
    elif device.units:
        keys.append(unit_key(device.id, simulated=device.simulated))
    found = next((holders[key] for key in keys if key in holders), None)
    if found is None and device.parent is None and not device.units and cut:
        found = cut.get(unit_key(device.id, simulated=device.simulated))
    return found


def held_by(holder: Holder, now: float) -> str:
    since = show_duration(now - holder.since)
    return f"held by {holder.sandbox_name} ({holder.username}) for {since}"


def _explain(readings: Sequence[_Reading], chosen: Sequence[Device]) -> tuple[WishExplanation, ...]:
    ids = {device.id for device in chosen}
    left = set(ids)
    wishes = []
    for reading in readings:
        mine = [device.id for device in reading.free if device.id in left]
        if reading.wanted is not None:
            mine = mine[: reading.wanted]
        left.difference_update(mine)
        verdicts = tuple(
            msgspec.structs.replace(v, fate=Fate.CHOSEN) if v.device in mine
            else msgspec.structs.replace(v, fate=Fate.TAKEN) if v.fate is Fate.FREE and v.device in ids
            else v
            for v in reading.verdicts
        )  # fmt: skip
        wishes.append(WishExplanation(reading.label, reading.wanted, verdicts, reading.field))
    return tuple(wishes)


def _refuse(request: Request, readings: Sequence[_Reading], world: World) -> Refusal:
    wishes = _explain(readings, ())
    problems: list[Problem] = []
    kinds: list[str] = []
    waits: list[str] = []
    for wish in wishes:
        problem, kind = _why(wish, world)
        if problem is None:
            continue
        problems.append(problem)
        kinds.append(kind)
        if kind == "Busy":
            waits.append(problem.reason)
    if not problems:
        # Each wish could be served alone, but not all of them at once.
        total = sum(wish.wanted or 1 for wish in wishes)
        free = len({v.device for wish in wishes for v in wish.verdicts if v.fate is Fate.FREE})
        could = len({v.device for wish in wishes for v in wish.verdicts if v.fate not in (Fate.NO_MATCH, Fate.CANNOT)})
        reason = f"{total} wanted in all, {free} free GPUs fit"
        kind = "Busy" if could >= total else "NoMatch"
        code = "DEVICES_BUSY" if kind == "Busy" else "NO_MATCHING_DEVICE"
        problems.append(Problem(code, "gpu", request.flags(), reason, "ask for fewer"))
        kinds.append(kind)
        waits.append(reason)
    hardest = next((k for k in ("NoMatch", "Unsupported", "Unhealthy") if k in kinds), "Busy")
    return Refusal(tuple(problems), wishes, hardest, waitable=set(kinds) == {"Busy"}, waits_for="; ".join(waits))


def _why(wish: WishExplanation, world: World) -> tuple[Problem | None, str]:
    """Why one wish cannot be served, in the words that help: the most permanent reason first."""
    wanted = wish.wanted if wish.wanted is not None else 1
    free = wish.count(Fate.FREE)
    if free >= wanted:
        return None, ""
    waiting = wish.count(Fate.BUSY, Fate.EXTERNAL, Fate.QUEUED)
    broken, cannot = wish.count(Fate.UNHEALTHY), wish.count(Fate.CANNOT, Fate.TAINTED)
    field = wish.field
    if free + waiting >= wanted:
        return _busy(wish, field, free, wanted), "Busy"
    if free + waiting + broken >= wanted:
        named = listed(wish, Fate.UNHEALTHY)
        remedy = "run `dibs doctor`, or ask for fewer"
        return Problem("DEVICES_UNHEALTHY", field, wish.wish, f"too few healthy GPUs: {named}", remedy), "Unhealthy"
    if free + waiting + broken + cannot >= wanted:
        reason = f"the GPUs cannot be had: {listed(wish, Fate.CANNOT, Fate.TAINTED)}"
        if wish.count(Fate.CANNOT):
            return Problem("CANNOT_ATTACH", field, wish.wish, reason, "run `dibs doctor`"), "Unsupported"
        remedy = "take a taint off with `dibs gpus untaint`, or tolerate it with a claim"
        return Problem("DEVICES_TAINTED", field, wish.wish, reason, remedy), "Unsupported"
    fitting = free + waiting + broken + cannot
    gpus = sum(is_gpu(device) and device.parent is None for device in world.inventory.devices)
    kind = "simulated GPU" if world.inventory.simulated else "GPU"
    if gpus == 0:
        errors = "; ".join(f"{error.source}: {error.reason}" for error in world.inventory.errors)
        reason = f"no {kind} was found on this host" + (f" ({errors})" if errors else "")
        remedy = "run `dibs doctor`, or try without hardware: `dibs gpus simulate 8`"
        return Problem("NO_MATCHING_DEVICE", field, wish.wish, reason, remedy), "NoMatch"
    parts = sum(is_gpu(device) and device.parent is not None for device in world.inventory.devices)
    whole = next((device for device in world.inventory.devices if device.model.startswith(ALL_OF_HOST)), None)
    if whole is not None and fitting == gpus == 1:
        reason = f"{whole.name} is {whole.model}, which this platform gives only together; {wanted} wanted"
        return Problem("NO_MATCHING_DEVICE", field, wish.wish, reason, "ask for 1 to get all of them"), "NoMatch"
    there = f"{gpus} {kind}{'' if gpus == 1 else 's'}" + (f" and {parts} parts" if parts else "")
    reason = f"{fitting} of {there} fit{'s' if fitting == 1 else ''}, {wanted} wanted"
    miss = wish.nearest_miss
    if miss is not None:
        reason += f"; nearest miss: {miss.device.rpartition('/')[2]}, {miss.reason}"
    remedy = "ask for fewer or for other models; `dibs gpus` shows what is there"
    if miss is not None and 0 < miss.miss <= _SOLD_AS and (sold := _EXACT_SIZE.sub(r"\1B", wish.wish)) != wish.wish:
        remedy = f"for cards sold with that much memory write --gpu {sold}: GB is the size on the box, Gi is exact"
    return Problem("NO_MATCHING_DEVICE", field, wish.wish, reason, remedy), "NoMatch"


def _busy(wish: WishExplanation, field: str, free: int, wanted: int) -> Problem:
    named = listed(wish, Fate.BUSY, Fate.EXTERNAL, Fate.QUEUED)
    reason = f"{free} free, {wanted} wanted: {named}"
    remedy = "wait for it with --wait 10m"
    if wish.count(Fate.EXTERNAL):
        remedy += ", or share the externally used ones with --allow-busy"
    return Problem("DEVICES_BUSY", field, wish.wish, reason, remedy)


def listed(wish: WishExplanation, *fates: Fate, most: int = 4) -> str:
    """The devices of some fates with their reasons; devices with the same reason together."""
    groups: dict[str, list[str]] = {}
    for verdict in wish.verdicts:
        if verdict.fate in fates:
            groups.setdefault(verdict.reason, []).append(verdict.device.rpartition("/")[2])
    parts = [f"{_few(names, most)} {reason}" for reason, names in list(groups.items())[:most]]
    rest = sum(len(names) for names in list(groups.values())[most:])
    return "; ".join(parts) + (f"; and {rest} more" if rest else "")


def _few(names: list[str], most: int) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
