"""The libraries, function by function, at their edges."""

from collections.abc import Callable
from typing import Any

import pytest

from dibs import cel

Evaluate = Callable[..., Any]

_VALUES = [
    # strings
    ("'añb'.charAt(1)", "ñ"),
    ("'ab'.charAt(2)", ""),
    ("'abcab'.indexOf('ab', 1)", 3),
    ("'abc'.indexOf('')", 0),
    ("'abcab'.lastIndexOf('ab')", 3),
    ("'abcab'.lastIndexOf('ab', 2)", 0),
    ("'abc'.lastIndexOf('', 2)", 2),
    ("['a', 'b'].join('-')", "a-b"),
    ("'ÀbC'.lowerAscii() + 'àBc'.upperAscii()", "ÀbcàBC"),
    ("'aaa'.replace('a', 'b', 2)", "bba"),
    ("'ab'.replace('', '-')", "-a-b-"),
    ("'aaa'.replace('a', 'b', -1)", "bbb"),
    ("'a,b,c'.split(',', 2)", ["a", "b,c"]),
    ("'abc'.split('')", ["a", "b", "c"]),
    ("'abc'.split('', 2)", ["a", "bc"]),
    ("'tacocat'.substring(1, 3)", "ac"),
    ("' \\t\\u00a0x\\u2003'.trim()", "x"),
    ("'añ'.reverse()", "ña"),
    ("'%s %d %x %X %o %b %%'.format(['a', 5, 255, 'k', 8, 5])", "a 5 ff 6B 10 101 %"),
    ("'%.2f %e'.format([1.005, 12345.678])", "1.00 1.234568e+04"),
    ("'%s'.format([[1, 'a', {'k': null}, true, 2u, b'x', 1.0]])", "[1, a, {k: null}, true, 2, x, 1]"),
    ("'%s'.format([{'b': 1, 'a': 2}])", "{a: 2, b: 1}"),
    ("'%s %s'.format([type(1), duration('90s')])", "int 90s"),
    ("strings.quote('a\"\\n')", '"a\\"\\n"'),
    # lists
    ("[1, 2].sum() + [3].sum()", 6),
    ("[0.5, 1.5].sum()", 2.0),
    ("[3, 1, 2].min() * 10 + [3, 1, 2].max()", 13),
    ("['b', 'a'].min()", "a"),
    ("[1, 2, 1].indexOf(1) + [1, 2, 1].lastIndexOf(1) + [1].indexOf(9)", 1),
    ("[1, 1, 2].isSorted() && ![2, 1].isSorted() && ['a', 'b'].isSorted()", True),
    ("[1, 2, 3, 4].slice(1, 3)", [2, 3]),
    ("dyn([1, [2, [3]]]).flatten()", [1, 2, [3]]),
    ("[dyn(1), [dyn(2), [3]]].flatten(2)", [1, 2, 3]),
    ("[3, 1, 2].sort()", [1, 2, 3]),
    ("[{'n': 2}, {'n': 1}].sortBy(x, x.n).map(x, x.n)", [1, 2]),
    ("[1, 2, 1, 2u, 'a', 'a'].distinct()", [1, 2, "a"]),
    ("[1, 2].reverse()", [2, 1]),
    ("lists.range(3)", [0, 1, 2]),
    # sets
    ("sets.contains([1, 2, 3], [3, 1]) && !sets.contains([1], [2])", True),
    ("sets.equivalent([1, 1, 2], [2, 1]) && !sets.equivalent([1], [1, 2])", True),
    ("sets.intersects([1, 2], [2, 3]) && !sets.intersects([1], [])", True),
    # regex
    ("'abc 123'.find('[0-9]+')", "123"),
    ("'abc'.find('[0-9]+')", ""),
    ("'1 22 333'.findAll('[0-9]+', 2)", ["1", "22"]),
    ("matches('abc', 'b') && 'abc'.matches('^a.c$') && !'abc'.matches('^b')", True),
    # math
    ("math.greatest(1, 2.5, 2u)", 2.5),
    ("math.least([3, 1, 2])", 1),
    ("math.round(-2.5)", -3.0),
    ("math.abs(-5) + math.sign(-5)", 4),
    ("math.bitShiftLeft(1, 63) == -9223372036854775808", True),
    ("math.bitXor(6, 3)", 5),
    # encoders
    ("base64.encode(b'hello')", "aGVsbG8="),
    ("base64.decode('aGVsbG8')", b"hello"),
    # times
    ("duration('1h30m').getMinutes()", 90),
    ("string(duration('-1.5s'))", "-1.5s"),
    ("timestamp('2024-02-29T12:00:00+02:00').getHours()", 10),
    ("timestamp('2024-02-29T12:00:00Z').getDayOfYear('+01:00')", 59),
    ("string(timestamp(0) + duration('1500ms'))", "1970-01-01T00:00:01.5Z"),
    ("timestamp('2024-01-02T00:00:00Z') - timestamp('2024-01-01T00:00:00Z') == duration('24h')", True),
    # network
    ("cidr('10.0.0.0/8').containsIP('10.1.2.3') && !cidr('10.0.0.0/8').containsIP('11.0.0.1')", True),
    ("isCIDR('10.0.0.0/33') || isCIDR('10.0.0.0') || isCIDR('10.0.0.0/08')", False),
    ("string(cidr('10.1.2.3/8').masked())", "10.0.0.0/8"),
    # optionals
    ("optional.ofNonZeroValue(0).hasValue() || optional.ofNonZeroValue('').hasValue()", False),
    ("optional.unwrap([optional.of(1), optional.none()])", [1]),
]  # fmt: skip


@pytest.mark.parametrize(("expression", "wanted"), _VALUES)
def test_a_function_gives(evaluate: Evaluate, expression: str, wanted: object) -> None:
    got = evaluate(expression)
    assert got == wanted
    assert type(got) is type(wanted)


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("'abc'.charAt(4)", "index out of range: 4"),
        ("'abc'.substring(2, 1)", "invalid substring range"),
        ("'abc'.substring(0, 9)", "index out of range: 9"),
        ("'abc'.indexOf('a', -1)", "out of range"),
        ("'%q'.format([1])", "unrecognized formatting clause"),
        ("'%d'.format([])", "index 0 out of range"),
        ("'%d'.format(['a'])", "%d can only be used on"),
        ("'%b'.format([1.5])", "%b can only be used on"),
        ("'%s'.format([optional.none()])", "%s can only be used on"),
        ("'%.5000f'.format([1.0])", "precision"),
        ("[dyn('a'), dyn(1)].join()", "no such overload: join"),
        ("[9223372036854775807, 1].sum()", "integer overflow"),
        ("[1].slice(1, 0)", "start index must be less"),
        ("[1].slice(0, 2)", "list is length 1"),
        ("dyn([]).min()", "min called on empty list"),
        ("[dyn(1), dyn('a')].sort()", "same type"),
        ("dyn([1]).flatten(-1)", "non-negative"),
        ("'a'.find('(?=a)')", "error parsing regexp"),
        ("base64.decode('!!!')", "illegal base64"),
        ("math.bitShiftLeft(1, -1)", "negative offset"),
        ("duration('1')", "type conversion error"),
        ("duration('')", "type conversion error"),
        ("duration('-')", "type conversion error"),
        ("timestamp('2024-13-01T00:00:00Z')", "type conversion error"),
        ("timestamp(0).getHours('Nowhere/Land')", "unknown time zone"),
        ("timestamp(0).getHours('../../etc/passwd')", "unknown time zone"),
        ("duration('2562047h') + duration('2562047h')", "duration overflow"),
        ("ip('1.2.3')", "parse error"),
        ("ip('fe80::1%eth0')", "parse error"),
        ("optional.none().value()", "optional.none() dereference"),
    ],
)
def test_a_function_refuses(evaluate: Evaluate, expression: str, message: str) -> None:
    with pytest.raises(cel.CelRuntimeError) as caught:
        evaluate(expression)
    assert message in caught.value.message
