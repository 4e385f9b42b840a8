"""Budgets: the static bound, the run-time limit, steps, cancellation, and work that hides in small values."""

import pytest

from dibs import cel

_TEN = "[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]"


@pytest.fixture(scope="module")
def environment(every_library: list[cel.Library]) -> cel.Environment:
    sized = {"s": cel.STRING.sized(100), "l": cel.list_of(cel.INT, max_size=50), "free": cel.list_of(cel.INT)}
    return cel.Environment(sized, every_library)


@pytest.mark.parametrize(
    ("expression", "cost"),
    [
        ("1", 0),
        ("true && false", 0),
        ("1 + 2", 1),
        ("s == 'abc'", 2),
        ("s == s", 12),
        ("s + s == ''", 22),
        ("s.matches('abcd')", 12),
        ("s.startsWith('abc')", 2),
        ("[1, 2]", 10),
        ("{1: 2}", 30),
        ("l.all(x, x > 0)", 252),
        ("l.exists(x, x > 0)", 302),
        ("1 in l", 51),
        ("true ? 1 + 1 : 1 + 1 + 1", 2),
        ("cel.bind(x, 1 + 1, x + x)", 14),
    ],
)
def test_the_static_bound_counts_like_the_reference(environment: cel.Environment, expression: str, cost: int) -> None:
    assert environment.compile(expression).cost == cost


def test_an_unknown_size_makes_the_bound_infinite_and_the_run_is_metered(environment: cel.Environment) -> None:
    program = environment.compile("free.all(x, x > 0)")
    assert program.cost == 2**64 - 1
    assert not program.bounded
    assert program.evaluate({"free": [1] * 100}) is True
    with pytest.raises(cel.CelCostError, match="actual cost limit exceeded"):
        program.evaluate({"free": [1] * 1_000_000})


def test_a_bounded_program_can_still_be_given_a_smaller_budget(environment: cel.Environment) -> None:
    program = environment.compile("l.all(x, x > 0)")
    assert program.bounded
    assert program.evaluate({"l": [1] * 50}) is True
    with pytest.raises(cel.CelCostError):
        program.evaluate({"l": [1] * 50}, cost_limit=100)
    assert program.evaluate({"l": [1] * 50}, cost_limit=1_000) is True


def test_too_expensive_expressions_can_be_refused_when_compiling(every_library: list[cel.Library]) -> None:
    strict = cel.Environment({"l": cel.list_of(cel.INT)}, every_library, static_cost_limit=1_000)
    assert strict.compile("[1, 2].all(x, x > 0)").evaluate() is True
    with pytest.raises(cel.CelTypeError, match=r"may cost 1\.84467e\+19 units; at most 1000 are allowed"):
        strict.compile("l.all(x, x > 0)")


def test_the_budget_ends_nested_loops(environment: cel.Environment) -> None:
    text = "true"
    for depth in range(8):
        text = f"{_TEN}.all(x{depth}, {text})"
    with pytest.raises(cel.CelCostError) as caught:
        environment.compile(text).evaluate()
    assert caught.value.line == 1


def test_a_used_up_budget_is_not_absorbed(environment: cel.Environment) -> None:
    text = "true"
    for depth in range(8):
        text = f"{_TEN}.all(x{depth}, {text})"
    with pytest.raises(cel.CelCostError):
        environment.compile(f"{text} || true").evaluate()


def test_steps_can_be_limited(every_library: list[cel.Library]) -> None:
    environment = cel.Environment({"l": cel.list_of(cel.INT)}, every_library, step_limit=10)
    program = environment.compile("l.exists(x, x < 0)")
    assert program.evaluate({"l": [1] * 10}) is False
    with pytest.raises(cel.CelCostError, match="step limit"):
        program.evaluate({"l": [1] * 11})


def test_an_evaluation_can_be_cancelled(environment: cel.Environment) -> None:
    asked = []

    def cancelled() -> bool:
        asked.append(1)
        return len(asked) > 3

    with pytest.raises(cel.CelCancelledError):
        environment.compile("free.exists(x, x < 0) || true").evaluate({"free": [1] * 10_000}, cancelled=cancelled)
    assert len(asked) == 4


def test_cancelling_works_for_bounded_programs_too(environment: cel.Environment) -> None:
    with pytest.raises(cel.CelCancelledError):
        environment.compile("l.all(x, x > 0)").evaluate({"l": [1]}, cancelled=lambda: True)


def _doubled(times: int, start: str, step: str, body: str) -> str:
    for place in range(times, 0, -1):
        body = f"cel.bind(a{place}, {step.format(f'a{place - 1}')}, {body})"
    return f"cel.bind(a0, {start}, {body})"


@pytest.mark.parametrize(
    "expression",
    [
        _doubled(40, "'xxxxxxxxxx'", "{0} + {0}", "a40.size() > 0"),
        _doubled(40, "b'xxxxxxxxxx'", "{0} + {0}", "a40.size() > 0"),
        _doubled(40, "[1, 2, 3]", "{0} + {0}", "a40.size() > 0"),
        _doubled(30, "[1]", "[{0}, {0}]", "[a30].exists(x, x == a30 + a30 || a30 == [x, x][0])"),
        _doubled(30, "[1]", "[{0}, {0}]", "a30 in [a30 + []]"),
        _doubled(30, "[1]", "[{0}, {0}]", "'%s'.format([a30]) == ''"),
        _doubled(30, "[1]", "[{0}, {0}]", "a30.flatten(64).size() > 0"),
        _doubled(30, "{'k': 1}", "{{'k': {0}, 'j': {0}}}", "a30 == {'k': a29, 'j': a29}"),
        _doubled(15, "['xxxxxxxxxx']", "{0} + {0}", f"{_TEN}.all(x, {_TEN}.all(y, a15.join('y').size() > 0))"),
        _doubled(12, "'xxxxxxxxxx'", "{0} + {0}", "a12" + ".replace('', 'yyyyyyyyyy')" * 3 + ".size() > 0"),
        "lists.range(1000000000).size() > 0",
        "lists.range(100000).all(x, lists.range(100000).size() > 0)",
        "'%.999999999f'.format([1.0]) == ''",
        "free.map(x, free.map(y, free)).size() > 0",
    ],
)
def test_values_that_unfold_without_end_are_stopped(environment: cel.Environment, expression: str) -> None:
    with pytest.raises((cel.CelCostError, cel.CelRuntimeError)):
        environment.compile(expression).evaluate({"free": [1] * 20_000})


def test_the_budget_of_an_evaluation_does_not_leak_into_the_next(environment: cel.Environment) -> None:
    program = environment.compile("free.all(x, [[x]] == [[x]])")
    for _ in range(20):
        assert program.evaluate({"free": [1] * 5_000}) is True
