"""Which devices a request gets: a plan, or every reason why not. Pure.

`workloads` calls `plan_devices` inside the ledger's write transaction, so its input cannot change underneath it;
`explain` calls it outside of one. The explanation is recorded while deciding. There are two ways to a device:

- the first free ones, where they satisfy the whole request (here; `quick` is the same without an explanation),
- the DRA allocator: its search alone for short forms (`--gpu`, `--device`) whose selectors compete, and all of it,
  with CEL, for claims (`claims`). A process that waits for a plain count never loads it.

Fairness: earlier tickets are planned first. Devices that such a ticket would get now count as taken. If it cannot be
served now, every device that could ever serve it is reserved for it. A later request chooses among the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from dibs.devices.model import Device
from dibs.errors import Problem, Timeout
from dibs.plan.decision import DevicePlan, Refusal, World
from dibs.plan.device_state import Judge
from dibs.plan.explanation import Fate, SelectorExplanation, Verdict
from dibs.plan.selectors import misfit
from dibs.request.model import ALL, GpuSelector, Request


def plan_devices(request: Request, world: World) -> DevicePlan | Refusal:
    """Choose devices for a request. Nothing is changed."""
    if not request.wants_devices:
        return DevicePlan()
    blocked = _taken_by_those_ahead(world)
    return _decide(request, world, blocked)


def servable(requests: Sequence[Request], world: World) -> list[int]:
    """Which waiting requests could be served now, by their places in the queue, the first being 0."""
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
            ids = {v.device for selector in decision.selectors for v in selector.verdicts if v.fate in keep}
            refused.add(id(request))
        units = {unit for d in world.inventory.devices if d.id in ids for unit in d.booked_units}
        for device in world.inventory.devices:
            if any(unit in units for unit in device.booked_units):
                blocked.setdefault(device.id, f"number {place + 1} in the queue waits for it ({request.flags()})")
        yield place, isinstance(decision, DevicePlan)
        if len(blocked) == len(world.inventory.devices):
            return


def _decide(request: Request, world: World, blocked: Mapping[str, str]) -> DevicePlan | Refusal:
    if request.needs_allocator:
        from dibs.plan.claims import decide_claim  # brings CEL with it

        return decide_claim(request, world, blocked)
    return _decide_short_form(request, world, blocked)


# -- short forms ------------------------------------------------------------------------------------------------------


class _Reading(msgspec.Struct):
    """One part of a request against every device: which are free for it, and what became of the others."""

    label: str
    wanted: int | None
    free: list[Device]
    verdicts: list[Verdict]
    field: str = "gpu"


def _decide_short_form(request: Request, world: World, blocked: Mapping[str, str]) -> DevicePlan | Refusal:
    """`blocked`: device id → why it is kept for a request in front."""
    problems: list[Problem] = []
    judge = Judge(world)
    readings = [_read_selector(selector, request, world, judge, blocked) for selector in request.gpus]
    for name in request.devices:
        reading = _read_exact(name, request, world, judge, blocked, problems)
        if reading is not None:
            readings.append(reading)
    if problems:
        return Refusal(tuple(problems), _explain(readings), "NotFound", waitable=False)
    fixed = [reading for reading in readings if reading.wanted is not None]
    try:
        counted = assign([(reading.wanted or 0, reading.free) for reading in fixed])
    except Timeout as failure:
        problem = Problem("CLAIM_GAVE_UP", "gpu", request.flags(), str(failure), "ask for less at once")
        return Refusal((problem,), _explain(readings), "InvalidRequest", waitable=False)
    if counted is None:
        return _refuse(request, readings, world)
    given = {id(reading): devices for reading, devices in zip(fixed, counted, strict=True)}
    units: set[str] = {unit for devices in counted for device in devices for unit in device.booked_units}
    for reading in readings:
        if reading.wanted is None:
            rest = given[id(reading)] = _take_rest(reading.free, units)
            if not rest:
                return _refuse(request, readings, world)
    chosen: set[str] = {device.id for devices in given.values() for device in devices}
    devices = tuple(device for device in world.inventory.devices if device.id in chosen)
    return DevicePlan(devices, _explain(readings, [given[id(reading)] for reading in readings]))


def assign(wants: Sequence[tuple[int, Sequence[Device]]]) -> list[list[Device]] | None:
    """Give each its number of the devices that are free for it, and no unit twice. None if that cannot be.

    The first ones, if that does; else what the allocator's search finds. Raises Timeout if it gives up."""
    if any(count > len(free) for count, free in wants):
        return None
    taken: set[str] = set()
    chosen: list[list[Device]] = []
    for count, free in wants:
        mine: list[Device] = []
        for device in free:
            if len(mine) == count:
                break
            if taken.isdisjoint(device.booked_units):
                mine.append(device)
                taken.update(device.booked_units)
        if len(mine) < count:
            return _search(wants)
        chosen.append(mine)
    return chosen


def _search(wants: Sequence[tuple[int, Sequence[Device]]]) -> list[list[Device]] | None:
    from graphlib import TopologicalSorter

    from dibs.claims.whole_devices import choose

    known: dict[str, Device] = {device.id: device for _, free in wants for device in free}
    # The search needs one order for all of them: each has its devices in that of the inventory.
    order: TopologicalSorter[str] = TopologicalSorter()
    for _, free in wants:
        for number, device in enumerate(free):
            order.add(device.id, *(before.id for before in free[number - 1 : number]))
    devices = {name: known[name] for name in order.static_order()}
    places = {name: place for place, name in enumerate(devices)}
    found = choose(
        [device.booked_units for device in devices.values()],
        [(count, [places[device.id] for device in free]) for count, free in wants],
    )
    at = list(devices.values())
    return None if found is None else [[at[place] for place in positions] for positions in found]


def _take_rest(free: Sequence[Device], units: set[str]) -> list[Device]:
    """All that are left, a card before its parts; what they take is added to `units`."""
    rest: list[Device] = []
    for device in free:
        if units.isdisjoint(device.booked_units):
            rest.append(device)
            units.update(device.booked_units)
    return rest


def _read_selector(
    selector: GpuSelector, request: Request, world: World, judge: Judge, blocked: Mapping[str, str]
) -> _Reading:
    reading = _Reading(str(selector), None if selector.count == ALL else int(selector.count), [], [])
    for device in world.inventory.devices:
        reason, miss = misfit(selector, device)
        if reason:
            reading.verdicts.append(Verdict(device.id, Fate.NO_MATCH, reason, miss))
        else:
            _read_state(device, request, judge, blocked, reading)
    return reading


def _read_exact(
    name: str, request: Request, world: World, judge: Judge, blocked: Mapping[str, str], problems: list[Problem]
) -> _Reading | None:
    found = world.inventory.find(name)
    if len(found) == 1:
        reading = _Reading(name, 1, [], [], "device")
        _read_state(found[0], request, judge, blocked, reading)
        return reading
    if found:
        reason = f"several devices answer to it: {', '.join(device.id for device in found)}"
        problems.append(Problem("DEVICE_AMBIGUOUS", "device", name, reason, "write one of these"))
        return None
    names = [d.cdi.cdi_name if d.cdi else d.id for d in world.inventory.devices[:8]]
    there = f"there are {', '.join(names)}{' …' if len(world.inventory.devices) > 8 else ''}" if names else ""
    remedy = "; ".join(part for part in (there, "`dibs gpus -o wide` shows all names") if part)
    kind = "simulated device" if world.inventory.simulated else "device"
    problems.append(Problem("DEVICE_NOT_FOUND", "device", name, f"there is no such {kind}", remedy))
    return None


def _read_state(device: Device, request: Request, judge: Judge, blocked: Mapping[str, str], reading: _Reading) -> None:
    """A device that fits: whether it can be had now."""
    verdict = judge.verdict(device, allow_busy=request.allow_busy, kept_for=blocked.get(device.id, ""))
    reading.verdicts.append(verdict)
    if verdict.fate is Fate.FREE:
        reading.free.append(device)


def _refuse(request: Request, readings: Sequence[_Reading], world: World) -> Refusal:
    from dibs.plan.refusal import refuse

    return refuse(request, _explain(readings), world)


def _explain(readings: Sequence[_Reading], given: Sequence[Sequence[Device]] = ()) -> tuple[SelectorExplanation, ...]:
    """`given`: the devices of each of them, where there was a choice."""
    all_given: set[str] = {device.id for devices in given for device in devices}
    selectors = []
    for number, reading in enumerate(readings):
        mine: set[str] = {device.id for device in given[number]} if given else set()
        verdicts = tuple(
            msgspec.structs.replace(v, fate=Fate.CHOSEN) if v.device in mine
            else msgspec.structs.replace(v, fate=Fate.TAKEN) if v.fate is Fate.FREE and v.device in all_given
            else v
            for v in reading.verdicts
        )  # fmt: skip
        selectors.append(SelectorExplanation(reading.label, reading.wanted, verdicts, reading.field))
    return tuple(selectors)
