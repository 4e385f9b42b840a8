"""Taints and tolerations, and the admin's rules that add taints. `allocator` asks per device, `pools` applies rules.

Only NoSchedule and NoExecute keep a device from being given; every other effect informs.
"""

from __future__ import annotations

from collections.abc import Iterable

from dibs.claims.claim import DeviceToleration
from dibs.claims.slices import DeviceTaint, DeviceTaintRule

_PREVENTING = ("NoSchedule", "NoExecute")


def preventing(taints: Iterable[DeviceTaint]) -> tuple[DeviceTaint, ...]:
    """Those that need a toleration."""
    return tuple(taint for taint in taints if taint.effect in _PREVENTING)


def tolerated(taint: DeviceTaint, tolerations: Iterable[DeviceToleration]) -> bool:
    """Whether one of the tolerations accepts the taint: an empty key or effect accepts any."""
    for toleration in tolerations:
        if toleration.effect not in ("", taint.effect) or toleration.key not in ("", taint.key):
            continue
        if toleration.operator == "Exists":
            return True
        if toleration.operator in ("", "Equal") and toleration.value == taint.value:
            return True
    return False


def untolerated(taints: tuple[DeviceTaint, ...], tolerations: tuple[DeviceToleration, ...]) -> DeviceTaint | None:
    """The first taint that keeps the device from being given, of those that `preventing` left."""
    for taint in taints:
        if not tolerated(taint, tolerations):
            return taint
    return None


def added_by_rules(rules: Iterable[DeviceTaintRule], driver: str, pool: str, device: str) -> tuple[DeviceTaint, ...]:
    """What the admin's rules say about one device. A rule without a selector taints nothing, as in Kubernetes."""
    added = []
    for rule in rules:
        selector = rule.spec.device_selector
        if (
            selector is not None
            and selector.driver in (None, driver)
            and selector.pool in (None, pool)
            and selector.device in (None, device)
        ):
            added.append(rule.spec.taint)
    return tuple(added)


def described(taint: DeviceTaint) -> str:
    """`key=value:Effect`, as `kubectl taint` writes it."""
    value = f"={taint.value}" if taint.value else ""
    return f"{taint.key}{value}:{taint.effect}"
