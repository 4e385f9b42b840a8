"""The optionals library: ``optional.of`` and its kin, and the macros ``optMap`` and ``optFlatMap``."""

from typing import Any, Final

from dibs.cel.declarations import Function, Library, Overload, method
from dibs.cel.errors import CelRuntimeError
from dibs.cel.macros import OPTIONALS
from dibs.cel.types import BOOL, DYN, list_of, opaque, optional_of, parameter
from dibs.cel.values import NONE, Optional, is_zero, type_name

V: Final = parameter("V")


def _value(wrapped: Optional) -> Any:
    if not wrapped.present:
        raise CelRuntimeError("optional.none() dereference")
    return wrapped.value


def _unwrapped(items: list[Any]) -> list[Any]:
    """The values that are there. Behind null or dyn, an element may be no optional at all."""
    for item in items:
        if type(item) is not Optional:
            raise CelRuntimeError(f"value of type {type_name(item)} is not optional")
    return [item.value for item in items if item.present]


def optionals() -> Library:
    """The library."""
    wrapped = optional_of(V)
    return Library(
        "optionals",
        [
            Function("optional.of", Overload((V,), wrapped, Optional, fails=False)),
            Function("optional.none", Overload((), wrapped, lambda: NONE, fails=False)),
            Function(
                "optional.ofNonZeroValue",
                Overload((V,), wrapped, lambda a: NONE if is_zero(a) else Optional(a), fails=False),
            ),
            Function(
                "optional.unwrap",
                Overload(
                    (list_of(wrapped),),
                    list_of(V),
                    _unwrapped,
                ),
            ),
            Function(
                "unwrapOpt",
                method(
                    (list_of(wrapped),),
                    list_of(V),
                    _unwrapped,
                ),
            ),
            Function("first", method((list_of(V),), wrapped, lambda a: Optional(a[0]) if a else NONE, fails=False)),
            Function("last", method((list_of(V),), wrapped, lambda a: Optional(a[-1]) if a else NONE, fails=False)),
            Function("hasValue", method((wrapped,), BOOL, lambda a: a.present, fails=False, template="a.present")),
            Function("value", method((wrapped,), V, _value)),
            Function("or", method((wrapped, wrapped), wrapped, lambda a, b: a if a.present else b, fails=False)),
            Function(
                "orValue",
                method(
                    (wrapped, V),
                    V,
                    lambda a, b: a.value if a.present else b,
                    fails=False,
                    template="a.value if a.present else b",
                ),
            ),
        ],
        macros=OPTIONALS,
        types=(opaque("optional_type", Optional, DYN),),
    )
