"""The `resource.k8s.io/v1` objects, from JSON and back.

All code that touches a claim, a class or a slice imports the types from here. Decoding is strict: unknown fields
and wrong types are refused, all of them at once, each with its path as Kubernetes prints it. An explicit `null`
counts as unset, as in Kubernetes. What is read is not judged: that is `validation`.
"""

from __future__ import annotations

import types
from typing import Any, TypeVar, Union, get_args, get_origin

import msgspec

from dibs.claims.claim import (
    ALL,
    EXACT_COUNT,
    FROM_CLAIM,
    FROM_CLASS,
    AllocatedDeviceStatus,
    AllocationResult,
    CapacityRequirements,
    CELDeviceSelector,
    DeviceAllocationConfiguration,
    DeviceAllocationResult,
    DeviceClaim,
    DeviceClaimConfiguration,
    DeviceClass,
    DeviceClassConfiguration,
    DeviceClassSpec,
    DeviceConstraint,
    DeviceDerivedAttribute,
    DeviceRequest,
    DeviceRequestAllocationResult,
    DeviceSelector,
    DeviceSubRequest,
    DeviceToleration,
    ExactDeviceRequest,
    NetworkDeviceData,
    OpaqueDeviceConfiguration,
    ResourceClaim,
    ResourceClaimConsumerReference,
    ResourceClaimSpec,
    ResourceClaimStatus,
    ResourceClaimTemplate,
    ResourceClaimTemplateSpec,
)
from dibs.claims.meta import (
    Amount,
    Condition,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    ObjectMeta,
    OwnerReference,
    Part,
)
from dibs.claims.slices import (
    API_VERSION,
    CapacityRequestPolicy,
    CapacityRequestPolicyRange,
    Counter,
    CounterSet,
    Device,
    DeviceAttribute,
    DeviceCapacity,
    DeviceCounterConsumption,
    DeviceTaint,
    DeviceTaintRule,
    DeviceTaintRuleSpec,
    DeviceTaintRuleStatus,
    DeviceTaintSelector,
    NodeAllocatableMapping,
    NodeAllocatableOverhead,
    NodeAllocatableResource,
    ResourcePool,
    ResourceSlice,
    ResourceSliceSpec,
)
from dibs.errors import InvalidRequest, Problem

P = TypeVar("P", bound=Part)

KINDS: dict[str, type[Part]] = {
    "DeviceClass": DeviceClass,
    "DeviceTaintRule": DeviceTaintRule,
    "ResourceClaim": ResourceClaim,
    "ResourceClaimTemplate": ResourceClaimTemplate,
    "ResourceSlice": ResourceSlice,
}

_FREE_FORM = Any  # opaque parameters, driver data: any JSON, nulls included


def decode(text: bytes | str, kind: type[P]) -> P:
    """Read one object of a known kind. Raises InvalidRequest with every problem found."""
    try:
        found = msgspec.json.decode(text, type=kind)
    except msgspec.ValidationError:
        return from_builtins(msgspec.json.decode(text), kind)
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"not JSON: {error}", code="CLAIM_UNREADABLE") from error
    _check_version(found)
    return found


def from_builtins(value: object, kind: type[P]) -> P:
    """Read one object of a known kind from dicts and lists. Raises InvalidRequest with every problem."""
    try:
        found = msgspec.convert(value, kind)
    except msgspec.ValidationError:
        problems: list[Problem] = []
        pruned = _examined(value, kind, "", problems)
        if problems:
            raise InvalidRequest(problems) from None
        found = msgspec.convert(pruned, kind)
    _check_version(found)
    return found


def lenient(value: object, kind: type[P]) -> tuple[P, tuple[Problem, ...]]:
    """Read an object that a newer Kubernetes may have written, and the fields in it that are not known here.

    Code that decides with the object must report those. Raises InvalidRequest for anything else that is wrong.
    """
    problems: list[Problem] = []
    pruned = _examined(value, kind, "", problems)
    unknown = tuple(problem for problem in problems if problem.code == "UNKNOWN_FIELD")
    if len(unknown) < len(problems):
        raise InvalidRequest([problem for problem in problems if problem.code != "UNKNOWN_FIELD"])
    found = msgspec.convert(pruned, kind)
    _check_version(found)
    return found, unknown


def decode_any(text: bytes | str) -> Part:
    """Read one object of any of the kinds; `kind` says which."""
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"not JSON: {error}", code="CLAIM_UNREADABLE") from error
    return any_from_builtins(value)


def any_from_builtins(value: object) -> Part:
    name = value.get("kind") if isinstance(value, dict) else None
    kind = KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        known = ", ".join(KINDS)
        raise InvalidRequest(
            f"not a kind of {API_VERSION}",
            field="kind",
            value="" if name is None else str(name),
            code="CLAIM_UNREADABLE",
            remedy=f"the kinds are {known}",
        )
    return from_builtins(value, kind)


def encode(part: Part) -> bytes:
    """JSON as Kubernetes writes it: camelCase, nothing that is unset."""
    return msgspec.json.encode(part)


def to_builtins(part: Part) -> dict[str, Any]:
    """The same as dicts and lists."""
    found: dict[str, Any] = msgspec.to_builtins(part, builtin_types=(), str_keys=True)
    return _lists(found)  # type: ignore[no-any-return]


def _lists(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _lists(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_lists(item) for item in value]
    return value


def _check_version(found: Part) -> None:
    version = getattr(found, "api_version", API_VERSION)
    if version != API_VERSION:
        raise InvalidRequest(
            "not the version that is read here",
            field="apiVersion",
            value=version,
            code="CLAIM_UNREADABLE",
            remedy=f"write the object as {API_VERSION}",
        )


def _examined(value: Any, kind: Any, path: str, problems: list[Problem]) -> Any:
    """The value without its nulls; what does not fit is added to the problems, with its exact path."""
    if kind is _FREE_FORM:
        return value
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        options = [option for option in get_args(kind) if option is not types.NoneType]
        if value is None and len(options) < len(get_args(kind)):
            return None
        if len(options) == 1:
            return _examined(value, options[0], path, problems)
        return _leaf(value, kind, path, problems)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            return _wrong(value, "a list", path, problems)
        item_kind = get_args(kind)[0]
        return [_examined(item, item_kind, f"{path}[{i}]", problems) for i, item in enumerate(value)]
    if origin is dict:
        if not isinstance(value, dict):
            return _wrong(value, "an object", path, problems)
        item_kind = get_args(kind)[1]
        return {key: _examined(item, item_kind, f"{path}[{key}]", problems) for key, item in value.items()}
    if isinstance(kind, type) and issubclass(kind, Part):
        return _examined_part(value, kind, path, problems)
    return _leaf(value, kind, path, problems)


def _examined_part(value: Any, kind: type[Part], path: str, problems: list[Problem]) -> Any:
    if not isinstance(value, dict):
        return _wrong(value, "an object", path, problems)
    fields = {field.encode_name: field.type for field in msgspec.structs.fields(kind)}
    tag = kind.__struct_config__.tag
    result: dict[str, Any] = {}
    for key, item in value.items():
        below = f"{path}.{key}" if path else str(key)
        if key == "kind" and tag is not None:
            if item not in (tag, None):
                problems.append(Problem("CLAIM_UNREADABLE", below, str(item), f"must be {tag}"))
        elif key not in fields:
            known = ", ".join(sorted(fields))
            problems.append(Problem("UNKNOWN_FIELD", below, "", "unknown field", f"the fields are {known}"))
        elif item is not None:  # null is unset, as in Kubernetes
            result[key] = _examined(item, fields[key], below, problems)
    return result


def _leaf(value: Any, kind: Any, path: str, problems: list[Problem]) -> Any:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        reason = str(error).partition(" - at ")[0]
        problems.append(Problem("CLAIM_UNREADABLE", path, _shown(value), reason[:1].lower() + reason[1:]))
    return value


def _wrong(value: Any, wanted: str, path: str, problems: list[Problem]) -> Any:
    problems.append(Problem("CLAIM_UNREADABLE", path, _shown(value), f"must be {wanted}"))
    return value


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


__all__ = [
    "ALL",
    "API_VERSION",
    "EXACT_COUNT",
    "FROM_CLAIM",
    "FROM_CLASS",
    "KINDS",
    "AllocatedDeviceStatus",
    "AllocationResult",
    "Amount",
    "CELDeviceSelector",
    "CapacityRequestPolicy",
    "CapacityRequestPolicyRange",
    "CapacityRequirements",
    "Condition",
    "Counter",
    "CounterSet",
    "Device",
    "DeviceAllocationConfiguration",
    "DeviceAllocationResult",
    "DeviceAttribute",
    "DeviceCapacity",
    "DeviceClaim",
    "DeviceClaimConfiguration",
    "DeviceClass",
    "DeviceClassConfiguration",
    "DeviceClassSpec",
    "DeviceConstraint",
    "DeviceCounterConsumption",
    "DeviceDerivedAttribute",
    "DeviceRequest",
    "DeviceRequestAllocationResult",
    "DeviceSelector",
    "DeviceSubRequest",
    "DeviceTaint",
    "DeviceTaintRule",
    "DeviceTaintRuleSpec",
    "DeviceTaintRuleStatus",
    "DeviceTaintSelector",
    "DeviceToleration",
    "ExactDeviceRequest",
    "NetworkDeviceData",
    "NodeAllocatableMapping",
    "NodeAllocatableOverhead",
    "NodeAllocatableResource",
    "NodeSelector",
    "NodeSelectorRequirement",
    "NodeSelectorTerm",
    "ObjectMeta",
    "OpaqueDeviceConfiguration",
    "OwnerReference",
    "Part",
    "ResourceClaim",
    "ResourceClaimConsumerReference",
    "ResourceClaimSpec",
    "ResourceClaimStatus",
    "ResourceClaimTemplate",
    "ResourceClaimTemplateSpec",
    "ResourcePool",
    "ResourceSlice",
    "ResourceSliceSpec",
    "any_from_builtins",
    "decode",
    "decode_any",
    "encode",
    "from_builtins",
    "lenient",
    "to_builtins",
]
