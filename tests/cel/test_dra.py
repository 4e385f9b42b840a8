"""Device selectors: the view of a device, what selectors see of it, and how they fail."""

import pytest

from dibs import cel
from dibs.cel.dra import COST_LIMIT, DeviceView, compile_selector
from dibs.cel.kubernetes import Quantity, Semver

DEVICE = DeviceView(
    "gpu.example.com",
    {
        "model": "H100",
        "slots": {"int": 4},
        "ecc": True,
        "driverVersion": Semver.parse("1.2.3"),
        "links": ["a", "b"],
        "resource.kubernetes.io/numaNode": {"int": 1},
    },
    {"memory": "80Gi", "cores": Quantity.parse("132"), "other.example.com/lanes": {"value": "16"}},
)


@pytest.mark.parametrize(
    ("expression", "wanted"),
    [
        ("true", True),
        ("device.driver == 'gpu.example.com'", True),
        ("device.attributes['gpu.example.com'].model == 'H100'", True),
        ("device.attributes['gpu.example.com'].slots >= 4", True),
        ("device.attributes['gpu.example.com'].ecc", True),
        ("device.attributes['gpu.example.com'].driverVersion.compareTo(semver('1.2.0')) > 0", True),
        ("device.attributes['resource.kubernetes.io'].numaNode == 1", True),
        ("device.capacity['gpu.example.com'].memory.compareTo(quantity('100Gi')) >= 0", False),
        ("device.capacity['other.example.com'].lanes == quantity('16')", True),
        ("'nobody' in device.attributes", False),
        ("device.attributes['nobody'].size() == 0", True),
        ("'x' in device.attributes['nobody']", False),
        ("has(device.attributes['nobody'].x)", False),
        ("device.attributes['nobody'].?x.orValue('fallback') == 'fallback'", True),
        ("device.attributes['gpu.example.com'].?model.orValue('') == 'H100'", True),
        ("device.attributes['nobody'].x == 1 || true", True),
        ("device.attributes.exists(d, d == 'resource.kubernetes.io')", True),
        ("device.capacity['gpu.example.com'].all(id, id in ['memory', 'cores'])", True),
        ("device.attributes['gpu.example.com'].model.matches('^H[0-9]+$')", True),
        ("cel.bind(a, device.attributes['gpu.example.com'], a.model == 'H100' && a.slots == 4)", True),
        ("device.allowMultipleAllocations", False),
        ("'a' in device.attributes['gpu.example.com'].links", True),
        ("device.attributes['gpu.example.com'].slots in [1, 2, 4]", True),
        ("device.attributes['gpu.example.com'].slots == true", False),
        ("device.attributes['gpu.example.com'].ecc == 1", False),
        ("type(ip('10.0.0.1')) == net.IP", True),
        ("type(cidr('10.0.0.0/8')) == net.IP", False),
    ],
)
def test_a_selector_matches(expression: str, wanted: bool) -> None:
    assert compile_selector(expression).matches(DEVICE) is wanted


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("device.attributes['gpu.example.com'].nothing == 1", "no such key: nothing; not every device has"),
        ("device.capacity['nobody'].x.isInteger()", "no such key: x; not every device has"),
        ("device.attributes['gpu.example.com'].model", "CEL result of type string could not be converted to bool"),
        ("device.attributes['gpu.example.com'].links", "CEL result of type list could not be converted to bool"),
        ("device.attributes['gpu.example.com'].model > 1", "no such overload"),
        ("device.attributes['gpu.example.com'].model.compareTo(quantity('1')) == 0", "no such overload"),
        ("device.attributes['gpu.example.com'].model.size() / 0 == 1", "division by zero"),
    ],
)
def test_a_selector_fails_with_a_reason_and_a_place(expression: str, message: str) -> None:
    with pytest.raises(cel.CelRuntimeError) as caught:
        compile_selector(expression).matches(DEVICE)
    assert message in caught.value.message
    assert caught.value.expression == expression


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("1", "must evaluate to bool or the unknown type, not int"),
        ("device.driver", "must evaluate to bool or the unknown type, not string"),
        ("device.name == ''", "undefined field 'name'"),
        ("devices.driver == ''", "undeclared reference to 'devices'"),
        ("device.driver == 1", "found no matching overload for '_==_'"),
        ("device.attributes['x'].y.all(z, true)", "cannot be range of a comprehension"),
        ("device.attributes['x'].y.includes(1)", "undeclared reference to 'includes'"),
        ("[1, 'a'].size() == 2", "expected type 'int' but found 'string'"),
        ("device.capacity['x'].y > quantity('1')", "found no matching overload"),
        ("'" + "x" * 10_240 + "' == ''", "longer than 10240 bytes"),
        ("'" + "ä" * 6_000 + "' == ''", "longer than 10240 bytes"),
    ],
)
def test_what_is_no_selector_is_refused(expression: str, message: str) -> None:
    with pytest.raises(cel.CelCompileError, match="(?s)" + message.replace("(", "\\(").replace("[", "\\[")):
        compile_selector(expression)


def test_features_change_what_compiles() -> None:
    with pytest.raises(cel.CelTypeError, match="undefined field 'allowMultipleAllocations'"):
        compile_selector("device.allowMultipleAllocations", consumable_capacity=False)
    listed = compile_selector("device.attributes['gpu.example.com'].links.exists(x, x == 'b')", list_attributes=True)
    assert listed.matches(DEVICE) is True
    included = compile_selector("device.attributes['gpu.example.com'].links.includes('b')", list_attributes=True)
    assert included.matches(DEVICE) is True


def test_the_static_cost_is_there_for_validation_and_is_no_error() -> None:
    text = "true"
    for depth in range(7):
        text = f"[1, 2, 3, 4, 5, 6, 7, 8, 9, 10].all(x{depth}, {text})"
    selector = compile_selector(text)
    assert selector.cost > COST_LIMIT
    with pytest.raises(cel.CelCostError, match="actual cost limit exceeded"):
        selector.matches(DEVICE)


@pytest.mark.parametrize(
    ("attributes", "capacity", "message"),
    [
        ({"a": {"int": "1"}}, {}, "attribute a"),
        ({"a": {"int": True}}, {}, "attribute a"),
        ({"a": {"int": 1, "bool": True}}, {}, "exactly one value is needed"),
        ({"a": {}}, {}, "exactly one value is needed"),
        ({"a": {"float": 1.5}}, {}, "unsupported attribute value"),
        ({"a": 1.5}, {}, "unsupported attribute value"),
        ({"a": None}, {}, "unsupported attribute value"),
        ({"a": 2**63}, {}, "does not fit into 64 bits"),
        ({"a": {"version": "1"}}, {}, "parse semantic version"),
        ({"a": {"strings": "x"}}, {}, "is not a list"),
        ({"a": [1, 1.5]}, {}, "unsupported attribute value"),
        ({}, {"c": "1x"}, "capacity c"),
        ({}, {"c": {}}, "capacity c"),
        ({}, {"c": 1.5}, "capacity c"),
    ],
)
def test_a_bad_value_of_a_device_is_refused_by_name(
    attributes: dict[str, object], capacity: dict[str, object], message: str
) -> None:
    with pytest.raises(cel.CelRuntimeError, match=message):
        DeviceView("d", attributes, capacity)  # type: ignore[arg-type]


def test_a_view_is_not_changed_by_matching() -> None:
    before = repr(DEVICE)
    compile_selector("device.attributes['unknown'].size() + device.capacity['unknown'].size() == 0").matches(DEVICE)
    assert repr(DEVICE) == before
    assert "unknown" not in DEVICE.attributes
