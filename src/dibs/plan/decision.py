"""The input and output of planning: the world at one moment, and a plan or a refusal.

`workloads.world` makes a `World`; `plan.devices` decides on it, within the ledger's write transaction or, to explain,
outside of one; `workloads` books a `DevicePlan` or raises a `Refusal`. Values only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from dibs.devices.model import Device, Inventory
from dibs.errors import (
    Busy,
    DibsError,
    InvalidRequest,
    NoMatch,
    NotFound,
    Problem,
    QuotaExceeded,
    Unhealthy,
    Unsupported,
)
from dibs.ledger.rows import Holder, Share, Taint
from dibs.plan.explanation import SelectorExplanation
from dibs.request.model import Request


class SharedUse(msgspec.Struct, frozen=True):
    """The shares of one device that are held: the sums, in billionths, and who has them."""

    consumed: dict[str, int]
    holders: tuple[Holder, ...]


class World(msgspec.Struct, frozen=True):
    """Everything that a plan depends on, at one moment."""

    inventory: Inventory
    holders: Mapping[str, Holder]
    ahead: tuple[Request, ...] = ()  # who waits in front, first come first
    now: float = 0.0
    leased: Mapping[str, Holder] = {}  # device id -> who has the whole of it
    shares: Mapping[str, SharedUse] = {}  # device id -> who has parts of its capacity
    taints: Mapping[str, tuple[Taint, ...]] = {}  # device id -> what people say against it
    node: str = ""
    classes: Callable[[], Sequence[Any]] = tuple  # the device classes, read when a claim needs them


class DevicePlan(msgspec.Struct, frozen=True):
    """The devices that a request gets, and how they were found. A device without a share is had whole."""

    devices: tuple[Device, ...] = ()
    selectors: tuple[SelectorExplanation, ...] = ()
    shares: Mapping[str, Share] = {}
    parts: tuple[tuple[str, ...], ...] = ()  # the ids of the devices of each part of the request, where it has parts


class Refusal(msgspec.Struct, frozen=True):
    """Why a request gets nothing now. `error` is the class for the caller; waiting helps only if `waitable`."""

    problems: tuple[Problem, ...]
    selectors: tuple[SelectorExplanation, ...]
    error: str
    waitable: bool
    waits_for: str = ""

    def to_error(self) -> DibsError:
        kinds: dict[str, type[DibsError]] = {
            kind.__name__: kind
            for kind in (Busy, NoMatch, Unhealthy, NotFound, Unsupported, InvalidRequest, QuotaExceeded)
        }
        return kinds[self.error](self.problems)
