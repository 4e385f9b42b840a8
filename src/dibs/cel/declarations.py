"""Declarations: functions with their overloads, and libraries that bundle functions, macros and types.

Extensions of CEL are written as these; the checker, the cost estimate and codegen read them. An implementation gets CEL
values (see ``values``) and returns one; it fails with CelRuntimeError or ValueError and must not keep or change its
arguments.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from dibs.cel.macros import Macro
from dibs.cel.types import Type, is_dynamic

UNBOUNDED = math.inf


class Cost(NamedTuple):
    """What a call costs, and how large its result can be."""

    cost: float
    size: float = UNBOUNDED


# From the sizes of the arguments (1 for what has no size) to the cost. Used for the estimate, with upper bounds, and
# while running, with actual sizes.
CostFunction = Callable[[tuple[float, ...]], Cost]


class Overload:
    """One signature of a function and its implementation.

    ``params`` includes the receiver first where ``member``. ``fails``: whether it can fail at all; codegen leaves the
    error handling out where it cannot. ``fold``: compute it once at compile time if all arguments are literals.
    ``grows``: its result may be larger than its cost tells, so that the budget must be kept while running.
    ``template``: a Python expression to put in place of a call, with ``a``, ``b``, ``c``, ``d`` for the arguments. It
    is the declaration's own text; nothing of an expression gets into it. ``ordering``: for a ``compareTo``, what it
    compares of an argument ``a``, so that ``x.compareTo(y) >= 0`` becomes one comparison.
    """

    __slots__ = (
        "cost",
        "fails",
        "fold",
        "function",
        "grows",
        "implementation",
        "member",
        "ordering",
        "params",
        "result",
        "template",
    )

    def __init__(
        self,
        params: Sequence[Type],
        result: Type,
        implementation: Callable[..., Any],
        *,
        member: bool = False,
        cost: CostFunction | None = None,
        fails: bool = True,
        fold: bool = False,
        grows: bool = False,
        template: str | None = None,
        ordering: str | None = None,
    ) -> None:
        self.ordering = ordering
        self.function = ""
        self.params = tuple(params)
        self.result = result
        self.implementation = implementation
        self.member = member
        self.cost = cost
        self.fails = fails
        self.fold = fold
        self.grows = grows
        self.template = template

    def __repr__(self) -> str:
        shown = ", ".join(str(param) for param in self.params)
        return f"<Overload {self.function}({shown}) -> {self.result}>"


def method(
    params: Sequence[Type],
    result: Type,
    implementation: Callable[..., Any],
    *,
    cost: CostFunction | None = None,
    fails: bool = True,
    grows: bool = False,
    template: str | None = None,
    ordering: str | None = None,
) -> Overload:
    """An overload that is called on its first parameter: ``a.f(b)``."""
    return Overload(
        params,
        result,
        implementation,
        member=True,
        cost=cost,
        fails=fails,
        grows=grows,
        template=template,
        ordering=ordering,
    )


class Function:
    """A named function with its overloads. A dotted name (``math.abs``) is called as written."""

    __slots__ = ("name", "overloads")

    def __init__(self, name: str, *overloads: Overload) -> None:
        self.name = name
        self.overloads = overloads
        for overload in overloads:
            overload.function = name


class Library:
    """Functions, macros and named types that are switched on together."""

    __slots__ = ("functions", "macros", "name", "types")

    def __init__(
        self,
        name: str,
        functions: Sequence[Function] = (),
        *,
        macros: Mapping[str, Macro] | None = None,
        types: Sequence[Type] = (),
    ) -> None:
        self.name = name
        self.functions = tuple(functions)
        self.macros = dict(macros or {})
        self.types = tuple(types)


def linear(
    factor: float = 0.1, *, of: int | None = None, result: float | None = None, least: float = 1
) -> CostFunction:
    """A cost in proportion to the size of one argument, or of all. ``result``: the result's size per input size."""

    def cost(sizes: tuple[float, ...]) -> Cost:
        total = sizes[of] if of is not None else sum(sizes)
        price = max(least, ceil(total * factor))
        return Cost(price, UNBOUNDED if result is None else total * result)

    return cost


def ceil(value: float) -> float:
    """Round up; infinity stays."""
    return value if value == UNBOUNDED else float(math.ceil(value))


def known(kind: Type) -> bool:
    """Whether codegen may rely on the static type."""
    return not is_dynamic(kind) and kind.kind != "param"
