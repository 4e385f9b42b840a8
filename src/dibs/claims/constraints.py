"""Constraints over several devices: the same value of an attribute, or all different values.

`allocator` adds a device before it takes it and removes it when it turns back; adding and removing are exact mirrors.
A value is a set of (kind, value) pairs: one pair for a plain attribute, several for a list. It must not know devices:
the caller brings the value.
"""

from __future__ import annotations

from typing import Any

from dibs.claims.slices import Device, DeviceAttribute

Member = tuple[str, Any]  # the kind keeps true apart from 1, and a version from a string
Value = frozenset[Member]
UNKNOWN: Value = frozenset()  # an attribute whose kind is not known (or a list, where lists are switched off)


def attribute_of(device: Device, driver: str, name: str) -> DeviceAttribute | None:
    """By its full name; an attribute of the driver's own domain may be published without the domain."""
    found = device.attributes.get(name)
    if found is not None:
        return found
    domain, slash, bare = name.partition("/")
    return device.attributes.get(bare) if slash and domain == driver else None


def value_of(attribute: DeviceAttribute, *, lists: bool) -> Value:
    """The comparable form of a published attribute."""
    if lists:
        for kind, values in (
            ("int", attribute.int_values),
            ("bool", attribute.bool_values),
            ("string", attribute.string_values),
            ("version", attribute.version_values),
        ):
            if values:
                return frozenset((kind, value) for value in values)
    for kind, value in (
        ("string", attribute.string_value),
        ("int", attribute.int_value),
        ("bool", attribute.bool_value),
        ("version", attribute.version_value),
    ):
        if value is not None:
            return frozenset(((kind, value),))
    return UNKNOWN


def value_of_derived(value: Any) -> Value:
    """The comparable form of what an expression gave: a plain value, a version or a list of one kind."""
    if isinstance(value, list | tuple):
        return frozenset(_member(item) for item in value)
    return frozenset((_member(value),))


def _member(value: Any) -> Member:
    if isinstance(value, bool):
        return ("bool", value)
    if isinstance(value, int):
        return ("int", int(value))
    if isinstance(value, str):
        return ("string", str(value))
    return ("version", str(value))


class Constraint:
    """What both kinds share: which requests are covered, and by which attribute."""

    __slots__ = ("attribute", "index", "lists", "requests")

    kind = ""

    def __init__(self, index: int, attribute: str, requests: tuple[str, ...], *, lists: bool) -> None:
        self.index = index
        self.attribute = attribute
        self.requests = frozenset(requests)
        self.lists = lists

    def covers(self, request: str, subrequest: str | None) -> bool:
        """A request's name covers all of its alternatives; no names cover everything."""
        names = self.requests
        return not names or request in names or (subrequest is not None and f"{request}/{subrequest}" in names)

    def add(self, value: Value) -> bool:
        raise NotImplementedError

    def remove(self) -> None:
        raise NotImplementedError


class MatchAttribute(Constraint):
    """All devices share a value: what they have in common must never become empty."""

    __slots__ = ("common",)

    kind = "matchAttribute"

    def __init__(self, index: int, attribute: str, requests: tuple[str, ...], *, lists: bool) -> None:
        super().__init__(index, attribute, requests, lists=lists)
        self.common: list[Value] = []

    def add(self, value: Value) -> bool:
        if not self.common:
            if self.lists and not value:
                return False
            self.common.append(value)
            return True
        narrowed = self.common[-1] & value
        if not narrowed:
            return False
        self.common.append(narrowed)
        return True

    def remove(self) -> None:
        self.common.pop()


class DistinctAttribute(Constraint):
    """No two devices share a value."""

    __slots__ = ("taken",)

    kind = "distinctAttribute"

    def __init__(self, index: int, attribute: str, requests: tuple[str, ...], *, lists: bool) -> None:
        super().__init__(index, attribute, requests, lists=lists)
        self.taken: list[Value] = []

    def add(self, value: Value) -> bool:
        if not value and (self.lists or self.taken):
            return False
        if any(value & other for other in self.taken):
            return False
        self.taken.append(value)
        return True

    def remove(self) -> None:
        self.taken.pop()
