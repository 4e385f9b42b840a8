"""What expressions mean: numbers, logic, equality, order, lookups, and the errors they end in."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from dibs import cel

Evaluate = Callable[..., Any]


@pytest.mark.parametrize(
    ("expression", "wanted"),
    [
        ("1 + 2 * 3 - 4 / 2 % 2", 7),
        ("-7 / 2", -3),
        ("-7 % 2", -1),
        ("7 % -2", 1),
        ("9223372036854775807 + -1", 2**63 - 2),
        ("-9223372036854775808", -(2**63)),
        ("0xFF", 255),
        ("18446744073709551615u / 2u", cel.Uint(2**63 - 1)),
        ("0.5 + .5", 1.0),
        ("1.0 / 0.0", math.inf),
        ("-1.0 / 0.0", -math.inf),
        ("'a' + 'b'", "ab"),
        ("b'a' + b'b'", b"ab"),
        ("[1] + [2]", [1, 2]),
        ("size('añ😀')", 3),
        ("size(bytes('añ😀'))", 7),
        ("'añb'.size()", 3),
        ("true ? 1 : 1 / 0", 1),
        ("{'a': {'b': [1, 2]}}.a.b[1]", 2),
        ("{1: 'x'}[dyn(1.0)]", "x"),
        ("{1u: 'x'}[dyn(1)]", "x"),
        ("string(1.5) + string(true) + string(b'x') + string(7u)", "1.5truex7"),
        ("string(1e6)", "1e+06"),
        ("string(1e-5)", "1e-05"),
        ("string(100000.0)", "100000"),
        ("int('-12') + int(3.9) + int(4u)", -5),
        ("double('1e3')", 1000.0),
    ],
)
def test_a_value_comes_out(evaluate: Evaluate, expression: str, wanted: object) -> None:
    got = evaluate(expression)
    assert got == wanted
    assert type(got) is type(wanted)


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("9223372036854775807 + 1", "integer overflow"),
        ("-9223372036854775807 - 2", "integer overflow"),
        ("-(-9223372036854775808)", "integer overflow"),
        ("-9223372036854775808 / -1", "integer overflow"),
        ("-9223372036854775808 % -1", "integer overflow"),
        ("4611686018427387904 * 2", "integer overflow"),
        ("0u - 1u", "unsigned integer overflow"),
        ("18446744073709551615u + 1u", "unsigned integer overflow"),
        ("uint(-1)", "unsigned integer overflow"),
        ("int(1e30)", "integer overflow"),
        ("1 / 0", "division by zero"),
        ("1 % 0", "modulus by zero"),
        ("1u / 0u", "division by zero"),
        ("[1][1]", "index out of bounds: 1"),
        ("[1][-1]", "index out of bounds: -1"),
        ("{'a': 1}['b']", "no such key: b"),
        ("{'a': 1}.b", "no such key: b"),
        ("int('1_000')", "type conversion error"),
        ("int(' 1')", "type conversion error"),
        ("int('٣')", "type conversion error"),
        ("string(b'\\xff')", "invalid UTF-8"),
        ("dyn(1) + 'a'", "no such overload: _+_(int, string)"),
        ("dyn([]) < dyn([])", "no such overload"),
        ("dyn(1).foo", "does not support field selection"),
        ("dyn(1) ? 1 : 2", "expected bool, got int"),
        ("'a'.matches('(')", "error parsing regexp"),
    ],
)
def test_a_failure_says_what_and_where(evaluate: Evaluate, expression: str, message: str) -> None:
    with pytest.raises(cel.CelRuntimeError) as caught:
        evaluate(expression)
    assert message in caught.value.message
    assert caught.value.line == 1
    assert caught.value.column is not None


def test_the_place_of_a_failure_is_that_of_the_operator(evaluate: Evaluate) -> None:
    with pytest.raises(cel.CelRuntimeError) as caught:
        evaluate("true &&\n  1 / 0 == 1")
    assert (caught.value.line, caught.value.column) == (2, 5)
    assert caught.value.snippet() == " |   1 / 0 == 1\n | ....^"


@pytest.mark.parametrize(
    ("expression", "wanted"),
    [
        ("1 / 0 == 1 && false", False),
        ("false && 1 / 0 == 1", False),
        ("1 / 0 == 1 || true", True),
        ("true || 1 / 0 == 1", True),
        ("1 / 0 == 1 && true && 2 / 0 == 1 && false", False),
        ("(1 / 0 == 1 || 2 / 0 == 1) || true", True),
        ("[1, 2, 0].exists(x, 6 / x == 3)", True),
        ("[0, 2].all(x, 6 / x == 4)", False),
        ("{'a': 1}.b == 1 || true", True),
        ("dyn('horse') || true", True),
        ("dyn('horse') && false", False),
    ],
)
def test_an_error_beside_a_deciding_operand_is_absorbed(evaluate: Evaluate, expression: str, wanted: bool) -> None:
    assert evaluate(expression) is wanted


@pytest.mark.parametrize(
    "expression",
    [
        "1 / 0 == 1 && true",
        "true && 1 / 0 == 1",
        "1 / 0 == 1 || false",
        "false || 1 / 0 == 1",
        "[0, 3].all(x, 6 / x == 2)",
        "[0, 3].exists(x, 6 / x == 1)",
        "[3, 0].exists_one(x, 6 / x == 2)",
        "[3, 0].map(x, 6 / x) == []",
        "dyn('horse') || false",
        "dyn('horse') && true",
    ],
)
def test_an_error_that_decides_is_raised(evaluate: Evaluate, expression: str) -> None:
    with pytest.raises(cel.CelRuntimeError):
        evaluate(expression)


@pytest.mark.parametrize(
    ("expression", "wanted"),
    [
        ("dyn(1) == 1.0", True),
        ("dyn(1u) == 1", True),
        ("dyn(true) == 1", False),
        ("dyn(1) == true", False),
        ("[dyn(true)] == [dyn(1)]", False),
        ("{'a': dyn(1)} == {'a': dyn(true)}", False),
        ("[1, 2u, 3.0] == [1u, 2.0, 3]", True),
        ("{true: 1, 1: 2}[true]", 1),
        ("{true: 1, 1: 2}[1]", 2),
        ("dyn(1) in {true: 1}", False),
        ("true in {true: 1}", True),
        ("dyn(1) in [true]", False),
        ("null == null", True),
        ("dyn('') == null", False),
        ("double('nan') == double('nan')", False),
        ("[double('nan')] == [double('nan')]", False),
        ("{'k': null} == {'j': null}", False),
        ("1 < 1.5 && 2u > 1 && 1.5 <= 2u", True),
        ("dyn(9223372036854775807) < 9223372036854775808.0", False),
        ("'\U00010000' > '\uffff'", True),
        ("b'\\xff' > b'a'", True),
        ("type(1) == int && type(1u) == uint && type([]) == list && type(null) == null_type", True),
        ("type(type(1)) == type", True),
    ],
)
def test_equality_and_order_are_those_of_cel_not_of_python(evaluate: Evaluate, expression: str, wanted: object) -> None:
    got = evaluate(expression)
    assert got == wanted
    assert type(got) is type(wanted)


def test_a_map_with_a_bool_and_an_int_key_keeps_both(evaluate: Evaluate) -> None:
    assert evaluate("{true: 'b', 1: 'i'}.map(k, type(k) == bool)") == [True, False]
    assert evaluate("x[true]", x={True: "yes"}) == "yes"
    assert cel.to_python(evaluate("{true: 2u}")) == {True: 2}


@pytest.mark.parametrize(
    ("expression", "wanted"),
    [
        ("[1, 2, 3].map(x, x > 1, x * x)", [4, 9]),
        ("[1, 2, 3].filter(x, x != 2)", [1, 3]),
        ("{'b': 1, 'a': 2}.map(k, k)", ["b", "a"]),
        ("[1, 2, 2].exists_one(x, x == 2)", False),
        ("[1, 2].map(x, [x, x].map(x, x + 1))", [[2, 2], [3, 3]]),
        ("[5, 6].transformList(i, v, i * v)", [0, 6]),
        ("{'a': 1}.transformMap(k, v, k + string(v))", {"a": "a1"}),
        ("{'a': 1}.transformMapEntry(k, v, {string(v): k})", {"1": "a"}),
        ("[4, 4].exists(i, v, i == 1 && v == 4)", True),
        ("cel.bind(a, 2, cel.bind(b, a + 1, a * b))", 6),
        ("has({'a': 1}.a) && !has({'a': 1}.b)", True),
        ("optional.of(1).optMap(x, x + 1).orValue(0)", 2),
        ("optional.of(1).optFlatMap(x, optional.none()).hasValue()", False),
        ("{'a': {'b': 1}}.?a.?b.orValue(2)", 1),
        ("{'a': {}}.?a.?b.orValue(2)", 2),
        ("[1][?5].or(optional.of(3)).value()", 3),
        ("[?optional.none(), 1, ?optional.of(2)]", [1, 2]),
        ("{?'a': optional.none(), 'b': 1}", {"b": 1}),
    ],
)
def test_macros_and_optionals(evaluate: Evaluate, expression: str, wanted: object) -> None:
    assert evaluate(expression) == wanted


def test_transform_map_entry_refuses_two_entries_with_one_key(evaluate: Evaluate) -> None:
    with pytest.raises(cel.CelRuntimeError, match="already exists"):
        evaluate("[1, 2].transformMapEntry(i, v, {'k': v})")


def test_a_missing_variable_is_named(every_library: list[cel.Library]) -> None:
    program = cel.Environment({"a.b": cel.INT}, every_library).compile("a.b + 1")
    assert program.variables == ("a.b",)
    with pytest.raises(cel.CelRuntimeError, match=r"no such attribute: a\.b"):
        program.evaluate({})


@pytest.mark.parametrize(
    ("kind", "value"), [(cel.INT, "1"), (cel.STRING, 1), (cel.INT, True), (cel.INT, 2**63), (cel.list_of(cel.INT), {})]
)
def test_a_variable_of_another_type_than_declared_is_refused(kind: cel.Type, value: object) -> None:
    program = cel.Environment({"x": kind}).compile("x == x")
    with pytest.raises(cel.CelRuntimeError, match="variable 'x'"):
        program.evaluate({"x": value})


def test_without_checking_problems_wait_for_the_run(every_library: list[cel.Library]) -> None:
    environment = cel.Environment({}, every_library)
    assert environment.compile("nobody.knows(1) || true", check=False).evaluate() is True
    with pytest.raises(cel.CelRuntimeError):
        environment.compile("nobody.knows(1)", check=False).evaluate()


def test_names_are_looked_up_in_the_container_first() -> None:
    environment = cel.Environment({"a.b.x": cel.INT, "x": cel.INT}, container="a.b")
    assert environment.compile("x * 10 + .x").evaluate({"a.b.x": 1, "x": 2}) == 12


def test_deep_nesting_beyond_the_blocks_of_a_python_function_still_works(evaluate: Evaluate) -> None:
    text = "x1 + x2 + x39 > 0"
    for depth in range(1, 40):
        loop = f"[{depth}].all(x{depth}, {text})"
        text = loop if depth % 2 else f"({loop} || 1 / 0 == 1)"
    assert evaluate(text) is True
