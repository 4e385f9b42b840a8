"""What a pod asks of a node, and what the pods on a node have taken, by Kubernetes' own arithmetic.

`inventory` sums it per node, `pending` compares it. Pure. Amounts are whole billionths (`Quantity.nanos`), so sums are
exact. An amount that is not a quantity cannot come from an API server; it is a ValueError.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dibs.kube.objects import Container, Pod
from dibs.quantity import NANO, Quantity

Amounts = dict[str, int]
_POD_LEVEL = frozenset(("cpu", "memory"))  # hugepages too, but by prefix
IMPLICIT = "deviceclass.resource.kubernetes.io/"
_NATIVE = frozenset(("cpu", "memory", "ephemeral-storage", "pods", "storage"))


def is_extended(name: str) -> bool:
    """Whether a resource name is an extended resource: a device, to be had in whole numbers only."""
    return name not in _NATIVE and not name.startswith(("hugepages-", "attachable-volumes-")) and "/" in name


def amounts(values: Mapping[str, str | int | float]) -> Amounts:
    return {name: Quantity.parse(str(value)).nanos for name, value in values.items()}


def requested(pod: Pod) -> Amounts:
    """What the scheduler counts for a pod: its containers together, or its largest step of initialisation."""
    spec = pod.spec
    running: Amounts = {}
    for container in spec.containers:
        _add(running, amounts(container.resources.requests))
    sidecars: Amounts = {}
    largest: Amounts = {}
    for container in spec.init_containers:
        own = amounts(container.resources.requests)
        if container.restart_policy == "Always":
            _add(sidecars, own)
            step = dict(sidecars)
        else:
            step = dict(sidecars)
            _add(step, own)
        _raise(largest, step)
    _add(running, sidecars)
    _raise(running, largest)
    for name, amount in amounts(spec.resources.requests).items():
        if name in _POD_LEVEL or name.startswith("hugepages-"):
            running[name] = amount
    _add(running, amounts(spec.overhead))
    running["pods"] = NANO
    return running


def extended_by_container(pod: Pod) -> list[tuple[Container, str, int]]:
    """Each container with each extended resource that it asks for, and how many."""
    return [
        (container, name, amount // NANO)
        for container in (*pod.spec.init_containers, *pod.spec.containers)
        for name, amount in amounts(container.resources.requests).items()
        if is_extended(name) and amount > 0
    ]


def in_use(pods: Iterable[Pod]) -> dict[str, Amounts]:
    """Per node, what its live pods have taken."""
    found: dict[str, Amounts] = {}
    for pod in pods:
        if pod.spec.node_name and not pod.ended:
            _add(found.setdefault(pod.spec.node_name, {}), requested(pod))
    return found


def shown(amount: int, name: str) -> str:
    """An amount for a person: memory with Ki, Mi, Gi, all else in decimals."""
    binary = name in ("memory", "ephemeral-storage") or name.startswith("hugepages-")
    return str(Quantity(amount, binary=binary))


def _add(sums: Amounts, more: Mapping[str, int]) -> None:
    for name, amount in more.items():
        sums[name] = sums.get(name, 0) + amount


def _raise(sums: Amounts, other: Mapping[str, int]) -> None:
    for name, amount in other.items():
        sums[name] = max(sums.get(name, 0), amount)
