"""Kubernetes' Dynamic Resource Allocation, without Kubernetes.

Slices say which devices there are, classes which kinds of devices, claims what is wanted; the allocator says what is
given, and why. All of it is computation on values: nothing here reads a file, a clock or a network.

    inventory = Inventory(slices)                        # prepared once, asked many times
    allocator = Allocator(inventory, classes, Allocated.of_claims(claims_with_an_allocation))
    outcome = allocator.allocate(Node("host"), [claim])
    outcome.results                                      # one AllocationResult per claim, or None: cannot be had now
    outcome.explanation                                  # per request, what became of each device
"""

from dibs.claims.allocator import STEP_BUDGET, Allocator, Outcome, allocate
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
from dibs.claims.slices import Device, DeviceTaintRule, ResourceSlice
from dibs.claims.validation import validate

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
