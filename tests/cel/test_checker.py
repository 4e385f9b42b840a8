"""The static checker: names, overloads, result types, and messages that show the place."""

import pytest

from dibs import cel


@pytest.fixture(scope="module")
def environment(every_library: list[cel.Library]) -> cel.Environment:
    device = cel.object_type("Device", {"name": cel.STRING, "size": cel.INT}, {"name": "name", "size": "size"})
    return cel.Environment(
        {
            "i": cel.INT,
            "s": cel.STRING,
            "d": cel.DYN,
            "any": cel.ANY,
            "l": cel.list_of(cel.STRING),
            "m": cel.map_of(cel.STRING, cel.INT),
            "device": device,
        },
        every_library,
    )


@pytest.mark.parametrize(
    ("expression", "kind"),
    [
        ("i + 1", "int"),
        ("s.size()", "int"),
        ("l[0]", "string"),
        ("m.a", "int"),
        ("m[s]", "int"),
        ("d.a.b", "dyn"),
        ("any.a", "dyn"),
        ("any", "any"),
        ("l.map(x, x.size())", "list(int)"),
        ("m.map(k, k)", "list(string)"),
        ("[]", "list(dyn)"),
        ("[1, 2]", "list(int)"),
        ("[1, 'a']", "list(dyn)"),
        ("[[], [1]]", "list(list(int))"),
        ("{'a': [1]}", "map(string, list(int))"),
        ("true ? 1 : d", "dyn"),
        ("m.?a", "optional_type(int)"),
        ("m.?a.orValue(1)", "int"),
        ("l[?0].optMap(x, x.size())", "optional_type(int)"),
        ("[optional.none(), optional.of(1)]", "list(optional_type(int))"),
        ("m.transformMap(k, v, string(v))", "map(string, string)"),
        ("cel.bind(x, s, x + x)", "string"),
        ("d + 1", "int"),
        ("d < 1", "bool"),
        ("type(i)", "type(int)"),
        ("device.size", "int"),
        ("[3, 1].sort()", "list(int)"),
        ("math.greatest(1, 2)", "int"),
        ("duration('1h') + timestamp(0)", "google.protobuf.Timestamp"),
    ],
)
def test_the_result_type_is_known(environment: cel.Environment, expression: str, kind: str) -> None:
    assert str(environment.compile(expression).type) == kind


@pytest.mark.parametrize(
    ("expression", "message", "column"),
    [
        ("nobody", "undeclared reference to 'nobody' (in container '')", 1),
        ("s.nothing()", "undeclared reference to 'nothing'", 10),
        ("nothing(1)", "undeclared reference to 'nothing'", 8),
        ("i + s", "found no matching overload for '_+_' applied to '(int, string)'", 3),
        ("i == s", "found no matching overload for '_==_' applied to '(int, string)'", 3),
        ("s.startsWith(1)", "found no matching overload for 'startsWith' applied to 'string.(int)'", 13),
        ("size(1)", "found no matching overload for 'size' applied to '(int)'", 5),
        ("i && true", "found no matching overload for '_&&_'", 1),
        ("i ? 1 : 2", "found no matching overload for '_?_:_' applied to '(int, int, int)'", 3),
        ("true ? 1 : 'a'", "found no matching overload for '_?_:_' applied to '(bool, int, string)'", 6),
        ("!1", "found no matching overload for '!_' applied to '(int)'", 1),
        ("-'a'", "found no matching overload for '-_' applied to '(string)'", 1),
        ("s.foo", "type 'string' does not support field selection", 2),
        ("device.color", "undefined field 'color'", 7),
        ("i.all(x, true)", "expression of type 'int' cannot be range of a comprehension", 1),
        ("any.all(x, true)", "expression of type 'any' cannot be range of a comprehension", 1),
        ("l.filter(x, x)", "expected type 'bool' but found 'string'", 13),
        ("{1.5: 1}", "unsupported key type 'double'", 2),
        ("l[s]", "found no matching overload for '_[_]' applied to '(list(string), string)'", 2),
        ("1 in l", "found no matching overload for '@in' applied to '(int, list(string))'", 3),
        ("Some.Message{a: 1}", "undeclared reference to 'Some.Message'", 5),
        ("[?1]", "expected type 'optional_type' but found 'int'", 3),
    ],
)
def test_a_problem_is_named_with_its_place(
    environment: cel.Environment, expression: str, message: str, column: int
) -> None:
    with pytest.raises(cel.CelTypeError) as caught:
        environment.compile(expression)
    assert message in caught.value.message
    assert caught.value.column == column
    assert str(caught.value).splitlines()[2] == f" | {'.' * (column - 1)}^"


def test_all_problems_are_reported_at_once(environment: cel.Environment) -> None:
    with pytest.raises(cel.CelTypeError) as caught:
        environment.compile("one + two + i.three")
    assert [problem.column for problem in caught.value.problems] == [1, 7, 14]
    assert str(caught.value).count("ERROR: <input>:1:") == 3


def test_aggregates_of_mixed_types_can_be_refused() -> None:
    strict = cel.Environment({"d": cel.DYN}, homogeneous_literals=True)
    with pytest.raises(cel.CelTypeError, match="expected type 'int' but found 'string'"):
        strict.compile("[1, 'a']")
    with pytest.raises(cel.CelTypeError, match="expected type 'int' but found 'string'"):
        strict.compile("{'a': 1, 'b': 'c'}")
    assert strict.compile("[1, d]").evaluate({"d": "x"}) == [1, "x"]


def test_a_local_name_hides_a_variable_and_a_namespace(environment: cel.Environment) -> None:
    assert environment.compile("[1].map(i, i + 1)").evaluate({"i": 5}) == [2]
    with pytest.raises(cel.CelTypeError):
        environment.compile("[1].map(math, math.abs(math))")


def test_own_functions_types_and_default_maps_can_be_declared() -> None:
    class Money:
        __cel_type__ = "shop.Money"

        def __init__(self, cents: int) -> None:
            self.cents = cents

    money = cel.opaque("shop.Money", Money)
    shop = cel.Library(
        "shop",
        [
            cel.Function("money", cel.Overload([cel.INT], money, Money, fold=True)),
            cel.Function("cents", cel.method([money], cel.INT, lambda value: value.cents)),
        ],
        types=[money],
    )
    environment = cel.Environment({"wallet": money, "prices": cel.map_of(cel.STRING, cel.INT), "d": cel.DYN}, [shop])
    assert environment.compile("wallet.cents() + money(5).cents()").evaluate({"wallet": Money(7)}) == 12
    assert environment.compile("type(wallet) == shop.Money").evaluate({"wallet": Money(7)}) is True
    assert environment.compile("d.cents()").evaluate({"d": Money(1)}) == 1
    with pytest.raises(cel.CelRuntimeError, match="no such overload: cents"):
        environment.compile("d.cents()").evaluate({"d": 1})
    with pytest.raises(cel.CelTypeError):
        environment.compile("wallet + 1")
    with pytest.raises(cel.CelRuntimeError, match="variable 'wallet'"):
        environment.compile("wallet.cents()").evaluate({"wallet": 3})
    prices = cel.DefaultMap({"tea": 3}, 0)
    assert environment.compile("prices.tea + prices.gold").evaluate({"prices": prices}) == 3
    assert environment.compile("'gold' in prices || prices.size() > 1").evaluate({"prices": prices}) is False


def test_a_failing_python_function_is_a_runtime_error_with_a_place() -> None:
    def explode(value: int) -> int:
        raise ValueError(f"cannot take {value}")

    library = cel.Library("x", [cel.Function("explode", cel.Overload([cel.INT], cel.INT, explode))])
    program = cel.Environment({}, [library]).compile("1 + explode(2)")
    with pytest.raises(cel.CelRuntimeError, match="cannot take 2") as caught:
        program.evaluate()
    assert caught.value.column == 12
    assert cel.Environment({}, [library]).compile("explode(2) == 1 || true").evaluate() is True


def test_what_an_empty_list_holds_is_settled_by_its_first_use(environment: cel.Environment) -> None:
    assert environment.compile("cel.bind(e, [], e + [1] == [1] && [2] + e == [2])").evaluate({}) is True
    with pytest.raises(cel.CelTypeError, match="found no matching overload"):
        environment.compile("cel.bind(e, [], e + [1] == [1] && e + ['a'] == ['a'])")
