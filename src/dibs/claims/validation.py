"""Kubernetes' rules for claims, templates, classes and taint rules: all mistakes of an object, with their paths.

Called at the edge, before anything is decided; on Kubernetes the API server would say the same. Slices are in
`slice_validation`. Limits are Kubernetes' and are named, so that documentation can quote them. It must not change the
object.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from dibs.cel.errors import CelCompileError
from dibs.claims.capacity import quantity
from dibs.claims.claim import (
    ALL,
    EXACT_COUNT,
    AllocationResult,
    DeviceClaim,
    DeviceClass,
    DeviceConstraint,
    DeviceDerivedAttribute,
    DeviceRequest,
    DeviceSelector,
    DeviceSubRequest,
    DeviceToleration,
    ExactDeviceRequest,
    OpaqueDeviceConfiguration,
    ResourceClaim,
    ResourceClaimTemplate,
)
from dibs.claims.fielderrors import FieldErrors
from dibs.claims.meta import ObjectMeta, Part
from dibs.claims.names import (
    check_driver,
    check_fully_qualified,
    check_label,
    check_label_key,
    check_label_value,
    check_pool,
    check_qualified,
    check_share_id,
    check_subdomain,
)
from dibs.claims.slice_validation import check_taint, validate_slice
from dibs.claims.slices import DeviceTaintRule, ResourceSlice

MAX_REQUESTS = 32
MAX_ALTERNATIVES = 8
MAX_RESULTS = 32
MAX_SELECTORS = 32
MAX_CONSTRAINTS = 32
MAX_CONFIGS = 32
MAX_ALLOCATION_CONFIGS = 64
MAX_TOLERATIONS = 16
MAX_DERIVED_ATTRIBUTES = 32
MAX_RESERVED_FOR = 256
MAX_PARAMETERS = 10 * 1024
MAX_EXPRESSION = 10 * 1024
MAX_COST = 1_000_000
MAX_DEVICE_CONDITIONS = 8

_TOLERATION_OPERATORS = ("Equal", "Exists")
_TOLERATED_EFFECTS = ("NoExecute", "NoSchedule")


def validate(part: Part) -> FieldErrors:
    """All mistakes of an object of any of the kinds; none for a right one."""
    if isinstance(part, ResourceClaim):
        return validate_claim(part)
    if isinstance(part, ResourceClaimTemplate):
        return validate_claim_template(part)
    if isinstance(part, DeviceClass):
        return validate_class(part)
    if isinstance(part, ResourceSlice):
        return validate_slice(part)
    if isinstance(part, DeviceTaintRule):
        return validate_taint_rule(part)
    raise TypeError(f"no rules for {type(part).__name__}")


def validate_claim(claim: ResourceClaim) -> FieldErrors:
    errors = FieldErrors()
    _check_name(errors, claim.metadata)
    _check_devices(errors, "spec.devices", claim.spec.devices)
    status = claim.status
    if status is None:
        return errors
    if status.allocation is not None:
        _check_allocation(errors, "status.allocation", status.allocation, claim.spec.devices)
    errors.at_most("status.reservedFor", status.reserved_for, MAX_RESERVED_FOR)
    if status.reserved_for and status.allocation is None:
        errors.forbidden("status.reservedFor", "only an allocated claim can be reserved")
    uids: set[str] = set()
    for index, consumer in enumerate(status.reserved_for):
        path = f"status.reservedFor[{index}]"
        for field, value in (("resource", consumer.resource), ("name", consumer.name), ("uid", consumer.uid)):
            if not value:
                errors.required(f"{path}.{field}")
        if consumer.uid in uids:
            errors.duplicate(f"{path}.uid", consumer.uid)
        uids.add(consumer.uid)
    for index, device in enumerate(status.devices):
        path = f"status.devices[{index}]"
        errors.at_most(f"{path}.conditions", device.conditions, MAX_DEVICE_CONDITIONS)
        if device.data is not None:
            _check_json(errors, f"{path}.data", device.data)
        if device.share_id is not None:
            check_share_id(errors, f"{path}.shareID", device.share_id)
    return errors


def validate_claim_template(template: ResourceClaimTemplate) -> FieldErrors:
    errors = FieldErrors()
    _check_name(errors, template.metadata)
    _check_devices(errors, "spec.spec.devices", template.spec.spec.devices)
    return errors


def validate_class(device_class: DeviceClass) -> FieldErrors:
    errors = FieldErrors()
    _check_name(errors, device_class.metadata)
    _check_selectors(errors, "spec.selectors", device_class.spec.selectors)
    errors.at_most("spec.config", device_class.spec.config, MAX_CONFIGS)
    for index, config in enumerate(device_class.spec.config):
        _check_opaque(errors, f"spec.config[{index}]", config.opaque)
    extended = device_class.spec.extended_resource_name
    if extended is not None:
        path = "spec.extendedResourceName"
        check_label_key(errors, path, extended)
        if "/" not in extended or extended.split("/")[0].endswith("kubernetes.io"):
            errors.invalid(
                path, extended, "must be the name of an extended resource: a domain of yours, '/' and a name"
            )
    return errors


def validate_taint_rule(rule: DeviceTaintRule) -> FieldErrors:
    errors = FieldErrors()
    _check_name(errors, rule.metadata)
    selector = rule.spec.device_selector
    if selector is not None:
        if selector.driver is not None:
            check_driver(errors, "spec.deviceSelector.driver", selector.driver)
        if selector.pool is not None:
            check_pool(errors, "spec.deviceSelector.pool", selector.pool)
        if selector.device is not None:
            check_label(errors, "spec.deviceSelector.device", selector.device)
    check_taint(errors, "spec.taint", rule.spec.taint)
    return errors


def _check_name(errors: FieldErrors, metadata: ObjectMeta) -> None:
    if metadata.name:
        check_subdomain(errors, "metadata.name", metadata.name)
    elif not metadata.generate_name:
        errors.required("metadata.name", "name or generateName is required")


def _check_devices(errors: FieldErrors, path: str, devices: DeviceClaim) -> None:
    errors.at_most(f"{path}.requests", devices.requests, MAX_REQUESTS)
    known: set[str] = set()  # request and request/subrequest
    names: set[str] = set()
    for index, request in enumerate(devices.requests):
        below = f"{path}.requests[{index}]"
        _check_request(errors, below, request)
        if request.name in names:
            errors.duplicate(below, request.name)
        names.add(request.name)
        known.add(request.name)
        known.update(f"{request.name}/{part.name}" for part in request.first_available)
    errors.at_most(f"{path}.constraints", devices.constraints, MAX_CONSTRAINTS)
    for index, constraint in enumerate(devices.constraints):
        _check_constraint(errors, f"{path}.constraints[{index}]", constraint, known)
    errors.at_most(f"{path}.config", devices.config, MAX_CONFIGS)
    for index, config in enumerate(devices.config):
        _check_references(errors, f"{path}.config[{index}].requests", config.requests, known)
        _check_opaque(errors, f"{path}.config[{index}]", config.opaque)


def _check_request(errors: FieldErrors, path: str, request: DeviceRequest) -> None:
    check_label(errors, f"{path}.name", request.name)
    if request.exactly is not None and request.first_available:
        errors.invalid(path, request.name, "exactly one of `exactly` or `firstAvailable` is required, not both")
    elif request.exactly is None and not request.first_available:
        errors.required(path, "exactly one of `exactly` or `firstAvailable` is required")
    if request.exactly is not None:
        _check_asked(errors, f"{path}.exactly", request.exactly)
    errors.at_most(f"{path}.firstAvailable", request.first_available, MAX_ALTERNATIVES)
    names: set[str] = set()
    for index, part in enumerate(request.first_available):
        below = f"{path}.firstAvailable[{index}]"
        check_label(errors, f"{below}.name", part.name)
        if part.name in names:
            errors.duplicate(below, part.name)
        names.add(part.name)
        _check_asked(errors, below, part)


def _check_asked(errors: FieldErrors, path: str, asked: ExactDeviceRequest | DeviceSubRequest) -> None:
    check_subdomain(errors, f"{path}.deviceClassName", asked.device_class_name)
    _check_selectors(errors, f"{path}.selectors", asked.selectors)
    if asked.allocation_mode in ("", EXACT_COUNT):
        if asked.count is not None and asked.count <= 0:
            errors.invalid(f"{path}.count", asked.count, "must be greater than zero")
    elif asked.allocation_mode == ALL:
        if asked.count is not None and asked.count != 0:
            errors.invalid(f"{path}.count", asked.count, f"must not be specified when allocationMode is '{ALL}'")
    else:
        errors.unsupported(f"{path}.allocationMode", asked.allocation_mode, (ALL, EXACT_COUNT))
    errors.at_most(f"{path}.tolerations", asked.tolerations, MAX_TOLERATIONS)
    for index, toleration in enumerate(asked.tolerations):
        _check_toleration(errors, f"{path}.tolerations[{index}]", toleration)
    if asked.capacity is not None:
        for name, amount in asked.capacity.requests.items():
            below = f"{path}.capacity.requests[{name}]"
            check_qualified(errors, below, name)
            try:
                if quantity(amount).sign < 0:
                    errors.invalid(below, amount, "must not be negative")
            except ValueError as error:
                errors.invalid(below, amount, str(error))
    errors.at_most(f"{path}.derivedAttributes", asked.derived_attributes, MAX_DERIVED_ATTRIBUTES)
    _check_derived(errors, f"{path}.derivedAttributes", asked.derived_attributes)


def _check_derived(errors: FieldErrors, path: str, derived: Sequence[DeviceDerivedAttribute]) -> None:
    names: set[str] = set()
    for index, attribute in enumerate(derived):
        check_fully_qualified(errors, f"{path}[{index}].name", attribute.name)
        if attribute.name in names:
            errors.duplicate(f"{path}[{index}].name", attribute.name)
        names.add(attribute.name)
        if not attribute.expression:
            errors.required(f"{path}[{index}].expression")
        errors.shorter(f"{path}[{index}].expression", attribute.expression, MAX_EXPRESSION)


def _check_selectors(errors: FieldErrors, path: str, selectors: Sequence[DeviceSelector]) -> None:
    from dibs.cel.dra import compile_selector

    errors.at_most(path, selectors, MAX_SELECTORS)
    for index, selector in enumerate(selectors):
        if selector.cel is None:
            errors.required(f"{path}[{index}].cel")
            continue
        below = f"{path}[{index}].cel.expression"
        text = selector.cel.expression
        if not text:
            errors.required(below)
            continue
        if len(text.encode()) > MAX_EXPRESSION:
            errors.too_long(below, MAX_EXPRESSION)
            continue
        try:
            # With lists on: what is accepted must not depend on a feature gate of the later decision.
            compiled = compile_selector(text, list_attributes=True)
        except CelCompileError as error:
            errors.invalid(below, text, str(error))
            continue
        if compiled.cost > MAX_COST:
            errors.forbidden(below, f"too complex: it may cost {compiled.cost} units, the limit is {MAX_COST}")


def _check_toleration(errors: FieldErrors, path: str, toleration: DeviceToleration) -> None:
    if toleration.key:
        check_label_key(errors, f"{path}.key", toleration.key)
    if toleration.operator == "Exists":
        if toleration.value:
            errors.invalid(f"{path}.value", toleration.value, "must be empty for operator `Exists`")
    elif toleration.operator in ("", "Equal"):
        check_label_value(errors, f"{path}.value", toleration.value)
        if not toleration.key:
            errors.required(f"{path}.key", "an empty key needs operator `Exists`")
    else:
        errors.unsupported(f"{path}.operator", toleration.operator, _TOLERATION_OPERATORS)
    if toleration.effect and toleration.effect not in _TOLERATED_EFFECTS:
        errors.unsupported(f"{path}.effect", toleration.effect, _TOLERATED_EFFECTS)


def _check_constraint(errors: FieldErrors, path: str, constraint: DeviceConstraint, known: set[str]) -> None:
    _check_references(errors, f"{path}.requests", constraint.requests, known)
    if constraint.match_attribute is None and constraint.distinct_attribute is None:
        errors.required(path, "exactly one of `matchAttribute` or `distinctAttribute` is required")
    elif constraint.match_attribute is not None and constraint.distinct_attribute is not None:
        errors.invalid(path, constraint.match_attribute, "matchAttribute and distinctAttribute exclude each other")
    if constraint.match_attribute is not None:
        check_fully_qualified(errors, f"{path}.matchAttribute", constraint.match_attribute)
    if constraint.distinct_attribute is not None:
        check_fully_qualified(errors, f"{path}.distinctAttribute", constraint.distinct_attribute)


def _check_references(errors: FieldErrors, path: str, requests: Sequence[str], known: set[str]) -> None:
    errors.at_most(path, requests, MAX_REQUESTS)
    seen: set[str] = set()
    for index, name in enumerate(requests):
        if name in seen:
            errors.duplicate(f"{path}[{index}]", name)
        elif name not in known:
            errors.invalid(f"{path}[{index}]", name, "must be the name of a request, or request/subrequest")
        seen.add(name)


def _check_opaque(errors: FieldErrors, path: str, opaque: OpaqueDeviceConfiguration | None) -> None:
    if opaque is None:
        errors.required(path, "exactly one of `opaque` is required")
        return
    check_driver(errors, f"{path}.opaque.driver", opaque.driver)
    if opaque.parameters is None:
        errors.required(f"{path}.opaque.parameters")
    else:
        _check_json(errors, f"{path}.opaque.parameters", opaque.parameters)


def _check_json(errors: FieldErrors, path: str, value: Any) -> None:
    if not isinstance(value, dict):
        errors.invalid(path, value, "must be a JSON object")
    elif len(msgspec.json.encode(value)) > MAX_PARAMETERS:
        errors.too_long(path, MAX_PARAMETERS)


def _check_allocation(errors: FieldErrors, path: str, allocation: AllocationResult, devices: DeviceClaim) -> None:
    known = {request.name for request in devices.requests if request.exactly is not None}
    known.update(f"{request.name}/{part.name}" for request in devices.requests for part in request.first_available)
    results = allocation.devices.results
    errors.at_most(f"{path}.devices.results", results, MAX_RESULTS)
    for index, result in enumerate(results):
        below = f"{path}.devices.results[{index}]"
        if result.request not in known:
            errors.invalid(f"{below}.request", result.request, "must be the name of a request, or request/subrequest")
        check_driver(errors, f"{below}.driver", result.driver)
        check_pool(errors, f"{below}.pool", result.pool)
        check_label(errors, f"{below}.device", result.device)
        if result.share_id is not None:
            check_share_id(errors, f"{below}.shareID", result.share_id)
    errors.at_most(f"{path}.devices.config", allocation.devices.config, MAX_ALLOCATION_CONFIGS)
