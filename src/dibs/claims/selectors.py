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

if TYPE_CHECKING:
    from dibs.claims.slices import Device, DeviceAttribute

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
        compiled = compile_selector(text, consumable_capacity=consumable_capacity, list_attributes=list_attributes)
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

    __slots__ = ("_answers", "_error", "_shown", "_values")

    def __init__(self, driver: str, device: Device) -> None:
        from dibs.cel.dra import DeviceView

        self._answers: dict[Expression, bool | CelError] = {}
        self._values: dict[str, Any] = {}
        self._error: CelError | None = None
        self._shown: DeviceView | None = None
        try:
            self._shown = DeviceView(
                driver,
                {name: _value(name, attribute) for name, attribute in device.attributes.items()},
                {name: str(capacity.value) for name, capacity in device.capacity.items()},
                bool(device.allow_multiple_allocations),
            )
        except CelError as error:
            self._error = error
        except ValueError as error:
            self._error = CelRuntimeError(str(error))

    def answer(self, wanted: Expression) -> bool | CelError:
        """Whether the device fits, or the error of this evaluation."""
        known = self._answers.get(wanted)
        if known is None:
            known = self._answers[wanted] = self._evaluate(wanted)
        return known

    def derived(self, wanted: DerivedExpression) -> Any:
        """The value of a derived attribute, or the error of this evaluation (a CelError, returned)."""
        if wanted.text in self._values:
            return self._values[wanted.text]
        found: Any
        if wanted.compiled is None or self._error is not None:
            found = wanted.error or self._error
        else:
            try:
                found = wanted.compiled.run((self._shown,) if wanted.compiled.variables else ())
            except CelError as error:
                found = error
        self._values[wanted.text] = found
        return found

    def _evaluate(self, wanted: Expression) -> bool | CelError:
        if wanted.compiled is None:
            return wanted.error or CelCompileError("no such expression")
        if self._error is not None:
            return self._error
        try:
            return wanted.compiled.matches(self._shown)
        except CelError as error:
            return error


def _value(name: str, attribute: DeviceAttribute) -> Any:
    from dibs.cel.kubernetes import Semver

    if attribute.int_values:
        return list(attribute.int_values)
    if attribute.bool_values:
        return list(attribute.bool_values)
    if attribute.string_values:
        return list(attribute.string_values)
    if attribute.version_values:
        return [Semver.parse(text) for text in attribute.version_values]
    if attribute.int_value is not None:
        return attribute.int_value
    if attribute.bool_value is not None:
        return attribute.bool_value
    if attribute.string_value is not None:
        return attribute.string_value
    if attribute.version_value is not None:
        return Semver.parse(attribute.version_value)
    raise CelRuntimeError(f"attribute {name}: unsupported attribute value")
