"""The language's own simple tests and Kubernetes' DRA tests, where DIBS_CONFORMANCE_DATA names the folder with them."""

import collections
import functools
import json
import math
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dibs import cel
from dibs.cel.dra import DeviceView, compile_selector
from dibs.cel.values import map_key

_FOLDER = os.environ.get("DIBS_CONFORMANCE_DATA")
pytestmark = pytest.mark.skipif(
    _FOLDER is None, reason="DIBS_CONFORMANCE_DATA is not set: no conformance cases to compare with"
)
_OTHER = object()
# Where Kubernetes answers otherwise than the language's own tests, so do we: asked of its Go code, one by one.
_KUBERNETES_DIFFERS = {
    "network_ext/ipv4/ipv4_equals_ipv6",
    "network_ext/ipv4/ipv4_not_equals_ipv6",
    "optionals/optionals/map_null_entry_no_such_key",
    "optionals/optionals/map_present_key_invalid_field",
}
_PROTOBUF_FILES = ("proto2", "proto3", "proto2_ext", "enums", "wrappers", "dynamic")


def _cases(name: str) -> list[dict[str, Any]]:
    assert _FOLDER is not None
    found: list[dict[str, Any]] = json.loads((Path(_FOLDER) / name).read_text())["cases"]
    return found


def _value(wire: dict[str, Any] | None) -> Any:
    if wire is None:
        return None
    ((kind, value),) = wire.items()
    if kind == "uint":
        return cel.Uint(int(value))
    if kind == "list":
        return [_value(item) for item in value]
    if kind == "map":
        return {map_key(_value(key)): _value(item) for key, item in value}
    plain: dict[str, Any] = {"int": int, "double": float, "bytes": bytes, "string": str, "bool": bool}
    return plain[kind](value) if kind in plain else _OTHER


def _exclusion(case: dict[str, Any]) -> str | None:
    if case["file"] in _PROTOBUF_FILES:
        return f"protobuf messages and enums: {case['file']}"
    text = json.dumps(case)
    messages = ("TestAllTypes", "conformance.proto", "google.protobuf", "object_value", "msg.")
    if any(word in text for word in messages):
        return f"protobuf messages inside of {case['file']}"
    if case["file"] == "type_deduction" and case["ntype_env"]:
        return "declarations that the data does not carry: type_deduction"
    return None


def _same(one: Any, other: Any) -> bool:
    if type(one) is float and math.isnan(one):
        return type(other) is float and math.isnan(other)
    return type(one) is type(other) and cel.equals(one, other)


def _name(case: dict[str, Any]) -> str:
    return f"{case['file']}/{case['section']}/{case['name']}"


Environments = Callable[[tuple[str, ...], str], cel.Environment]


@pytest.fixture
def environments(every_library: list[cel.Library]) -> Environments:
    @functools.cache
    def make(variables: tuple[str, ...], container: str) -> cel.Environment:
        return cel.Environment(dict.fromkeys(variables, cel.DYN), every_library, container=container)

    return make


def _passes(case: dict[str, Any], environments: Environments) -> bool:
    environment = environments(tuple(case["bindings"]), case["container"])
    try:
        program = environment.compile(case["expr"], check=not case["disable_check"])
        if case["check_only"]:
            return True
        got = program.evaluate({name: _value(value) for name, value in case["bindings"].items()})
    except cel.CelError as error:
        return case["matcher"] == "eval_error" and isinstance(error, cel.CelRuntimeError)
    if case["matcher"] == "eval_error":
        return False
    if case["matcher"] == "typed_result":
        return True
    wanted = _value(case.get("value", {"bool": True}))
    return isinstance(got, cel.TypeValue) if wanted is _OTHER else _same(got, wanted)


@pytest.mark.parametrize("seed", [None, 1, 2], ids=["in order", "shuffled", "shuffled again"])
def test_all_simple_tests_of_the_language_without_protobuf_pass(seed: int | None, environments: Environments) -> None:
    cases = _cases("cel-spec-cases.json")
    if seed is not None:
        random.Random(seed).shuffle(cases)
    excluded: collections.Counter[str] = collections.Counter()
    failed = []
    passed = 0
    for case in cases:
        reason = _exclusion(case)
        if reason is not None:
            excluded[reason] += 1
        elif _passes(case, environments) is not (_name(case) in _KUBERNETES_DIFFERS):
            passed += 1
        else:
            failed.append(f"{_name(case)}: {case['expr']}")
    print(f"cel-spec: {passed} of {passed + len(failed)} pass; {sum(excluded.values())} excluded:")
    for reason, count in sorted(excluded.items()):
        print(f"  {count:4} {reason}")
    assert passed > 1000
    assert failed == []


@pytest.mark.parametrize("seed", [None, 1, 2], ids=["in order", "shuffled", "shuffled again"])
def test_all_dra_cases_pass_and_the_costs_are_those_of_kubernetes(seed: int | None) -> None:
    cases = _cases("dra-cel-cases.json")
    if seed is not None:
        random.Random(seed).shuffle(cases)
    failed = []
    costs = compiled = 0
    for case in cases:
        features = case.get("features") or {}
        got: tuple[str, object]
        try:
            selector = compile_selector(
                case["expression"],
                consumable_capacity=features.get("EnableConsumableCapacity", False),
                list_attributes=features.get("EnableListTypeAttributes", False),
            )
            compiled += 1
            costs += selector.cost == case["expectCost"]
            device = DeviceView(
                case["driver"], case["attributes"], case["capacity"], case.get("allowMultipleAllocations")
            )
            try:
                got = ("match", selector.matches(device))
            except cel.CelError as error:
                got = ("match error", str(error))
        except cel.CelCompileError as error:
            got = ("compile error", str(error))
        if "expectCompileError" in case:
            good = got[0] == "compile error" and case["expectCompileError"] in str(got[1])
        elif "expectMatchError" in case:
            good = got[0] == "match error" and case["expectMatchError"] in str(got[1])
        else:
            good = got == ("match", case["expectMatch"])
        if not good:
            failed.append((case["name"], got))
    print(f"DRA: {len(cases) - len(failed)} of {len(cases)} pass; {costs} of {compiled} static costs are equal")
    assert failed == []
    assert costs == compiled
