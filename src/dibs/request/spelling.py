"""Spellings of a GPU request from other tools, translated to ours: Docker, Slurm, SkyPilot, Kubernetes, CUDA.

`parse` calls `translate` on every text before `gpu` reads it. A spelling with one clear meaning is translated; one that
could mean two things is refused, and the refusal offers the unambiguous forms. Anything unfamiliar passes through
unchanged. Only the text is examined, never the devices.
"""

from __future__ import annotations

import re

import msgspec

from dibs.errors import Problem
from dibs.patterns import lazy_pattern

_VENDORS = "nvidia|amd|intel"
_EXTENDED = lazy_pattern(rf"({_VENDORS})\.com/gpu(?::(.+))?", re.IGNORECASE)  # a resource name, or `name: count`
_CDI = lazy_pattern(rf"(({_VENDORS})\.com/gpu)=(.+)", re.IGNORECASE)
_MIG_RESOURCE = lazy_pattern(r"(?:nvidia\.com/)?mig-([0-9]+g\.[0-9]+gb)(?::([0-9]+|all))?", re.IGNORECASE)
_UUID = lazy_pattern(r"(?:GPU|MIG)-[0-9a-f][0-9a-f-]*", re.IGNORECASE)
_COUNTED = lazy_pattern(r"([0-9]{1,3})\s*gpus?", re.IGNORECASE | re.ASCII)
_GPU_INDEX = lazy_pattern(r"gpu([0-9]{1,3})", re.IGNORECASE | re.ASCII)  # as nvidia-smi topo has it
_INDEX = lazy_pattern(r"[0-9]{1,3}(?::[0-9]{1,2})?", re.ASCII)
_INDEXES = lazy_pattern(r"[0-9]{1,3}(?:,[0-9]{1,3})+", re.ASCII)
_CUDA = lazy_pattern(r"cuda:([0-9]{1,3}(?:,[0-9]{1,3})*)", re.IGNORECASE | re.ASCII)
_COUNT_FIRST = lazy_pattern(r"([0-9]{1,3})\s*[x×*]\s*([A-Za-z0-9].*)", re.ASCII)
_COUNT_LAST = lazy_pattern(r"(.*[0-9][A-Za-z]*(?:\s[A-Za-z]+)?)\s*[x×*]\s*([0-9]{1,3})", re.ASCII)
_AMD_BASE = lazy_pattern(r"mi[0-9]+", re.IGNORECASE | re.ASCII)  # MI300X: is `mi300x2` two MI300, or MI300X:2?
_SIZE = r"[0-9]+(?:\.[0-9]+)?\s*[MGT](?:B|i|iB)?"
_AT_LEAST = lazy_pattern(rf"(?:>=\s*({_SIZE})|({_SIZE})\s*\+)", re.IGNORECASE | re.ASCII)
_AT_MOST = lazy_pattern(rf"<=\s*({_SIZE})", re.IGNORECASE | re.ASCII)
_STRICT = lazy_pattern(rf"([<>])\s*({_SIZE})", re.IGNORECASE | re.ASCII)
_BARE_SIZE = lazy_pattern(rf"(\.\.)?({_SIZE})(\.\.)?({_SIZE})?", re.IGNORECASE | re.ASCII)
_DOCKER_KEYS = ("device", "count", "driver", "capabilities")


class Exact(msgspec.Struct, frozen=True):
    """The text names devices rather than describing them."""

    names: tuple[str, ...]


def translate(text: str, field: str, problems: list[Problem]) -> str | Exact | None:
    """The request in our own spelling, or the devices it names. None: refused, and `problems` says why."""
    stripped = text.strip()
    if len(stripped) < 4 and stripped.isascii() and stripped.isdigit():
        return stripped  # a count, in every tool's language
    if not text.isprintable():
        return text  # refused by the reader of the short form
    if "=" in stripped and (docker := _docker(stripped, field, problems)) is not NotImplemented:
        return docker  # type: ignore[return-value]  # NotImplemented is ruled out
    if match := _CDI.fullmatch(stripped):
        return _cdi_name(stripped, match, field, problems)
    if match := _MIG_RESOURCE.fullmatch(stripped):
        return f"nvidia:{match[1]}:{match[2] or 1}"
    if match := _EXTENDED.fullmatch(stripped):
        return f"{match[1].lower()}:{match[2] or 1}"
    if match := _CUDA.fullmatch(stripped):
        return Exact(tuple(match[1].split(",")))
    if _INDEXES.fullmatch(stripped):
        return Exact(tuple(stripped.split(",")))
    if match := _COUNTED.fullmatch(stripped):
        return str(match[1])
    if stripped[0:1] in ("[", "{"):
        reason = "alternatives have one count, and no brackets"
        problems.append(Problem("GPU_SYNTAX", field, text, reason, "for two of either model write --gpu H100,A100:2"))
        return None
    names = [name.strip() for name in stripped.split(",")]
    indexes = [_GPU_INDEX.fullmatch(name) for name in names]
    if all(indexes):
        return Exact(tuple(match[1] for match in indexes if match))
    if all(_UUID.fullmatch(name) for name in names):
        return Exact(tuple(names))
    if stripped.lower().startswith("gpu:") or stripped.lower() == "gpu":  # Slurm's --gres=gpu:h100:2
        stripped = stripped[4:] or "1"
    parts = []
    for part in stripped.split(":"):
        found = _part(part.strip(), text, field, problems)
        if found is None:
            return None
        parts.append(found)
    return ":".join(parts)


def _docker(text: str, field: str, problems: list[Problem]) -> object:
    """Docker's `--gpus`: `device=0,1`, `"device=0,1"`, `count=2`. NotImplemented if it is none of these."""
    bare = text.strip("'\"").strip()
    key, _, value = bare.partition("=")
    value = value.strip().strip("'\"")
    if key.lower() not in _DOCKER_KEYS:
        return NotImplemented
    if key.lower() == "count" and "," not in value:
        return "all" if value == "-1" else value
    names = [name.strip().strip("'\"") for name in value.split(",")]
    if key.lower() == "device" and all(_INDEX.fullmatch(name) or _UUID.fullmatch(name) for name in names):
        return Exact(tuple(names))
    reason = "of Docker's --gpus only a count, all, or device=… can be delivered here"
    problems.append(Problem("GPU_SYNTAX", field, text, reason, "write --gpu 2, --gpu all or --gpu device=0,1"))
    return None


def _cdi_name(text: str, match: re.Match[str], field: str, problems: list[Problem]) -> str | Exact | None:
    kind, vendor, name = match[1].lower(), match[2].lower(), match[3]
    if name.lower() == "all":
        return f"{vendor}:all"
    if name.isdecimal():
        reason = "this could be a count or the CDI name of one device"
        count = int(name)
        offer = f"for {count} GPU{'' if count == 1 else 's'} write --gpu {vendor}:{count}; " if count else ""
        problems.append(Problem("GPU_AMBIGUOUS", field, text, reason, f"{offer}for that device --device {kind}={name}"))
        return None
    return Exact((f"{kind}={name}",))


def _part(part: str, text: str, field: str, problems: list[Problem]) -> str | None:
    """One part between colons."""
    part = part.removesuffix("!")  # Modal's word for this model and no better one, as it always is here
    vendor, slash, model = part.partition("/")
    if slash and model and vendor.lower() in _VENDORS.split("|"):
        return f"{vendor}:{model}"
    if match := _AT_LEAST.fullmatch(part):
        return f"{_sized(match[1] or match[2])}.."
    if match := _AT_MOST.fullmatch(part):
        return f"..{_sized(match[1])}"
    if match := _STRICT.fullmatch(part):
        size = _sized(match[2])
        offer = f"{size}.." if match[1] == ">" else f"..{size}"
        reason = "sizes include their bound"
        problems.append(Problem("GPU_MEMORY_INVALID", field, text, reason, f"write --gpu {offer}"))
        return None
    if match := _BARE_SIZE.fullmatch(part):
        low, size, dots, high = match.groups()
        if not (low and dots):
            return f"{low or ''}{_sized(size)}{dots or ''}{_sized(high) if high else ''}"
    if match := _COUNT_FIRST.fullmatch(part):
        return f"{match[2]}:{match[1]}"
    if match := _COUNT_LAST.fullmatch(part):
        model, count = match[1].strip(), match[2]
        if _AMD_BASE.fullmatch(model) and "x" in part[len(match[1]) :].lower():
            reason = "the x could be part of the model or mean times"
            offer = f"write --gpu {model.upper()}X:{count} or --gpu {model.upper()}:{count}"
            problems.append(Problem("GPU_AMBIGUOUS", field, text, reason, offer))
            return None
        return f"{model}:{count}"
    return part


def _sized(size: str) -> str:
    """`80G` and `80 gb` are what is sold as 80 GB; `80Gi` and `80GiB` are exact."""
    number, unit = re.fullmatch(r"([0-9.]+)\s*(.*)", size).groups()  # type: ignore[union-attr]  # _SIZE has matched
    return f"{number}{unit[0].upper()}{'i' if unit[1:2].lower() == 'i' else 'B'}"
