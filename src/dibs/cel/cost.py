"""The static estimate: an upper bound of what an expression can cost, in the units of cel-go and Kubernetes.

Called by ``Environment.compile`` on a checked tree. It follows cel-go's estimator step by step, so that an API server
and dibs refuse the same expressions: sizes are ranges, sums saturate at 64 bits, and what is known of a size depends on
the way that leads to a value from a declared variable. Macros cost what their expansion costs there. What one call
costs is in ``estimates``. Codegen leaves the run-time budget out where the bound is below the limit.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from dibs.cel.errors import CelRuntimeError
from dibs.cel.estimates import MAX, UNKNOWN, Argument, Path, Size, estimate, looks_at_sizes, multiply, union
from dibs.cel.nodes import (
    Bind,
    Call,
    Comprehension,
    Conditional,
    Ident,
    ListLiteral,
    Literal,
    Logic,
    MapLiteral,
    MessageLiteral,
    Node,
    OptionalMap,
    Select,
)
from dibs.cel.regex import compile_regex
from dibs.cel.types import Type

LIST_COST: Final = 10
MAP_COST: Final = 30
_SCALARS: Final = frozenset(("bool", "double", "int", "uint"))
_TIMES: Final = frozenset(("google.protobuf.Duration", "google.protobuf.Timestamp"))
# What the hidden loop around a macro's body costs, per turn and once after the loop.
_LOOPS: Final = {"all": (3, 1), "exists": (4, 1), "existsOne": (2, 2)}
_REGEX: Final = frozenset(("matches", "find", "findAll"))
# A pattern's cost tells little about the steps that a matcher in Python takes; above this they are counted.
_CHEAP_REGEX: Final = 5_000
# Functions that compare values deeply. A value may share its parts, so its size says nothing about that work.
_COMPARING: Final = frozenset(
    (
        "_==_",
        "_!=_",
        "@in",
        "indexOf",
        "lastIndexOf",
        "distinct",
        "includes",
        "sets.contains",
        "sets.equivalent",
        "sets.intersects",
    )
)
# A union that is written in place is made anew each time it is asked for.
_WRITTEN: Final = (Literal, ListLiteral, MapLiteral)
_TEXTS: Final = (str, bytes)
# The size of a key and of a value of a list or map.
_Entry = tuple[bool, Size, Size]


def _may_nest(kind: Type) -> bool:
    """Whether a value may be a list or map that holds lists or maps."""
    if kind.kind in ("dyn", "any"):
        return kind.max_size is None
    return kind.kind in ("list", "map", "optional") and any(
        param.kind in ("list", "map", "optional", "dyn", "any") for param in kind.params
    )


def _is_scalar(kind: Type) -> bool:
    if kind.kind == "optional":
        return _is_scalar(kind.params[0])
    return kind.kind in _SCALARS or kind.name in _TIMES


def _written(node: Literal | ListLiteral | MapLiteral) -> int:
    """The size of what is written out."""
    if isinstance(node, Literal):
        return len(node.value) if isinstance(node.value, _TEXTS) else 1
    return len(node.elements) if isinstance(node, ListLiteral) else len(node.entries)


def _union_entries(one: _Entry | None, other: _Entry | None) -> _Entry | None:
    if one is None or other is None:
        return None
    return one[0], union(one[1], other[1]), union(one[2], other[2])


class _Local:
    """A variable of a macro."""

    __slots__ = ("entry", "path", "size")

    def __init__(self, path: Path | None, size: Size | None, entry: _Entry | None) -> None:
        self.path = path
        self.size = size
        self.entry = entry


class Estimate:
    """The estimate of one expression. ``grows``: some step may do more work than its cost tells."""

    def __init__(self, root: Node, variables: Mapping[str, Type]) -> None:
        self.variables = variables
        self.locals: dict[str, list[_Local]] = {}
        self.paths: dict[int, Path] = {}
        self.sizes: dict[int, Size] = {}
        self.entries: dict[int, _Entry] = {}
        self.grows = False
        self.cost = self.of(root)

    def of(self, node: Node) -> int:
        """What evaluating a node costs at most."""
        found: int = _METHODS[type(node)](self, node)
        return min(MAX, found)

    # -- what is known of a value

    def local(self, name: str) -> _Local | None:
        held = self.locals.get(name)
        return held[-1] if held else None

    def path(self, node: Node) -> Path | None:
        if self.locals and isinstance(node, Ident):
            found = self.local(node.name)
            if found is not None:
                return found.path
        return self.paths.get(id(node))

    def declared(self, path: Path | None) -> Size | None:
        """The size of what a path from a declared variable leads to."""
        return None if path is None else path.size(self.variables)

    def size(self, node: Node) -> Size | None:
        return self.size_at(node, self.path(node))

    def size_at(self, node: Node, path: Path | None) -> Size | None:
        found = self.sizes.get(id(node))
        if found is not None:
            return found
        if isinstance(node, _WRITTEN):
            count = _written(node)
            return count, count
        if path is not None:
            found = path.size(self.variables)
            if found is not None:
                self.sizes[id(node)] = found
                return found
        if _is_scalar(node.type):
            return 1, 1
        if isinstance(node, Ident):
            held = self.local(node.name)
            return held.size if held is not None else None
        return None

    def entry(self, node: Node) -> _Entry | None:
        found = self.entries.get(id(node))
        if found is None and isinstance(node, Ident):
            held = self.local(node.name)
            return held.entry if held is not None else None
        return found

    def argument(self, node: Node) -> Argument:
        if isinstance(node, Literal):
            count = _written(node)
            return Argument(node, None, (count, count), self.declared)
        # What is declared of the path is in the size already.
        path = self.path(node)
        return Argument(node, path, self.size_at(node, path), self.declared)

    def keep(self, node: Node, size: Size | None, entry: _Entry | None = None) -> None:
        if size is not None:
            self.sizes[id(node)] = size
        if entry is not None:
            self.entries[id(node)] = entry

    # -- nodes

    def literal(self, node: Literal) -> int:
        del node
        return 0

    def ident(self, node: Ident) -> int:
        local = self.local(node.name)
        path = Path.to(node.resolved or node.name) if local is None else local.path
        if path is not None:
            self.paths[id(node)] = path
        return 1

    def select(self, node: Select) -> int:
        if node.resolved is not None:
            self.paths[id(node)] = Path.to(node.resolved)
            return 1
        cost = self.of(node.operand)
        if node.test:
            return cost  # Kubernetes counts has() as free.
        if node.optional:
            return cost + 1
        path = self.path(node.operand)
        self.paths[id(node)] = Path.extended(path, node.field)
        return cost + (1 if node.operand.type.kind in ("map", "object") else 0)

    def call(self, node: Call) -> int:
        if node.function == "dyn" and node.target is None and len(node.args) == 1:
            cost = self.of(node.args[0])
            self.keep(node, self.size(node.args[0]), self.entry(node.args[0]))
            return cost + 1
        total = 0
        for argument in node.args:
            total += self.of(argument)
        sized = looks_at_sizes(node.function, node.overloads)
        arguments = [self.argument(argument) for argument in node.args] if sized else []
        target = None
        if node.target is not None:
            total += self.of(node.target)
            target = self.argument(node.target) if sized else None
        if not node.overloads:
            return total + 1
        self.watch(node)
        worst = 0
        size: Size | None = None
        for overload in node.overloads:
            price, result = estimate(node.function, overload, target, arguments)
            worst = max(worst, price)
            if result is not None:
                size = result if size is None else union(size, result)
            if node.function == "_+_" and overload.params[0].kind in ("string", "bytes", "list"):
                joined = _union_entries(self.entry(node.args[0]), self.entry(node.args[1]))
                if joined is not None:
                    self.entries[id(node)] = joined
            if node.function == "_[_]" and overload.params[0].kind in ("list", "map"):
                held = self.entry(node.args[0])
                size = held[2] if held is not None else None
                step = "@items" if overload.params[0].kind == "list" else "@values"
                self.paths[id(node)] = Path.extended(self.path(node.args[0]), step)
            if size is None:
                size = self.size(node)
        self.keep(node, size)
        if node.function in _REGEX and worst > _CHEAP_REGEX:
            self.grows = True
        return total + worst

    def watch(self, node: Call) -> None:
        """Note calls that may do more work here than they cost."""
        grows = False
        for overload in node.overloads:
            grows = grows or overload.grows
        if not grows and node.function not in _COMPARING and node.function not in _REGEX:
            return
        arguments = node.args if node.target is None else [node.target, *node.args]
        if grows:
            sizes = [self.size(argument) for argument in arguments]
            if node.function != "_+_" or sum(size[1] if size else MAX for size in sizes) > 1_000:
                self.grows = True
        if node.function in _COMPARING and all(_may_nest(argument.type) for argument in arguments):
            self.grows = True
        if node.function in _REGEX:
            pattern = node.args[-1 if node.function == "matches" else (0 if node.target is not None else 1)]
            if not isinstance(pattern, Literal) or not isinstance(pattern.value, str):
                self.grows = True
                return
            try:
                # A short pattern may stand for a long program (``a{1000}``).
                if compile_regex(pattern.value).size > 4 * max(len(pattern.value), 16):
                    self.grows = True
            except CelRuntimeError:
                pass

    def logic(self, node: Logic) -> int:
        return sum(self.of(operand) for operand in node.operands)

    def conditional(self, node: Conditional) -> int:
        condition, then, otherwise = self.of(node.condition), self.of(node.then), self.of(node.otherwise)
        sizes = (self.size(node.then) or UNKNOWN, self.size(node.otherwise) or UNKNOWN)
        self.keep(node, union(*sizes), _union_entries(self.entry(node.then), self.entry(node.otherwise)))
        return condition + max(then, otherwise)

    def list_literal(self, node: ListLiteral) -> int:
        cost = 0
        held: Size = (MAX, 0) if node.elements else (0, 0)
        for item in node.elements:
            cost += self.of(item)
            held = union(held, self.size(item) or UNKNOWN)
        self.entries[id(node)] = (True, (1, 1), held)
        return cost + LIST_COST

    def map_literal(self, node: MapLiteral) -> int:
        cost = 0
        keys: Size = (MAX, 0) if node.entries else (0, 0)
        values = keys
        for key, value, _ in node.entries:
            cost += self.of(key) + self.of(value)
            keys = union(keys, self.size(key) or UNKNOWN)
            values = union(values, self.size(value) or UNKNOWN)
        self.entries[id(node)] = (False, keys, values)
        return cost + MAP_COST

    def message(self, node: MessageLiteral) -> int:
        return 40 + sum(self.of(value) for value in node.values)

    def push(self, name: str, path: Path | None, size: Size | None, entry: _Entry | None = None) -> None:
        self.locals.setdefault(name, []).append(_Local(path, size, entry))

    def variables_of(self, node: Comprehension) -> None:
        """The loop's variables, with what is known of the elements of the range."""
        entry, path = self.entry(node.range), self.path(node.range)
        is_list = entry[0] if entry is not None else node.range.type.kind == "list"
        key, value = (entry[1], entry[2]) if entry is not None else (None, None)
        if len(node.variables) == 2:
            # The order matters: the second path may overwrite the end of the first, as it does there.
            self.push(node.variables[0], Path.extended(path, "@indices" if is_list else "@keys"), key)
            self.push(node.variables[1], Path.extended(path, "@items" if is_list else "@values"), value)
        elif is_list:
            self.push(node.variables[0], Path.extended(path, "@items"), value)
        else:
            self.push(node.variables[0], Path.extended(path, "@keys"), key)

    def comprehension(self, node: Comprehension) -> int:
        cost = self.of(node.range)
        self.variables_of(node)
        condition = self.of(node.condition) if node.condition is not None else 0
        result = self.of(node.result) if node.result is not None else 0
        made = (self.size(node.result) or UNKNOWN) if node.result is not None else UNKNOWN
        for name in node.variables:
            self.locals[name].pop()
        count = self.size(node.range) or UNKNOWN
        if node.kind in _LOOPS:
            turn, after = _LOOPS[node.kind]
            self.keep(node, (1, 1))
            return cost + multiply(count[1], turn + condition) + after
        if node.kind == "list":
            # A new element is a list of its own that is added: the price of a list, the element, the addition.
            self.keep(node, count, (True, (1, 1), union((0, 0), made)))
            return cost + LIST_COST + multiply(count[1], condition + result + LIST_COST + 2) + 1
        # An entry is inserted: the map, the key where it is not a part of the entry, the value, the call.
        self.keep(node, count)
        key = 1 if node.kind == "map" else 0
        return cost + MAP_COST + multiply(count[1], condition + result + key + 2) + 1

    def bind(self, node: Bind) -> int:
        value = self.of(node.value)
        body = self.bound(node.name, node.value, node.body)
        self.keep(node, self.size(node.body), self.entry(node.body))
        # cel-go makes a loop over an empty list of it.
        return LIST_COST + value + body

    def bound(self, name: str, value: Node, body: Node) -> int:
        self.push(name, self.path(value), self.size(value), self.entry(value))
        cost = self.of(body)
        # cel-go asks for the size of the body only afterwards: a body that is just the name has none.
        self.locals[name].pop()
        return cost

    def optional_map(self, node: OptionalMap) -> int:
        # target.hasValue() ? optional.of(cel.bind(name, target.value(), body)) : optional.none()
        target = self.of(node.target)
        self.push(node.name, None, (1, 1) if _is_scalar(node.target.type) else None)
        body = self.of(node.body)
        size = self.size(node.body)
        self.locals[node.name].pop()
        found = size if node.flat else ((1, 1) if _is_scalar(node.type) else None)
        other = (1, 1) if _is_scalar(node.type) else UNKNOWN
        self.keep(node, union(found or UNKNOWN, other))
        inner = LIST_COST + target + 1 + body
        return target + 1 + max(inner + (0 if node.flat else 1), 1)


_METHODS: Final[dict[type[Node], Callable[[Any, Any], int]]] = {
    Literal: Estimate.literal,
    Ident: Estimate.ident,
    Select: Estimate.select,
    Call: Estimate.call,
    Logic: Estimate.logic,
    Conditional: Estimate.conditional,
    ListLiteral: Estimate.list_literal,
    MapLiteral: Estimate.map_literal,
    MessageLiteral: Estimate.message,
    Comprehension: Estimate.comprehension,
    Bind: Estimate.bind,
    OptionalMap: Estimate.optional_map,
}
