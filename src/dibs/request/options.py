"""Options that only one backend understands, each backend's in its own place: `docker: {cdi_devices: [...]}`.

`spec.parse_spec` asks for the problems of each block. Exact devices never stand alone: they narrow a device request
that every backend would understand, and must agree with it. Nothing is looked at but the words. What a cluster
understands is in `pod_options`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dibs.errors import Problem, quoted
from dibs.request.model import Request

KEYS: dict[str, tuple[str, ...]] = {"docker": ("cdi_devices",), "podman": ("cdi_devices",)}


def check_options(backend: str, options: Mapping[str, Any], request: Request) -> list[Problem]:
    """What is wrong with the block of one backend among all blocks."""
    block = options.get(backend)
    if backend == "kubernetes":
        from dibs.request.pod_options import option_problems

        return option_problems(block)
    known = KEYS.get(backend)
    if known is None:
        remedy = f"the backends with options of their own are {', '.join((*KEYS, 'kubernetes'))}"
        return [_problem("UNKNOWN_FIELD", backend, block, "this backend has no options of its own", remedy)]
    example = f"write it as {backend}: {{cdi_devices: [nvidia.com/gpu=0]}}"
    if not isinstance(block, Mapping):
        return [_problem("BACKEND_OPTION_INVALID", backend, block, "must be a mapping", example)]
    problems = [
        _problem(
            "UNKNOWN_FIELD",
            f"{backend}.{key}",
            value,
            "there is no such option",
            f"the known ones are {', '.join(known)}",
        )
        for key, value in block.items()
        if key not in known
    ]
    if "cdi_devices" in block:
        problems += _cdi_devices(f"{backend}.cdi_devices", block["cdi_devices"], request, example)
    return problems


def _cdi_devices(field: str, names: Any, request: Request, example: str) -> list[Problem]:
    if not isinstance(names, list | tuple) or not names:
        return [_problem("BACKEND_OPTION_INVALID", field, names, "must be a list of at least one CDI name", example)]
    problems = []
    seen: set[str] = set()
    for name in names:
        kind, equals, device = name.partition("=") if isinstance(name, str) else ("", "", "")
        if not (equals and device and kind.count("/") == 1 and all(kind.split("/")) and name.isprintable()):
            problems.append(
                _problem("BACKEND_OPTION_INVALID", field, name, "not a CDI name", "write vendor/class=device")
            )
        elif name in seen:
            problems.append(_problem("BACKEND_OPTION_INVALID", field, name, "is named twice", "name each device once"))
        else:
            seen.add(name)
    if not request.wants_devices:
        remedy = f"ask for them too, as in gpu: {len(names)}"
        return [
            *problems,
            _problem("BACKEND_OPTION_INVALID", field, ", ".join(map(str, names)), "no device is asked for", remedy),
        ]
    count = _count(request)
    if count is not None and count != len(names):
        reason = f"{len(names)} devices are named, and {count} {'is' if count == 1 else 'are'} asked for"
        remedy = "make both numbers the same"
        problems.append(_problem("BACKEND_OPTION_INVALID", field, ", ".join(map(str, names)), reason, remedy))
    return problems


def _count(request: Request) -> int | None:
    """How many devices a request takes; None where only the plan can say (all, or a claim)."""
    if request.claim is not None:
        return None
    total = len(request.devices)
    for selector in request.gpus:
        if selector.count == "all":
            return None
        total += selector.count
    return total


def _problem(code: str, field: str, value: Any, reason: str, remedy: str) -> Problem:
    return Problem(code, field, quoted(value)[1:-1] if value is not None else "", reason, remedy)
