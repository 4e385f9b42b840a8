"""The port to the CEL engine: what `pools` and `allocator` need of it, and no more.

An expression is compiled once per process and set of switches. A device is shown to the engine as a view, prepared
once; each answer is kept with the device, so that one expression is evaluated at most once per device and generation.
An error is an answer too: whether it matters is for the search to say. It must not know claims or pools.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

from dibs.cel.errors import CelCompileError, CelError, CelRuntimeError, CelTypeError
from dibs.cel.semver import Semver
from dibs.claims.capacity import INT64_MAX, quantity

if TYPE_CHECKING:
    from dibs.cel.dra import DeviceView
    from dibs.claims.slices import Device, DeviceAttribute

_NOTHING: dict[str, Any] = {}  # what a domain that a device does not have contains
_VALUE_KINDS = frozenset({"bool", "int", "string", "opaque", "any", "dyn"})


class CompiledSelector(Protocol):
    """What is needed of a compiled selector."""

    def matches(self, device: Any) -> bool: ...


class CompiledValue(Protocol):
    """What is needed of a compiled expression that gives a value."""

    @property
    def variables(self) -> tuple[str, ...]: ...

    def run(self, arguments: Sequence[Any], /) -> Any: ...


class Expression:
    """One selector, compiled, or the reason why it cannot be."""

    __slots__ = ("compiled", "error", "text")

    def __init__(self, text: str, compiled: CompiledSelector | None, error: CelError | None) -> None:
        self.text = text
        self.compiled = compiled
        self.error = error


class DerivedExpression:
    """The expression of a derived attribute, compiled, or the reason why it cannot be."""

    __slots__ = ("compiled", "error", "text")

    def __init__(self, text: str, compiled: CompiledValue | None, error: CelError | None) -> None:
        self.text = text
        self.compiled = compiled
        self.error = error


@lru_cache(maxsize=1024)
def expression(text: str, *, consumable_capacity: bool, list_attributes: bool) -> Expression:
    """Compile a selector. A compile error is kept, not raised: it matters only once a device is looked at."""
    from dibs.cel.dra import compile_selector

    try:
        # Accepted once, compiled for good: the gates of today do not matter.
        compiled = compile_selector(
            text, consumable_capacity=consumable_capacity, list_attributes=list_attributes, stored=True
        )
    except CelCompileError as error:
        return Expression(text, None, error)
    return Expression(text, compiled, None)


@lru_cache(maxsize=256)
def derived_expression(text: str, *, consumable_capacity: bool, list_attributes: bool) -> DerivedExpression:
    """Compile the expression of a derived attribute; a compile error is kept, not raised."""
    from dibs.cel.dra import environment

    kinds = _VALUE_KINDS | {"list"} if list_attributes else _VALUE_KINDS
    switches = environment(consumable_capacity=consumable_capacity, list_attributes=list_attributes)
    try:
        program = switches.compile(text)
        if program.type.kind not in kinds:
            raise CelTypeError(f"must evaluate to a bool, int, string or version, not {program.type}")
    except CelCompileError as error:
        return DerivedExpression(text, None, error)
    return DerivedExpression(text, program, None)


class View:
    """One device as the engine sees it, and what was found out about it.

    A device that cannot be shown (an attribute without a value, a version that is none) gives that error for every
    expression.
    """

    __slots__ = ("_answers", "_device", "_driver", "_shown", "_values")

    def __init__(self, driver: str, device: Device) -> None:
        self._answers: dict[Expression, bool | CelError] = {}
        self._values: dict[str, Any] | None = None
        self._driver = driver
        self._device = device
        self._shown: DeviceView | CelError | None = None

    def answer(self, wanted: Expression) -> bool | CelError:
        """Whether the device fits, or the error of this evaluation."""
        known = self._answers.get(wanted)
        if known is None:
            known = self._answers[wanted] = self._evaluate(wanted)
        return known

    def derived(self, wanted: DerivedExpression) -> Any:
        """The value of a derived attribute, or the error of this evaluation (a CelError, returned)."""
        if self._values is None:
            self._values = {}
        if wanted.text not in self._values:
            self._values[wanted.text] = self._derive(wanted)
        return self._values[wanted.text]

    def forget(self) -> None:
        """Drop what is shown to the engine; the answers stay."""
        self._shown = None

    def _show(self) -> DeviceView | CelError:
        if self._shown is None:
            try:
                self._shown = _shown(self._driver, self._device)
            except CelError as error:
                self._shown = error
        return self._shown

    def _evaluate(self, wanted: Expression) -> bool | CelError:
        if wanted.compiled is None:
            return wanted.error or CelCompileError("no such expression")
        shown = self._show()
        if isinstance(shown, CelError):
            return shown
        try:
            return wanted.compiled.matches(shown)
        except CelError as error:
            return error

    def _derive(self, wanted: DerivedExpression) -> Any:
        if wanted.compiled is None:
            return wanted.error or CelCompileError("no such expression")
        shown = self._show()
        if isinstance(shown, CelError):
            return shown
        try:
            return wanted.compiled.run((shown,) if wanted.compiled.variables else ())
        except CelError as error:
            return error


def _shown(driver: str, device: Device) -> DeviceView:
    """What the engine sees. The values are right already, so it need not convert them once more."""
    from dibs.cel.dra import DeviceView
    from dibs.cel.values import DefaultMap

    view = DeviceView(driver, allow_multiple_allocations=bool(device.allow_multiple_allocations))
    attributes: dict[str, dict[str, Any]] = DefaultMap({}, _NOTHING)
    for name, attribute in device.attributes.items():
        domain, slash, bare = name.partition("/")
        if not slash:
            domain, bare = driver, name
        values = attributes[domain] if domain in attributes else attributes.setdefault(domain, {})
        text = attribute.string_value
        values[bare] = _value(name, attribute) if text is None else text
    amounts: dict[str, dict[str, Any]] = DefaultMap({}, _NOTHING)
    for name, capacity in device.capacity.items():
        domain, slash, bare = name.partition("/")
        if not slash:
            domain, bare = driver, name
        try:
            amounts.setdefault(domain, {})[bare] = quantity(capacity.value)
        except ValueError as error:
            raise CelRuntimeError(f"capacity {name}: {error}") from None
    view.attributes = attributes
    view.capacity = amounts
    return view


def _value(name: str, attribute: DeviceAttribute) -> Any:
    if attribute.int_value is not None:
        return _int64(name, attribute.int_value)
    if attribute.bool_value is not None:
        return attribute.bool_value
    if attribute.string_value is not None:
        return attribute.string_value
    if attribute.version_value is not None:
        return _version(name, attribute.version_value)
    if attribute.int_values:
        return [_int64(name, number) for number in attribute.int_values]
    if attribute.bool_values:
        return list(attribute.bool_values)
    if attribute.string_values:
        return list(attribute.string_values)
    if attribute.version_values:
        return [_version(name, text) for text in attribute.version_values]
    raise CelRuntimeError(f"attribute {name}: unsupported attribute value")


def _int64(name: str, number: int) -> int:
    if not -INT64_MAX - 1 <= number <= INT64_MAX:
        raise CelRuntimeError(f"attribute {name}: {number} does not fit into 64 bits")
    return number


def _version(name: str, text: str) -> Semver:
    try:
        return _semver(text)
    except ValueError as error:
        raise CelRuntimeError(f"attribute {name}: parse semantic version: {error}") from None


@lru_cache(maxsize=1024)
def _semver(text: str) -> Semver:
    return Semver.parse(text)
