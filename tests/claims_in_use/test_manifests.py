"""Reading files with objects: as kubectl does, strictly, and without being led astray by hostile ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given as given_values
from hypothesis import settings
from hypothesis import strategies as st

from dibs.claims import Node
from dibs.cli.claims_output import slices_text
from dibs.devices.manifests import parse_manifests, read_manifests
from dibs.devices.slices import slices_of
from dibs.devices.yaml_documents import MAX_BYTES, Unreadable, documents

from .cases import BOX, claim, world

NODE = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "labels": {"zone": "a"}}, "status": {"x": 1}}


def problems(text: str | bytes) -> str:
    found = parse_manifests(text.encode() if isinstance(text, str) else text, "f.yaml")
    return "\n".join(f"{one.object}: {one}" for one in found.problems)


def test_several_documents_lists_and_json_are_read() -> None:
    text = yaml.safe_dump_all(
        [
            claim(name="one"),
            None,
            {"apiVersion": "v1", "kind": "List", "metadata": {}, "items": [claim(name="two"), NODE]},
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaimList",
                "items": [{"metadata": {"name": "three"}, "spec": claim()["spec"]}],
            },
        ]
    )
    found = parse_manifests(text.encode())
    assert not found.problems
    assert [(one.title, one.document) for one in found.manifests] == [
        ("ResourceClaim one", 1),
        ("ResourceClaim two", 3),
        ("Node n", 3),
        ("ResourceClaim three", 4),
    ]
    assert found.manifests[2].object == Node("n", {"zone": "a"})
    assert [one.name for one in parse_manifests(json.dumps(claim(name="j")).encode()).manifests] == ["j"]


def test_slices_survive_yaml_exactly() -> None:
    for spec, parts, broken in (("H100:70,MI300X:1", 3, "2"), ("L4:200", None, "7=a: 1e5")):
        slices = slices_of(world(spec, parts, broken), node=BOX)
        found = parse_manifests(slices_text(slices).encode())
        assert not found.problems
        assert [one.object for one in found.manifests] == slices


@pytest.mark.parametrize(
    "text", ["12e5", "1e3", "0o17", "yes", "on", "~", "null", "1_000", "1:30", "", "0x1f", "- a", "a: b"]
)
def test_text_that_looks_like_something_else_stays_text(text: str) -> None:
    from .test_slices import device

    inventory = type(world("H100:1"))((device("a", attributes={"x": text}),))
    found = parse_manifests(slices_text(slices_of(inventory, node=BOX)).encode())
    assert not found.problems
    assert found.manifests[0].object == slices_of(inventory, node=BOX)[0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("kind: ResourceClaim", "apiVersion: Required value: must be resource.k8s.io/v1"),
        ("{kind: ResourceClaim, apiVersion: resource.k8s.io/v1beta1}", 'Unsupported value: "resource.k8s.io/v1beta1"'),
        ("{kind: Pod, apiVersion: v1}", 'kind: Unsupported value: "Pod": not a kind that is read here'),
        ("{kind: PodList, apiVersion: v1, items: []}", "not a kind that is read here"),
        ("{kind: List, apiVersion: v2, items: []}", "apiVersion"),
        ("{kind: List, apiVersion: v1, items: 3}", "items: Invalid value: 3: must be a list"),
        ("{kind: List, apiVersion: v1, items: [{kind: List}]}", "items[0]"),
        ("{kind: List, apiVersion: v1, items: [], more: 1}", "more"),
        ("apiVersion: x", "kind: Required value"),
        ("just text", "not an object of Kubernetes"),
        ("[1, 2]", "not an object of Kubernetes"),
        ("{kind: [1], apiVersion: v1}", "kind: Unsupported value: [1]"),
        ("{kind: Node, apiVersion: v1, metadata: {labels: {a: b}}}", "metadata.name: Required value"),
        ("{kind: Node, apiVersion: v1, metadata: {name: n, labels: {a: 1}}}", "metadata.labels"),
        ("{kind: Node, apiVersion: v1, metadata: {name: n}, status: {declaredFeatures: x}}", "declaredFeatures"),
        ("a: 1\na: 2", 'line 2: key "a" is given twice'),
        ('{"a": 1, "a": 2}', 'key "a" is given twice'),
        ('{"a": NaN}', "NaN is not a value of JSON"),
        ("a: *x", 'unknown anchor "x"'),
        ("a: !!python/object:os.system x", "unknown tag"),
        ("a: !!int x", "not of that kind"),
        ("? [a]\n: b", "a key must be a word"),
        ("a: {", "neither JSON nor YAML: line"),
        ("\x00", "neither JSON nor YAML"),
        (b"\xff\xfe\x00", "not UTF-8"),
        ("<<: 3", "only mappings can be merged"),
    ],
)
def test_errors_are_reported(text: str | bytes, expected: str) -> None:
    assert expected in problems(text)


def test_unknown_fields_and_broken_rules_are_reported_by_their_paths() -> None:
    wrong = claim(0)
    wrong["spec"]["devices"]["requests"][0]["exactly"]["selector"] = []
    wrong["spec"]["unknown"] = 1
    found = problems(yaml.safe_dump(wrong))
    assert "ResourceClaim claim: spec.devices.requests[0].exactly.selector: unknown field" in found
    assert "ResourceClaim claim: spec.unknown: unknown field" in found
    assert "exactly.count: Invalid value: 0: must be greater than zero" in problems(yaml.safe_dump(claim(0)))


def test_an_error_of_cel_has_line_column_and_caret() -> None:
    text = problems(yaml.safe_dump(claim(1, "gpu", 'device.driver == "a" &&\n  device.attributs["x"].y')))
    assert "selectors[0].cel.expression: Invalid value" in text
    assert "ERROR: <input>:2:9: undefined field 'attributs'\n |   device.attributs[\"x\"].y\n | ........^" in text


def test_an_expression_of_a_derived_attribute_is_compiled_too() -> None:
    wrong = claim(1)
    exactly = wrong["spec"]["devices"]["requests"][0]["exactly"]
    exactly["derivedAttributes"] = [{"name": "x.com/y", "expression": "device.nothing"}]
    assert "derivedAttributes[0].expression: Invalid value" in problems(yaml.safe_dump(wrong))
    assert "undefined field 'nothing'" in problems(yaml.safe_dump(wrong))


def test_an_object_that_stands_twice_is_reported() -> None:
    assert "it stands in f.yaml, document 1 already" in problems(yaml.safe_dump_all([claim(), claim()]))


def test_merge_keys_and_anchors_mean_what_they_do_for_kubectl() -> None:
    text = "base: &b {x: 1, y: 2}\nmore:\n  <<: *b\n  y: 3\nlist: [*b, *b]\nquoted: '<<'\n"
    assert documents(text.encode()) == [
        {"base": {"x": 1, "y": 2}, "more": {"x": 1, "y": 3}, "list": [{"x": 1, "y": 2}] * 2, "quoted": "<<"}
    ]
    with pytest.raises(Unreadable, match="unknown anchor"):
        documents(b"a: &x 1\n---\nb: *x\n")


# -- hostile input


def test_a_huge_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "huge.yaml"
    path.write_bytes(b"a" * (MAX_BYTES + 1))
    assert [one.detail for one in read_manifests([str(path)]).problems] == ["larger than 16 MiB"]


def test_a_file_that_cannot_be_read_is_reported_and_the_others_are_read(tmp_path: Path) -> None:
    good = tmp_path / "good.yaml"
    good.write_text(yaml.safe_dump(claim()))
    found = read_manifests([str(tmp_path / "none.yaml"), str(tmp_path), str(good)])
    assert [one.detail for one in found.problems] == [
        "cannot be read: No such file or directory",
        "cannot be read: Is a directory",
    ]
    assert len(found.manifests) == 1


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "{a: " * 70 + "1" + "}" * 70, '{"a":' * 5000 + "1" + "}" * 5000, "- " * 200]
)
def test_deep_nesting_is_refused(text: str) -> None:
    assert "nested deeper than 64 levels" in problems(text)


def test_aliases_that_make_depth_are_refused() -> None:
    steps = [f"a{i}: &a{i} [*a{i - 1}]" for i in range(1, 80)]
    assert "nested deeper" in problems("a0: &a0 [1]\n" + "\n".join(steps))


def test_aliases_of_aliases_are_refused_before_they_grow() -> None:
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n"
    for level in range(1, 20):
        bomb += f"a{level}: &a{level} [" + ", ".join([f"*a{level - 1}"] * 9) + "]\n"
    assert "values, aliases counted in full" in problems(bomb)


@settings(max_examples=150)
@given_values(st.binary(max_size=200))
def test_noise_is_never_a_crash(data: bytes) -> None:
    parse_manifests(data)


PLAIN = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8)
)
JSON = st.recursive(
    PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
)
FIELDS = ("apiVersion", "kind", "metadata", "spec", "status", "items", "name", "devices", "requests", "exactly", "pool")


@settings(max_examples=150)
@given_values(
    st.sampled_from(["ResourceClaim", "ResourceSlice", "DeviceClass", "DeviceTaintRule", "Node", "List", "NodeList"]),
    st.dictionaries(st.sampled_from(FIELDS), JSON | st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=4)),
)
def test_objects_full_of_nonsense_are_distinguished_from_a_crash(kind: str, fields: dict[str, object]) -> None:
    version = "v1" if kind in ("Node", "List", "NodeList") else "resource.k8s.io/v1"
    value = {**fields, "kind": kind, "apiVersion": version}
    found = parse_manifests(json.dumps(value).encode())
    assert found.problems or found.manifests or kind in ("List", "NodeList")


@settings(max_examples=100)
@given_values(JSON)
def test_json_and_yaml_of_a_value_read_alike(value: object) -> None:
    as_json = documents(json.dumps({"v": value}).encode())
    assert as_json == [{"v": value}]
