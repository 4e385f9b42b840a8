"""What every part of codegen writes with: temporaries, kept values, statements, and inner functions.

Called by ``codegen`` and ``loops``. It knows Python's syntax nodes and nothing of CEL's.
"""

import ast
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from dibs.cel.emit import LOAD, assign, call, constant, is_atom, load

# Python allows twenty nested loops and try blocks in a function; deeper ones go into a function of their own.
_MAX_BLOCKS: Final = 14
_PLAIN: Final = frozenset((str, int, float, bool, bytes, type(None)))


class Writer:
    """Collects the statements of one function, and the values that it needs."""

    def __init__(self, *, metered: bool) -> None:
        self.metered = metered
        self.globals: dict[str, Any] = {}
        self.known: dict[int, str] = {}
        self.statements: list[ast.stmt] = []
        self.scopes: list[dict[str, str]] = []
        self.count = 0
        self.blocks = 0
        self.line = 1
        self.price = 0
        self.free = False

    def pay(self, cost: int) -> None:
        """Charge a cost that is known now, once for all of the statements that are being captured."""
        if not self.free:
            self.price += cost

    def temporary(self) -> str:
        self.count += 1
        return f"t{self.count}"

    def keep(self, value: Any) -> ast.expr:
        """A value as an expression: in the code if it is plain, else by a name in the globals."""
        if type(value) in _PLAIN:
            return constant(value, self.line)
        key = self.known.get(id(value))
        if key is None:
            key = self.known[id(value)] = f"k{len(self.globals)}"
            self.globals[key] = value
        return load(key, self.line)

    def helper(self, function: Callable[..., Any], *arguments: ast.expr) -> ast.expr:
        return call(self.keep(function), arguments, self.line)

    def emit(self, statement: ast.stmt) -> None:
        statement.lineno = self.line
        self.statements.append(statement)

    def set(self, target: str, value: ast.expr) -> None:
        self.emit(assign(target, value, self.line))

    def atom(self, value: ast.expr) -> ast.expr:
        """The value by a name, so that it can be used twice."""
        if is_atom(value):
            return value
        target = self.temporary()
        self.set(target, value)
        return load(target, self.line)

    def captured(self, make: Callable[[], Any]) -> tuple[list[ast.stmt], Any]:
        """Run ``make`` and return the statements that it emitted, with its result."""
        outer, self.statements = self.statements, []
        price, self.price = self.price, 0
        try:
            result = make()
            if self.metered and self.price:
                self.statements.insert(0, self.charging(self.price))
            return self.statements, result
        finally:
            self.statements = outer
            self.price = price

    def charging(self, cost: int) -> ast.stmt:
        """m.charge(cost)"""
        return ast.Expr(self.meter("charge", self.keep(cost)), lineno=self.line)

    def meter(self, method: str, *arguments: ast.expr) -> ast.expr:
        """A call of the budget."""
        return call(ast.Attribute(load("m", self.line), method, LOAD, lineno=self.line), arguments, self.line)

    @contextmanager
    def block(self) -> Iterator[None]:
        self.blocks += 1
        try:
            yield
        finally:
            self.blocks -= 1

    def outlined(self, make: Callable[[], ast.expr]) -> ast.expr:
        """Put what ``make`` emits into an inner function, if blocks are nested too deeply for Python."""
        if self.blocks < _MAX_BLOCKS:
            return make()
        depth, self.blocks = self.blocks, 0
        body, result = self.captured(make)
        self.blocks = depth
        body.append(ast.Return(result, lineno=self.line))
        target = self.temporary()
        self.emit(definition(target, [], body))
        return call(load(target, self.line), (), self.line)


def definition(function: str, parameters: list[str], body: list[ast.stmt]) -> ast.FunctionDef:
    arguments = ast.arguments([], [ast.arg(item) for item in parameters], None, [], [], None, [])
    made = ast.FunctionDef(function, arguments, body, [], None, lineno=1)
    # Python 3.12 and later want this field.
    if "type_params" in made._fields:
        made.type_params = []  # type: ignore[attr-defined]
    return made
