"""The grammar of device names: the strict and the lenient way to take one apart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dibs.cdi import (
    InvalidNameError,
    is_qualified_name,
    parse_device,
    parse_kind,
    parse_qualified_name,
    qualified_name,
)


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("", "missing vendor"),
        ("gpu0", "missing vendor"),
        ("/dev/null", "missing vendor"),
        ("/vendor/class=dev", "missing vendor"),
        ("vendor.com=dev", "missing vendor"),
        ("vendor.com/gpu=", "missing vendor"),
        ("vendor.com/=dev", "missing vendor"),
        ("0vendor/gpu=dev", "should start with a letter"),
        ("vendor-/gpu=dev", 'invalid vendor name "vendor-", should end with'),
        ("vendor/g pu=dev", 'invalid character " " in class name'),
        ("vendor/a/b=dev", 'invalid character "/" in class name'),
        ("vendor/gpu=:dev", "should start with a letter or a digit"),
        ("vendor/gpu=dev.", "should end with a letter or a digit"),
        ("vendor/gpu=a=b", 'invalid character "=" in device name'),
        ("vendör/gpu=dev", 'invalid character "ö"'),
        ("vendor/gpu=dev٣", "should end with a letter or a digit"),
    ],
)
def test_strict_parser_refuses_and_names_the_value(device: str, message: str) -> None:
    with pytest.raises(InvalidNameError, match="device") as caught:
        parse_qualified_name(device)
    assert message in str(caught.value)
    assert f'"{device}"' in str(caught.value)
    assert caught.value.value == device
    assert not is_qualified_name(device)


@pytest.mark.parametrize("device", ["", "gpu0", "/dev/null", "/a/b=c", "a=b", "a/b", "a/=c", "/b=c", "a/b="])
def test_lenient_parser_gives_back_what_it_cannot_take_apart(device: str) -> None:
    assert parse_device(device) == ("", "", device)


def test_lenient_parser_takes_patterns_apart() -> None:
    assert parse_device("*.com/g*=?") == ("*.com", "g*", "?")


def test_kind_without_a_slash_has_no_vendor() -> None:
    assert parse_kind("gpu") == ("", "gpu")
    assert parse_kind("a.b/gpu") == ("a.b", "gpu")


def test_mig_names_and_leading_digits_are_qualified() -> None:
    assert parse_qualified_name("nvidia.com/gpu=0:1") == ("nvidia.com", "gpu", "0:1")


@pytest.mark.parametrize("parts", [("a/b", "c", "d"), ("a", "b=c", "d"), ("a", "b", ""), ("", "b", "c")])
def test_name_is_not_put_together_from_bad_parts(parts: tuple[str, str, str]) -> None:
    with pytest.raises(InvalidNameError):
        qualified_name(*parts)


@given(st.text())
def test_parsers_never_crash_and_agree(text: str) -> None:
    vendor, cls, name = parse_device(text)
    assert (f"{vendor}/{cls}={name}" if vendor else name) == text
    if is_qualified_name(text):
        assert qualified_name(*parse_qualified_name(text)) == text


_kind_part = st.from_regex(r"[a-zA-Z]([a-zA-Z0-9_.-]*[a-zA-Z0-9])?", fullmatch=True)
_device_part = st.from_regex(r"[a-zA-Z0-9]([a-zA-Z0-9_.:-]*[a-zA-Z0-9])?", fullmatch=True)


@given(_kind_part, _kind_part, _device_part)
def test_every_name_of_the_grammar_is_accepted(vendor: str, cls: str, name: str) -> None:
    assert parse_qualified_name(qualified_name(vendor, cls, name)) == (vendor, cls, name)
