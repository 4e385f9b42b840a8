"""Kubernetes' Dynamic Resource Allocation, without Kubernetes.

Slices say which devices there are, classes which kinds of devices, claims what is wanted; the allocator says what is
given, and why. All of it is computation on values: nothing here reads a file, a clock or a network.

    inventory = Inventory(slices)                        # prepared once, asked many times
    allocator = Allocator(inventory, classes, Allocated.of_claims(claims_with_an_allocation))
    outcome = allocator.allocate(Node("host"), [claim])
    outcome.results                                      # one AllocationResult per claim, or None: cannot be had now
    outcome.explanation                                  # per request, what became of each device
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dibs.claims.allocator import Allocator, Outcome, allocate
    from dibs.claims.claim import (
        AllocationResult,
        DeviceClass,
        DeviceRequestAllocationResult,
        ResourceClaim,
        ResourceClaimTemplate,
    )
    from dibs.claims.explanation import Explanation, PoolTrouble, RequestExplanation, Verdict
    from dibs.claims.failures import BadClaim, BadPool, Cancelled, GaveUp
    from dibs.claims.features import Features
    from dibs.claims.fielderrors import FieldError, FieldErrors, refuse
    from dibs.claims.identity import Allocated, DeviceId
    from dibs.claims.inventory import Inventory
    from dibs.claims.nodes import Node
    from dibs.claims.objects import (
        any_from_builtins,
        decode,
        decode_any,
        encode,
        from_builtins,
        to_builtins,
    )
    from dibs.claims.search import STEP_BUDGET
    from dibs.claims.slices import Device, DeviceTaintRule, ResourceSlice
    from dibs.claims.validation import validate

# Loaded on first use: code that only needs the objects does not pay for the allocator and CEL.
_HOME = {
    name: module
    for module, names in {
        "allocator": "Allocator Outcome allocate",
        "claim": "AllocationResult DeviceClass DeviceRequestAllocationResult ResourceClaim ResourceClaimTemplate",
        "explanation": "Explanation PoolTrouble RequestExplanation Verdict",
        "failures": "BadClaim BadPool Cancelled GaveUp",
        "features": "Features",
        "fielderrors": "FieldError FieldErrors refuse",
        "identity": "Allocated DeviceId",
        "inventory": "Inventory",
        "nodes": "Node",
        "objects": "any_from_builtins decode decode_any encode from_builtins to_builtins",
        "search": "STEP_BUDGET",
        "slices": "Device DeviceTaintRule ResourceSlice",
        "validation": "validate",
    }.items()
    for name in names.split()
}

__all__ = [
    "STEP_BUDGET",
    "Allocated",
    "AllocationResult",
    "Allocator",
    "BadClaim",
    "BadPool",
    "Cancelled",
    "Device",
    "DeviceClass",
    "DeviceId",
    "DeviceRequestAllocationResult",
    "DeviceTaintRule",
    "Explanation",
    "Features",
    "FieldError",
    "FieldErrors",
    "GaveUp",
    "Inventory",
    "Node",
    "Outcome",
    "PoolTrouble",
    "RequestExplanation",
    "ResourceClaim",
    "ResourceClaimTemplate",
    "ResourceSlice",
    "Verdict",
    "allocate",
    "any_from_builtins",
    "decode",
    "decode_any",
    "encode",
    "from_builtins",
    "refuse",
    "to_builtins",
    "validate",
]


if not TYPE_CHECKING:  # else a checker would believe every name

    def __getattr__(name: str) -> Any:
        module = _HOME.get(name)
        if module is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{module}"), name)
