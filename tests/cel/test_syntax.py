"""What is CEL and what is not: literals, precedence, limits, and messages with a place."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dibs import cel

Evaluate = Callable[..., Any]


@pytest.mark.parametrize(
    ("literal", "wanted"),
    [
        (r"'\a\b\f\n\r\t\v\\\?\"\'\`'", "\a\b\f\n\r\t\v\\?\"'`"),
        (r"'\x41\u0042\U00000043\104'", "ABCD"),
        (r"r'\n'", "\\n"),
        (r"R'''a'b'''", "a'b"),
        (r'"""a"b"""', 'a"b'),
        ("'''a\nb'''", "a\nb"),
        (r"b'\xff\377\u00ff'", b"\xff\xff\xc3\xbf"),
        (r"br'\x'", b"\\x"),
        (r"rb'\x'", b"\\x"),
        ("'''\\''''", "'"),
        ("'a' // comment", "a"),
        ("1e3", 1000.0),
        ("5U", cel.Uint(5)),
        ("[1, 2,]", [1, 2]),
        ("{'a': 1,}", {"a": 1}),
    ],
)
def test_literals(evaluate: Evaluate, literal: str, wanted: object) -> None:
    assert evaluate(literal) == wanted


@pytest.mark.parametrize(
    ("expression", "message", "column"),
    [
        ("", "expecting an expression", 1),
        ("1 +", "expecting an expression", 4),
        ("?!", "Syntax error", 1),
        ("(1", "expecting ')'", 3),
        ("1 2", "mismatched input 2 expecting <EOF>", 3),
        ("a.", "a field or method name", 3),
        ("'abc", "unterminated string", 1),
        ("'a\nb'", "a line ends inside a string", 1),
        (r"'\q'", r"invalid escape \q", 2),
        (r"'\ud800'", "invalid code point", 2),
        ("1 & 2", "token recognition error", 3),
        ("for", "reserved identifier: for", 1),
        ("if(1)", "reserved identifier: if", 1),
        ("9223372036854775808", "out of range", 1),
        ("18446744073709551616u", "out of range", 1),
        ("0x1FFFFFFFFFFFFFFFF", "out of range", 1),
        ("has(1)", "invalid argument to has()", 5),
        ("[1].map(a.b, 1)", "argument must be a simple name", 10),
        ("[1].all(i, i, true)", "different names", 12),
        ("f(1,)", "expecting an expression", 5),
    ],
)
def test_what_is_not_cel_is_refused_with_a_place(
    every_library: list[cel.Library], expression: str, message: str, column: int
) -> None:
    with pytest.raises(cel.CelSyntaxError) as caught:
        cel.Environment({}, every_library).compile(expression)
    assert message in caught.value.message
    assert caught.value.column == column
    assert str(caught.value).startswith(f"ERROR: <input>:1:{column}: ")


def test_optional_syntax_needs_the_optionals_library() -> None:
    with pytest.raises(cel.CelSyntaxError, match="optional values are not enabled"):
        cel.Environment({"m": cel.map_of(cel.STRING, cel.INT)}).compile("m.?a")


@pytest.mark.parametrize(
    "expression",
    [
        "(" * 10_000 + "1" + ")" * 10_000,
        "[" * 10_000,
        "1" + "+1" * 10_000,
        "a" + ".a" * 10_000,
        "true ? " * 1_000,
        "true ? 1 : " * 1_000 + "1",
        "{1:" * 1_000,
        "x" * 200_000,
        "1" * 50_000,
        "'" + "\\" * 20_001,
    ],
)
def test_text_that_is_too_deep_or_too_long_is_refused_and_not_a_crash(expression: str) -> None:
    with pytest.raises(cel.CelCompileError):
        cel.Environment({}).compile(expression)


def test_the_limits_are_named_and_exact(evaluate: Evaluate) -> None:
    assert evaluate("(" * 59 + "1" + ")" * 59) == 1
    with pytest.raises(cel.CelSyntaxError, match="at most 60 levels"):
        evaluate("(" * 60 + "1" + ")" * 60)
    assert evaluate("1" + "+1" * 119) == 120
    with pytest.raises(cel.CelSyntaxError, match="depth 120"):
        evaluate("1" + "+1" * 120)


def test_pairs_of_signs_cancel(evaluate: Evaluate) -> None:
    assert evaluate("-" * 10_000 + "1") == 1
    assert evaluate("!" * 9_999 + "true") is False
    assert evaluate("---5") == -5
    assert evaluate("1 - -1 - - 1") == 3
    with pytest.raises(cel.CelSyntaxError):
        evaluate("-!true")


def test_long_chains_of_logic_are_not_deep(evaluate: Evaluate) -> None:
    assert evaluate(" && ".join(["true"] * 5_000)) is True
    assert evaluate(" || ".join(["1 / 0 == 1"] * 500 + ["true"])) is True


@given(st.text())
def test_any_text_survives_as_a_quoted_literal(text: str) -> None:
    quoted = "".join(f"\\U{ord(char):08x}" for char in text)
    assert cel.Environment({}).compile(f"'{quoted}'").evaluate() == text


def test_generated_code_holds_no_text_of_the_expression() -> None:
    name = "__import__"
    environment = cel.Environment({name: cel.map_of(cel.STRING, cel.DYN), "x": cel.DYN})
    program = environment.compile(f"{name}.os == 1 && [x].all(exec, exec == 'eval' || {name}.q.w < 2)")
    function = program.function or program._metered
    assert function is not None
    code = function.__code__
    own = {"append", "value", "present", "step", "charge", "search", "nanos", "m", "__class__"}
    own |= {"priced", "joined", "absorb", "use", "postponed", "left"}
    for used in (*code.co_names, *code.co_varnames, *code.co_freevars, *code.co_cellvars):
        assert used in own or (used[0] in "ptk" and used[1:].isdigit()), used
