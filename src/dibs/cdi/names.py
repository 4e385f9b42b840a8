"""Qualified device names, `vendor/class=name`: taking apart, checking, putting together.

Called by everything that meets a device name. Pure: no files, no types from elsewhere in this package.

Two ways to take a name apart, with two contracts:

- `parse_qualified_name` is strict: it returns three valid parts or raises.
- `parse_device` is lenient: it never raises. What does not look like `vendor/class=name` comes back
  as `("", "", text)`. A path such as `/dev/null` is such a text, and so is a bare name.
"""

from __future__ import annotations

import string
from typing import NewType

from dibs.cdi.errors import InvalidNameError, quoted

CdiName = NewType("CdiName", str)
"""A qualified name that has passed `parse_qualified_name`."""

# The grammar is ASCII. str.isalpha and friends would let other scripts in.
_LETTERS = frozenset(string.ascii_letters)
_ALNUM = frozenset(string.ascii_letters + string.digits)
_IN_KIND = _ALNUM | frozenset("_-.")
_IN_DEVICE = _ALNUM | frozenset("_-.:")


def parse_qualified_name(device: str) -> tuple[str, str, str]:
    """Return (vendor, class, name), each of them valid, or raise `InvalidNameError`."""
    vendor, cls, name = parse_device(device)
    for part, what in ((vendor, "vendor"), (cls, "class"), (name, "device name")):
        if not part:
            message = f"unqualified device {quoted(device)}, missing {what}; write vendor/class=name"
            raise InvalidNameError(device, message)
    for problem in (vendor_problem(vendor), class_problem(cls), device_name_problem(name)):
        if problem:
            raise InvalidNameError(device, f"invalid device {quoted(device)}: {problem}")
    return vendor, cls, name


def parse_device(device: str) -> tuple[str, str, str]:
    """Return (vendor, class, name) of anything shaped like `vendor/class=name`, else ("", "", device)."""
    kind, equals, name = device.partition("=")
    if not equals or not kind or not name:
        return "", "", device
    vendor, cls = parse_kind(kind)
    if not vendor:
        return "", "", device
    return vendor, cls, name


def parse_kind(kind: str) -> tuple[str, str]:
    """Return (vendor, class) of `vendor/class`, or ("", kind) for anything else. Checks no characters."""
    vendor, slash, cls = kind.partition("/")
    if not slash or not vendor or not cls:
        return "", kind
    return vendor, cls


def is_qualified_name(device: str) -> bool:
    """Tell whether `parse_qualified_name` would accept it."""
    try:
        parse_qualified_name(device)
    except InvalidNameError:
        return False
    return True


def qualified_name(vendor: str, cls: str, name: str) -> CdiName:
    """Put a name together. The parts are checked, so that the result is always a qualified name."""
    device = f"{vendor}/{cls}={name}"
    if parse_qualified_name(device) != (vendor, cls, name):
        raise InvalidNameError(device, f'invalid device {quoted(device)}: its parts hold a "/" or "="')
    return CdiName(device)


def vendor_problem(vendor: str) -> str:
    """Say what is wrong with a vendor name; empty when nothing is."""
    return _kind_problem("vendor", vendor)


def class_problem(cls: str) -> str:
    """Say what is wrong with a class name; empty when nothing is."""
    return _kind_problem("class", cls)


def kind_problems(kind: str) -> list[str]:
    """Say everything that is wrong with `vendor/class`."""
    vendor, cls = parse_kind(kind)
    if not vendor:
        return [f"invalid kind {quoted(kind)}; write vendor/class"]
    return [problem for problem in (vendor_problem(vendor), class_problem(cls)) if problem]


def device_name_problem(name: str) -> str:
    """Say what is wrong with a device's own name; empty when nothing is. A leading digit is fine."""
    if not name:
        return "invalid empty device name"
    if name[0] not in _ALNUM:
        return f"invalid device name {quoted(name)}, should start with a letter or a digit"
    if name[-1] not in _ALNUM:
        return f"invalid device name {quoted(name)}, should end with a letter or a digit"
    for char in name:
        if char not in _IN_DEVICE:
            return (
                f'invalid character {quoted(char)} in device name {quoted(name)}; allowed are letters, digits, "_-.:"'
            )
    return ""


def _kind_problem(what: str, name: str) -> str:
    if not name:
        return f"invalid empty {what} name"
    if name[0] not in _LETTERS:
        return f"invalid {what} name {quoted(name)}, should start with a letter"
    if name[-1] not in _ALNUM:
        return f"invalid {what} name {quoted(name)}, should end with a letter or a digit"
    for char in name:
        if char not in _IN_KIND:
            return f'invalid character {quoted(char)} in {what} name {quoted(name)}; allowed are letters, digits, "_-."'
    return ""
