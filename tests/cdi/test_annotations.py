"""CRI annotations that ask for devices."""

from __future__ import annotations

import pytest

from dibs.cdi import AnnotationError, annotation_key, annotation_value, parse_annotations, update_annotations


def test_request_is_added_to_a_copy() -> None:
    given = {"other": "x"}
    result = update_annotations(given, "acme.gpu", "pod/1", ["a.b/c=0", "a.b/c=1"])
    assert result == {"other": "x", "cdi.k8s.io/acme.gpu_pod_1": "a.b/c=0,a.b/c=1"}
    assert given == {"other": "x"}
    assert parse_annotations(result) == (["cdi.k8s.io/acme.gpu_pod_1"], ["a.b/c=0", "a.b/c=1"])


def test_key_in_use_is_refused() -> None:
    first = update_annotations(None, "p", "d", ["a.b/c=0"])
    with pytest.raises(AnnotationError, match=r'key "cdi\.k8s\.io/p_d" is in use already'):
        update_annotations(first, "p", "d", ["a.b/c=1"])


@pytest.mark.parametrize(
    ("plugin", "device", "message"),
    [
        ("", "d", "plugin name is empty"),
        ("p", "", "device id is empty"),
        ("p", "d" * 62, "64 characters, at most 63"),
        ("p", "d-", "must start and end with a letter or digit"),
        ("-p", "d", "must start and end with a letter or digit"),
        ("p", "a+b", r'the character "\+"'),
    ],
)
def test_bad_key_is_refused_with_the_reason(plugin: str, device: str, message: str) -> None:
    with pytest.raises(AnnotationError, match=message):
        annotation_key(plugin, device)


def test_longest_key_is_accepted() -> None:
    assert len(annotation_key("p", "d" * 61).removeprefix("cdi.k8s.io/")) == 63


def test_value_needs_qualified_names_and_at_least_one() -> None:
    with pytest.raises(AnnotationError, match="no devices are given"):
        annotation_value([])
    with pytest.raises(AnnotationError, match=r'"gpu0".*"/dev/null"'):
        annotation_value(["gpu0", "a.b/c=0", "/dev/null"])


def test_one_malformed_name_fails_all_and_every_bad_key_is_reported() -> None:
    bad = {"cdi.k8s.io/a": "a.b/c=0", "cdi.k8s.io/b": "x", "cdi.k8s.io/c": "", "y": "z"}
    with pytest.raises(AnnotationError, match=r"cdi\.k8s\.io/b.*cdi\.k8s\.io/c"):
        parse_annotations(bad)


def test_no_annotations_ask_for_nothing() -> None:
    assert parse_annotations(None) == ([], [])
    assert parse_annotations({"x": "y"}) == ([], [])
