"""Whatever is thrown at it, the engine answers with a value or a CelError, within its budget."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dibs import cel
from dibs.cel.dra import DeviceView, compile_selector
from dibs.cel.regex import Regex

_DEVICE = DeviceView("x", {"a": 1, "s": "text", "b": True, "v": {"version": "1.2.3"}, "l": ["a", "b"]}, {"m": "1Gi"})

_SEEDS = [
    'device.driver == "x" && device.attributes["x"].model == "y"',
    'device.capacity["x"].m.compareTo(quantity("10Gi")) >= 0 || device.attributes["x"].a > 2',
    'cel.bind(a, device.attributes["x"], a.?s.orValue("").matches("^t(e|x)+t$"))',
    "[1, 2, 3].map(i, i * 2).filter(j, j > 2).exists_one(k, k == 4) ? {'a': [1]}.a[0] == 1 : !true",
    "'%s %d %.3f'.format([dyn('a'), dyn(1), dyn(2.5)]).split(' ').join('-').size() > 3",
    "{1: 'a', 2: 'b'}.transformMap(k, v, v + string(k)).all(k, v, k < 3 && v != '')",
    "optional.of([1]).optMap(x, x[?0].orValue(2)).hasValue() && has(device.attributes['x'].a)",
    "timestamp('2024-01-01T00:00:00Z') + duration('1h') > timestamp(0) && ip('1.2.3.4').isLoopback()",
    "lists.range(10).sum() == 45 && sets.contains([1, 2, 3], [1]) && [3, 1].sort() == [1, 3]",
    "b'\\xff' + bytes('é') != b'' && 0x1F == 31 && 5u % 2u == 1u && -7 / 2 == -3 && 1.5e3 > 0.5",
]
_PIECES = [
    *"()[]{}<>!?:.,+-*/%=&|'\"\\`_ \n\t09azAZé😀\x00",
    "&&", "||", "==", "!=", "in", "true", "null", "[?", ".?", "device", "x", "1u", "0x", "1e9", "'''", "b'", "r'",
    "\\u", ".all(x, ", ".map(i, ", "has(", "cel.bind(a, ", "9223372036854775807", "size(", "matches('(a*)*b')",
    "{1: 2}", "[1]", "optional.none()", "quantity('1')", "-9223372036854775808", "//", "{{", "%s", ".format([", "@",
    "__class__",
]  # fmt: skip


def _try(text: str) -> None:
    """Anything else than these errors ends the test; printing an error must work too."""
    try:
        selector = compile_selector(text, list_attributes=True, cost_limit=20_000)
        assert selector.matches(_DEVICE) in (True, False)
    except (cel.CelCompileError, cel.CelRuntimeError, cel.CelCostError) as error:
        shown = str(error)
    else:
        shown = repr(selector)
    assert shown


@settings(max_examples=500)
@given(st.text(max_size=200))
@example("\ud800")
@example("'\ud800' == ''")
@example("\x00")
def test_any_text_is_answered(text: str) -> None:
    _try(text)


@settings(max_examples=1_500)
@given(st.lists(st.sampled_from(_PIECES), max_size=25).map("".join))
def test_any_heap_of_pieces_is_answered(text: str) -> None:
    _try(text)


@settings(max_examples=1_500)
@given(
    st.sampled_from(_SEEDS),
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 4), st.sampled_from(_PIECES)), max_size=6),
)
def test_any_change_of_a_good_expression_is_answered(text: str, edits: list[tuple[float, int, str]]) -> None:
    for where, removed, piece in edits:
        place = int(where * len(text))
        text = text[:place] + piece + text[place + removed :]
    _try(text)


@pytest.mark.parametrize("seed", _SEEDS)
def test_the_seeds_themselves_are_good(seed: str) -> None:
    compile_selector(seed, list_attributes=True)


@settings(max_examples=1_000)
@given(st.text("ab()[]{}|*+?.^$\\1,:P<>=!-dwspLQExiUm", max_size=20), st.text("ab1 \n", max_size=10))
def test_any_pattern_is_answered(pattern: str, text: str) -> None:
    try:
        regex = Regex(pattern)
    except cel.CelRuntimeError:
        return
    found = regex.find(text)
    assert regex.search(text) is (found is not None)
    assert len(regex.find_all(text)) <= len(text) + 1
    if found is not None:
        assert 0 <= found[0] <= found[1] <= len(text)
