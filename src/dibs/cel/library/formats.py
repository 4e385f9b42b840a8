"""Kubernetes' named formats: ``format.dns1123Label().validate("x")`` is none, or the list of what is wrong."""

import re
from collections.abc import Callable
from datetime import date
from typing import Final, final

from dibs.cel.declarations import Function, Library, Overload, method
from dibs.cel.errors import CelRuntimeError
from dibs.cel.library.urls import check_request_uri
from dibs.cel.types import STRING, list_of, opaque, optional_of
from dibs.cel.values import NONE, Optional

_Problems = list[str]
_LABEL: Final = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN: Final = rf"{_LABEL}(\.{_LABEL})*"
_OLD_LABEL: Final = r"[a-z]([-a-z0-9]*[a-z0-9])?"
_QUALIFIED: Final = r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_UUID: Final = re.compile(r"[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}\Z", re.IGNORECASE)
_BASE64: Final = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{4})\Z")
_DATE: Final = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})\Z")
_TIME: Final = re.compile(r"([0-9]{2}):([0-9]{2}):([0-9]{2})([^\n][0-9]+)?(z|([+-][0-9]{2}:[0-9]{2}))\Z")


def _shown(message: str, pattern: str, *examples: str) -> str:
    shown = ",  or ".join(f"'{example}'" for example in examples)
    return f"{message} (e.g. {shown}, regex used for validation is '{pattern}')"


_LABEL_PROBLEM: Final = _shown(
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with "
    "an alphanumeric character",
    _LABEL,
    "my-name",
    "123-abc",
)
_SUBDOMAIN_PROBLEM: Final = _shown(
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    "end with an alphanumeric character",
    _SUBDOMAIN,
    "example.com",
)
_OLD_LABEL_PROBLEM: Final = _shown(
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, "
    "and end with an alphanumeric character",
    _OLD_LABEL,
    "my-name",
    "abc-123",
)
_QUALIFIED_PROBLEM: Final = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    f"character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '{_QUALIFIED}')"
)
_VALUE: Final = r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?"
_VALUE_PROBLEM: Final = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    f"end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    f"'{_VALUE}')"
)
_DOTS: Final = re.compile(_SUBDOMAIN + r"\Z")
_ASCII_LENGTH: Final = "must be no more than {} bytes"


def _too_long(text: str, most: int) -> _Problems:
    return [_ASCII_LENGTH.format(most)] if len(text.encode()) > most else []


def _name(pattern: str, problem: str, most: int, *, prefix: bool) -> Callable[[str], _Problems]:
    compiled = re.compile(pattern + r"\Z")

    def check(text: str) -> _Problems:
        # A prefix may end with what a whole name may not: a letter stands for the rest of it.
        masked = text[:-1] + "a" if prefix and len(text) > 1 and text.endswith("-") else text
        found = _too_long(masked, most)
        if compiled.match(masked):
            return found
        dots = pattern is _LABEL and _DOTS.match(masked)
        return [*found, "must not contain dots" if dots else problem]

    return check


def _qualified(text: str) -> _Problems:
    parts = text.split("/")
    found: _Problems = []
    if len(parts) > 2:
        return [
            "a valid label key " + _QUALIFIED_PROBLEM.removeprefix("name part ") + " with an optional DNS subdomain "
            "prefix and '/' (e.g. 'example.com/MyName')"
        ]
    if len(parts) == 2:
        if not parts[0]:
            found.append("prefix part must be non-empty")
        else:
            found += [f"prefix part {p}" for p in _SUBDOMAINS(parts[0])]
    name = parts[-1]
    if not name:
        found.append("name part must be non-empty")
    elif len(name.encode()) > 63:
        found.append("name part must be no more than 63 bytes")
    if not re.match(_QUALIFIED + r"\Z", name):
        found.append(_QUALIFIED_PROBLEM)
    return found


_SUBDOMAINS: Final = _name(_SUBDOMAIN, _SUBDOMAIN_PROBLEM, 253, prefix=False)


def _label_value(text: str) -> _Problems:
    found = _too_long(text, 63)
    return found if re.match(_VALUE + r"\Z", text) else [*found, _VALUE_PROBLEM]


def _uri(text: str) -> _Problems:
    try:
        check_request_uri(text)
    except CelRuntimeError as error:
        return [error.message.partition(": ")[2]]
    return []


def _is_date(text: str) -> bool:
    found = _DATE.match(text)
    if found is None:
        return False
    try:
        # The year 0 is one to Go, and not to Python.
        date(int(found[1]) or 4, int(found[2]), int(found[3]))
    except ValueError:
        return False
    return True


def _is_datetime(text: str) -> bool:
    day, mark, time = text.lower().partition("t")
    found = _TIME.match(time.partition("t")[0])
    return bool(mark) and _is_date(day) and found is not None and found[1] <= "23" and max(found[2], found[3]) <= "59"


def _test(problem: str, holds: Callable[[str], bool]) -> Callable[[str], _Problems]:
    return lambda text: [] if holds(text) else [problem]


@final
class Format:
    """A named format. ``pattern_size``: how long its pattern counts as; the cost depends on it."""

    __slots__ = ("check", "name", "pattern_size")
    __cel_type__ = "kubernetes.NamedFormat"
    __cel_class__ = "cel.Format"
    __cel_strict__ = True

    def __init__(self, name: str, pattern_size: int, check: Callable[[str], _Problems]) -> None:
        self.name = name
        self.pattern_size = pattern_size
        self.check = check

    def __eq__(self, other: object) -> bool:
        return self.name == other.name if isinstance(other, Format) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.name)

    def __str__(self) -> str:
        return self.name


def _formats() -> dict[str, Format]:
    named: dict[str, Format] = {}
    for suffix, prefix in (("", False), ("Prefix", True)):
        named[f"dns1123Label{suffix}"] = Format(
            f"DNS1123Label{suffix}", 30, _name(_LABEL, _LABEL_PROBLEM, 63, prefix=prefix)
        )
        named[f"dns1123Subdomain{suffix}"] = Format(
            f"DNS1123Subdomain{suffix}", 60, _name(_SUBDOMAIN, _SUBDOMAIN_PROBLEM, 253, prefix=prefix)
        )
        named[f"dns1035Label{suffix}"] = Format(
            f"DNS1035Label{suffix}", 30, _name(_OLD_LABEL, _OLD_LABEL_PROBLEM, 63, prefix=prefix)
        )
    return {
        **named,
        "qualifiedName": Format("QualifiedName", 60, _qualified),
        "labelValue": Format("LabelValue", 40, _label_value),
        "uri": Format("URI", 1103, _uri),
        "uuid": Format("uuid", 70, _test("does not match the UUID format", lambda t: bool(_UUID.match(t)))),
        "byte": Format("byte", 84, _test("invalid base64", lambda t: bool(_BASE64.match(t)))),
        "date": Format("date", 71, _test("invalid date", _is_date)),
        "datetime": Format("datetime", 71, _test("invalid datetime", _is_datetime)),
    }


FORMAT: Final = opaque("kubernetes.NamedFormat", Format)


def formats() -> Library:
    """The library."""
    known = _formats()

    def named(name: str) -> Optional:
        return Optional(known[name]) if name in known else NONE

    def validate(form: Format, text: str) -> Optional:
        problems = form.check(text)
        return Optional(problems) if problems else NONE

    def constant(form: Format) -> Callable[[], Format]:
        return lambda: form

    return Library(
        "formats",
        [
            Function("format.named", Overload((STRING,), optional_of(FORMAT), named, fails=False)),
            Function("validate", method((FORMAT, STRING), optional_of(list_of(STRING)), validate, fails=False)),
            *(
                Function(f"format.{name}", Overload((), FORMAT, constant(form), fails=False))
                for name, form in known.items()
            ),
        ],
    )
