"""Static types: what the checker reasons with, and what declarations are made of.

A type may carry ``max_size``, the longest that such a string, bytes, list or map can be; the cost estimate uses it. It
takes no part in equality. Types are immutable and know nothing of functions or environments.
"""

from collections.abc import Mapping
from typing import Any, Final

from dibs.cel.values import Uint

# A set of bound type parameters.
Bindings = dict[str, "Type"]


class Type:
    """One type: a kind, parameters, and for named kinds (opaque, object, parameter) a name.

    ``generic``: whether a type parameter is in it.
    """

    __slots__ = ("attributes", "fields", "generic", "kind", "max_size", "name", "params", "python")

    def __init__(
        self,
        kind: str,
        params: "tuple[Type, ...]" = (),
        *,
        name: str = "",
        python: type | None = None,
        fields: "Mapping[str, Type] | None" = None,
        attributes: Mapping[str, str] | None = None,
        max_size: int | None = None,
    ) -> None:
        self.kind = kind
        self.params = params
        self.name = name or kind
        self.python = python
        self.fields = fields
        self.attributes = attributes
        self.max_size = max_size
        self.generic: bool = kind == "param" or any(param.generic for param in params)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Type):
            return NotImplemented
        return self.kind == other.kind and self.name == other.name and self.params == other.params

    def __hash__(self) -> int:
        return hash((self.kind, self.name, self.params))

    def __str__(self) -> str:
        if not self.params:
            return self.name
        return f"{self.name}({', '.join(str(param) for param in self.params)})"

    def __repr__(self) -> str:
        return f"<Type {self}>"

    def sized(self, max_size: int) -> "Type":
        """The same type with a known largest size."""
        return Type(
            self.kind,
            self.params,
            name=self.name,
            python=self.python,
            fields=self.fields,
            attributes=self.attributes,
            max_size=max_size,
        )


BOOL: Final = Type("bool")
INT: Final = Type("int")
UINT: Final = Type("uint")
DOUBLE: Final = Type("double")
STRING: Final = Type("string")
BYTES: Final = Type("bytes")
NULL: Final = Type("null_type")
DYN: Final = Type("dyn")
ANY: Final = Type("any")
"""Like dyn, except that a macro cannot loop over it."""
ERROR: Final = Type("error", name="!error!")


def list_of(element: Type, *, max_size: int | None = None) -> Type:
    """The type of a list."""
    return Type("list", (element,), max_size=max_size)


def map_of(key: Type, value: Type, *, max_size: int | None = None) -> Type:
    """The type of a map. Its values may be a ``DefaultMap``."""
    return Type("map", (key, value), max_size=max_size)


def optional_of(value: Type) -> Type:
    """The type of an optional value."""
    return Type("optional", (value,), name="optional_type")


def type_of(value: Type) -> Type:
    """The type of a type."""
    return Type("type", (value,))


def opaque(name: str, python: type | None = None, *params: Type) -> Type:
    """A type that only functions look into. ``python``: the class of its values."""
    return Type("opaque", params, name=name, python=python)


def object_type(name: str, fields: Mapping[str, Type], attributes: Mapping[str, str]) -> Type:
    """A struct with declared fields; ``attributes`` names the Python attribute that holds each."""
    return Type("object", name=name, fields=fields, attributes=attributes)


def parameter(name: str) -> Type:
    """A type parameter, for declaring generic overloads."""
    return Type("param", name=name)


def is_dynamic(kind: Type) -> bool:
    """Whether anything may be behind it at run time."""
    return kind.kind in ("dyn", "any", "error")


_CLASSES: Final = {
    "bool": (bool,), "string": (str,), "bytes": (bytes,), "double": (float,), "null_type": (type(None),),
}  # fmt: skip


def accepts(kind: Type, value: Any) -> bool:
    """Whether a run-time value can be of this type. For choosing an overload.

    Of a list the first element is looked at too, as in Kubernetes; not for lists of lists, where `flatten` takes both.
    """
    name = kind.kind
    if name in ("dyn", "any", "param", "error"):
        return True
    if name == "int":
        return type(value) is int
    if name == "uint":
        return type(value) is Uint
    if name in _CLASSES:
        return isinstance(value, _CLASSES[name])
    if name == "list":
        inner = kind.params[0] if kind.params else kind
        return isinstance(value, list) and (not value or inner.kind == "list" or accepts(inner, value[0]))
    if name == "map":
        return isinstance(value, dict)
    if name in ("optional", "type"):
        return getattr(type(value), "__cel_type__", None) == ("optional_type" if name == "optional" else "type")
    return kind.python is not None and isinstance(value, kind.python)


def resolve(bindings: Bindings, kind: Type) -> Type:
    """Follow bound parameters at the top."""
    while kind.kind == "param" and kind.name in bindings:
        kind = bindings[kind.name]
    return kind


def substitute(bindings: Bindings, kind: Type, *, free_as_dyn: bool = False) -> Type:
    """Replace all bound parameters; unbound ones become dyn if asked."""
    if not kind.generic:
        return kind
    kind = resolve(bindings, kind)
    if kind.kind == "param":
        return DYN if free_as_dyn else kind
    if not kind.params:
        return kind
    params = tuple(substitute(bindings, param, free_as_dyn=free_as_dyn) for param in kind.params)
    if params == kind.params:
        return kind
    return Type(kind.kind, params, name=kind.name, python=kind.python, max_size=kind.max_size)


def _occurs(bindings: Bindings, name: str, kind: Type) -> bool:
    kind = resolve(bindings, kind)
    if kind.kind == "param":
        return kind.name == name
    return any(_occurs(bindings, name, param) for param in kind.params)


def assignable(bindings: Bindings, source: Type, target: Type) -> bool:
    """Whether a ``source`` fits where a ``target`` is wanted; binds parameters, also when it fails: pass a copy."""
    if target.kind == "param" and target.name in bindings:
        bound = bindings[target.name]
        if bound.kind != "param":
            if not assignable(bindings, source, bound):
                return False
            # `[1, dyn(1)]` is a list of dyn: the parameter widens.
            found = resolve(bindings, source)
            if found.kind != "param":
                # Of two unknown types, cel-go takes the later one.
                bindings[target.name] = found if is_dynamic(found) else more_general(bound, found)
            return True
    source, target = resolve(bindings, source), resolve(bindings, target)
    if source is target or source == target:
        return True
    for one, other in ((target, source), (source, target)):
        if one.kind == "param":
            if _occurs(bindings, one.name, other):
                return False
            bindings[one.name] = other
            return True
    if is_dynamic(source) or is_dynamic(target):
        return True
    if source.kind == "null_type" or target.kind == "null_type":
        # As in cel-go, either way round.
        return (target if source.kind == "null_type" else source).kind in ("optional", "opaque", "object")
    if source.kind == "type" and target.kind == "type":
        return True
    if source.kind != target.kind or source.name != target.name or len(source.params) != len(target.params):
        return False
    return all(assignable(bindings, one, other) for one, other in zip(source.params, target.params, strict=True))


def more_general(one: Type, other: Type) -> Type:
    """Of two types that fit each other, the one that says less."""
    if one.kind == "null_type":
        return other
    if is_dynamic(one) or other.kind == "null_type":
        return one
    if is_dynamic(other):
        return other
    if one.kind == other.kind and len(one.params) == len(other.params) and one.params:
        pairs = zip(one.params, other.params, strict=True)
        # Inside another type, null stays where it came first.
        params = tuple(mine if mine.kind == "null_type" else more_general(mine, their) for mine, their in pairs)
        return Type(one.kind, params, name=one.name, python=one.python)
    return other if one.kind == "param" else one
