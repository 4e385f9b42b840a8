"""From a mapping to a `Request`, with all problems collected.

The mapping may come from YAML, JSON, the command line or Python; its keys are those of the short form, and the resource
names that Kubernetes users write (`nvidia.com/gpu: 2`). Unknown keys are refused, naming the known ones.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dibs.errors import InvalidRequest, Problem, as_written, quoted
from dibs.patterns import lazy_pattern
from dibs.quantity import NANO, Quantity
from dibs.request.fields import RESOURCES
from dibs.request.gpu import VENDORS, parse_gpu
from dibs.request.model import ALL, GpuSelector, Request
from dibs.request.spelling import Exact, translate

ALIASES = {"gpus": "gpu", "devices": "device", "allow-busy": "allow_busy", "allowBusy": "allow_busy"}
VENDOR_KEYS = {f"{vendor}.com/gpu": vendor for vendor in VENDORS}
_DEVICE = lazy_pattern(r"[A-Za-z0-9][A-Za-z0-9_.:/=-]{0,252}", re.ASCII)
_MOST_CPUS = 1_000_000  # millis: a thousand processors, more than any host; a typing error beyond it
_LEAST_MEMORY = 1 << 20
_MOST_MEMORY = 1 << 50
_MOST_PIDS = 1 << 22  # the kernel's own PID_MAX_LIMIT


def parse_request(mapping: Mapping[str, Any], *, prefix: str = "") -> Request:
    """The canonical request, or InvalidRequest with every problem in it."""
    problems: list[Problem] = []
    request = collect_request(mapping, problems, prefix=prefix)
    if problems:
        raise InvalidRequest(problems)
    return request


def collect_request(mapping: Mapping[str, Any], problems: list[Problem], *, prefix: str = "") -> Request:
    """As `parse_request`, but the problems go into the caller's list."""
    selectors: list[tuple[str, str, GpuSelector]] = []
    exact: list[str] = []  # devices that a spelling of `gpu` names
    values: dict[str, Any] = {}
    seen: dict[str, str] = {}
    for raw, value in mapping.items():
        key = ALIASES.get(str(raw), str(raw))
        if key in seen:
            reason = f"{seen[key]} and {raw} are the same"
            problems.append(Problem("CONFLICT", f"{prefix}{raw}", as_written(value), reason, "say it once"))
            continue
        seen[key] = str(raw)
        field = f"{prefix}{raw}"
        vendor = VENDOR_KEYS.get(key)
        if key == "gpu" or vendor:
            items = value if isinstance(value, list | tuple) else [value]
            for index, item in enumerate(items):
                place = f"{field}[{index}]" if isinstance(value, list | tuple) else field
                if isinstance(item, str) and not vendor:
                    item = translate(item, place, problems)  # noqa: PLW2901  # the same request, in our spelling
                    if item is None:
                        continue
                    if isinstance(item, Exact):
                        exact += item.names
                        continue
                selector = _of_vendor(item, vendor, place, problems) if vendor else parse_gpu(item, place, problems)
                if selector is not None:
                    selectors.append((key, place, selector))
            if not items:
                problems.append(Problem("GPU_INVALID", field, "[]", "the list is empty", "leave it out to get no GPU"))
        elif key in RESOURCES:
            values[key] = value
        else:
            problems.append(_unknown(field, key, value))
    _one_spelling(selectors, problems)
    if exact and selectors:
        reason = "some GPUs are named and others described"
        problems.append(Problem("CONFLICT", f"{prefix}gpu", ", ".join(exact), reason, "name all of them, or none"))
    if exact and "device" in values:
        reason = "gpu names devices too"
        problems.append(
            Problem("CONFLICT", f"{prefix}device", ", ".join(exact), reason, "name all of them in one place")
        )
    elif exact:
        values["device"] = exact
    devices = _devices(values["device"], f"{prefix}device", problems) if "device" in values else ()
    gpus = _agree(tuple(selector for _, _, selector in selectors), devices, prefix, problems)
    where: tuple[str, ...] = ()
    claim: dict[str, Any] | None = None
    if "where" in values or "claim" in values:
        from dibs.request import selection  # brings CEL and the claims model with it

        where = selection.read_where(values.get("where", ()), f"{prefix}where", problems)
        claim = selection.read_claim(values["claim"], f"{prefix}claim", problems) if "claim" in values else None
        gpus = selection.combine(gpus, devices, where, claim is not None or "claim" in values, prefix, problems)
    return Request(
        gpus=gpus,
        devices=devices,
        where=where,
        claim=claim,
        cpu_millis=_cpu(values["cpu"], f"{prefix}cpu", problems) if "cpu" in values else None,
        memory_bytes=memory_bytes(values["memory"], f"{prefix}memory", problems) if "memory" in values else None,
        pids=_pids(values["pids"], f"{prefix}pids", problems) if "pids" in values else None,
        allow_busy=_flag(values["allow_busy"], f"{prefix}allow_busy", problems) if "allow_busy" in values else False,
    )


def _unknown(field: str, key: str, value: Any) -> Problem:
    known = f"the known ones are {', '.join(RESOURCES)} and {', '.join(f'{vendor}.com/gpu' for vendor in VENDORS)}"
    if "/" in key:
        return Problem("UNKNOWN_RESOURCE", field, as_written(value), "dibs does not know this resource", known)
    return Problem("UNKNOWN_FIELD", field, as_written(value), "there is no such field", known)


def _of_vendor(value: Any, vendor: str, field: str, problems: list[Problem]) -> GpuSelector | None:
    selector = parse_gpu(value, field, problems)
    if selector is None:
        return None
    if selector != GpuSelector(count=selector.count):
        remedy = f"write gpu: {vendor}:{selector}"
        problems.append(Problem("GPU_COUNT_INVALID", field, as_written(value), "only a count can stand here", remedy))
        return None
    return GpuSelector(count=selector.count, vendor=vendor)


def _one_spelling(selectors: list[tuple[str, str, GpuSelector]], problems: list[Problem]) -> None:
    """`gpu: 1` beside `nvidia.com/gpu: 4`: two answers to one question. Neither may overwrite the other."""
    keys = {key for key, _, _ in selectors}
    if "gpu" in keys and len(keys) > 1:
        said = ", ".join(f"{place}: {selector}" for _, place, selector in selectors)
        remedy = "keep one of them; for several kinds of GPU write gpu as a list"
        problems.append(Problem("CONFLICT", "gpu", said, "GPUs are asked for in two ways", remedy))


def _agree(
    gpus: tuple[GpuSelector, ...], devices: tuple[str, ...], prefix: str, problems: list[Problem]
) -> tuple[GpuSelector, ...]:
    """Exact devices beside a plain count: the numbers must agree, and the devices then say it all."""
    if not gpus or not devices:
        return gpus
    plain = all(selector == GpuSelector(count=selector.count) and selector.count != ALL for selector in gpus)
    if plain and sum(int(selector.count) for selector in gpus) == len(devices):
        return ()
    said = f"{' + '.join(map(str, gpus))} and {len(devices)} exact device{'s' if len(devices) > 1 else ''}"
    remedy = "leave gpu out, or make it the number of devices"
    problems.append(Problem("CONFLICT", f"{prefix}gpu", said, "gpu and device do not agree", remedy))
    return gpus


def _devices(value: Any, field: str, problems: list[Problem]) -> tuple[str, ...]:
    names = value if isinstance(value, list | tuple) else [value]
    devices: list[str] = []
    for name in names:
        text = name.strip() if isinstance(name, str) else name
        if not isinstance(text, str) or _DEVICE.fullmatch(text) is None:
            if isinstance(text, str) and text.startswith("/"):
                reason, remedy = "a path is not a device name", "write the name that `dibs gpus -o wide` shows"
            else:
                reason, remedy = "not a device name", "write it as in --device nvidia.com/gpu=0"
            problems.append(Problem("DEVICE_INVALID", field, as_written(name), reason, remedy))
        elif text.lower().endswith("=all") or text.lower() == ALL:
            problems.append(Problem("DEVICE_INVALID", field, text, "all is not a device", "write --gpu all"))
        elif text in devices:
            problems.append(Problem("DEVICE_INVALID", field, text, "the device is named twice", "name it once"))
        else:
            devices.append(text)
    if not names:
        problems.append(Problem("DEVICE_INVALID", field, "[]", "the list is empty", "leave it out"))
    return tuple(devices)


def _quantity(value: Any, field: str, problems: list[Problem], example: str) -> Quantity | None:
    text = str(value).strip() if isinstance(value, str | int | float) and not isinstance(value, bool) else None
    if text is None:
        problems.append(
            Problem("QUANTITY_INVALID", field, as_written(value), "not a quantity", f"write it as {example}")
        )
        return None
    try:
        quantity = Quantity.parse(text)
    except ValueError as error:
        remedy = f"write it as {example}"
        swapped = re.fullmatch(r"([0-9.]+)\s*(?:([KMGTkmgt])[iI]?[bB]|([gkt])i?)", text)
        if swapped:
            remedy = f"did you mean {swapped.group(1)}{(swapped.group(2) or swapped.group(3)).upper()}i?"
        reason = str(error).partition(": ")[2].partition(";")[0]
        problems.append(Problem("QUANTITY_INVALID", field, text, reason, remedy))
        return None
    if quantity.sign <= 0:
        remedy = "leave it out to set no limit"
        problems.append(Problem("QUANTITY_INVALID", field, text, "must be more than zero", remedy))
        return None
    return quantity


def _cpu(value: Any, field: str, problems: list[Problem]) -> int | None:
    quantity = _quantity(value, field, problems, "2, 0.5 or 500m")
    if quantity is None:
        return None
    millis, rest = divmod(quantity.nanos, NANO // 1000)
    if rest:
        problems.append(
            Problem(
                "QUANTITY_INVALID",
                field,
                as_written(value),
                "finer than a thousandth of a processor",
                "write it as 500m",
            )
        )
        return None
    if millis > _MOST_CPUS:
        problems.append(
            Problem(
                "QUANTITY_INVALID",
                field,
                as_written(value),
                "more processors than any host has",
                "write it as 2 or 500m",
            )
        )
        return None
    return millis


def memory_bytes(value: Any, field: str, problems: list[Problem]) -> int | None:
    quantity = _quantity(value, field, problems, "4Gi, 512Mi or 4G")
    if quantity is None:
        return None
    text = str(value).strip()
    if quantity.nanos < _LEAST_MEMORY * NANO or quantity.nanos % NANO:
        digits = re.match(r"[0-9.]+", text)
        unit = "Mi" if text.endswith("m") else "Gi"
        hint = f"did you mean {digits.group(0)}{unit}?" if digits else "write it as 512Mi"
        why = "m means a thousandth, so this is" if text.endswith("m") else "this is"
        reason = f"{why} less than one mebibyte of memory"
        problems.append(Problem("QUANTITY_INVALID", field, text, reason, hint))
        return None
    if quantity.nanos > _MOST_MEMORY * NANO:
        problems.append(Problem("QUANTITY_INVALID", field, text, "more memory than any host has", "write it as 4Gi"))
        return None
    return quantity.nanos // NANO


def _pids(value: Any, field: str, problems: list[Problem]) -> int | None:
    text = str(value).strip()
    if isinstance(value, bool) or not re.fullmatch(r"[0-9]{1,8}", text, re.ASCII) or not 0 < int(text) <= _MOST_PIDS:
        reason = f"must be a whole number from 1 to {_MOST_PIDS}"
        problems.append(Problem("PIDS_INVALID", field, text, reason, "write it as 512, or leave it out"))
        return None
    return int(text)


def _flag(value: Any, field: str, problems: list[Problem]) -> bool:
    if isinstance(value, bool):
        return value
    problems.append(
        Problem("FLAG_INVALID", field, quoted(value)[1:-1], "must be true or false", "write true, or leave it out")
    )
    return False
