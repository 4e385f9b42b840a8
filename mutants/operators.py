"""The faults: every way in which one place of a module can be changed, as an edit of its source text.

`sampling` picks from what `mutations` finds. An edit replaces one expression or statement and keeps the rest of the
file byte for byte, so a line number in a report is the line in the work tree. Text for people (messages, docstrings),
annotations and decorators are left alone: the tests are not meant to pin their wording.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple


class Mutation(NamedTuple):
    """One fault. `before` and `after` are code, `text` the line that it begins on; `where` its function."""

    line: int
    where: str
    text: str
    before: str
    after: str
    span: tuple[int, int]  # in the file's bytes
    lines: int  # after the first, that it reaches over

    def applied(self, source: bytes) -> bytes:
        return source[: self.span[0]] + self.after.encode() + source[self.span[1] :]


_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}


_LEFT_ALONE = {
    (ast.Raise, "exc"),  # its words are for people; that it is raised at all is a fault of its own
    (ast.ClassDef, "keywords"),  # how a type is made (frozen), not what it does
}


def mutations(source: bytes) -> list[Mutation]:
    """All faults of a module, in the order of its lines."""
    return list(_Finder(source).walk(ast.parse(source), ()))


class _Finder:
    def __init__(self, source: bytes) -> None:
        self.source = source
        self.starts = [0]
        for line in source.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))

    def walk(self, node: ast.AST, scope: tuple[str, ...]) -> Iterator[Mutation]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            scope = (*scope, node.name)
        for after in _variants(node, in_function=bool(scope)):
            yield self._edit(node, after, scope)
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "type_params", "bases"):
                continue
            if (type(node), name) in _LEFT_ALONE:
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and not isinstance(child, ast.JoinedStr):
                    yield from self.walk(child, scope)

    def _edit(self, node: ast.AST, after: str, scope: tuple[str, ...]) -> Mutation:
        assert isinstance(node, ast.stmt | ast.expr)
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = self.starts[node.lineno - 1] + node.col_offset
        end = self.starts[node.end_lineno - 1] + node.end_col_offset
        before = " ".join(self.source[start:end].decode().split())
        text = self.source[self.starts[node.lineno - 1] : self.starts[node.lineno]].decode().strip()
        return Mutation(node.lineno, ".".join(scope) or "(module)", text, before, after, (start, end),
                        node.end_lineno - node.lineno)  # fmt: skip


def _variants(node: ast.AST, *, in_function: bool) -> Iterator[str]:
    match node:
        case ast.Compare(ops=[one]) if type(one) in _COMPARISONS:
            yield _code(ast.Compare(node.left, [_COMPARISONS[type(one)]()], node.comparators))
        case ast.BoolOp():
            other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield _code(ast.BoolOp(other, node.values))
        case ast.UnaryOp(op=ast.Not()):
            yield _code(node.operand)
        case ast.BinOp() if type(node.op) in _ARITHMETIC and in_function and not _is_text(node):
            yield _code(ast.BinOp(node.left, _ARITHMETIC[type(node.op)](), node.right))
        case ast.Constant(value=bool() as value):
            yield str(not value)
        case ast.Constant(value=int() | float() as value):
            yield str(value + 1)
        case ast.IfExp():
            yield _code(ast.IfExp(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse))
        case ast.Return(value=ast.expr()) if not _is_nothing(node.value):
            yield "return None"
        case ast.Expr(value=ast.Call() | ast.Await()) | ast.AugAssign() | ast.Raise() | ast.Delete() if in_function:
            yield "pass"
        case ast.Continue():
            yield "break"
        case ast.Break():
            yield "pass"
        case _:
            return


def _is_nothing(node: ast.expr | None) -> bool:
    """None, or what is as false as None: False becomes True instead."""
    return isinstance(node, ast.Constant) and not node.value


def _is_text(node: ast.BinOp) -> bool:
    return any(isinstance(one, ast.JoinedStr) or (isinstance(one, ast.Constant) and isinstance(one.value, str))
               for one in (node.left, node.right))  # fmt: skip


def _code(node: ast.expr) -> str:
    return f"({ast.unparse(ast.fix_missing_locations(node))})"
