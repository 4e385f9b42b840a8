"""One expression, answered here and by Kubernetes' Go code; what differs between the two answers."""

from __future__ import annotations

import math
import struct
from typing import Any

from bench.golang import Reference
from tests.golang.expressions import DEVICES

from dibs import cel
from dibs.cel.dra import DeviceView, compile_selector, environment
from dibs.cel.library.times import Duration, Timestamp
from dibs.cel.semver import Semver
from dibs.cel.values import key_value, type_name
from dibs.quantity import Quantity

GATES = {"consumable_capacity": "DRAConsumableCapacity", "list_attributes": "DRAListTypeAttributes"}
_RESULT = "must evaluate to"


def theirs(reference: Reference, text: str, *, stored: bool, gates: tuple[str, ...]) -> dict[str, Any]:
    """Kubernetes' answer: refused, or type, static cost, and per device a value with its cost, or an error."""
    features = [GATES[gate] for gate in gates]
    answer = reference.ask(
        {"ask": "cel", "expression": text, "features": features, "stored": stored, "devices": DEVICES}
    )
    if "compileError" in answer:
        return {"refused": answer["compileError"]}
    found: dict[str, Any] = {"selector": "resultError" not in answer, "values": []}
    if "maxCost" in answer:
        found["static"] = int(answer["maxCost"])
    for item in answer["evaluations"]:
        if "error" in item:
            kind = "cost" if "cost limit exceeded" in item["error"] else "error"
            found["values"].append((kind, item["error"]))
        elif "matches" in item:
            found["values"].append((f"bool:{str(item['matches']).lower()}", int(item["cost"])))
        else:
            found["values"].append((item.get("value", ""), int(item["cost"])))
    return found


def ours(text: str, *, stored: bool, gates: tuple[str, ...]) -> dict[str, Any]:
    """The same of our engine."""
    options: dict[str, Any] = {gate: gate in gates for gate in GATES}
    found: dict[str, Any] = {"selector": True, "values": []}
    try:
        program = environment(**options, stored=stored).compile(text)
    except cel.CelCompileError as error:
        return {"refused": str(error)}
    try:
        selector = compile_selector(text, **options, stored=stored)
        found["static"] = int(selector.cost)
    except cel.CelTypeError as error:
        found["selector"] = False
        if _RESULT not in str(error):
            raise
    for device in DEVICES:
        view = DeviceView(
            device["driver"],
            device.get("attributes"),
            device.get("capacity"),
            device.get("allowMultipleAllocations"),
        )
        found["values"].append(_evaluated(program, view, selector if found["selector"] else None))
    return found


def _evaluated(program: cel.Program, view: DeviceView, selector: Any) -> tuple[str, Any]:
    arguments = (view,) if program.variables else ()
    try:
        if selector is not None:
            plain = shown(selector.matches(view))
        value, cost, absorbed = program.measure(arguments)
    except cel.CelRuntimeError as error:
        return "error", str(error)
    except cel.CelCostError as error:
        return "cost", str(error)
    if selector is not None:
        while isinstance(value, cel.Optional) and value.present:
            value = value.value  # as a selector's answer is converted, there and here
        assert plain == shown(value), (program.expression, plain, shown(value))
    # Calls around an error are charged there and not here: such a cost is only compared where nothing was absorbed.
    return shown(value), None if absorbed else cost


def shown(value: Any, depth: int = 0) -> str:
    """A value with its types, as the reference prints it."""
    if depth > 20:
        return "…"
    if value is None:
        return "null"
    kind = type_name(value)
    if kind in ("bool", "int", "uint"):
        return f"{kind}:{str(value).lower()}"
    if kind == "double":
        return "double:nan" if math.isnan(value) else f"double:{struct.pack('>d', value).hex()}"
    if kind == "string":
        return f"string:{value.encode().hex()}"
    if kind == "bytes":
        return f"bytes:{value.hex()}"
    if isinstance(value, Duration):
        return f"duration:{value.nanos}"
    if isinstance(value, Timestamp):
        return f"timestamp:{value.nanos // 10**9}.{value.nanos % 10**9}"
    if isinstance(value, cel.Optional):
        return f"some({shown(value.value, depth + 1)})" if value.present else "none"
    if isinstance(value, cel.TypeValue):
        return f"type:{value.name}"
    if isinstance(value, Quantity):
        return f"quantity:{value}"
    if isinstance(value, Semver):
        return f"semver:{value}"
    if isinstance(value, dict):
        entries = [f"{shown(key_value(key), depth + 1)}={shown(item, depth + 1)}" for key, item in value.items()]
        return "{" + ",".join(sorted(entries)) + "}"
    if isinstance(value, list):
        return "[" + ",".join(shown(item, depth + 1) for item in value) + "]"
    return f"{kind}:{value}"


def difference(one: dict[str, Any], other: dict[str, Any]) -> str:
    """What differs between our answer and theirs, in a word; empty where nothing does."""
    if ("refused" in one) != ("refused" in other):
        return "refused here" if "refused" in one else "refused there"
    if "refused" in one:
        return ""
    if one["selector"] != other["selector"]:
        return "selector"
    if one.get("static") != other.get("static"):
        return "static"
    for mine, their in zip(one["values"], other["values"], strict=True):
        if mine[0] != their[0]:
            return "value"
        if mine[0] not in ("error", "cost") and mine[1] is not None and mine[1] != their[1]:
            return "cost"
    return ""
