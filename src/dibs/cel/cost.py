"""The static estimate: an upper bound of what an expression can cost, in the units of cel-go and Kubernetes.

Called by ``Environment.compile`` on a checked tree. Unknown sizes count as infinite, so the bound may be infinite;
types with a ``max_size`` keep it finite. Codegen leaves the run-time budget out where this bound is below the limit.
"""

from collections.abc import Callable
from typing import Any, Final

from dibs.cel.declarations import UNBOUNDED, Cost
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
from dibs.cel.pattern import compile_program
from dibs.cel.types import Type

LIST_COST: Final = 10
MAP_COST: Final = 30
_SIZED: Final = ("string", "bytes", "list", "map", "dyn", "any")
# What the hidden loop around a macro's body costs, per turn and once after the loop.
_LOOPS: Final = {"all": (3.0, 1.0), "exists": (4.0, 1.0), "existsOne": (2.0, 2.0)}


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


def _may_nest(kind: Type) -> bool:
    """Whether a value may be a list or map that holds lists or maps."""
    if kind.kind in ("dyn", "any"):
        return kind.max_size is None
    return kind.kind in ("list", "map", "optional") and any(
        param.kind in ("list", "map", "optional", "dyn", "any") for param in kind.params
    )


class Estimate:
    """The estimate of one expression. ``grows``: some step may do more work than its cost tells."""

    def __init__(self, root: Node) -> None:
        self.scopes: list[dict[str, Cost]] = []
        self.grows = False
        self.cost = self.of(root).cost

    def of(self, node: Node) -> Cost:
        """Cost and result size of a node."""
        found: Cost = _METHODS[type(node)](self, node)
        return found

    def sized(self, cost: float, kind: Type) -> Cost:
        if kind.max_size is not None:
            return Cost(cost, float(kind.max_size))
        return Cost(cost, UNBOUNDED if kind.kind in _SIZED else 1.0)

    def literal(self, node: Literal) -> Cost:
        return Cost(0.0, float(len(node.value)) if isinstance(node.value, str | bytes) else 1.0)

    def ident(self, node: Ident) -> Cost:
        for scope in reversed(self.scopes):
            if node.name in scope:
                return Cost(1.0, scope[node.name].size)
        return self.sized(1.0, node.type)

    def select(self, node: Select) -> Cost:
        if node.resolved is not None:
            return self.sized(1.0, node.type)
        # Kubernetes counts has() as free.
        return self.sized(self.of(node.operand).cost + (0.0 if node.test else 1.0), node.type)

    def call(self, node: Call) -> Cost:
        arguments = node.args if node.target is None else [node.target, *node.args]
        found = [self.of(argument) for argument in arguments]
        cost = sum(item.cost for item in found)
        sizes = tuple(item.size for item in found)
        worst = Cost(0.0, 0.0)
        for overload in node.overloads:
            if overload.grows and (sum(sizes) > 1_000 or node.function != "_+_"):
                self.grows = True
            priced = overload.cost(self.regex_sizes(node, sizes)) if overload.cost else self.sized(1.0, overload.result)
            worst = Cost(max(worst.cost, priced.cost), max(worst.size, priced.size))
        if node.function in _REGEX and worst.cost > _CHEAP_REGEX:
            self.grows = True
        if node.function in _COMPARING and all(_may_nest(argument.type) for argument in arguments):
            self.grows = True
        if not node.overloads:
            worst = Cost(1.0)
        if node.type.max_size is not None:
            worst = Cost(worst.cost, float(node.type.max_size))
        return Cost(cost + worst.cost, worst.size)

    def regex_sizes(self, node: Call, sizes: tuple[float, ...]) -> tuple[float, ...]:
        """A short pattern may stand for a long program (``a{1000}``): then the program's length counts."""
        if node.function not in _REGEX:
            return sizes
        pattern = node.args[-1 if node.function == "matches" else (0 if node.target is not None else 1)]
        if not isinstance(pattern, Literal) or not isinstance(pattern.value, str):
            self.grows = True
            return sizes
        try:
            program = len(compile_program(pattern.value))
        except ValueError:
            return sizes
        return (sizes[0], max(sizes[1], program / 4), *sizes[2:])

    def logic(self, node: Logic) -> Cost:
        return Cost(sum(self.of(operand).cost for operand in node.operands), 1.0)

    def conditional(self, node: Conditional) -> Cost:
        then, otherwise = self.of(node.then), self.of(node.otherwise)
        return Cost(self.of(node.condition).cost + max(then.cost, otherwise.cost), max(then.size, otherwise.size))

    def list_literal(self, node: ListLiteral) -> Cost:
        return Cost(LIST_COST + sum(self.of(item).cost for item in node.elements), float(len(node.elements)))

    def map_literal(self, node: MapLiteral) -> Cost:
        cost = sum(self.of(key).cost + self.of(value).cost for key, value, _ in node.entries)
        return Cost(MAP_COST + cost, float(len(node.entries)))

    def message(self, node: MessageLiteral) -> Cost:
        return Cost(40.0 + sum(self.of(value).cost for value in node.values))

    def comprehension(self, node: Comprehension) -> Cost:
        source = self.of(node.range)
        kinds: tuple[Type, ...] = node.range.type.params
        if node.range.type.kind == "list" and len(node.variables) == 2:
            kinds = (Type("int"), *kinds)
        scope = {}
        for place, name in enumerate(node.variables):
            scope[name] = self.sized(1.0, kinds[place]) if place < len(kinds) else Cost(1.0)
        self.scopes.append(scope)
        body, result_size = self.body(node)
        self.scopes.pop()
        turn, after = _LOOPS.get(node.kind, (1.0, 1.0))
        start = 0.0 if node.kind in _LOOPS else (LIST_COST if node.kind == "list" else MAP_COST)
        # Zero turns of an endless body cost nothing.
        turns = source.size * (turn + body) if source.size else 0.0
        size = 1.0 if node.kind in _LOOPS else max(source.size, result_size)
        return Cost(source.cost + start + turns + after, size)

    def body(self, node: Comprehension) -> tuple[float, float]:
        condition = self.of(node.condition).cost if node.condition is not None else 0.0
        if node.kind in _LOOPS:
            return condition, 1.0
        # A new element is a list of its own that is added: the price of a list, the element, the addition.
        result = self.of(node.result) if node.result is not None else Cost(0.0)
        return condition + result.cost + LIST_COST + 1.0, 0.0

    def bind(self, node: Bind) -> Cost:
        value = self.of(node.value)
        self.scopes.append({node.name: value})
        body = self.of(node.body)
        self.scopes.pop()
        # cel-go makes a loop over an empty list of it.
        return Cost(LIST_COST + value.cost + body.cost, body.size)

    def optional_map(self, node: OptionalMap) -> Cost:
        target = self.of(node.target)
        self.scopes.append({node.name: Cost(1.0)})
        body = self.of(node.body)
        self.scopes.pop()
        return Cost(target.cost + body.cost + LIST_COST + 5.0, UNBOUNDED)


_METHODS: Final[dict[type[Node], Callable[[Any, Any], Cost]]] = {
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


def own_cost(node: Node | None) -> float:
    """What one evaluation costs at least, without what the run-time budget charges by itself (loops, sized calls)."""
    if node is None or isinstance(node, Literal | Comprehension):
        return 0.0
    if isinstance(node, Ident):
        return 1.0
    if isinstance(node, Select):
        return 1.0 if node.resolved is not None else 1.0 + own_cost(node.operand)
    if isinstance(node, Call):
        return 1.0 + own_cost(node.target) + sum(own_cost(item) for item in node.args)
    if isinstance(node, Logic):
        # Only the first operand is sure to be evaluated.
        return own_cost(node.operands[0])
    if isinstance(node, Conditional):
        return own_cost(node.condition) + min(own_cost(node.then), own_cost(node.otherwise))
    if isinstance(node, ListLiteral):
        return LIST_COST + sum(own_cost(item) for item in node.elements)
    if isinstance(node, MapLiteral):
        return MAP_COST + sum(own_cost(key) + own_cost(value) for key, value, _ in node.entries)
    if isinstance(node, Bind):
        return LIST_COST + own_cost(node.value) + own_cost(node.body)
    if isinstance(node, OptionalMap):
        return own_cost(node.target)
    return 1.0
