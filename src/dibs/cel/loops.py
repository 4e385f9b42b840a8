"""Aggregates and macros as Python: list and map literals, comprehensions as plain loops, bindings, optMap.

Called by ``codegen`` for the nodes of these kinds; the Generator that it passes does everything else.
"""

import ast
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from dibs.cel import operators
from dibs.cel.cost import LIST_COST, MAP_COST
from dibs.cel.emit import LOAD, assign, call, load, store
from dibs.cel.nodes import Bind, Comprehension, ListLiteral, Literal, MapLiteral, Node, OptionalMap
from dibs.cel.types import Type
from dibs.cel.values import NONE, Optional

if TYPE_CHECKING:
    from dibs.cel.codegen import Generator

# What a turn costs besides the predicate: the loop's condition, and the answer so far.
_QUANTIFIERS: Final = {"all": 3, "exists": 4}


def list_literal(gen: "Generator", node: ListLiteral) -> tuple[ast.expr, bool]:
    gen.pay(LIST_COST)
    made = [gen.node(item) for item in node.elements]
    fails = any(failing for _, failing in made)
    if not node.optional:
        return ast.List([item for item, _ in made], LOAD, lineno=gen.line), fails
    result = gen.temporary()
    gen.set(result, ast.List([], LOAD))
    for place, (item, _) in enumerate(made):
        if place in node.optional:
            _when_present(gen, item, node.elements[place].type, lambda value: _append(gen, result, value))
        else:
            _append(gen, result, item)
    return load(result, gen.line), True


def _append(gen: "Generator", target: str, value: ast.expr) -> None:
    method = ast.Attribute(load(target, gen.line), "append", LOAD, lineno=gen.line)
    gen.emit(ast.Expr(call(method, [value], gen.line)))


def _when_present(gen: "Generator", value: ast.expr, kind: Type, use: Callable[[ast.expr], None]) -> None:
    """if value.present: use(value.value)"""
    found = gen.atom(value if kind.kind == "optional" else gen.helper(operators.unwrap, value))
    body, _ = gen.captured(lambda: use(ast.Attribute(found, "value", LOAD, lineno=gen.line)))
    gen.emit(ast.If(ast.Attribute(found, "present", LOAD, lineno=gen.line), body, []))


def map_literal(gen: "Generator", node: MapLiteral) -> tuple[ast.expr, bool]:
    gen.pay(MAP_COST)
    keys = [key for key, _, _ in node.entries]
    plain = all(isinstance(key, Literal) and type(key.value) in (str, int) for key in keys)
    distinct = len({key.value for key in keys if isinstance(key, Literal)}) == len(keys)
    if plain and distinct and not any(optional for _, _, optional in node.entries):
        made = [gen.node(value) for _, value, _ in node.entries]
        held = [gen.value(key) for key in keys]
        found = ast.Dict(list(held), [value for value, _ in made], lineno=gen.line)
        return found, any(failing for _, failing in made)
    result = gen.temporary()
    gen.set(result, ast.Dict([], []))
    for key, value, optional in node.entries:
        _map_entry(gen, result, gen.value(key), value, optional=optional)
    return load(result, gen.line), True


def _map_entry(gen: "Generator", result: str, key: ast.expr, node: Node, *, optional: bool) -> None:
    def put(value: ast.expr) -> None:
        gen.emit(ast.Expr(gen.helper(operators.put_literal, load(result, gen.line), key, value)))

    value = gen.value(node)
    if optional:
        _when_present(gen, value, node.type, put)
    else:
        put(value)


def comprehension(gen: "Generator", node: Comprehension) -> tuple[ast.expr, bool]:
    return gen.outlined(lambda: _loop(gen, node)), True


def _loop(gen: "Generator", node: Comprehension) -> ast.expr:
    source = gen.value(node.range)
    names = [gen.temporary() for _ in node.variables]
    kind = node.range.type
    if len(names) == 2:
        source = gen.helper(operators.iterate_pairs, source)
        target: ast.expr = ast.Tuple([store(item) for item in names], ast.Store())
    else:
        target = store(names[0])
        if kind.kind != "list" and not (kind.kind == "map" and kind.params[0].kind in ("string", "int")):
            source = gen.helper(operators.iterate, source)
    gen.scopes.append(dict(zip(node.variables, names, strict=True)))
    result, pending = gen.temporary(), gen.temporary()
    with gen.block():
        body, start = gen.captured(lambda: _turn(gen, node, result, pending, names))
    gen.scopes.pop()
    gen.set(result, start)
    if node.kind in ("all", "exists"):
        gen.set(pending, gen.keep(None))
    if gen.metered and node.kind in _QUANTIFIERS:
        # The budget also pays for finding out, at the next element, that the answer is known.
        known: ast.expr = load(result, gen.line)
        if node.kind == "all":
            known = ast.UnaryOp(ast.Not(), known, lineno=gen.line)
        leave: list[ast.stmt] = [gen.charging(_QUANTIFIERS[node.kind] - 1), ast.Break(lineno=gen.line)]
        body.insert(0, ast.If(known, leave, [], lineno=gen.line))
    gen.emit(ast.For(target, source, body, []))
    gen.pay(2 if node.kind == "existsOne" else 1)
    if node.kind in ("all", "exists"):
        found = load(result, gen.line)
        still_open = found if node.kind == "all" else ast.UnaryOp(ast.Not(), found)
        failed = ast.Compare(load(pending, gen.line), [ast.IsNot()], [gen.keep(None)])
        raising: list[ast.stmt] = [ast.Raise(load(pending, gen.line), None, lineno=gen.line)]
        gen.emit(ast.If(ast.BoolOp(ast.And(), [still_open, failed]), raising, []))
    if node.kind == "existsOne":
        return ast.Compare(load(result, gen.line), [ast.Eq()], [gen.keep(1)], lineno=gen.line)
    return load(result, gen.line)


def _turn(gen: "Generator", node: Comprehension, result: str, pending: str, names: list[str]) -> ast.expr:
    """Emit the body of the loop; the result's start value is returned."""
    if gen.metered:
        gen.emit(ast.Expr(gen.meter("step")))
    if node.kind in ("all", "exists"):
        gen.pay(_QUANTIFIERS[node.kind])
        _quantifier(gen, node, result, pending)
        return gen.keep(node.kind == "all")
    body, _ = gen.captured(lambda: _collect(gen, node, result, names))
    if node.condition is not None:
        condition, _ = gen.condition(node.condition)
        gen.emit(ast.If(condition, body, []))
    else:
        gen.statements.extend(body)
    if node.kind == "existsOne":
        return gen.keep(0)
    return ast.List([], LOAD) if node.kind == "list" else ast.Dict([], [])


def _quantifier(gen: "Generator", node: Comprehension, result: str, pending: str) -> None:
    assert node.condition is not None
    holds = gen.temporary()
    predicate = node.condition

    def test() -> bool:
        with gen.block():
            found, fails = gen.condition(predicate)
        gen.set(holds, found)
        return fails

    body, fails = gen.captured(test)
    decided: ast.expr = load(holds, gen.line)
    if node.kind == "all":
        decided = ast.UnaryOp(ast.Not(), decided)
    leave: list[ast.stmt] = [assign(result, gen.keep(node.kind != "all"), gen.line)]
    if not gen.metered:
        leave.append(ast.Break(lineno=gen.line))
    if fails or len(body) > 1:
        guarded = gen.guarded(body, pending)
        assert isinstance(guarded, ast.Try)
        guarded.orelse = [ast.If(decided, leave, [], lineno=gen.line)]
        gen.emit(guarded)
    else:
        gen.statements.extend(body)
        gen.emit(ast.If(decided, leave, []))


def _collect(gen: "Generator", node: Comprehension, result: str, names: list[str]) -> None:
    target = load(result, gen.line)
    if node.kind == "existsOne":
        gen.pay(2)
        gen.emit(ast.AugAssign(store(result), ast.Add(), gen.keep(1)))
        return
    assert node.result is not None
    # What the step of the loop costs there: the collection so far, the call, and what is added as a list or by its key.
    gen.pay(3 if node.kind == "map" else 2)
    if node.kind == "list" and not gen.is_constant(node.result):
        gen.pay(LIST_COST)
    value = gen.value(node.result)
    if node.kind == "list":
        _append(gen, result, value)
    elif node.kind == "map":
        gen.emit(ast.Expr(gen.helper(operators.put, target, load(names[0], gen.line), value)))
    else:
        gen.emit(ast.Expr(gen.helper(operators.put_all, target, value)))


def bind(gen: "Generator", node: Bind) -> tuple[ast.expr, bool]:
    """A bound value is only missed where it is used: its error and its cost wait until then."""
    target = gen.temporary()
    if gen.metered:
        before, due = gen.temporary(), gen.temporary()
        gen.set(before, ast.Attribute(load("m", gen.line), "left", LOAD, lineno=gen.line))
        error = _attempt(gen, target, node.value)
        gen.set(due, gen.meter("postponed", load(before, gen.line)))
        gen.bound[target] = (error, due)
        fails = True
    else:
        statements, (value, fails) = gen.captured(lambda: gen.node(node.value))
        if fails:
            gen.bound[target] = (_attempt(gen, target, node.value), "")
        else:
            gen.statements.extend(statements)
            gen.set(target, value)
    gen.scopes.append({node.name: target})
    body, body_fails = gen.node(node.body)
    gen.scopes.pop()
    return body, fails or body_fails


def _attempt(gen: "Generator", target: str, node: Node) -> str:
    """target = node, or the error; the error's name is returned."""
    error = gen.temporary()

    def evaluate() -> None:
        gen.set(target, gen.value(node))

    with gen.block():
        body, _ = gen.captured(evaluate)
    gen.set(target, gen.keep(None))
    gen.set(error, gen.keep(None))
    gen.emit(gen.guarded(body, error))
    return error


def optional_map(gen: "Generator", node: OptionalMap) -> tuple[ast.expr, bool]:
    result, inner, before = gen.temporary(), gen.temporary(), gen.temporary()
    gen.part = False
    if gen.metered:
        # The target is evaluated again where the name is used.
        gen.set(before, ast.Attribute(load("m", gen.line), "left", LOAD, lineno=gen.line))
        body, target = gen.captured(lambda: gen.value(node.target))
        gen.statements.extend(body)
        target = gen.atom(target)
        spent = ast.BinOp(
            load(before, gen.line),
            ast.Sub(),
            ast.Attribute(load("m", gen.line), "left", LOAD, lineno=gen.line),
            lineno=gen.line,
        )
        gen.set(before, ast.List([ast.BinOp(spent, ast.Add(), gen.keep(1), lineno=gen.line)], LOAD))
        gen.pay(1)
    else:
        target = gen.value(node.target)
    gen.set(result, gen.keep(NONE))

    def use(value: ast.expr) -> None:
        gen.set(inner, value)
        if gen.metered:
            none = gen.temporary()
            gen.set(none, gen.keep(None))
            gen.bound[inner] = (none, before)
            gen.pay(0 if node.flat else 1)
        gen.scopes.append({node.name: inner})
        body = gen.value(node.body)
        gen.scopes.pop()
        gen.set(result, gen.helper(operators.unwrap if node.flat else Optional, body))

    found = gen.atom(target if node.target.type.kind == "optional" else gen.helper(operators.unwrap, target))
    then, _ = gen.captured(lambda: use(ast.Attribute(found, "value", LOAD, lineno=gen.line)))
    otherwise, _ = gen.captured(lambda: gen.pay(1))
    gen.emit(ast.If(ast.Attribute(found, "present", LOAD, lineno=gen.line), then, otherwise))
    return load(result, gen.line), True
