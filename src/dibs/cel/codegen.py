"""A checked tree to a Python function.

Called by ``Environment.compile``. The function is built as a Python syntax tree, never as text: it holds names made
here (``p0``, ``t1``, ``k2``), literal values in the code object's table of constants, and everything else in a
dictionary of globals. Nothing of the expression's text gets into it. The line number of each piece is the offset in the
expression plus one, so that a traceback tells where an evaluation failed, at no cost while it does not fail.

Errors are Python exceptions. ``&&`` and ``||`` put an operand into a ``try`` only if it can fail.
"""

import ast
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from dibs.cel import loops, operators
from dibs.cel.charges import charge_of
from dibs.cel.emit import LOAD, assign, call, load, locate, once, ordering_key, template
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
from dibs.cel.types import Type, is_dynamic
from dibs.cel.values import NONE, Optional, Uint, equals
from dibs.cel.writer import Writer, definition

FILENAME: Final = "<cel>"
_NATIVE: Final = frozenset(("string", "bytes", "bool", "int", "uint", "double", "null_type"))
# Python's order is CEL's; not so for doubles, where NaN is an error.
_ORDERED: Final = frozenset(("string", "bytes", "bool", "int", "uint"))
_PATTERNS: Final = frozenset(("matches", "find", "findAll"))
_MAYBE_OPTIONAL: Final = frozenset(("dyn", "any", "error", "optional"))
_COMPARISONS: Final[dict[str, type[ast.cmpop]]] = {
    "_==_": ast.Eq, "_!=_": ast.NotEq, "_<_": ast.Lt, "_<=_": ast.LtE, "_>_": ast.Gt, "_>=_": ast.GtE,
}  # fmt: skip


class Generator(Writer):
    """Makes one function. ``metered``: charge a Meter, the function's first argument, while running."""

    def __init__(self, variables: list[str], constants: dict[str, Any], *, metered: bool) -> None:
        super().__init__(metered=metered)
        self.parameters = {variable: f"p{place}" for place, variable in enumerate(variables)}
        self.constants = constants
        # Whether the next node is a part of an attribute that is charged as a whole: a branch of `?:`, a key.
        self.part = False
        # Names of bound values that may have failed: the name of the error and of the cost that is due.
        self.bound: dict[str, tuple[str, str]] = {}

    def function(self, root: Node) -> Callable[..., Any]:
        """Compile."""
        body, (result, _) = self.captured(lambda: self.node(root))
        body.append(ast.Return(result, lineno=self.line))
        names = (["m"] if self.metered else []) + list(self.parameters.values())
        module = ast.Module([definition("f", names, body)], type_ignores=[])
        locate(module)
        exec(compile(module, FILENAME, "exec"), self.globals)  # noqa: S102 - built from nodes made here, see above
        made: Callable[..., Any] = self.globals["f"]
        return made

    # -- nodes: each gives an expression, and whether evaluating it can fail

    def node(self, node: Node) -> tuple[ast.expr, bool]:
        """The expression for a node. Statements that it needs go before it."""
        outer, self.line = self.line, node.offset + 1
        free = self.free
        if self.metered and not free:
            self.free = is_constant(node, self.constants)
        found: tuple[ast.expr, bool] = _METHODS[type(node)](self, node)
        self.line = outer
        self.free = free
        return found

    def value(self, node: Node) -> ast.expr:
        return self.node(node)[0]

    def is_constant(self, node: Node) -> bool:
        """Whether it is computed when compiling, and costs nothing."""
        return is_constant(node, self.constants)

    def taken(self) -> bool:
        """Whether this node is a part of an attribute; asked once, first."""
        part, self.part = self.part, False
        return part

    def member_of(self, node: Node, *, part: bool) -> tuple[ast.expr, bool]:
        """What a field or an element is taken of. Names and what is taken of them are charged as one."""
        if self.metered:
            if is_attribute(node, self.constants):
                self.part = part
            elif not part:
                self.pay(1)
        return self.node(node)

    def branch(self, node: Node) -> tuple[ast.expr, bool]:
        """A branch of `?:` or a key: a name costs nothing there."""
        self.part = self.metered and is_attribute(node, self.constants)
        return self.node(node)

    def condition(self, node: Node) -> tuple[ast.expr, bool]:
        """A node that must be a bool."""
        found, fails = self.node(node)
        if node.type.kind == "bool":
            return found, fails
        return self.helper(operators.boolean, found), True

    def literal(self, node: Literal) -> tuple[ast.expr, bool]:
        return self.keep(node.value), False

    def ident(self, node: Ident) -> tuple[ast.expr, bool]:
        part = self.taken()
        for scope in reversed(self.scopes):
            if node.name in scope:
                if not part:
                    self.pay(1)
                return self.local(scope[node.name])
        if not part and node.resolved not in self.constants:
            self.pay(1)
        return self.variable(node, node.resolved, node.name)

    def local(self, name: str) -> tuple[ast.expr, bool]:
        if name not in self.bound:
            return load(name, self.line), False
        error, due = self.bound[name]
        held = (load(name, self.line), load(error, self.line))
        if self.metered:
            return self.meter("use", *held, load(due, self.line)), True
        return self.helper(operators.use, *held), True

    def variable(self, node: Node, resolved: str | None, shown: str) -> tuple[ast.expr, bool]:
        if resolved is None:
            return self.unknown(node, f"no such attribute: {shown}")
        if resolved in self.constants:
            return self.keep(self.constants[resolved]), False
        return load(self.parameters[resolved], self.line), False

    def unknown(self, node: Node, message: str) -> tuple[ast.expr, bool]:
        del node
        return self.helper(operators.fail, self.keep(message)), True

    def select(self, node: Select) -> tuple[ast.expr, bool]:
        part = self.taken()
        if node.resolved is not None:
            if not part and node.resolved not in self.constants:
                self.pay(1)
            return self.variable(node, node.resolved, node.field)
        # A presence test costs what leads to it.
        operand, fails = self.member_of(node.operand, part=part or node.test)
        kind = node.operand.type
        field = self.keep(node.field)
        closed = _is_entry(node.operand)
        if closed:
            operand = self.helper(operators.held, operand)
        if kind.fields is not None and kind.attributes is not None:
            self.pay(1)
            if node.test:
                return self.keep(True), fails
            found: ast.expr = ast.Attribute(operand, kind.attributes[node.field], LOAD, lineno=self.line)
            return (self.helper(Optional, found) if node.optional else found), fails
        if node.test:
            # Kubernetes takes one off for the test, also where nothing was charged for what is tested.
            cost = 0 if _is_choice(node.operand) else 1
            if self.metered and not self.free:
                return self.meter("tested", operand, field, self.keep(cost)), True
            return self.helper(operators.has, operand, field), True
        if node.optional or (kind.kind == "optional" and not closed):
            return self.present(self.helper(operators.optional_select, operand, field)), True
        self.pay(1)
        if kind.kind == "map":
            return self.subscript(operand, field), True
        return self.helper(operators.select, operand, field), True

    def present(self, found: ast.expr) -> ast.expr:
        """A step into an optional, charged where there is something."""
        return self.meter("present", found) if self.metered else found

    def subscript(self, operand: ast.expr, key: ast.expr) -> ast.expr:
        return ast.Subscript(operand, key, LOAD, lineno=self.line)

    # -- calls

    def call(self, node: Call) -> tuple[ast.expr, bool]:
        known, value = self.folded(node)
        if known and (not self.metered or self.free):
            return self.keep(value), False
        special = _SPECIAL.get(node.function)
        if special is not None and node.overloads:
            found: tuple[ast.expr, bool] | None = special(self, node)
            if found is not None:
                return found
        nodes = node.args if node.target is None else [node.target, *node.args]
        if not node.overloads:
            return self.unknown(node, f"no such overload: {node.function}")
        return self.apply(node, nodes)

    def folded(self, node: Node) -> tuple[bool, Any]:
        """Compute a call of literals at compile time where its declaration allows it."""
        if isinstance(node, Literal):
            return True, node.value
        if not isinstance(node, Call) or len(node.overloads) != 1 or not node.overloads[0].fold:
            return False, None
        nodes = node.args if node.target is None else [node.target, *node.args]
        found = [self.folded(item) for item in nodes]
        if not all(known for known, _ in found):
            return False, None
        try:
            return True, node.overloads[0].implementation(*(value for _, value in found))
        except operators.FAILURES:
            # It fails in the same way while running, if it is evaluated at all.
            return False, None

    def apply(self, node: Call, nodes: list[Node]) -> tuple[ast.expr, bool]:
        made = [self.node(item) for item in nodes]
        arguments = [item for item, _ in made]
        fails = any(failing for _, failing in made)
        overload = node.overloads[0]
        trusted = all(_trusted(item.type, param) for item, param in zip(nodes, overload.params, strict=True))
        if len(node.overloads) > 1 or not trusted:
            dispatcher: Callable[..., Any] = operators.Dispatcher(node.function, node.tried or node.overloads)
            if node.function in _PATTERNS and self.is_constant(nodes[1]):
                dispatcher = operators.ByText(dispatcher)
            return self.charged(node, dispatcher, arguments), True
        if overload.template is not None and not self.metered:
            if not once(overload.template):
                arguments = [self.atom(item) for item in arguments]
            return template(overload, arguments, self.line), fails or overload.fails
        return self.charged(node, overload.implementation, arguments), fails or overload.fails

    def charged(self, node: Call, function: Callable[..., Any], arguments: list[ast.expr]) -> ast.expr:
        """A call, with its cost where a budget is kept."""
        if not self.metered or self.free:
            return self.helper(function, *arguments)
        charge = charge_of(node.function, node.overloads)
        if charge is not None:
            return self.meter("priced", self.keep(charge), self.keep(function), *arguments)
        self.pay(1)
        if any(overload.grows for overload in node.overloads):
            return self.meter("joined", self.keep(function), *arguments)
        return self.helper(function, *arguments)

    def matches(self, node: Call) -> tuple[ast.expr, bool] | None:
        """A literal pattern is compiled once."""
        pattern = node.args[-1]
        text = node.target if node.target is not None else node.args[0]
        if self.metered or not isinstance(pattern, Literal) or not isinstance(pattern.value, str):
            return None
        if text.type.kind != "string" and not is_dynamic(text.type):
            return None
        try:
            regex = compile_regex(pattern.value)
        except operators.FAILURES:
            return None
        subject, fails = self.node(text)
        search = ast.Attribute(self.keep(regex), "search", LOAD, lineno=self.line)
        if text.type.kind == "string":
            return call(search, [subject], self.line), fails
        # Most often it is a string.
        held = self.atom(subject)
        kind = ast.Attribute(held, "__class__", LOAD, lineno=self.line)
        is_text = ast.Compare(kind, [ast.Is()], [self.keep(str)], lineno=self.line)
        dispatcher = operators.ByText(operators.Dispatcher(node.function, node.tried or node.overloads))
        other = self.helper(dispatcher, held, self.keep(pattern.value))
        return ast.IfExp(is_text, call(search, [held], self.line), other, lineno=self.line), True

    # -- optional values

    def alternative(self, node: Call) -> tuple[ast.expr, bool] | None:
        """``a.or(b)`` and ``a.orValue(b)``: the other is only evaluated where there is no value."""
        if node.target is None or len(node.args) != 1:
            return None
        found, fails = self.node(node.target)
        if node.target.type.kind != "optional":
            found, fails = self.helper(operators.unwrap, found), True
        held = self.atom(found)
        body, (other, other_fails) = self.captured(lambda: self.node(node.args[0]))
        present = ast.Attribute(held, "present", LOAD, lineno=self.line)
        value: ast.expr = held
        if node.function == "orValue":
            value = ast.Attribute(held, "value", LOAD, lineno=self.line)
        if not body:
            return ast.IfExp(present, value, other, lineno=self.line), fails or other_fails
        result = self.temporary()
        self.emit(ast.If(present, [assign(result, value, self.line)], [*body, assign(result, other, self.line)]))
        return load(result, self.line), fails or other_fails

    def comparison(self, node: Call) -> tuple[ast.expr, bool] | None:
        """Equality and order; None where the general form is as good."""
        left_node, right_node = node.args
        operator = _COMPARISONS[node.function]()
        ordered = None if self.metered else self.ordered(left_node, right_node, operator)
        if ordered is not None:
            return ordered
        left_kind, right_kind = left_node.type, right_node.type
        same = left_kind == right_kind and left_kind.kind in _ORDERED
        if node.function not in ("_==_", "_!=_") and not same:
            return None
        left, left_fails = self.node(left_node)
        right, right_fails = self.node(right_node)
        fails = left_fails or right_fails
        if self.metered and not self.free:
            compare = operators.ORDERINGS.get(node.function) or (
                equals if node.function == "_==_" else operators.differ
            )
            return self.charged(node, compare, [left, right]), True
        if _plainly_comparable(left_kind, right_kind):
            return ast.Compare(left, [operator], [right], lineno=self.line), fails
        strict = left_kind.kind == "opaque" or is_dynamic(left_kind)
        if node.function == "_==_" and right_kind.kind == "string" and is_dynamic(left_kind):
            # Most often both are strings. What is none may be of a type that cannot be compared with one.
            held = self.atom(left)
            same_text = ast.Compare(held, [operator], [right], lineno=self.line)
            kind = ast.Attribute(held, "__class__", LOAD, lineno=self.line)
            other = ast.Compare(kind, [ast.IsNot()], [self.keep(str)], lineno=self.line)
            checked = self.helper(operators.comparable, held, right)
            unlike = ast.BoolOp(ast.And(), [other, checked], lineno=self.line)
            return ast.BoolOp(ast.Or(), [same_text, unlike], lineno=self.line), True
        if node.function == "_!=_":
            return self.helper(operators.differ, left, right), fails
        return self.helper(equals, left, right), fails or strict

    def ordered(self, left: Node, right: Node, operator: ast.cmpop) -> tuple[ast.expr, bool] | None:
        """``a.compareTo(b) >= 0`` as one comparison, where the declaration says how."""
        if not isinstance(left, Call) or len(left.overloads) != 1 or left.overloads[0].ordering is None:
            return None
        if not isinstance(right, Literal) or type(right.value) is not int or right.value != 0 or left.target is None:
            return None
        overload, nodes = left.overloads[0], [left.target, *left.args]
        if not all(_trusted(item.type, param) for item, param in zip(nodes, overload.params, strict=True)):
            return None
        sides: list[ast.expr] = []
        fails = False
        for item in nodes:
            known, value = self.folded(item)
            made, failing = (self.keep(value), False) if known else self.node(item)
            fails = fails or failing
            sides.append(ordering_key(overload, made, value if known else None, self.line))
        return ast.Compare(sides[0], [operator], [sides[1]], lineno=self.line), fails

    def membership(self, node: Call) -> tuple[ast.expr, bool] | None:
        kind, held = node.args[1].type, node.args[0].type
        if isinstance(node.args[1], ListLiteral) and not node.args[1].elements:
            # Kubernetes knows it when compiling: the item is never looked at.
            return self.keep(False), False
        if self.metered and not self.free and self.in_constants(node):
            # Kubernetes makes a set of the list, and looks the item up for nothing.
            item, item_fails = self.node(node.args[0])
            container, _ = self.node(node.args[1])
            return self.helper(operators.contains, container, item), item_fails
        item, item_fails = self.node(node.args[0])
        container, fails = self.node(node.args[1])
        if self.metered and not self.free:
            return self.charged(node, _contained, [item, container]), True
        if (kind.kind == "map" and held.kind in ("string", "int")) or (kind.kind == "list" and held.kind == "string"):
            return ast.Compare(item, [ast.In()], [container], lineno=self.line), fails or item_fails
        return self.helper(operators.contains, container, item), True

    def in_constants(self, node: Call) -> bool:
        container = node.args[1]
        if not isinstance(container, ListLiteral) or not is_constant(container, self.constants):
            return False
        return all(_is_primitive(item) for item in container.elements)

    def index(self, node: Call) -> tuple[ast.expr, bool] | None:
        part = self.taken()
        operand, _ = self.member_of(node.args[0], part=part)
        kind, key_kind = node.args[0].type, node.args[1].type
        closed = _is_entry(node.args[0])
        if kind.kind == "optional" and not closed:
            return self.step(operand, node.args[1]), True
        key, _ = self.branch(node.args[1])
        if closed:
            operand = self.helper(operators.held, operand)
        self.pay(1)
        if kind.kind == "map" and key_kind.kind in ("string", "int"):
            return self.subscript(operand, key), True
        if kind.kind == "list" and key_kind.kind == "int":
            return self.helper(operators.list_index, operand, key), True
        return self.helper(operators.index, operand, key), True

    def optional_index(self, node: Call) -> tuple[ast.expr, bool] | None:
        part = self.taken()
        operand, _ = self.member_of(node.args[0], part=part)
        if _is_entry(node.args[0]):
            operand = self.helper(operators.held, operand)
        return self.step(operand, node.args[1]), True

    def step(self, operand: ast.expr, wanted: Node) -> ast.expr:
        """A step into what may be an optional. Where that is none, the key is not looked at, as in Kubernetes."""
        operand = self.atom(operand)
        body, (key, fails) = self.captured(lambda: self.branch(wanted))
        if not body and not fails:
            return self.present(self.helper(operators.optional_index, operand, key))
        result = self.temporary()
        body.append(assign(result, self.present(self.helper(operators.optional_index, operand, key)), self.line))
        self.set(result, self.keep(NONE))
        self.emit(ast.If(self.helper(operators.goes_on, operand), body, []))
        return load(result, self.line)

    # -- logic

    def logic(self, node: Logic) -> tuple[ast.expr, bool]:
        failing: list[bool] = []
        return self.outlined(lambda: self.joined(node, failing)), any(failing)

    def joined(self, node: Logic, failing: list[bool]) -> ast.expr:
        with self.block():
            parts = [self.captured(partial(self.condition, operand)) for operand in node.operands]
        if all(not body and not fails for body, (_, fails) in parts):
            operator = ast.And() if node.conjunction else ast.Or()
            return ast.BoolOp(operator, [found for _, (found, _) in parts], lineno=self.line)
        failing.append(True)
        return self.absorbing(node, parts)

    def absorbing(self, node: Logic, parts: list[tuple[list[ast.stmt], tuple[ast.expr, bool]]]) -> ast.expr:
        """Each operand is tried while the result is open; the first error waits until all are done."""
        result, pending = self.temporary(), self.temporary()
        waiting = False
        for place, (operand_body, (found, fails)) in enumerate(parts):
            body = operand_body
            line, self.line = self.line, node.operands[place].offset + 1
            guard = (fails or bool(body)) and place < len(parts) - 1
            body.append(assign(result, found, self.line))
            if guard:
                if not waiting:
                    # Set before everything, since the operand that sets it may be passed over.
                    self.set(pending, self.keep(None))
                    waiting = True
                body = [self.guarded(body, pending)]
                if place == 0:
                    self.set(result, self.keep(node.conjunction))
            if place == 0:
                self.statements.extend(body)
            else:
                self.emit(ast.If(self.still_open(result, node), body, []))
            self.line = line
        if waiting:
            failed = ast.Compare(load(pending, self.line), [ast.IsNot()], [self.keep(None)])
            check = ast.BoolOp(ast.And(), [self.still_open(result, node), failed])
            self.emit(ast.If(check, [ast.Raise(load(pending, self.line), None, lineno=self.line)], []))
        return load(result, self.line)

    def still_open(self, result: str, node: Logic) -> ast.expr:
        found = load(result, self.line)
        return found if node.conjunction else ast.UnaryOp(ast.Not(), found)

    def guarded(self, body: list[ast.stmt], pending: str) -> ast.stmt:
        """try: body; except FAILURES as e: pending = pending or e."""
        caught = self.temporary()
        either = ast.BoolOp(ast.Or(), [load(pending, self.line), load(caught, self.line)])
        handler = ast.ExceptHandler(
            self.keep(operators.FAILURES), caught, [assign(pending, either, self.line)], lineno=self.line
        )
        if self.metered:
            handler.body.append(ast.Expr(self.meter("absorb"), lineno=self.line))
        return ast.Try(body, [handler], [], [], lineno=self.line)

    def conditional(self, node: Conditional) -> tuple[ast.expr, bool]:
        self.part = False
        condition, fails = self.condition(node.condition)
        then_body, (then, then_fails) = self.captured(lambda: self.branch(node.then))
        other_body, (otherwise, other_fails) = self.captured(lambda: self.branch(node.otherwise))
        fails = fails or then_fails or other_fails
        if not then_body and not other_body:
            return ast.IfExp(condition, then, otherwise, lineno=self.line), fails
        result = self.temporary()
        then_body.append(assign(result, then, self.line))
        other_body.append(assign(result, otherwise, self.line))
        self.emit(ast.If(condition, then_body, other_body))
        return load(result, self.line), fails

    def message(self, node: MessageLiteral) -> tuple[ast.expr, bool]:
        return self.unknown(node, f"unknown type: {node.name}")


def _contained(item: Any, container: Any) -> bool:
    return operators.contains(container, item)


CONVERSIONS: Final = frozenset(
    ("bool", "bytes", "double", "duration", "dyn", "int", "string", "timestamp", "type", "uint")
)


def is_constant(node: Node, constants: Mapping[str, Any]) -> bool:
    """Whether Kubernetes computes it when compiling, so that it costs nothing."""
    if isinstance(node, Literal):
        return True
    if isinstance(node, Ident | Select):
        return node.resolved is not None and node.resolved in constants
    if isinstance(node, ListLiteral):
        return all(is_constant(item, constants) for item in node.elements)
    if isinstance(node, MapLiteral):
        return all(is_constant(key, constants) and is_constant(value, constants) for key, value, _ in node.entries)
    if not isinstance(node, Call) or node.target is not None:
        return False
    if node.function == "@in":
        held = node.args[1]
        return isinstance(held, ListLiteral) and not held.elements
    return node.function in CONVERSIONS and len(node.args) == 1 and is_constant(node.args[0], constants)


def _is_primitive(node: Node) -> bool:
    """Whether a constant is one that cel-go puts into a set."""
    if isinstance(node, Literal):
        return type(node.value) in (bool, int, Uint, float, str)
    if not isinstance(node, Call):
        return False
    return node.function in ("bool", "double", "int", "string", "uint") or (
        node.function == "dyn" and _is_primitive(node.args[0])
    )


def is_attribute(node: Node, constants: Mapping[str, Any]) -> bool:
    """Whether it is a name, a choice, or what is taken of one: Kubernetes resolves these in one go.

    An ``optMap`` is a choice there, between an optional and none.
    """
    if isinstance(node, Ident):
        return node.resolved is None or node.resolved not in constants
    if isinstance(node, Select):
        return node.resolved is None or node.resolved not in constants
    if isinstance(node, Call):
        return node.function in ("_[_]", "_[?_]") and node.target is None
    return isinstance(node, Conditional | OptionalMap)


def _is_entry(node: Node) -> bool:
    """Whether it is an entry of a map or list, reached by a step that is not optional, and may be an optional."""
    if node.type.kind not in _MAYBE_OPTIONAL:
        return False
    if isinstance(node, Select):
        return node.resolved is None and not node.optional and node.operand.type.kind != "optional"
    return isinstance(node, Call) and node.function == "_[_]" and node.args[0].type.kind != "optional"


def _is_choice(node: Node) -> bool:
    """Whether what is selected from is, in the end, a ``?:`` or an ``optMap``, which Kubernetes expands to one."""
    while isinstance(node, Select) or (isinstance(node, Call) and node.function in ("_[_]", "_[?_]")):
        node = node.operand if isinstance(node, Select) else node.args[0]
    return isinstance(node, Conditional | OptionalMap)


def _trusted(kind: Type, param: Type) -> bool:
    """Whether an argument of this static type is sure to be what the parameter asks for."""
    if param.kind in ("param", "dyn", "any"):
        return True
    if is_dynamic(kind) or kind.kind == "param" or kind.kind != param.kind:
        return False
    return all(_trusted(one, wanted) for one, wanted in zip(kind.params, param.params, strict=False))


def _plainly_comparable(left: Type, right: Type) -> bool:
    """Whether Python's `==` is CEL's: never so if a bool may meet a number or a double an int."""
    if left.kind == right.kind:
        return left.kind in _NATIVE or left.kind == "opaque"
    return left.kind == "string"


_METHODS: Final[dict[type[Node], Callable[[Any, Any], tuple[ast.expr, bool]]]] = {
    Literal: Generator.literal,
    Ident: Generator.ident,
    Select: Generator.select,
    Call: Generator.call,
    Logic: Generator.logic,
    Conditional: Generator.conditional,
    ListLiteral: loops.list_literal,
    MapLiteral: loops.map_literal,
    MessageLiteral: Generator.message,
    Comprehension: loops.comprehension,
    Bind: loops.bind,
    OptionalMap: loops.optional_map,
}

_SPECIAL: Final[dict[str, Callable[[Any, Any], tuple[ast.expr, bool] | None]]] = {
    **dict.fromkeys(_COMPARISONS, Generator.comparison),
    "@in": Generator.membership,
    "_[_]": Generator.index,
    "_[?_]": Generator.optional_index,
    "matches": Generator.matches,
    "or": Generator.alternative,
    "orValue": Generator.alternative,
}
