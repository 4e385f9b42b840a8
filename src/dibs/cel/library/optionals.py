"""The optionals library: ``optional.of`` and its kin, and the macros ``optMap`` and ``optFlatMap``."""

from typing import Any, Final

from dibs.cel.declarations import Function, Library, Overload, method
from dibs.cel.errors import CelRuntimeError
from dibs.cel.macros import OPTIONALS
from dibs.cel.types import BOOL, DYN, list_of, opaque, optional_of, parameter
from dibs.cel.values import NONE, Optional, is_zero

V: Final = parameter("V")


def _value(wrapped: Optional) -> Any:
    if not wrapped.present:
        raise CelRuntimeError("optional.none() dereference")
    return wrapped.value


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
                    lambda items: [item.value for item in items if item.present],
                    fails=False,
                ),
            ),
            Function(
                "unwrapOpt",
                method(
                    (list_of(wrapped),),
                    list_of(V),
                    lambda items: [item.value for item in items if item.present],
                    fails=False,
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
