"""Tokens to a syntax tree: recursive descent for operands, precedence climbing for operators.

Called by ``Environment.compile``. Nesting is limited, so that neither this module nor any later stage can run out of
stack on hostile text. It must not look at declarations: names and types are the checker's business.
"""

from collections.abc import Mapping
from typing import Final

from dibs.cel.errors import CelSyntaxError
from dibs.cel.lexer import END, IDENT, LITERAL, QUOTED, RESERVED, SYMBOL, Token, tokenize
from dibs.cel.macros import Macro
from dibs.cel.nodes import (
    Call,
    Conditional,
    Ident,
    ListLiteral,
    Literal,
    Logic,
    MapLiteral,
    MessageLiteral,
    Node,
    Select,
    qualified_name,
)

# Parentheses, brackets, conditionals inside each other. Each level costs about five Python frames here.
MAX_NESTING: Final = 60
# Height of the tree; `1 + 1 + 1 + ...` grows it without nesting. Later stages take about three frames per level.
MAX_DEPTH: Final = 120
MAX_NODES: Final = 50_000

_BINARY: Final = {
    "||": 1, "&&": 2,
    "==": 3, "!=": 3, "<": 3, "<=": 3, ">": 3, ">=": 3, "in": 3,
    "+": 4, "-": 4, "*": 5, "/": 5, "%": 5,
}  # fmt: skip
_FUNCTIONS: Final = {symbol: f"_{symbol}_" for symbol in _BINARY} | {"in": "@in"}


def parse(text: str, macros: Mapping[str, Macro], *, optional_syntax: bool = True, max_length: int = 100_000) -> Node:
    """The tree of ``text``, macros expanded."""
    if len(text) > max_length:
        raise CelSyntaxError(f"the expression has {len(text)} characters; at most {max_length} are allowed")
    try:
        parser = _Parser(tokenize(text), macros, optional_syntax=optional_syntax)
        node = parser.expression()
        parser.end()
    except CelSyntaxError as error:
        error.locate(text, None)
        raise
    return node


class _Parser:
    def __init__(self, tokens: list[Token], macros: Mapping[str, Macro], *, optional_syntax: bool) -> None:
        self.tokens = tokens
        self.place = 0
        self.macros = macros
        self.optional_syntax = optional_syntax
        self.nesting = 0
        self.nodes = 0

    # -- tokens

    def accept(self, symbol: str) -> Token | None:
        token = self.tokens[self.place]
        if token.kind == SYMBOL and token.value == symbol:
            self.place += 1
            return token
        return None

    def expect(self, symbol: str) -> Token:
        return self.accept(symbol) or self.unexpected(f"'{symbol}'")

    def unexpected(self, wanted: str) -> Token:
        token = self.tokens[self.place]
        shown = repr(token.value) if token.kind == LITERAL else f"'{token.value}'"
        raise CelSyntaxError(f"Syntax error: mismatched input {shown[:40]} expecting {wanted}", offset=token.offset)

    def end(self) -> None:
        if self.tokens[self.place].kind != END:
            self.unexpected("<EOF>")

    def checked(self, node: Node) -> Node:
        self.nodes += 1
        if node.depth > MAX_DEPTH or self.nodes > MAX_NODES:
            raise CelSyntaxError(
                f"the expression is nested too deeply or too large (depth {MAX_DEPTH}, {MAX_NODES} nodes at most)",
                offset=node.offset,
            )
        return node

    # -- expressions

    def expression(self) -> Node:
        self.nesting += 1
        if self.nesting > MAX_NESTING:
            raise CelSyntaxError(
                f"the expression is nested too deeply: at most {MAX_NESTING} levels are allowed",
                offset=self.tokens[self.place].offset,
            )
        # A chain `a ? b : c ? d : e` is read in a loop: it is long in practice, not deep.
        arms: list[tuple[int, Node, Node]] = []
        while True:
            node = self.binary(1)
            question = self.accept("?")
            if question is None:
                break
            # As in Kubernetes' grammar, a choice in the middle needs brackets.
            then = self.binary(1)
            self.expect(":")
            arms.append((question.offset, node, then))
        for offset, condition, then in reversed(arms):
            node = self.checked(Conditional(offset, condition, then, node))
        self.nesting -= 1
        return node

    def binary(self, lowest: int) -> Node:
        left = self.unary()
        while True:
            token = self.tokens[self.place]
            if token.kind != SYMBOL:
                return left
            symbol = str(token.value)
            power = _BINARY.get(symbol, 0)
            if power < lowest:
                return left
            self.place += 1
            if power <= 2:
                operands = [left, self.binary(power + 1)]
                while self.accept(symbol):
                    operands.append(self.binary(power + 1))
                left = self.checked(Logic(token.offset, conjunction=power == 2, operands=operands))
            else:
                left = self.checked(Call(token.offset, _FUNCTIONS[symbol], None, [left, self.binary(power + 1)]))

    def unary(self) -> Node:
        """``!`` or ``-`` before an operand. The grammar cancels pairs of them unseen: ``--x`` is ``x``."""
        first = self.tokens[self.place]
        count = 0
        if first.kind == SYMBOL and first.value in ("!", "-"):
            while self.accept(str(first.value)):
                count += 1
        token = self.tokens[self.place]
        if first.value == "-" and count == 1 and token.kind == LITERAL and type(token.value) in (int, float):
            # The sign belongs to the literal: the smallest int has no positive form.
            count = 0
            node = self.negative(first)
        elif first.value == "!" and count and token.kind == SYMBOL and token.value == "-":
            self.place += 1
            node = self.negative(token)
        else:
            node = self.postfix(self.primary())
        if count % 2 == 0:
            return node
        return self.checked(Call(first.offset, "!_" if first.value == "!" else "-_", None, [node]))

    def negative(self, sign: Token) -> Node:
        token = self.tokens[self.place]
        if token.kind != LITERAL or not isinstance(token.value, int | float) or type(token.value) not in (int, float):
            self.unexpected("a number")
        else:
            self.place += 1
            return self.postfix(Literal(sign.offset, -token.value))
        raise AssertionError

    def postfix(self, node: Node) -> Node:
        if isinstance(node, Literal) and type(node.value) is int and node.value > 2**63 - 1:
            raise CelSyntaxError(f"invalid int literal: {node.value} is out of range", offset=node.offset)
        while True:
            after = self.tokens[self.place]
            if after.kind != SYMBOL:
                return node
            if after.value == ".":
                self.place += 1
                optional = self.optional_mark()
                token = self.tokens[self.place]
                if token.kind not in (IDENT, QUOTED):
                    self.unexpected("a field or method name")
                self.place += 1
                name = str(token.value)
                opening = self.accept("(") if not optional and token.kind == IDENT else None
                if opening is not None:
                    node = self.call(opening.offset, name, node)
                else:
                    node = self.checked(Select(after.offset, node, name, optional=optional))
            elif after.value == "[":
                self.place += 1
                function = "_[?_]" if self.optional_mark() else "_[_]"
                index = self.expression()
                self.expect("]")
                node = self.checked(Call(after.offset, function, None, [node, index]))
            elif after.value == "{" and qualified_name(node) is not None:
                node = self.message(node)
            else:
                return node

    def optional_mark(self) -> bool:
        mark = self.accept("?")
        if mark is not None and not self.optional_syntax:
            raise CelSyntaxError("unsupported syntax '?': optional values are not enabled", offset=mark.offset)
        return mark is not None

    def primary(self) -> Node:
        token = self.tokens[self.place]
        self.place += 1
        if token.kind == LITERAL:
            return self.checked(Literal(token.offset, token.value))
        if token.kind == IDENT:
            return self.name(token, "")
        if token.kind == SYMBOL:
            if token.value == ".":
                following = self.tokens[self.place]
                if following.kind != IDENT:
                    self.unexpected("a name")
                self.place += 1
                return self.name(following, ".")
            if token.value == "(":
                node = self.expression()
                self.expect(")")
                return node
            if token.value == "[":
                return self.list_literal(token)
            if token.value == "{":
                return self.map_literal(token)
        self.place -= 1
        self.unexpected("an expression")
        raise AssertionError

    def name(self, token: Token, prefix: str) -> Node:
        name = str(token.value)
        if name in RESERVED:
            raise CelSyntaxError(f"reserved identifier: {name}", offset=token.offset)
        opening = self.accept("(")
        if opening is not None:
            return self.call(opening.offset, prefix + name, None)
        return self.checked(Ident(token.offset, prefix + name))

    def call(self, offset: int, function: str, target: Node | None) -> Node:
        node = self.checked(Call(offset, function, target, self.items(")")))
        macro = self.macros.get(function)
        if macro is not None and isinstance(node, Call):
            expanded = macro(node)
            if expanded is not None:
                return self.checked(expanded)
        return node

    def items(self, closing: str) -> list[Node]:
        found: list[Node] = []
        while not self.accept(closing):
            found.append(self.expression())
            if not self.accept(","):
                self.expect(closing)
                break
            if closing == ")" and self.tokens[self.place].value == ")":
                self.unexpected("an expression")
        return found

    def list_literal(self, token: Token) -> Node:
        elements: list[Node] = []
        optional: set[int] = set()
        while not self.accept("]"):
            if self.optional_mark():
                optional.add(len(elements))
            elements.append(self.expression())
            if not self.accept(","):
                self.expect("]")
                break
        return self.checked(ListLiteral(token.offset, elements, frozenset(optional)))

    def map_literal(self, token: Token) -> Node:
        entries: list[tuple[Node, Node, bool]] = []
        while not self.accept("}"):
            optional = self.optional_mark()
            key = self.expression()
            self.expect(":")
            entries.append((key, self.expression(), optional))
            if not self.accept(","):
                self.expect("}")
                break
        return self.checked(MapLiteral(token.offset, entries))

    def message(self, node: Node) -> Node:
        name = qualified_name(node) or ""
        self.expect("{")
        values: list[Node] = []
        while not self.accept("}"):
            self.optional_mark()
            if self.tokens[self.place].kind not in (IDENT, QUOTED):
                self.unexpected("a field name")
            self.place += 1
            self.expect(":")
            values.append(self.expression())
            if not self.accept(","):
                self.expect("}")
                break
        return self.checked(MessageLiteral(node.offset, name, values))


__all__ = ["MAX_DEPTH", "MAX_NESTING", "MAX_NODES", "parse"]
