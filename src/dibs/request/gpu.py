"""The short form of a GPU request: `2`, `H100:2`, `nvidia:H100,A100:80GB..:2`, `all`.

`parse_gpu` reads one; `str(GpuSelector)` prints it back in a form that parses to the same. The parts are recognised by
their form, and each may occur once: vendor : models : memory : count. The caller collects the problems.

Memory is written two ways. `80Gi` is exact, in Kubernetes' units. `80GB` is the size on the box: an H100 "80GB" shows
79.65Gi, an A100 "80GB" 80Gi, a T4 "16GB" with ECC a little under 16·10⁹ bytes. So `80GB` takes what is sold as 80 GB:
from 3 % under 80·10⁹ bytes up to 80 GiB.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from dibs.errors import Problem, as_written, quoted
from dibs.patterns import lazy_pattern
from dibs.quantity import NANO, Quantity
from dibs.request.model import ALL, GpuSelector, MemoryRange

if TYPE_CHECKING:
    from fractions import Fraction

VENDORS = ("nvidia", "amd", "intel")
MOST_GPUS = 999  # more than any host has; four digits are a model, such as 4090

_PROFILE = lazy_pattern(r"[0-9]+g\.[0-9]+gb", re.ASCII | re.IGNORECASE)
_NUMBERISH = lazy_pattern(r"[+-]?[0-9]*[.,]?[0-9]+(?:[eE][+-]?[0-9]+)?%?", re.ASCII)
_COUNT_RANGE = lazy_pattern(r"[0-9]*\.\.[0-9]*", re.ASCII)
_SIZE = r"[0-9]+(?:\.[0-9]+)?(?:[MGT]B|[MGT]i)"
_MEMORY = lazy_pattern(rf"(?:({_SIZE})?(\.\.)({_SIZE})?|({_SIZE}))", re.ASCII | re.IGNORECASE)
_MODEL = lazy_pattern(r"[A-Za-z0-9][A-Za-z0-9 ._+-]*", re.ASCII)
_MODEL_LENGTH = 64
_UNITS = {"m": 2, "g": 3, "t": 4}
_NUMBER_WORDS = frozenset(
    {
        *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"),
        *("none", "some", "any", "many", "few", "half", "a", "an", "yes", "no", "true", "false"),
        *("max", "auto", "every"),
    }
)
_LEAVE_OUT = "leave it out to get no GPU"
_EXAMPLES = "write --gpu 2, --gpu H100:2 or --gpu nvidia:H100,A100:80GB..:2"


def parse_gpu(value: Any, field: str, problems: list[Problem]) -> GpuSelector | None:
    """One selector from text, a number, a mapping, or True (one GPU). None if it is wrong; `problems` then says why."""
    if value is True:
        return GpuSelector()
    if value is None or value is False:
        text = "null" if value is None else "false"
        problems.append(Problem("GPU_INVALID", field, text, "this is not a number of GPUs", _LEAVE_OUT))
        return None
    if isinstance(value, int | float):
        return _from_number(value, field, problems)
    if isinstance(value, str):
        return _from_text(value, field, problems)
    if isinstance(value, dict):
        return _from_mapping(value, field, problems)
    problems.append(Problem("GPU_INVALID", field, as_written(value), "this is not a GPU request", _EXAMPLES))
    return None


def _from_number(value: float, field: str, problems: list[Problem]) -> GpuSelector | None:
    if float(value).is_integer():
        value = int(value)
    count = _count(str(value), field, problems)
    return None if count is None else GpuSelector(count=count)


def _count(text: str, field: str, problems: list[Problem]) -> int | None:
    def refuse(reason: str, remedy: str) -> None:
        problems.append(Problem("GPU_COUNT_INVALID", field, text, reason, remedy))

    if not _digits(text):
        if text.startswith("-"):
            refuse("the count must be at least 1", _LEAVE_OUT)
        else:
            refuse("the count must be a whole number", "for a part of a GPU name its memory, as in --gpu ..12GB")
        return None
    if len(text) > len(str(MOST_GPUS)):
        refuse(f"the count is more than any host has ({MOST_GPUS})", _EXAMPLES)
        return None
    if int(text) == 0:
        refuse("zero GPUs is not a request", _LEAVE_OUT)
        return None
    return int(text)


def _from_text(text: str, field: str, problems: list[Problem]) -> GpuSelector | None:
    before = len(problems)
    if not text.strip():
        problems.append(Problem("GPU_INVALID", field, text, "the request is empty", _EXAMPLES))
        return None
    if not text.isprintable():
        problems.append(Problem("GPU_INVALID", field, text, "the request has unprintable characters", _EXAMPLES))
        return None
    parts = [part.strip() for part in text.split(":")]
    found: dict[str, Any] = {}

    def once(kind: str, value: Any, part: str) -> None:
        if kind in found:
            reason = f"{kind} is given twice: {quoted(part)} is the second"
            remedy = "the form is vendor:models:memory:count"
            if kind == "count":
                remedy = "say one count"
            problems.append(Problem("GPU_SYNTAX", field, text, reason, remedy))
        else:
            found[kind] = value

    for part in parts:
        if not part:
            problems.append(Problem("GPU_SYNTAX", field, text, "a part between colons is empty", _EXAMPLES))
        elif part.lower() == ALL:
            once("count", ALL, part)
        elif _digits(part):
            if len(part) == 4 and part[0] != "0":
                once("models", (part,), part)
            else:
                once("count", _count(part, field, problems), part)
        elif _PROFILE.fullmatch(part):
            once("profile", part.lower(), part)
        elif _NUMBERISH.fullmatch(part):
            once("count", _count(part, field, problems), part)
        elif part.lower() in VENDORS:
            once("vendor", part.lower(), part)
        elif part != ".." and _COUNT_RANGE.fullmatch(part):
            reason = f"a range of counts ({quoted(part)}) could not be delivered exactly"
            problems.append(Problem("GPU_SYNTAX", field, text, reason, "say one number, or all"))
        elif part != ".." and _MEMORY.fullmatch(part):
            once("memory", _memory(part, field, problems), part)
        else:
            once("models", _models(part.split(","), field, problems), part)
    if len(problems) > before:
        return None
    return GpuSelector(
        count=found.get("count", 1),
        vendor=found.get("vendor"),
        models=found.get("models", ()),
        memory=found.get("memory"),
        profile=found.get("profile", ""),
    )


def _digits(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _models(names: list[str], field: str, problems: list[Problem]) -> tuple[str, ...]:
    models: list[str] = []
    for name in (name.strip() for name in names):
        if name.lower() in _NUMBER_WORDS:
            remedy = "write the count in digits, as in --gpu 2"
            problems.append(Problem("GPU_COUNT_INVALID", field, name, "the count must be a whole number", remedy))
        elif len(name) > _MODEL_LENGTH or _MODEL.fullmatch(name) is None:
            remedy = "a model is letters, digits, space and - . _ +, as in H100 or A100-80GB"
            problems.append(Problem("GPU_MODEL_INVALID", field, name, "this cannot be the name of a model", remedy))
        elif name.lower() in (known.lower() for known in models):
            problems.append(Problem("GPU_MODEL_INVALID", field, name, "the model is named twice", "name it once"))
        else:
            models.append(name)
    return tuple(models)


def _memory(text: str, field: str, problems: list[Problem]) -> MemoryRange | None:
    match = _MEMORY.fullmatch(text)
    if match is None:
        remedy = "write 80GB (that size), 40GB.. (at least), ..80GB (at most), 40GB..80GB, or exact sizes as 80Gi"
        problems.append(Problem("GPU_MEMORY_INVALID", field, text, "this is not a size of memory", remedy))
        return None
    low_text, dots, high_text, exact_text = match.groups()
    if not dots:
        low_text = high_text = exact_text
    low = _low(low_text) if low_text else None
    high = _high(high_text) if high_text else None
    if low is not None and high is not None and low > high:
        reason = "the lower end is above the upper end"
        problems.append(Problem("GPU_MEMORY_INVALID", field, text, reason, f"write {high_text}..{low_text}"))
        return None
    if high == 0 or (low == 0 and high is None):
        problems.append(Problem("GPU_MEMORY_INVALID", field, text, "no GPU has 0 bytes of memory", "leave it out"))
        return None
    spelled = f"{_spell(low_text)}{dots}{_spell(high_text)}" if dots else _spell(exact_text)
    return MemoryRange(text=spelled, low=low, high=high)


def _size(text: str) -> tuple[Fraction, str]:
    from fractions import Fraction

    number, unit = re.fullmatch(r"([0-9.]+)(.*)", text).groups()  # type: ignore[union-attr]  # _MEMORY has matched
    return Fraction(number), unit


def _low(text: str) -> int:
    number, unit = _size(text)
    power = _UNITS[unit[0].lower()]
    if unit[1:].lower() == "i":
        return int(number * 1024**power)
    return int(number * 1000**power * 97 / 100)


def _high(text: str) -> int:
    number, unit = _size(text)
    return int(number * 1024 ** _UNITS[unit[0].lower()])


def _spell(text: str | None) -> str:
    if not text:
        return ""
    number, unit = _size(text)
    shown = str(number) if number.denominator == 1 else f"{float(number):g}"
    return f"{shown}{unit[0].upper()}{'i' if unit[1:].lower() == 'i' else 'B'}"


_KEYS = ("vendor", "model", "profile", "memory", "count")


def _from_mapping(value: dict[Any, Any], field: str, problems: list[Problem]) -> GpuSelector | None:
    before = len(problems)
    for key in value:
        if key not in _KEYS:
            remedy = f"the known keys are {', '.join(_KEYS)}"
            problems.append(Problem("UNKNOWN_FIELD", f"{field}.{key}", "", "there is no such key", remedy))
    vendor = value.get("vendor")
    if vendor is not None and (not isinstance(vendor, str) or vendor.lower() not in VENDORS):
        remedy = f"the vendors are {', '.join(VENDORS)}"
        problems.append(Problem("GPU_VENDOR_UNKNOWN", f"{field}.vendor", str(vendor), "unknown vendor", remedy))
    model = value.get("model", ())
    names = [model] if isinstance(model, str) else model
    models: tuple[str, ...] = ()
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        remedy = "write a name or a list of names"
        problems.append(Problem("GPU_MODEL_INVALID", f"{field}.model", repr(model), "not a model", remedy))
    else:
        models = _models([part for name in names for part in name.split(",")], f"{field}.model", problems)
    memory_value = value.get("memory")
    memory = None
    if memory_value is not None:
        memory = _memory(str(memory_value).strip(), f"{field}.memory", problems)
    profile = value.get("profile", "")
    if not isinstance(profile, str) or (profile and _PROFILE.fullmatch(profile) is None):
        remedy = "write it as in 1g.10gb"
        problems.append(Problem("GPU_PROFILE_INVALID", f"{field}.profile", str(profile), "not a MIG profile", remedy))
    count_value = value.get("count", 1)
    count: int | str | None = count_value
    if isinstance(count_value, str) and count_value.strip().lower() == ALL:
        count = ALL
    else:
        selector = parse_gpu(count_value, f"{field}.count", problems) if not isinstance(count_value, dict) else None
        plain = selector is not None and str(selector) == str(selector.count)
        if isinstance(count_value, dict) or (selector is not None and not plain):
            problems.append(Problem("GPU_COUNT_INVALID", f"{field}.count", str(count_value), "not a count", _EXAMPLES))
        count = selector.count if selector else None
    if len(problems) > before:
        return None
    return GpuSelector(
        count=ALL if count == ALL else int(count or 1),
        vendor=vendor.lower() if vendor else None,
        models=models,
        memory=memory,
        profile=profile.lower(),
    )


def model_pattern(model: str) -> str:
    """The pattern (in the syntax common to RE2 and Python) that a lower-case product name must contain.

    `A100` is in "nvidia a100-sxm4-80gb" but not in "nvidia a1000"; `A100-80GB` wants both words, in this order;
    `RTX4090` is also written "rtx 4090".
    """
    words = ["[^a-z0-9]*".join(re.findall(r"[a-z]+|[0-9]+", word)) for word in re.findall(r"[a-z0-9]+", model.lower())]
    return "(^|[^a-z0-9])" + "[^a-z0-9](.*[^a-z0-9])?".join(words) + "([^a-z0-9]|$)"


def quantity_text(amount: int) -> str:
    """Bytes as a Kubernetes quantity, for a claim."""
    return str(Quantity(amount * NANO, binary=amount % 1024 == 0))
