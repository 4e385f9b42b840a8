"""Made-up CEL expressions over a DRA device: mostly well typed, now and then not; reproducible from a seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

DRIVER = "dra.example.com"
OTHER = "other.example.com"

DEVICES: list[dict[str, Any]] = [
    {
        "driver": DRIVER,
        "allowMultipleAllocations": True,
        "attributes": {
            "s": {"string": "H100 SXM-5"}, "e": {"string": ""}, "i": {"int": 7}, "n": {"int": -3}, "b": {"bool": True},
            "v": {"version": "1.2.3-rc.1+b1"}, "u": {"string": "añb😀"}, f"{OTHER}/s": {"string": "x"},
            "ls": {"strings": ["a", "b", "abc"]}, "li": {"ints": [3, 1, 2]}, "lb": {"bools": [True, False]},
            "lv": {"versions": ["1.0.0", "2.1.0"]}, "q": {"string": "10Gi"}, "url": {"string": "https://a.b:80/c?d=e"},
        },
        "capacity": {"m": {"value": "80Gi"}, "k": {"value": "1e3"}, "f": {"value": "1500m"},
                     f"{OTHER}/m": {"value": "3"}},
    },
    {
        "driver": OTHER,
        "attributes": {
            f"{DRIVER}/s": {"string": "A100"}, f"{DRIVER}/i": {"int": 0}, f"{DRIVER}/b": {"bool": False},
            f"{DRIVER}/v": {"version": "10.0.0"}, f"{DRIVER}/ls": {"string": "a"}, f"{DRIVER}/li": {"int": 2},
        },
        "capacity": {f"{DRIVER}/m": {"value": "1"}},
    },
    {"driver": DRIVER},
]  # fmt: skip

_TEXTS = [
    '"a"', '""', '"abc"', '"A1-b"', '"H100 SXM-5"', "'añb😀'", '"1.2.3"', '"10Gi"', '"1h30m"', '"1.5"', '"-7"', '"::1"',
    '"10.0.0.0/8"', '"2024-02-29T12:30:45.5Z"', '"x,y,,z"', '"%s"', '"true"', "r'a.c'", '"\\u00e9\\n"', '"null"',
    '"https://h.example:8080/p%20q?x=1&x=2"', '"H"', '"SXM"', '"  pad "', '"a\\tb"', '"1k"', '"v1.2"', '"dns1123Label"',
]  # fmt: skip
_PATTERNS = [
    '"a"', '"^H[0-9]+"', '"(a|b)*c$"', '"[^x]+"', '"\\\\d{1,3}"', '"(?i)h100"', '".*"', '"("', '"\\\\pL+"', '""',
    '"a{2,1}"', '"^$"', '"\\\\bSXM\\\\b"', '"[[:alpha:]]+"', '"(?P<n>a)"', '"a**"', '"x*?"', '"(?s).+"',
    '"\\\\p{Greek}"',
]  # fmt: skip
_INTS = ["0", "1", "2", "3", "-1", "7", "10", "100", "1000", "9223372036854775807", "-9223372036854775808", "0x1F"]
_UINTS = ["0u", "1u", "2u", "7u", "18446744073709551615u", "0xFFu"]
_DOUBLES = ["0.0", "1.0", "-1.5", "2.5", "1e3", "1e-7", "123456789.0", "0.1", "1e21", "3.0", "double('nan')", "1.0/0.0"]
_BYTES = ["b''", "b'abc'", "b'\\xff'", "bytes('é')"]
_DURATIONS = ["duration('1h')", "duration('1.5s')", "duration('-3ms')", "duration('0')", "duration('90m')"]
_TIMES = [
    "timestamp('2024-02-29T12:30:45.5Z')", "timestamp('2000-01-01T00:00:00+02:00')", "timestamp(0)",
    "timestamp('9999-12-31T23:59:59Z')", "timestamp('1969-12-31T23:59:59.999Z')",
]  # fmt: skip
_QUANTITIES = [
    "quantity('10Gi')", "quantity('1.5Gi')", "quantity('1500m')", "quantity('0')", "quantity('-1k')", "quantity('1e3')",
    "quantity('0.5Ki')", "quantity('100M')", "quantity('9223372036854775807')", "quantity('1n')", "quantity('20Ei')",
]  # fmt: skip
_VERSIONS = ["semver('1.2.3')", "semver('1.2.3-rc.1')", "semver('v1.2', true)", "semver('10.0.0+x')", "semver('0.0.0')"]
_IPS = ["ip('127.0.0.1')", "ip('::1')", "ip('10.1.2.3')", "ip('224.0.0.5')", "ip('fe80::1')", "ip('255.255.255.255')"]
_CIDRS = ["cidr('10.0.0.0/8')", "cidr('10.1.2.3/16')", "cidr('::/0')", "cidr('fe80::/10')", "cidr('192.168.0.1/32')"]
_FORMATS = [
    "format.dns1123Label()", "format.dns1123Subdomain()", "format.uuid()", "format.date()", "format.datetime()",
    "format.byte()", "format.qualifiedName()", "format.uri()", "format.labelValue()", "format.dns1035Label()",
]  # fmt: skip
_ZONES = ["'UTC'", "'Europe/Berlin'", "'+02:00'", "'-07:30'", "'America/New_York'", "'Nowhere'", "'02:00'"]
_ATTRIBUTES = ["s", "e", "i", "n", "b", "v", "u", "ls", "li", "lb", "lv", "q", "url", "missing"]
_KINDS = (
    "bool", "int", "uint", "double", "string", "bytes", "list", "ints", "strings", "map", "duration", "timestamp",
    "quantity", "semver", "ip", "cidr", "optional", "any", "type", "url", "format",
)  # fmt: skip


class Maker:
    """Makes expressions of a kind; `depth` is how much deeper it may go."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.variables: list[tuple[str, str]] = []
        self.count = 0

    def expression(self) -> str:
        """One whole expression."""
        kind = self.rng.choices(["bool", "*", "wild"], [70, 25, 5])[0]
        depth = self.rng.choice([1, 2, 2, 3, 3, 4])
        if kind == "wild":
            return self.mutated(self.make("bool", depth))
        return self.make("bool" if kind == "bool" else self.rng.choice(_KINDS), depth)

    def mutated(self, text: str) -> str:
        """A small change of the text."""
        pieces = [
            "(",
            ")",
            "[",
            "]",
            "?",
            ":",
            ".",
            ",",
            "!",
            "-",
            "'",
            '"',
            "1",
            "a",
            " in ",
            "==",
            "&&",
            "{",
            "}",
            "u",
        ]
        place = self.rng.randrange(len(text) + 1)
        return text[:place] + self.rng.choice(["", self.rng.choice(pieces)]) + text[place + self.rng.randrange(3) :]

    def make(self, kind: str, depth: int) -> str:
        rng = self.rng
        if rng.random() < 0.03:
            kind = rng.choice(_KINDS)
        known = [name for name, held in self.variables if held == kind or rng.random() < 0.05]
        if known and rng.random() < 0.5:
            return rng.choice(known)
        if depth <= 0 or rng.random() < 0.1:
            return self.leaf(kind)
        if rng.random() < 0.12:
            return self.general(kind, depth)
        maker: Callable[[int], str] = getattr(self, f"make_{kind}")
        return maker(depth - 1)

    def leaf(self, kind: str) -> str:
        pick = self.rng.choice
        if kind == "bool":
            return pick(["true", "false", "device.allowMultipleAllocations", 'has(device.attributes["x"].y)'])
        if kind == "any":
            return self.attribute(pick(_ATTRIBUTES))
        if kind == "list":
            return pick(["[]", "[1, 2, 3]", '["a", "b"]', "[true]", "[[1], [2]]", "[1.5]", "[null]", "[{'a': 1}]"])
        if kind == "ints":
            return pick(["[1, 2, 3]", "[3, 1, 2]", "[7]", "[1, 1]", "lists.range(4)"])
        if kind == "strings":
            return pick(['["a", "b"]', '["b", "a", "abc"]', '["x"]', '"a b".split(" ")', '["H100 SXM-5", "A100"]'])
        if kind == "map":
            return pick(["{}", "{'a': 1, 'b': 2}", "{1: 'x'}", "{true: 1.5}", f'device.attributes["{DRIVER}"]'])
        if kind == "optional":
            return pick(["optional.none()", "optional.of(1)", f'device.attributes["{DRIVER}"].?s', "[1][?0]"])
        if kind == "type":
            return pick(["int", "string", "bool", "type(1)", "list", "map", "double", "bytes", "null_type", "type"])
        if kind == "quantity" and self.rng.random() < 0.4:
            return f'device.capacity["{DRIVER}"].{pick(["m", "k", "f"])}'
        if kind == "string" and self.rng.random() < 0.3:
            return pick(["device.driver", self.attribute("s"), self.attribute("e"), self.attribute("u")])
        if kind == "url":
            return pick(["url('https://h.example:8080/p%20q?x=1&x=2')", "url('/a/b')", "url('http://[::1]:80/x')"])
        pools = {
            "int": _INTS, "uint": _UINTS, "double": _DOUBLES, "string": _TEXTS, "bytes": _BYTES,
            "duration": _DURATIONS, "timestamp": _TIMES, "quantity": _QUANTITIES, "semver": _VERSIONS, "ip": _IPS,
            "cidr": _CIDRS, "format": _FORMATS,
        }  # fmt: skip
        return pick(pools[kind])

    def attribute(self, name: str) -> str:
        return self.rng.choice(
            [f'device.attributes["{DRIVER}"].{name}'] * 4
            + [f"device.attributes['{DRIVER}']['{name}']", f"device.attributes[device.driver].{name}"]
        )

    def general(self, kind: str, depth: int) -> str:
        """A form that fits every kind."""
        make, pick = self.make, self.rng.choice
        form = self.rng.randrange(8)
        inner = depth - 1
        if form == 0:
            return f"({make('bool', inner)} ? {make(kind, inner)} : {make(kind, inner)})"
        if form == 1:
            return f"optional.of({make(kind, inner)}).orValue({make(kind, inner)})"
        if form == 2:
            value_kind = pick(_KINDS)
            name = self.name()
            value = make(value_kind, inner)
            body = self.scoped([(name, value_kind)], lambda: make(kind, inner))
            return f"cel.bind({name}, {value}, {body})"
        if form == 3:
            return f"[{make(kind, inner)}][{pick(['0', '0', '1', '0u'])}]"
        if form == 4:
            return f"{{'k': {make(kind, inner)}}}.{pick(['k', 'k', 'x'])}"
        if form == 5:
            return f"dyn({make(kind, inner)})"
        if form == 6:
            return f"[{make(kind, inner)}].{pick(['first', 'last'])}().value()"
        return f"optional.of({make(kind, inner)}).value()"

    def name(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def scoped(self, variables: list[tuple[str, str]], make: Callable[[], str]) -> str:
        self.variables.extend(variables)
        try:
            return make()
        finally:
            del self.variables[-len(variables) :]

    # -- per kind

    def make_bool(self, depth: int) -> str:
        make, rng = self.make, self.rng
        form = rng.randrange(30)
        if form < 3:
            return f"({make('bool', depth)} {rng.choice(['&&', '||'])} {make('bool', depth)})"
        if form == 3:
            return f"!({make('bool', depth)})"
        if form < 8:
            kind = rng.choice(_KINDS)
            other = kind if rng.random() < 0.8 else rng.choice(["any", *_KINDS])
            return f"({make(kind, depth)} {rng.choice(['==', '!='])} {make(other, depth)})"
        if form < 11:
            kind = rng.choice(["int", "uint", "double", "string", "bytes", "bool", "duration", "timestamp", "any"])
            other = kind if rng.random() < 0.7 else rng.choice(["int", "uint", "double", "any"])
            return f"({make(kind, depth)} {rng.choice(['<', '<=', '>', '>='])} {make(other, depth)})"
        if form < 14:
            call = rng.choice(["startsWith", "endsWith", "contains"])
            return f"{make('string', depth)}.{call}({make('string', depth)})"
        if form == 14:
            return f"{make('string', depth)}.matches({rng.choice(_PATTERNS)})"
        if form < 17:
            kind = rng.choice(["int", "string", "any", "semver", "double"])
            held = {"int": "ints", "string": "strings"}.get(kind, "list")
            if rng.random() < 0.3:
                return f"({make(kind, depth)} in [{make(kind, depth)}, {make(kind, depth)}])"
            return f"({make(kind, depth)} in {make(rng.choice([held, 'map']), depth)})"
        if form < 20:
            return self.loop(rng.choice(["all", "exists", "exists_one"]), "bool", depth)
        if form == 20:
            target = rng.choice([f'device.attributes["{DRIVER}"]', make("map", depth), make("any", depth)])
            return f"has({target}.{rng.choice(['s', 'a', 'missing'])})"
        if form == 21:
            kind = rng.choice(["quantity", "semver"])
            return f"{make(kind, depth)}.{rng.choice(['isGreaterThan', 'isLessThan'])}({make(kind, depth)})"
        if form == 22:
            call = rng.choice(["isQuantity", "isSemver", "isIP", "isCIDR", "isURL"])
            return f"{call}({make('string', depth)})"
        if form == 23:
            return f"{make(rng.choice(['ints', 'strings', 'list']), depth)}.isSorted()"
        if form == 24:
            call = rng.choice(["isLoopback", "isUnspecified", "isGlobalUnicast", "isLinkLocalUnicast"])
            return f"{make('ip', depth)}.{call}()"
        if form == 25:
            other = make(rng.choice(["ip", "string"]), depth)
            return rng.choice(
                [
                    f"{make('cidr', depth)}.containsIP({other})",
                    f"{make('cidr', depth)}.containsCIDR({make('cidr', depth)})",
                ]
            )
        if form == 26:
            call = rng.choice(["contains", "equivalent", "intersects"])
            return f"sets.{call}({make('ints', depth)}, {make('ints', depth)})"
        if form == 27:
            return f"{make('optional', depth)}.hasValue()"
        if form == 28:
            return f"{make(rng.choice(['any', 'strings']), depth)}.includes({make('string', depth)})"
        return rng.choice([f"{make('quantity', depth)}.isInteger()", f"bool({make('string', depth)})"])

    def loop(self, macro: str, kind: str, depth: int) -> str:
        rng = self.rng
        held = rng.choice(["ints", "strings", "list", "map", "any"])
        element = {"ints": "int", "strings": "string"}.get(held, "any")
        source = self.make(held, depth)
        if rng.random() < 0.2:
            key, value = self.name(), self.name()
            body = self.scoped([(key, "any"), (value, element)], lambda: self.make(kind, depth))
            macro = {"exists_one": "existsOne"}.get(macro, macro)
            return f"{source}.{macro}({key}, {value}, {body})"
        name = self.name()
        body = self.scoped([(name, element)], lambda: self.make(kind, depth))
        return f"{source}.{macro}({name}, {body})"

    def make_int(self, depth: int) -> str:
        make, rng = self.make, self.rng
        form = rng.randrange(16)
        if form < 3:
            return f"({make('int', depth)} {rng.choice('+-*/%')} {make('int', depth)})"
        if form == 3:
            return f"-({make('int', depth)})"
        if form == 4:
            return f"{make(rng.choice(['string', 'list', 'map', 'bytes', 'any']), depth)}.size()"
        if form == 5:
            return f"size({make(rng.choice(['string', 'list', 'strings', 'map']), depth)})"
        if form == 6:
            return f"int({make(rng.choice(['string', 'double', 'uint', 'timestamp', 'any', 'duration']), depth)})"
        if form == 7:
            call = rng.choice(["indexOf", "lastIndexOf"])
            extra = f", {make('int', depth)}" if rng.random() < 0.4 else ""
            return f"{make('string', depth)}.{call}({make('string', depth)}{extra})"
        if form == 8:
            return f"{make('ints', depth)}.{rng.choice(['indexOf', 'lastIndexOf'])}({make('int', depth)})"
        if form == 9:
            return f"{make('ints', depth)}.{rng.choice(['sum', 'min', 'max'])}()"
        if form == 10:
            kind = rng.choice(["quantity", "semver"])
            return f"{make(kind, depth)}.compareTo({make(kind, depth)})"
        if form == 11:
            return f"{make('semver', depth)}.{rng.choice(['major', 'minor', 'patch'])}()"
        if form == 12:
            calls = ["getFullYear", "getMonth", "getDate", "getDayOfMonth", "getDayOfWeek", "getDayOfYear"]
            call = rng.choice([*calls, "getHours", "getMinutes", "getSeconds", "getMilliseconds"])
            return f"{make('timestamp', depth)}.{call}({rng.choice(['', '', rng.choice(_ZONES)])})"
        if form == 13:
            return (
                f"{make('duration', depth)}.{rng.choice(['getHours', 'getMinutes', 'getSeconds', 'getMilliseconds'])}()"
            )
        if form == 14:
            return rng.choice([f"sign({make('quantity', depth)})", f"{make('quantity', depth)}.asInteger()"])
        return rng.choice([f"{make('ints', depth)}[{make('int', depth)}]", f"{make('ip', depth)}.family()"])

    def make_uint(self, depth: int) -> str:
        make, rng = self.make, self.rng
        return rng.choice(
            [
                f"({make('uint', depth)} {rng.choice('+-*/%')} {make('uint', depth)})",
                f"uint({make(rng.choice(['string', 'int', 'double']), depth)})",
            ]
        )

    def make_double(self, depth: int) -> str:
        make, rng = self.make, self.rng
        return rng.choice(
            [
                f"({make('double', depth)} {rng.choice('+-*/')} {make('double', depth)})",
                f"double({make(rng.choice(['string', 'int', 'uint']), depth)})",
                f"{make('quantity', depth)}.asApproximateFloat()",
                f"[{make('double', depth)}, {make('double', depth)}].{rng.choice(['sum', 'min', 'max'])}()",
            ]
        )

    def make_string(self, depth: int) -> str:
        make, rng = self.make, self.rng
        form = rng.randrange(16)
        if form < 2:
            return f"({make('string', depth)} + {make('string', depth)})"
        if form < 5:
            return f"{make('string', depth)}.{rng.choice(['lowerAscii', 'upperAscii', 'trim'])}()"
        if form == 5:
            return f"{make('string', depth)}.charAt({make('int', depth)})"
        if form == 6:
            extra = f", {make('int', depth)}" if rng.random() < 0.5 else ""
            return f"{make('string', depth)}.substring({make('int', depth)}{extra})"
        if form == 7:
            extra = f", {make('int', depth)}" if rng.random() < 0.4 else ""
            return f"{make('string', depth)}.replace({make('string', depth)}, {make('string', depth)}{extra})"
        if form == 8:
            return f"{make('strings', depth)}.join({rng.choice(['', make('string', depth)])})"
        if form == 9:
            kinds = ["int", "uint", "double", "bool", "bytes", "timestamp", "duration", "any", "ip", "cidr", "string"]
            return f"string({make(rng.choice(kinds), depth)})"
        if form == 10:
            return f"{make('string', depth)}.find({rng.choice(_PATTERNS)})"
        if form == 11:
            verbs = rng.choice(["%s", "%d", "%f", "%.2f", "%e", "%.3e", "%x", "%X", "%b", "%o", "%%", "%s-%s", "%"])
            items = ", ".join(make(rng.choice(_KINDS), depth) for _ in range(max(1, verbs.count("%"))))
            return f"'{verbs}'.format([{items}])"
        if form == 12:
            return f"strings.quote({make('string', depth)})"
        if form == 13:
            call = rng.choice(["getScheme", "getHost", "getHostname", "getPort", "getEscapedPath"])
            return f"{make('url', depth)}.{call}()"
        if form == 14:
            return f"{make('strings', depth)}[{make('int', depth)}]"
        return f"{make('strings', depth)}.{rng.choice(['min', 'max'])}()"

    def make_bytes(self, depth: int) -> str:
        return self.rng.choice(
            [f"({self.make('bytes', depth)} + {self.make('bytes', depth)})", f"bytes({self.make('string', depth)})"]
        )

    def make_list(self, depth: int) -> str:
        make, rng = self.make, self.rng
        form = rng.randrange(10)
        kind = rng.choice(_KINDS)
        if form < 2:
            return "[" + ", ".join(make(kind, depth) for _ in range(rng.randrange(4))) + "]"
        if form == 2:
            return f"({make('list', depth)} + {make('list', depth)})"
        if form == 3:
            return self.loop("map", kind, depth)
        if form == 4:
            return self.loop("filter", "bool", depth)
        if form == 5:
            return f"{make('list', depth)}.{rng.choice(['distinct', 'reverse', 'flatten', 'sort', 'unwrapOpt'])}()"
        if form == 6:
            return f"{make('list', depth)}.slice({make('int', depth)}, {make('int', depth)})"
        if form == 7:
            key, value = self.name(), self.name()
            body = self.scoped([(key, "int"), (value, "any")], lambda: make(kind, depth))
            return f"{make(rng.choice(['list', 'map']), depth)}.transformList({key}, {value}, {body})"
        if form == 8:
            return f"[{make('int', depth)}, ?{make('optional', depth)}]"
        return rng.choice([make("ints", depth), make("strings", depth)])

    def make_ints(self, depth: int) -> str:
        make, rng = self.make, self.rng
        form = rng.randrange(7)
        if form == 0:
            return f"[{make('int', depth)}, {make('int', depth)}]"
        if form == 1:
            name = self.name()
            body = self.scoped([(name, "int")], lambda: make("int", depth))
            return f"{make('ints', depth)}.map({name}, {body})"
        if form == 2:
            name = self.name()
            body = self.scoped([(name, "int")], lambda: make("bool", depth))
            return f"{make('ints', depth)}.filter({name}, {body})"
        if form == 3:
            return f"lists.range({make('int', depth)})"
        if form == 4:
            return f"({make('ints', depth)} + {make('ints', depth)})"
        if form == 5:
            return f"{make('ints', depth)}.{rng.choice(['sort', 'distinct', 'reverse'])}()"
        name = self.name()
        body = self.scoped([(name, "int")], lambda: make(rng.choice(["int", "string"]), depth))
        return f"{make('ints', depth)}.sortBy({name}, {body})"

    def make_strings(self, depth: int) -> str:
        make, rng = self.make, self.rng
        form = rng.randrange(6)
        if form == 0:
            extra = f", {make('int', depth)}" if rng.random() < 0.4 else ""
            return f"{make('string', depth)}.split({make('string', depth)}{extra})"
        if form == 1:
            return f"[{make('string', depth)}, {make('string', depth)}]"
        if form == 2:
            extra = f", {make('int', depth)}" if rng.random() < 0.3 else ""
            return f"{make('string', depth)}.findAll({rng.choice(_PATTERNS)}{extra})"
        if form == 3:
            return f"{make('strings', depth)}.{rng.choice(['sort', 'distinct', 'reverse'])}()"
        if form == 4:
            name = self.name()
            body = self.scoped([(name, "string")], lambda: make("string", depth))
            return f"{make('strings', depth)}.map({name}, {body})"
        return f"({make('strings', depth)} + {make('strings', depth)})"

    def make_map(self, depth: int) -> str:
        make, rng = self.make, self.rng
        form = rng.randrange(5)
        kind = rng.choice(_KINDS)
        if form < 2:
            key = rng.choice(["string", "int", "bool", "uint"])
            return "{" + ", ".join(f"{make(key, depth)}: {make(kind, depth)}" for _ in range(rng.randrange(3))) + "}"
        if form == 2:
            name, value = self.name(), self.name()
            body = self.scoped([(name, "any"), (value, "any")], lambda: make(kind, depth))
            return f"{make(rng.choice(['list', 'map']), depth)}.transformMap({name}, {value}, {body})"
        if form == 3:
            return f"{make('url', depth)}.getQuery()"
        return f"{{'a': {make(kind, depth)}, ?'b': {make('optional', depth)}}}"

    def make_duration(self, depth: int) -> str:
        make, rng = self.make, self.rng
        return rng.choice(
            [
                f"({make('duration', depth)} {rng.choice('+-')} {make('duration', depth)})",
                f"({make('timestamp', depth)} - {make('timestamp', depth)})",
                f"duration({make('string', depth)})",
                f"[{make('duration', depth)}, {make('duration', depth)}].{rng.choice(['sum', 'min', 'max'])}()",
            ]
        )

    def make_timestamp(self, depth: int) -> str:
        make, rng = self.make, self.rng
        return rng.choice(
            [
                f"({make('timestamp', depth)} {rng.choice('+-')} {make('duration', depth)})",
                f"timestamp({make(rng.choice(['string', 'int']), depth)})",
            ]
        )

    def make_quantity(self, depth: int) -> str:
        make, rng = self.make, self.rng
        other = make(rng.choice(["quantity", "int"]), depth)
        changed = f"{make('quantity', depth)}.{rng.choice(['add', 'sub'])}({other})"
        return rng.choice([changed, f"quantity({make('string', depth)})"])

    def make_semver(self, depth: int) -> str:
        return f"semver({self.make('string', depth)}{self.rng.choice(['', '', ', true', ', false'])})"

    def make_ip(self, depth: int) -> str:
        return self.rng.choice([f"ip({self.make('string', depth)})", f"{self.make('cidr', depth)}.ip()"])

    def make_cidr(self, depth: int) -> str:
        return self.rng.choice([f"cidr({self.make('string', depth)})", f"{self.make('cidr', depth)}.masked()"])

    def make_url(self, depth: int) -> str:
        return f"url({self.make('string', depth)})"

    def make_format(self, depth: int) -> str:
        return f"format.named({self.make('string', depth)}).value()"

    def make_type(self, depth: int) -> str:
        return f"type({self.make(self.rng.choice(_KINDS), depth)})"

    def make_any(self, depth: int) -> str:
        make, rng = self.make, self.rng
        return rng.choice(
            [
                f"device.attributes[{make('string', depth)}].{rng.choice(_ATTRIBUTES)}",
                f'device.attributes["{DRIVER}"][{make("string", depth)}]',
                f"dyn({make(rng.choice(_KINDS), depth)})",
                f"{make('map', depth)}[{make(rng.choice(['string', 'int']), depth)}]",
                f"{make('list', depth)}[{make('int', depth)}]",
            ]
        )

    def make_optional(self, depth: int) -> str:
        make, rng = self.make, self.rng
        form = rng.randrange(9)
        if form == 0:
            return f"optional.of({make(rng.choice(_KINDS), depth)})"
        if form == 1:
            return f"optional.ofNonZeroValue({make(rng.choice(_KINDS), depth)})"
        if form == 2:
            return f"{make('map', depth)}[?{make('string', depth)}]"
        if form == 3:
            return f"{make('list', depth)}[?{make('int', depth)}]"
        if form == 4:
            return f"{make(rng.choice(['map', 'any', 'optional']), depth)}.?{rng.choice(['s', 'a', 'missing'])}"
        if form == 5:
            return f"{make('optional', depth)}.or({make('optional', depth)})"
        if form == 6:
            name = self.name()
            kind = rng.choice(_KINDS)
            body = self.scoped([(name, "any")], lambda: make(kind, depth))
            return f"{make('optional', depth)}.optMap({name}, {body})"
        if form == 7:
            return f"{make('format', depth)}.validate({make('string', depth)})"
        return f"{make('list', depth)}.{rng.choice(['first', 'last'])}()"


def expression(seed: int) -> str:
    """The expression of a seed."""
    return Maker(random.Random(seed)).expression()
