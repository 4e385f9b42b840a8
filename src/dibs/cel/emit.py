"""Small builders of Python syntax nodes, and the inlining of an overload's template.

Called by codegen only. A template is the text of a declaration, written by the author of the function; an expression's
author has no way to reach it.
"""

import ast
from collections.abc import Sequence
from typing import Any, Final

from dibs.cel.declarations import Overload

# Python's own parser shares these as well.
LOAD: Final = ast.Load()
STORE: Final = ast.Store()
_PLACES = {"a": 0, "b": 1, "c": 2, "d": 3}


def load(identifier: str, line: int) -> ast.Name:
    """Read a name."""
    return ast.Name(identifier, LOAD, lineno=line)


def store(identifier: str) -> ast.Name:
    """A name as the target of an assignment."""
    return ast.Name(identifier, STORE)


def constant(value: Any, line: int) -> ast.Constant:
    """A plain value."""
    return ast.Constant(value, lineno=line)


def assign(identifier: str, value: ast.expr, line: int) -> ast.Assign:
    """``identifier = value``."""
    return ast.Assign([store(identifier)], value, lineno=line)


def call(function: ast.expr, arguments: Sequence[ast.expr], line: int) -> ast.Call:
    """``function(*arguments)``."""
    return ast.Call(function, list(arguments), [], lineno=line)


def is_atom(value: ast.expr) -> bool:
    """Whether it may be written twice."""
    return isinstance(value, ast.Name | ast.Constant)


def _parsed(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


_trees: dict[str, ast.expr] = {}


def _tree(text: str) -> ast.expr:
    found = _trees.get(text)
    if found is None:
        found = _trees[text] = _parsed(text)
    return found


def _filled(tree: Any, arguments: Sequence[ast.expr], line: int) -> Any:
    if isinstance(tree, ast.Name) and tree.id in _PLACES:
        return arguments[_PLACES[tree.id]]
    if isinstance(tree, ast.expr):
        fields = {field: _filled(getattr(tree, field), arguments, line) for field in tree._fields}
        return type(tree)(**fields, lineno=line)
    if isinstance(tree, list):
        return [_filled(item, arguments, line) for item in tree]
    return tree


def once(text: str) -> bool:
    """Whether a template uses each of its arguments at most once."""
    used = [node.id for node in ast.walk(_tree(text)) if isinstance(node, ast.Name)]
    return len(used) == len(set(used))


def template(overload: Overload, arguments: Sequence[ast.expr], line: int) -> ast.expr:
    """The overload's template with the arguments filled in."""
    assert overload.template is not None
    filled: ast.expr = _filled(_tree(overload.template), arguments, line)
    return filled


def ordering_key(overload: Overload, argument: ast.expr, value: Any, line: int) -> ast.expr:
    """What ``compareTo`` compares of an argument; computed now if the argument's value is known."""
    assert overload.ordering is not None
    if value is not None and overload.ordering.startswith("a.") and overload.ordering[2:].isidentifier():
        key = getattr(value, overload.ordering[2:])
        if type(key) in (int, str):
            return constant(key, line)
    filled: ast.expr = _filled(_tree(overload.ordering), [argument], line)
    return filled


_LOCATED: Final = frozenset(
    kind
    for kind in vars(ast).values()
    if isinstance(kind, type) and issubclass(kind, ast.expr | ast.stmt | ast.excepthandler | ast.arg | ast.arguments)
)


def locate(module: ast.Module) -> None:
    """Give every node a place: its own line, or that of the node around it. All lines are one line long."""
    stack: list[tuple[ast.AST, int]] = [(node, 1) for node in module.body]
    while stack:
        node, line = stack.pop()
        # The instance dictionary is read and written directly: this is a third of the time of compiling otherwise.
        held = node.__dict__
        line = held.get("lineno", line)
        for value in held.values():
            kind = type(value)
            if kind in _LOCATED:
                stack.append((value, line))
            elif kind is list:
                for item in value:
                    if type(item) in _LOCATED:
                        stack.append((item, line))
        held["lineno"] = line
        held["col_offset"] = 0
