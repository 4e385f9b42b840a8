"""Why a short form gets nothing now, in words: the problems, and whether waiting helps. Pure.

`devices` calls `refuse` with what became of every device; `claims` uses `listed`. Nothing is decided here: the
words come from the verdicts that were written down while deciding.
"""

from __future__ import annotations

from dibs.devices.names import ALL_OF_HOST
from dibs.errors import Problem
from dibs.patterns import lazy_pattern
from dibs.plan.decision import Refusal, World
from dibs.plan.explanation import Fate, SelectorExplanation
from dibs.plan.selectors import is_gpu
from dibs.request.model import Request

_SOLD_AS = 0.05  # how much smaller than its nominal size, in binary units, a card's memory is at most
_EXACT_SIZE = lazy_pattern(r"([0-9.]+[MGT])i")


def refuse(request: Request, selectors: tuple[SelectorExplanation, ...], world: World) -> Refusal:
    """The refusal of a request whose parts saw these devices."""
    problems: list[Problem] = []
    kinds: list[str] = []
    waits: list[str] = []
    for explained in selectors:
        problem, kind = _why(explained, world)
        if problem is None:
            continue
        problems.append(problem)
        kinds.append(kind)
        if kind == "Busy":
            waits.append(problem.reason)
    if not problems:
        # Each selector could be served alone, but not all of them at once.
        total = sum(selector.wanted or 1 for selector in selectors)
        free = len({v.device for selector in selectors for v in selector.verdicts if v.fate is Fate.FREE})
        could = len(
            {
                v.device
                for selector in selectors
                for v in selector.verdicts
                if v.fate not in (Fate.NO_MATCH, Fate.CANNOT)
            }
        )
        reason = f"{total} wanted in all, {free} free GPUs fit"
        kind = "Busy" if could >= total else "NoMatch"
        code = "DEVICES_BUSY" if kind == "Busy" else "NO_MATCHING_DEVICE"
        problems.append(Problem(code, "gpu", request.flags(), reason, "ask for fewer"))
        kinds.append(kind)
        waits.append(reason)
    hardest = next((k for k in ("NoMatch", "Unsupported", "Unhealthy") if k in kinds), "Busy")
    return Refusal(tuple(problems), selectors, hardest, waitable=set(kinds) == {"Busy"}, waits_for="; ".join(waits))


def _why(explained: SelectorExplanation, world: World) -> tuple[Problem | None, str]:
    """Why one selector cannot be served, in the words that help: the most permanent reason first."""
    wanted = explained.wanted if explained.wanted is not None else 1
    free = explained.count(Fate.FREE)
    if free >= wanted:
        return None, ""
    waiting = explained.count(Fate.BUSY, Fate.EXTERNAL, Fate.QUEUED)
    broken, cannot = explained.count(Fate.UNHEALTHY), explained.count(Fate.CANNOT, Fate.TAINTED)
    field, asked = explained.field, explained.selector
    if free + waiting >= wanted:
        return _busy(explained, field, free, wanted), "Busy"
    if free + waiting + broken >= wanted:
        named = listed(explained, Fate.UNHEALTHY)
        remedy = "run `dibs doctor`, or ask for fewer"
        return Problem("DEVICES_UNHEALTHY", field, asked, f"too few healthy GPUs: {named}", remedy), "Unhealthy"
    if free + waiting + broken + cannot >= wanted:
        reason = f"the GPUs cannot be had: {listed(explained, Fate.CANNOT, Fate.TAINTED)}"
        if explained.count(Fate.CANNOT):
            return Problem("CANNOT_ATTACH", field, asked, reason, "run `dibs doctor`"), "Unsupported"
        remedy = "take a taint off with `dibs gpus untaint`, or tolerate it with a claim"
        return Problem("DEVICES_TAINTED", field, asked, reason, remedy), "Unsupported"
    fitting = free + waiting + broken + cannot
    gpus = sum(is_gpu(device) and device.parent is None for device in world.inventory.devices)
    kind = "simulated GPU" if world.inventory.simulated else "GPU"
    if gpus == 0:
        errors = "; ".join(f"{error.source}: {error.reason}" for error in world.inventory.errors)
        reason = f"no {kind} was found on this host" + (f" ({errors})" if errors else "")
        remedy = "run `dibs doctor`, or try without hardware: `dibs gpus simulate 8`"
        return Problem("NO_MATCHING_DEVICE", field, asked, reason, remedy), "NoMatch"
    parts = sum(is_gpu(device) and device.parent is not None for device in world.inventory.devices)
    whole = next((device for device in world.inventory.devices if device.model.startswith(ALL_OF_HOST)), None)
    if whole is not None and fitting == gpus == 1:
        reason = f"{whole.name} is {whole.model}, which this platform gives only together; {wanted} wanted"
        return Problem("NO_MATCHING_DEVICE", field, asked, reason, "ask for 1 to get all of them"), "NoMatch"
    there = f"{gpus} {kind}{'' if gpus == 1 else 's'}" + (f" and {parts} parts" if parts else "")
    reason = f"{fitting} of {there} fit{'s' if fitting == 1 else ''}, {wanted} wanted"
    miss = explained.nearest_miss
    if miss is not None:
        reason += f"; nearest miss: {miss.device.rpartition('/')[2]}, {miss.reason}"
    remedy = "ask for fewer or for other models; `dibs gpus` shows what is there"
    if miss is not None and 0 < miss.miss <= _SOLD_AS and (sold := _EXACT_SIZE.sub(r"\1B", asked)) != asked:
        remedy = f"for cards sold with that much memory write --gpu {sold}: GB is the size on the box, Gi is exact"
    return Problem("NO_MATCHING_DEVICE", field, asked, reason, remedy), "NoMatch"


def _busy(explained: SelectorExplanation, field: str, free: int, wanted: int) -> Problem:
    named = listed(explained, Fate.BUSY, Fate.EXTERNAL, Fate.QUEUED)
    reason = f"{free} free, {wanted} wanted: {named}"
    remedy = "wait for it with --wait 10m"
    if explained.count(Fate.EXTERNAL):
        remedy += ", or share the externally used ones with --allow-busy"
    return Problem("DEVICES_BUSY", field, explained.selector, reason, remedy)


def listed(explained: SelectorExplanation, *fates: Fate, most: int = 4) -> str:
    """The devices of some fates with their reasons; devices with the same reason together."""
    groups: dict[str, list[str]] = {}
    for verdict in explained.verdicts:
        if verdict.fate in fates:
            groups.setdefault(verdict.reason, []).append(verdict.device.rpartition("/")[2])
    parts = [f"{_few(names, most)} {reason}" for reason, names in list(groups.items())[:most]]
    rest = sum(len(names) for names in list(groups.values())[most:])
    return "; ".join(parts) + (f"; and {rest} more" if rest else "")


def _few(names: list[str], most: int) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
