"""Expressions and allocations, answered by dibs and by Kubernetes' own Go code."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from bench.golang import Reference, built
from tests.claims import hard
from tests.claims.worlds import HOST, device_class
from tests.golang import worlds
from tests.golang.__main__ import SETTINGS, allocations, compared, differs, expressions
from tests.golang.named import NAMED

_COMMAND = built()
pytestmark = pytest.mark.skipif(isinstance(_COMMAND, str), reason=f"nothing to compare with: {_COMMAND}")
PAGE = Path(__file__).parents[2] / "docs" / "cel.md"
# What an earlier version answered otherwise.
EXPRESSIONS = [
    '"x" in (["a", "b", "c"].map(v, v) + "y".split("a", -9223372036854775808))',  # a size beyond what a double holds
    "sets.intersects([1], lists.range(92233736854775807))",
    'device.attributes["dra.example.com"].?s.orValue("").lowerAscii().matches("h100")',
    'has(device.attributes["dra.example.com"].s) && device.attributes["dra.example.com"].s.lowerAscii().contains("h")',
    '["a", "b"].exists(m, device.attributes["dra.example.com"].s.contains(m))',
    'device.attributes["dra.example.com"].v == "1.2.3"',
    'device.capacity["dra.example.com"].m == dyn("80Gi")',
    "optional.of(true).orValue(1 / 0 == 1)",
    "cel.bind(x, 1 / 0, true)",
    "device.attributes['dra.example.com'].?s.?a.hasValue()",
    "true || duration('x') == duration('1s')",
    "true || int('x') == 1",
    "'%d'.format([1.5]) == ''",
    '["a", device.attributes["dra.example.com"].s] == ["a"]',
    "sign(quantity('1')) == 1",
    "[1].first().hasValue()",
    "url('https://a.b:80/c').getPort() == '80'",
    "format.dns1123Label().validate('A').hasValue()",
    "[duration('1s')].sum() == duration('1s')",
    "'abc'.reverse() == 'cba'",
    "[1].existsOne(x, x == 1)",
    "duration('1.5s').getMilliseconds() == 1500",
    "'%.2f'.format([1234.5]) == '1,234.50'",
    "{1: 'a', 1: 'b'}[1] == 'b'",
    "double('nan') < 1.0",
    "lists.range(-1) == []",
    "'abc'.indexOf('b', 10) == -1",
    "isIP('::1.2.3.4')",
    "double('0x1p3') == 8.0",
    "1e309 > 1.0",
    "lists.range(250).map(x, lists.range(250).map(y, x + y)).size() == 250",
    "lists.range(800).distinct().size() == 800",
    "dyn(format.uuid()).includes('a')",
    "-1.5 in [double('nan'), 1e-7]",
    "true ? true : true ? true : true",
    "true ? true ? true : true : true",
    "optional.of(ip('::1')) != optional.of(dyn(1))",
    "true ? device.attributes['a'].b : dyn(1)",
    "true ? dyn(1) : device.attributes['a'].b",
    "url('HTTPS://a.b/c')",
    "[null, optional.of(1)].unwrapOpt() == [1]",
    "optional.of(device.attributes['a'].b).orValue(dyn(1))",
    ".isSemver('a' + device.driver)",
    "isIP(cel.bind(v, 'a', v))",
    "device.attributes['dra.example.com'].missing in []",
    "optional.of(null).orValue(optional.of(1)) == null",
    "dyn([1]).reverse().exists_one(v1, [v1].last().value())",
    'has(device.attributes["a"].?s.missing) && isCIDR("a")',
    "url('http://[:]:80/x')",
    "dyn([true].last())",
    '[null].slice(3, 7) + [null].transformList(v1, v2, device.attributes["a"].?s)',
    "cidr('192.168.0.1/32').masked().masked().containsIP(dyn([\"::1\"][0]))",
    '[null] != [device.capacity["a"].k]',
    'isQuantity(device.attributes["dra.example.com"].s.charAt(7))',
    'dyn(string).matches("a")',
    "timestamp('1969-12-31T3:59:59.999Z')",
    "has([{'a': 1}].first().missing)",
    "optional.of(dyn(url('https://a.b'))) == optional.of(dyn(null))",
    "[optional.of(dyn(url('https://a.b')))] == [optional.of(dyn(1))]",
    "optional.of(dyn(url('https://a.b'))) in [optional.of(dyn(null)), optional.of(dyn(url('https://a.b')))]",
    "dyn(optional.of('a')).matches('a')",
    "isQuantity('.M')",
    "timestamp('1969-12-31T3:59:59,999Z')",
    "[quantity('1')] == [null]",
    "[null].indexOf(quantity('1'))",
    "has({'a': optional.of({'b': 1})}.a.b)",
    'device.attributes["a"].?s.optMap(v, device.attributes["a"]).?missing.hasValue()',
    'device.attributes["dra.example.com"].?s.optMap(v, [v])[?0].hasValue()',
    'has(device.attributes["dra.example.com"].?s.optMap(v, device.attributes["dra.example.com"]).s)',
    'has((false ? optional.of({"s": {"x": 1}}) : optional.none()).s.x)',
    "has((true ? {'s': {'x': 1}} : {}).?t.x)",
    "{'a': optional.of([1])}.a[?0]",
    "[optional.of({'b': 1})][0].b",
    "url('http://[1.2.3.4]:80/x')",
    "cidr('10.0.0.0/8').containsCIDR(dyn('10.0.0.0/9'))",
    "(true ? [null][?1] : optional.of(semver('1.2.3'))) != optional.of(quantity('1'))",
    "(true ? optional.of(semver('1.2.3')) : [null][?1]) != optional.of(quantity('1'))",
    "[[null][?0], optional.of(semver('1.2.3'))][0] == optional.of(quantity('1'))",
    "has(device.attributes['x'].?y)",
    "url('http://a[::1]:80/x')",
    "url('http://[::1][::1]:80/x')",
    "format.dns1123Label().validate('a.b').value() == ['must not contain dots']",
    "['x'].exists_one(.v1, true)",
    "['x'].exists_one(.v1, .v1 == 'x')",
    "[1].sortBy(.v1, .v1) == [1]",
    "[dyn(true)].flatten().isSorted()",
    "[dyn(1.0)].flatten().max() == 1.0",
    "dyn([[1]]).isSorted()",
    "dyn([1]).flatten() == [1]",
    "[dyn(duration('1s')), dyn(ip('::1'))].sum() == duration('1s')",
    "device.attributes['a'].?s[?(1 / 2)].hasValue()",
    "device.attributes['a'].?s[?(1 / 0)].hasValue()",
    "device.attributes['a'].?s[(1 / 0)].hasValue()",
    # What an element of an empty list is taken for is decided by the first overload that fits.
    "timestamp(0) - ([][0] - duration('1s')) == timestamp(0)",
    "timestamp(0) - ([][0] - duration('1s')) == duration('1s')",
    "[][0] + [][0] == b'a'",
    "[][0] + [][0] == 1",
    "-[][0] == 1.5",
    "[][0] / [][0] == 1",
]
URLS = [
    r"a\tb", r'a"b', "http://h/%z)z", "http://h::80", "ftp://h::80", "http://1.2.3.4::1]:80/x", "https://h%25x:8080/",
    "http://h%41/", "http://[fe80::1%25|en0]/", "http://[fe80::1%25e%25]/", "http://[fe80::1%25e%20]:1/",
    "http://[fe80::1%25]/", "http://[::1]:x", 'http://h:"', "http://a b@h:x/", "http://u%z@h/", "http://[1.2.3.4%25a]/",
]  # fmt: skip
PATTERNS = [
    "(?).+", "(?:).+", "(?-)a", "(?i-)a", "(?i-:a)", "(?-i-s)a", "(?-s:a)", "(?i-s)A", "(?)(?i-s:A)", "a(?i)*",
    "a*(?)*", "(?i)*", r"a\Q\E*", r"\Qka\E*", r"\Q\E*", "{2}", "a|{2}", "a{01}", "a{,2}", "(|a)*", "(|a)+", "(?:a*?)*",
    "(a{40}){30}", "((a{40}){25})?", "(?P<n>a)(?<n>a)", "[[:]+", "[[alpha:]]+", r"\pl", r"\p{Upper-case_letter}",
    r"\p{any}", r"\P{ASCII}", r"\p{^Assigned}", r"\p{lc}", r"(?i)\P{Lu}", r"(?i)\p{Lt}", r"\x{000000061}",
]  # fmt: skip
INDEXES = [
    "bytes", "dyn(type(1))", "null", "dyn(b'a')", "?bytes('a')", "dyn(dyn([1]))", "?{'a': 1}", "{1: 2, 1: 3}",
    "timestamp(0)", "duration('x')", "duration('1s')", "quantity('1')", "optional.of(1)", "1 in [1]", "1 in []", "1.5",
    "2u", "true", "?'a'", "[1 / 0]",
]  # fmt: skip
# What a dyn holds is of another kind than what it is put together with.
LOOSE = [
    "bytes((device.attributes['dra.example.com'].s + device.attributes['dra.example.com'].u)) + b''",
    "('1'.split('a') + (['x'] + ['a'])).min() <= (device.attributes['dra.example.com'].s + '').find('x*?').find('a')",
    "(dyn([b'a']) + [b'b']).all(x, (x + x).size() == 2)",
    "(dyn(['a']) + ['b']).all(x, x + x < 'c' && x.contains('a') || x.size() == 1)",
    "([optional.of(1)] + dyn([1]))[1].hasValue()",
    "([1] + dyn(['a']))[1] + 1",
    "([1] + dyn(['a'])).map(x, x + 1)",
    "([1] + dyn(['a'])).map(x, x + x)",
    "([[1]] + dyn([3]))[1].size()",
    "([b'a'] + dyn([3]))[1].size()",
    "([ip('::1')] + dyn([3]))[1].family()",
    "([url('/a')] + dyn([3]))[1].getHost()",
    "([quantity('1')] + dyn([3]))[1].isInteger()",
    "([duration('1s')] + dyn([3]))[1].getSeconds()",
    "([duration('1s')] + dyn([3]))[1] > duration('1s')",
    "([duration('1s')] + dyn([3])).exists(x, x > duration('1s') || true)",
    "(dyn([3]) + ['a'])[0].size()",
    "(dyn([3]) + ['a'])[0].startsWith('a')",
    "cel.bind(v, dyn([3]) + ['a'], v[0].startsWith('a') || true)",
    "optional.none().or(dyn(1)).hasValue()",
    "optional.none().or(dyn(1)).hasValue() || true",
    "true || optional.none().or(dyn(1)).hasValue()",
    "optional.none().or(dyn(1)).value()",
    "optional.none().or(dyn(1)).or(optional.of(1)).value()",
    "optional.none().or(dyn(1)).a.hasValue()",
    "optional.none().or(dyn(1)).a[0].hasValue()",
    "optional.none().or(dyn(1)).optMap(v, v).hasValue()",
    "optional.none().or(dyn(1)).optFlatMap(v, optional.of(v)).hasValue()",
    "[?optional.none().or(dyn(1))].size() == 0",
    "{?'a': optional.none().or(optional.of(dyn(1)))} == {'a':1}",
    "optional.none().or(dyn([1]))[0].hasValue()",
    "optional.none().or(dyn({'a': 1})).a.hasValue()",
    "optional.none().or(dyn(optional.of({'a': 1}))).a.hasValue()",
    "optional.none().or(dyn(optional.of([1])))[0].hasValue()",
    "optional.none().or(dyn(optional.of([1])))[?0].hasValue()",
    "[optional.none().or(dyn(optional.of([1])))][0].value().size()",
    "[optional.none().or(dyn([1]))].map(x, x)[0].hasValue()",
    "device.attributes['a'].?s.?a.or(dyn(1)).or((true ? optional.of('a') : device.attributes['a'].?s)).hasValue()",
    "dyn([3, 'a']).sum() + 1",
    "dyn([3, 4]).sum() + 1",
    "(dyn([3, 4]) + [1]).sum() + 1",
    "([3, 4].slice(0, 1) + dyn(['a'])).sum() + 1",
    "dyn(['a']).first().value() + 1",
    "([1] + dyn(['a'])).first().value() + 1",
    "([1] + dyn(['a'])).sortBy(x, x)",
    "([1] + dyn(['a'])).distinct().map(x, x / 2)",
    "([1] + dyn(['a'])).reverse()[0] % 2",
    "(['a'] + dyn([1])).join(',')",
    "(['a'] + dyn([1])).exists(x, x.contains('b') || x.matches('a'))",
    "(true ? [1] + dyn(['a']) : [2]).all(i, v, v > 0)",
    "([1] + dyn(['a'])).transformMap(i, v, v * 2)",
    "([1] + dyn(['a'])).transformMap(i, v, v + v)[1].size()",
    "{'k': [1] + dyn(['a'])}.k[1] - 1",
    "-([1] + dyn(['a']))[1]",
    "!([true] + dyn(['a']))[1]",
    "([true] + dyn(['a']))[1] ? 1 : 2",
    "([1] + device.attributes['dra.example.com'].ls)[1] - 1",
    "([1] + device.attributes['dra.example.com'].ls)[1] == 'a'",
    "([1] + dyn(['a'])).map(x, x + x)[1].size()",
    "([1] + dyn(['a'])).map(x, x < x)",
    "([1] + dyn([1.5])).map(x, -x)",
    "([1] + dyn([1.5])).map(x, x * x)",
    "([1] + dyn([1u])).map(x, x % x)",
    "([1] + dyn(['a'])).map(x, string(x))",
    "([1] + dyn([b'a'])).map(x, string(x))",
    "([1] + dyn([1.5])).map(x, int(x))",
    "([1] + dyn([1.5])).map(x, x >= x)",
    "(['a'] + dyn([[1, 2]])).map(x, x.size())",
    "(['a'] + dyn([[1, 2]])).map(x, size(x))",
    "([timestamp(0)] + dyn([1])).map(x, x + duration('1s'))",
    "([duration('1s')] + dyn([timestamp(0)])).map(x, x.getHours())",
    "(['a'] + dyn([['a']])).map(x, x.reverse())",
    "(['a'] + dyn([['a']])).map(x, x.indexOf('a'))",
    "([quantity('1')] + dyn([semver('1.2.3')])).map(x, x.compareTo(x))",
    "([1] + dyn(['abc'])).map(x, x + x).map(y, y + y)",
]
EXPRESSIONS += [
    *(f"format.uri().validate('{t}').orValue([]) == [isURL('{t}') ? url('{t}').getHost() : '']" for t in URLS),
    *(f"'aaa KelvinǅⅧ1'.findAll(r'{pattern}') == []" for pattern in PATTERNS),
    "format.uri().validate('/" + "a" * 90 + r"\n').value() == []",
    "url('*').getEscapedPath() == '*'",
    *LOOSE,
    *(f"true ? true : dyn([true])[{index}]" for index in INDEXES),
    "url('*') == url('*:')",
    "url('/xañb|c d')",
    "url('/é') == url('/%C3%A9')",
    "url('http://a!b@h') == url('http://a%21b@h')",
    "url('http://h?') == url('http://h')",
    "url('http://h/#a|b') == url('http://h/#a%7Cb')",
    "format.qualifiedName().validate('a/b/c').value() == ['']",
]


@pytest.fixture(scope="module")
def running() -> Iterator[Reference]:
    assert isinstance(_COMMAND, list)
    with Reference(_COMMAND) as found:
        yield found


@pytest.mark.parametrize("text", EXPRESSIONS)
@pytest.mark.parametrize(("stored", "gates"), SETTINGS)
def test_an_expression_is_answered_as_by_kubernetes(
    running: Reference, text: str, stored: bool, gates: tuple[str, ...]
) -> None:
    assert differs(running, text, stored=stored, gates=gates) == ""


@pytest.mark.parametrize("name", NAMED)
def test_a_named_difference_is_recognised_by_its_name(running: Reference, name: str) -> None:
    # The order of a map is random there, and often the same as here.
    tries = 300 if name == "map order" else 1
    answers = (compared(running, NAMED[name], stored=False, gates=()) for _ in range(tries))
    what, found = next((answer for answer in answers if answer[0]), ("", ""))
    assert what
    assert found == name


@pytest.mark.parametrize(
    "text",
    [
        "[quantity('1').add(1), quantity('1').add(1)].distinct().size() == 1",
        "[quantity('1').add(1)].indexOf(quantity('1').add(1)) == 0",
        "sets.contains([quantity('1').add(1)], [quantity('1').add(1)])",
        "quantity('1').add(1) in [quantity('1').add(1)]",
    ],
)
def test_a_computed_quantity_is_found_in_a_list_and_the_difference_has_its_name(running: Reference, text: str) -> None:
    assert compared(running, text, stored=False, gates=()) == ("value", "computed quantities")


def test_made_up_expressions_differ_in_nothing_that_has_no_name(running: Reference) -> None:
    found, _ = expressions(running, seed=7, count=300, limit=5, only="")
    assert not found


def test_made_up_worlds_are_allocated_alike(running: Reference) -> None:
    found, decided = allocations(running, seed=7, count=100, limit=5)
    assert not found
    assert decided == 100


@pytest.mark.parametrize("kind", hard.KINDS)
@pytest.mark.parametrize("seed", range(4))
def test_hard_worlds_are_allocated_alike(running: Reference, kind: str, seed: int) -> None:
    slices, claims = hard.world(seed, kind, count=9)
    described = {**worlds.world(1), "slices": slices, "claims": claims}
    described |= {"allocatedDevices": [], "allocatedSharedDeviceIDs": [], "aggregatedCapacity": []}
    described["node"] = {"metadata": {"name": HOST.name, "labels": HOST.labels}, "status": {}}
    described["classes"] = [device_class()]
    what, here, there = worlds.differs(running, described)
    assert what == "", (here, there)
    assert worlds.UNDECIDED not in (here, there)


def test_the_made_up_worlds_are_served_refused_and_unsatisfiable() -> None:
    answers = [worlds.ours(worlds.world(7 * 1_000_003 + number)) for number in range(100)]
    assert sum(isinstance(answer, list) for answer in answers) >= 15
    assert sum(isinstance(answer, dict) for answer in answers) >= 5
    assert sum(answer is None for answer in answers) >= 15


def test_every_named_difference_is_on_the_page() -> None:
    page = PAGE.read_text()
    assert [name for name in NAMED if f"**{name}**" not in page] == []
