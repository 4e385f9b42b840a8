"""The syntax tree. Made by the parser and the macros, typed by the checker, read by cost and codegen.

A node carries its offset in the text (for messages) and, once checked, its type. Macros are nodes of their own
(``Comprehension``, ``Bind``, ``OptionalMap``) rather than a general fold: that keeps the generated loops plain.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dibs.cel.declarations import Overload
    from dibs.cel.types import Type


class Node:
    """Base. ``depth`` is the height of the tree below; ``type`` is set by the checker."""

    __slots__ = ("depth", "offset", "type")

    offset: int
    depth: int
    type: "Type"

    def __init__(self, offset: int, children: "tuple[Node, ...] | list[Node]" = ()) -> None:
        self.offset = offset
        depth = 0
        for child in children:
            depth = max(depth, child.depth)
        self.depth = depth + 1


class Literal(Node):
    """A constant: None, bool, int, Uint, float, str or bytes."""

    __slots__ = ("value",)

    def __init__(self, offset: int, value: Any) -> None:
        self.offset = offset
        self.depth = 1
        self.value = value


class Ident(Node):
    """A name. ``resolved`` is the declared variable's full name; None for a local of a macro."""

    __slots__ = ("name", "resolved")

    def __init__(self, offset: int, name: str) -> None:
        self.offset = offset
        self.depth = 1
        self.name = name
        self.resolved: str | None = None


class Select(Node):
    """``operand.field``; ``optional`` for ``operand.?field``; ``test`` for ``has(operand.field)``.

    ``resolved`` is set where the whole chain turned out to be the qualified name of a variable.
    """

    __slots__ = ("field", "operand", "optional", "resolved", "test")

    def __init__(self, offset: int, operand: Node, field: str, *, test: bool = False, optional: bool = False) -> None:
        self.offset = offset
        self.depth = operand.depth + 1
        self.operand = operand
        self.field = field
        self.test = test
        self.optional = optional
        self.resolved: str | None = None


class Call(Node):
    """``function(args)`` or ``target.function(args)``; operators are calls of ``_+_`` and the like.

    The checker sets ``overloads`` to those that can apply, and clears ``target`` for a namespaced function. ``tried``
    has more to try with values of other kinds than were inferred; a call is charged by ``overloads`` all the same.
    """

    __slots__ = ("args", "function", "overloads", "target", "tried")

    def __init__(self, offset: int, function: str, target: Node | None, args: list[Node]) -> None:
        super().__init__(offset, args if target is None else [target, *args])
        self.function = function
        self.target = target
        self.args = args
        self.overloads: list[Overload] = []
        self.tried: list[Overload] = []


class Logic(Node):
    """``&&`` or ``||`` over two or more operands; a chain is one node, so that long ones stay flat."""

    __slots__ = ("conjunction", "operands")

    def __init__(self, offset: int, *, conjunction: bool, operands: list[Node]) -> None:
        super().__init__(offset, operands)
        self.conjunction = conjunction
        self.operands = operands


class Conditional(Node):
    """``condition ? then : otherwise``."""

    __slots__ = ("condition", "otherwise", "then")

    def __init__(self, offset: int, condition: Node, then: Node, otherwise: Node) -> None:
        super().__init__(offset, (condition, then, otherwise))
        self.condition = condition
        self.then = then
        self.otherwise = otherwise


class ListLiteral(Node):
    """``[a, ?b]``; ``optional`` holds the places of the ``?`` elements."""

    __slots__ = ("elements", "optional")

    def __init__(self, offset: int, elements: list[Node], optional: frozenset[int]) -> None:
        super().__init__(offset, elements)
        self.elements = elements
        self.optional = optional


class MapLiteral(Node):
    """``{k: v, ?k: v}``; each entry is (key, value, optional)."""

    __slots__ = ("entries",)

    def __init__(self, offset: int, entries: list[tuple[Node, Node, bool]]) -> None:
        super().__init__(offset, [node for key, value, _ in entries for node in (key, value)])
        self.entries = entries


class MessageLiteral(Node):
    """``Name{field: value}``: parsed for a good message, never evaluated, since there are no messages here."""

    __slots__ = ("name", "values")

    def __init__(self, offset: int, name: str, values: list[Node]) -> None:
        super().__init__(offset, values)
        self.name = name
        self.values = values


class Comprehension(Node):
    """A loop macro over ``range``.

    ``kind``: all, exists, existsOne, list, map or mapEntry. ``variables``: one name, or two (index or key, value).
    ``condition``: the predicate or filter. ``result``: what a list or map is built of.
    """

    __slots__ = ("condition", "kind", "range", "result", "variables")

    def __init__(
        self,
        offset: int,
        kind: str,
        range_: Node,
        variables: tuple[str, ...],
        condition: Node | None,
        result: Node | None,
    ) -> None:
        super().__init__(offset, [node for node in (range_, condition, result) if node is not None])
        self.kind = kind
        self.range = range_
        self.variables = variables
        self.condition = condition
        self.result = result


class Bind(Node):
    """``cel.bind(name, value, body)``."""

    __slots__ = ("body", "name", "value")

    def __init__(self, offset: int, name: str, value: Node, body: Node) -> None:
        super().__init__(offset, (value, body))
        self.name = name
        self.value = value
        self.body = body


class OptionalMap(Node):
    """``target.optMap(name, body)``, or ``optFlatMap`` where ``flat``."""

    __slots__ = ("body", "flat", "name", "target")

    def __init__(self, offset: int, target: Node, name: str, body: Node, *, flat: bool) -> None:
        super().__init__(offset, (target, body))
        self.target = target
        self.name = name
        self.body = body
        self.flat = flat


def qualified_name(node: Node) -> str | None:
    """``a.b.c`` where the node is a plain chain of names, else None."""
    fields: list[str] = []
    while isinstance(node, Select) and not node.test and not node.optional:
        fields.append(node.field)
        node = node.operand
    if not isinstance(node, Ident):
        return None
    fields.append(node.name)
    return ".".join(reversed(fields))


def children(node: Node) -> Iterator[Node]:
    """The nodes right below."""
    if isinstance(node, Select):
        # The name of a variable is one thing: what is left of its last dot is no node that anything is known of.
        if node.resolved is None:
            yield node.operand
    elif isinstance(node, Call):
        if node.target is not None:
            yield node.target
        yield from node.args
    elif isinstance(node, Logic):
        yield from node.operands
    elif isinstance(node, Conditional):
        yield from (node.condition, node.then, node.otherwise)
    elif isinstance(node, ListLiteral):
        yield from node.elements
    elif isinstance(node, MapLiteral):
        for key, value, _ in node.entries:
            yield key
            yield value
    elif isinstance(node, MessageLiteral):
        yield from node.values
    elif isinstance(node, Comprehension):
        yield from (item for item in (node.range, node.condition, node.result) if item is not None)
    elif isinstance(node, Bind):
        yield from (node.value, node.body)
    elif isinstance(node, OptionalMap):
        yield from (node.target, node.body)
