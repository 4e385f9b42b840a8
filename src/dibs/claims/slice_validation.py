"""Kubernetes' rules for ResourceSlices: all mistakes of a slice, with their paths.

Called for what drivers, simulated worlds and operators' files publish. The allocator does not rely on it: it copes
with what validation would have refused, as Kubernetes' does with objects that are older than a rule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dibs.cel.quantity import Quantity
from dibs.claims.capacity import INT64_MAX, MILLI, NANO, quantity
from dibs.claims.fielderrors import FieldErrors
from dibs.claims.meta import Amount, NodeSelector
from dibs.claims.names import (
    check_driver,
    check_label,
    check_label_key,
    check_label_value,
    check_pool,
    check_qualified,
    check_subdomain,
    check_version,
)
from dibs.claims.slices import (
    CapacityRequestPolicy,
    CapacityRequestPolicyRange,
    Counter,
    Device,
    DeviceAttribute,
    DeviceCapacity,
    DeviceCounterConsumption,
    DeviceTaint,
    ResourceSlice,
)

MAX_DEVICES = 128
MAX_DEVICES_WITH_DETAILS = 64  # where any device has taints, consumed counters or list attributes
MAX_COUNTER_SETS = 8
MAX_COUNTERS = 32
MAX_CONSUMPTIONS = 2
MAX_GROUPS = 2
MAX_ENTRIES = 32
MAX_ATTRIBUTE_VALUES = 48
MAX_VALUE = 64
MAX_TAINTS = 16
MAX_VALID_VALUES = 10
MAX_CONDITIONS = 4

_EFFECTS = ("NoExecute", "NoSchedule", "None")


def validate_slice(resource_slice: ResourceSlice) -> FieldErrors:
    errors = FieldErrors()
    if resource_slice.metadata.name:
        check_subdomain(errors, "metadata.name", resource_slice.metadata.name)
    elif not resource_slice.metadata.generate_name:
        errors.required("metadata.name", "name or generateName is required")
    spec = resource_slice.spec
    check_driver(errors, "spec.driver", spec.driver)
    check_pool(errors, "spec.pool.name", spec.pool.name)
    if spec.pool.resource_slice_count <= 0:
        errors.invalid("spec.pool.resourceSliceCount", spec.pool.resource_slice_count, "must be greater than zero")
    if spec.pool.generation < 0:
        errors.invalid("spec.pool.generation", spec.pool.generation, "must be greater than or equal to zero")

    ways = {
        "nodeName": spec.node_name is not None,
        "nodeSelector": spec.node_selector is not None,
        "allNodes": spec.all_nodes is not None,
        "perDeviceNodeSelection": spec.per_device_node_selection is not None,
    }
    _check_one_way(errors, "spec", ways)
    _check_node(errors, "spec", spec.node_name, spec.node_selector, spec.all_nodes)
    if spec.per_device_node_selection is False:
        errors.invalid("spec.perDeviceNodeSelection", False, "must be either unset or set to true")

    if spec.devices and spec.shared_counters:
        errors.invalid("spec", "", "only one of `sharedCounters` or `devices` is allowed")
    detailed = any(d.taints or d.consumes_counters or _has_lists(d) for d in spec.devices)
    errors.at_most("spec.devices", spec.devices, MAX_DEVICES_WITH_DETAILS if detailed else MAX_DEVICES)
    names: set[str] = set()
    for index, device in enumerate(spec.devices):
        path = f"spec.devices[{index}]"
        if device.name in names:
            errors.duplicate(f"{path}.name", device.name)
        names.add(device.name)
        _check_device(errors, path, device, by_device=bool(spec.per_device_node_selection))
    errors.at_most("spec.sharedCounters", spec.shared_counters, MAX_COUNTER_SETS)
    sets: set[str] = set()
    for index, counter_set in enumerate(spec.shared_counters):
        path = f"spec.sharedCounters[{index}]"
        check_label(errors, f"{path}.name", counter_set.name)
        if counter_set.name in sets:
            errors.duplicate(f"{path}.name", counter_set.name)
        sets.add(counter_set.name)
        if not counter_set.counters:
            errors.required(f"{path}.counters")
        _check_counters(errors, f"{path}.counters", counter_set.counters)
    return errors


def check_taint(errors: FieldErrors, path: str, taint: DeviceTaint) -> None:
    if taint.key:
        check_label_key(errors, f"{path}.key", taint.key)
    else:
        errors.required(f"{path}.key")
    check_label_value(errors, f"{path}.value", taint.value)
    if not taint.effect:
        errors.required(f"{path}.effect")
    elif taint.effect not in _EFFECTS:
        errors.unsupported(f"{path}.effect", taint.effect, _EFFECTS)


def _check_one_way(errors: FieldErrors, path: str, ways: Mapping[str, bool]) -> None:
    listed = ", ".join(f"`{way}`" for way in ways)
    count = sum(ways.values())
    if count == 0:
        errors.required(path, f"exactly one of {listed} is required")
    elif count > 1:
        chosen = ", ".join(way for way, used in ways.items() if used)
        errors.invalid(path, f"{{{chosen}}}", f"exactly one of {listed} is required, but multiple fields are set")


def _check_node(
    errors: FieldErrors, path: str, name: str | None, selector: NodeSelector | None, everywhere: bool | None
) -> None:
    if name is not None:
        if name:
            check_subdomain(errors, f"{path}.nodeName", name)
        else:
            errors.invalid(f"{path}.nodeName", name, "must be either unset or set to a non-empty string")
    if selector is not None and len(selector.node_selector_terms) != 1:
        errors.invalid(
            f"{path}.nodeSelector.nodeSelectorTerms",
            len(selector.node_selector_terms),
            "must have exactly one node selector term",
        )
    if everywhere is False:
        errors.invalid(f"{path}.allNodes", False, "must be either unset or set to true")


def _check_device(errors: FieldErrors, path: str, device: Device, *, by_device: bool) -> None:
    check_label(errors, f"{path}.name", device.name)
    entries = len(device.attributes) + len(device.capacity)
    if entries > MAX_ENTRIES:
        errors.invalid(path, entries, f"the total number of attributes and capacities must not exceed {MAX_ENTRIES}")
    values = 0
    for name, attribute in device.attributes.items():
        check_qualified(errors, f"{path}.attributes", name)
        values += _check_attribute(errors, f"{path}.attributes[{name}]", attribute)
    if values > MAX_ATTRIBUTE_VALUES:
        errors.invalid(
            f"{path}.attributes", values, f"the total number of values must not exceed {MAX_ATTRIBUTE_VALUES}"
        )
    for name, capacity in device.capacity.items():
        check_qualified(errors, f"{path}.capacity", name)
        _check_capacity(errors, f"{path}.capacity[{name}]", capacity, shared=bool(device.allow_multiple_allocations))
    _check_consumptions(errors, f"{path}.consumesCounters", device.consumes_counters)

    ways = {
        "nodeName": device.node_name is not None,
        "nodeSelector": device.node_selector is not None,
        "allNodes": device.all_nodes is not None,
    }
    if by_device:
        _check_one_way(errors, path, ways)
        _check_node(errors, path, device.node_name, device.node_selector, device.all_nodes)
    else:
        for way, used in ways.items():
            if used:
                errors.invalid(f"{path}.{way}", way, "`perDeviceNodeSelection` must be set to true to use it")
    errors.at_most(f"{path}.taints", device.taints, MAX_TAINTS)
    for index, taint in enumerate(device.taints):
        check_taint(errors, f"{path}.taints[{index}]", taint)
    _check_conditions(errors, f"{path}.bindingConditions", device.binding_conditions)
    _check_conditions(errors, f"{path}.bindingFailureConditions", device.binding_failure_conditions)


def _check_conditions(errors: FieldErrors, path: str, conditions: Sequence[str]) -> None:
    errors.at_most(path, conditions, MAX_CONDITIONS)
    for index, condition in enumerate(conditions):
        check_label_key(errors, f"{path}[{index}]", condition)


def _has_lists(device: Device) -> bool:
    return any(a.int_values or a.bool_values or a.string_values or a.version_values for a in device.attributes.values())


def _check_attribute(errors: FieldErrors, path: str, attribute: DeviceAttribute) -> int:
    """Returns how many values it has."""
    given = {
        "int": attribute.int_value is not None,
        "bool": attribute.bool_value is not None,
        "string": attribute.string_value is not None,
        "version": attribute.version_value is not None,
        "ints": bool(attribute.int_values),
        "bools": bool(attribute.bool_values),
        "strings": bool(attribute.string_values),
        "versions": bool(attribute.version_values),
    }
    kinds = [kind for kind, used in given.items() if used]
    if not kinds:
        errors.required(path, "exactly one value must be specified")
    elif len(kinds) > 1:
        errors.invalid(path, ", ".join(kinds), "exactly one value must be specified")
    if attribute.string_value is not None:
        errors.shorter(f"{path}.string", attribute.string_value, MAX_VALUE)
    if attribute.version_value is not None:
        check_version(errors, f"{path}.version", attribute.version_value, MAX_VALUE)
    for index, text in enumerate(attribute.string_values):
        errors.shorter(f"{path}.strings[{index}]", text, MAX_VALUE)
    for index, text in enumerate(attribute.version_values):
        check_version(errors, f"{path}.versions[{index}]", text, MAX_VALUE)
    lists = (attribute.int_values, attribute.bool_values, attribute.string_values, attribute.version_values)
    return sum(len(values) for values in lists) or 1


def _check_capacity(errors: FieldErrors, path: str, capacity: DeviceCapacity, *, shared: bool) -> None:
    value = _amount(errors, f"{path}.value", capacity.value)
    policy = capacity.request_policy
    if policy is None:
        return
    if not shared:
        errors.forbidden(f"{path}.requestPolicy", "only allowed where allowMultipleAllocations is true")
    _check_policy(errors, f"{path}.requestPolicy", policy, value)


def _check_policy(errors: FieldErrors, path: str, policy: CapacityRequestPolicy, value: Quantity | None) -> None:
    default = _amount(errors, f"{path}.default", policy.default)
    if policy.valid_values and policy.valid_range is not None:
        errors.invalid(path, "", "only one of `validValues` or `validRange` is allowed")
    if (policy.valid_values or policy.valid_range is not None) and policy.default is None:
        errors.required(f"{path}.default", "required where valid values or a range are given")
    if default is not None and value is not None and default > value:
        errors.invalid(f"{path}.default", policy.default, f"must not be larger than the capacity {value}")
    errors.at_most(f"{path}.validValues", policy.valid_values, MAX_VALID_VALUES)
    before: Quantity | None = None
    found = []
    for index, amount in enumerate(policy.valid_values):
        one = _amount(errors, f"{path}.validValues[{index}]", amount)
        if one is None:
            continue
        if before is not None and one <= before:
            errors.invalid(f"{path}.validValues[{index}]", amount, "the values must be in ascending order")
        if value is not None and one > value:
            errors.invalid(f"{path}.validValues[{index}]", amount, f"must not be larger than the capacity {value}")
        before = one
        found.append(one)
    if found and default is not None and default not in found:
        errors.invalid(f"{path}.default", policy.default, "must be one of the valid values")
    if policy.valid_range is not None:
        _check_range(errors, f"{path}.validRange", policy.valid_range, default, value)


def _check_range(
    errors: FieldErrors,
    path: str,
    given: CapacityRequestPolicyRange,
    default: Quantity | None,
    value: Quantity | None,
) -> None:
    if given.min is None:
        errors.required(f"{path}.min")
    lowest = _amount(errors, f"{path}.min", given.min)
    highest = _amount(errors, f"{path}.max", given.max)
    step = _amount(errors, f"{path}.step", given.step)
    if lowest is None:
        return
    if value is not None and lowest > value:
        errors.invalid(f"{path}.min", given.min, f"must not be larger than the capacity {value}")
    if highest is not None:
        if highest < lowest:
            errors.invalid(f"{path}.max", given.max, f"must not be smaller than the minimum {lowest}")
        if value is not None and highest > value:
            errors.invalid(f"{path}.max", given.max, f"must not be larger than the capacity {value}")
    if default is not None and (default < lowest or (highest is not None and default > highest)):
        errors.invalid(f"{path.rpartition('.')[0]}.default", str(default), "must be inside of the valid range")
    if step is None:
        return
    if step.nanos <= 0:
        errors.invalid(f"{path}.step", given.step, "must be greater than zero")
        return
    unit = NANO if all(q is None or q.nanos % NANO == 0 for q in (lowest, highest, step)) else MILLI
    if any(q is not None and (q.nanos % unit or q.nanos // unit > INT64_MAX) for q in (lowest, highest, step)):
        errors.invalid(f"{path}.step", given.step, "the range must be whole thousandths that fit into 64 bits")
        return
    if value is not None and lowest.nanos + step.nanos > value.nanos:
        errors.invalid(f"{path}.step", given.step, f"one step above the minimum passes the capacity {value}")
    if highest is not None and (highest.nanos - lowest.nanos) % step.nanos:
        errors.invalid(f"{path}.max", given.max, f"must be a whole number of steps of {step} above {lowest}")
    if default is not None and (default.nanos - lowest.nanos) % step.nanos:
        parent = path.rpartition(".")[0]
        errors.invalid(f"{parent}.default", str(default), f"must be a whole number of steps of {step} above {lowest}")


def _check_consumptions(errors: FieldErrors, path: str, consumptions: Sequence[DeviceCounterConsumption]) -> None:
    errors.at_most(path, consumptions, MAX_CONSUMPTIONS)
    seen: set[str] = set()
    for index, consumption in enumerate(consumptions):
        below = f"{path}[{index}]"
        check_label(errors, f"{below}.counterSet", consumption.counter_set)
        if consumption.counter_set in seen:
            errors.duplicate(f"{below}.counterSet", consumption.counter_set)
        seen.add(consumption.counter_set)
        if not consumption.counters:
            errors.required(f"{below}.counters")
        _check_counters(errors, f"{below}.counters", consumption.counters)
        errors.at_most(f"{below}.compatibilityGroups", consumption.compatibility_groups, MAX_GROUPS)
        for number, group in enumerate(consumption.compatibility_groups):
            check_label(errors, f"{below}.compatibilityGroups[{number}]", group)


def _check_counters(errors: FieldErrors, path: str, counters: Mapping[str, Counter]) -> None:
    if len(counters) > MAX_COUNTERS:
        errors.too_many(path, len(counters), MAX_COUNTERS)
    for name, counter in counters.items():
        check_label(errors, path, name)
        _amount(errors, f"{path}[{name}].value", counter.value)


def _amount(errors: FieldErrors, path: str, amount: Amount | None) -> Quantity | None:
    if amount is None:
        return None
    try:
        found = quantity(amount)
    except ValueError as error:
        errors.invalid(path, amount, str(error))
        return None
    if found.sign < 0:
        errors.invalid(path, amount, "must not be negative")
    return found
