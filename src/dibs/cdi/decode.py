"""Bytes to `Spec`, and back: the strict reading of a spec file.

Called by `cache`, and by code that has a spec in hand. All problems of a file are collected, each with its place,
and raised as one `SpecError`. It does no file I/O except in `read_spec`. An unknown field is refused, as is a
key given twice; keys match without regard to case, as they do for the container engines.
"""

from __future__ import annotations

import os
import stat
import types
import typing
from typing import Any, Final, TypeVar

import msgspec

from dibs.cdi.errors import Problem, SpecError, StoreError, quoted
from dibs.cdi.spec import Spec
from dibs.cdi.tree import parse_text, plain_scalar, scalar_text
from dibs.cdi.validate import spec_problems

T = TypeVar("T", bound=msgspec.Struct)

MAX_FILE_BYTES: Final = 16 * 1024 * 1024
"""Arbitrary; the largest specs in the field are well below 1 MiB."""

MAX_VALUES: Final = 250_000
"""Arbitrary; stops a small YAML file from growing without end through its anchors."""

# The whole numbers of the format, with their range in bits; what is not named here is a signed 64-bit number.
_UNSIGNED_32: Final = frozenset({"file_mode", "uid", "gid", "additional_gids"})


def parse_spec(data: bytes, source: str = "") -> Spec:
    """Decode and validate a spec. Raises `SpecError` with every problem; `source` is put before the message."""
    try:
        spec, problems = decode_value(parse_text(data), Spec)
    except SpecError as exc:
        raise SpecError(exc.problems, source) from exc
    found = {problem.where for problem in problems}
    # A value that could not be decoded is absent from the spec: what validation says about that place is an echo.
    problems += [p for p in spec_problems(spec) if not any(_related(p.where, where) for where in found)]
    if problems:
        raise SpecError(problems, source)
    return spec


def read_spec(path: str | os.PathLike[str]) -> Spec:
    """Read, decode and validate a spec file."""
    name = os.fspath(path)
    return parse_spec(read_bytes(name), name)


def read_bytes(path: str) -> bytes:
    """A file's bytes, or `StoreError`. Only a regular file is opened: a pipe would wait for ever."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, "rb") as file:
            info = os.fstat(fd)
            if not stat.S_ISREG(info.st_mode):
                raise StoreError(f"{path}: not a regular file")
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as exc:
        raise StoreError(f"{path}: cannot be read: {exc.strerror or exc}") from exc
    if len(data) > MAX_FILE_BYTES:
        raise StoreError(f"{path}: larger than {MAX_FILE_BYTES} bytes")
    return data


def decode_value(tree: Any, struct: type[T]) -> tuple[T, list[Problem]]:
    """Turn plain values into one of the wire types; return it with what was wrong (zero values stand in)."""
    if tree is None:
        return struct(), [Problem("", "the spec is empty")]
    decoder = _Decoder()
    return decoder.struct(tree, struct, ""), decoder.problems


def encode_json(value: Any) -> bytes:
    """Wire types or plain values as indented JSON, without what is unset."""
    return msgspec.json.format(_encode(value), indent=2) + b"\n"


def encode_yaml(value: Any) -> bytes:
    """Wire types or plain values as YAML with a `---` header. Every string is in quotes, so none is misread."""
    return ("\n".join(["---", *_yaml_lines(msgspec.json.decode(_encode(value)))]) + "\n").encode()


def write_bytes_of(spec: Spec, path: str) -> bytes:
    """The file content for a path: JSON for `.json`, else YAML."""
    return encode_json(spec) if path.endswith(".json") else encode_yaml(spec)


def _encode(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError as exc:
        raise SpecError([Problem("", f"holds text that is not Unicode: {exc.reason}")]) from exc


def _related(one: str, other: str) -> bool:
    return _below(one, other) or _below(other, one)


def _below(inner: str, outer: str) -> bool:
    return inner == outer or (inner.startswith(outer) and (not outer or inner[len(outer)] in ".["))


# Plain values to wire types


class _Decoder:
    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.values = 0

    def problem(self, where: str, what: str) -> None:
        self.problems.append(Problem(where, what))

    def struct(self, tree: Any, struct: type[T], where: str) -> T:
        self.spend()
        if not isinstance(tree, dict):
            self.problem(where, f"must be an object, not {_kind(tree)}")
            return struct()
        fields = _fields(struct)
        given: dict[str, str] = {}
        values: dict[str, Any] = {}
        for key, value in tree.items():
            field = fields.get(key.lower())
            place = f"{where}.{key if key.isprintable() else quoted(key)}" if where else quoted(key)[1:-1]
            if field is None:
                known = ", ".join(name for name, _, _ in fields.values())
                self.problem(place, f"unknown field; known are {known}")
                continue
            wire, attribute, kind = field
            if attribute in given:
                self.problem(place, f"the same field as {quoted(given[attribute])}, given twice")
                continue
            given[attribute] = key
            # null leaves a field unset, as it does for the engines.
            if value is not None:
                values[attribute] = self.value(value, kind, attribute, f"{where}.{wire}" if where else wire)
        return struct(**values)

    def value(self, value: Any, kind: Any, attribute: str, where: str) -> Any:
        self.spend()
        origin = typing.get_origin(kind)
        if origin is types.UnionType:
            kind = next(arg for arg in typing.get_args(kind) if arg is not type(None))
            origin = typing.get_origin(kind)
        if kind is str:
            return self.text(value, where)
        if kind is int:
            return self.number(value, attribute, where)
        if kind is bool:
            if not isinstance(value, bool):
                self.problem(where, f"must be true or false, not {_kind(value)}")
                return False
            return value
        if origin is tuple:
            return self.items(value, typing.get_args(kind)[0], attribute, where)
        if origin is dict:
            return self.mapping(value, where)
        return self.struct(value, kind, where)

    def items(self, value: Any, kind: Any, attribute: str, where: str) -> tuple[Any, ...]:
        if not isinstance(value, list):
            self.problem(where, f"must be a list, not {_kind(value)}")
            return ()
        return tuple(self.value(item, kind, attribute, f"{where}[{index}]") for index, item in enumerate(value))

    def mapping(self, value: Any, where: str) -> dict[str, str]:
        if not isinstance(value, dict):
            self.problem(where, f"must be an object, not {_kind(value)}")
            return {}
        result = {}
        for key, item in value.items():
            place = f"{where}[{quoted(key)}]"
            result[self.text(key, place)] = self.text("" if item is None else item, place)
        return result

    def text(self, value: Any, where: str) -> str:
        self.spend()
        text = scalar_text(value)
        if text is None:
            hint = "; put it in quotes" if isinstance(value, float) else ""
            self.problem(where, f"must be a string, not {_kind(value)}{hint}")
            return ""
        if "\0" in text:
            self.problem(where, f"{quoted(text)} holds a NUL character")
            return ""
        try:
            text.encode()
        except UnicodeEncodeError:
            self.problem(where, "holds half of a surrogate pair, which is not a character")
            return ""
        return text

    def number(self, value: Any, attribute: str, where: str) -> int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            self.problem(where, f"must be a whole number, not {_kind(value)}")
            return 0
        low, high = (0, 2**32 - 1) if attribute in _UNSIGNED_32 else (-(2**63), 2**63 - 1)
        if not low <= value <= high:
            self.problem(where, f"{quoted(value, 24)} must be between {low} and {high}")
            return 0
        return value

    def spend(self) -> None:
        self.values += 1
        if self.values > MAX_VALUES:
            raise SpecError([Problem("", f"holds more than {MAX_VALUES} values")])


def _kind(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return f"the number {quoted(value, 24)[1:-1]}"
        case str():
            return f"the string {quoted(value, 40)}"
        case list():
            return "a list"
        case _:
            return "an object"


_FIELDS: dict[type, dict[str, tuple[str, str, Any]]] = {}


def _fields(struct: type[msgspec.Struct]) -> dict[str, tuple[str, str, Any]]:
    """Lower-case key to (name on the wire, attribute, type)."""
    if struct not in _FIELDS:
        _FIELDS[struct] = {
            field.encode_name.lower(): (field.encode_name, field.name, field.type)
            for field in msgspec.structs.fields(struct)
        }
    return _FIELDS[struct]


# Plain values to YAML


def _yaml_lines(value: Any, indent: str = "") -> list[str]:
    lines: list[str] = []
    if not value or not isinstance(value, dict | list):
        return [indent + _yaml_scalar(value)]
    if isinstance(value, dict):
        for key, item in value.items():
            name = key if key.isidentifier() and key.isascii() and not _is_word(key) else _yaml_scalar(key)
            lines += _yaml_item(f"{indent}{name}:", item, indent + "  ")
    else:
        for item in value:
            if isinstance(item, dict | list) and item:
                nested = _yaml_lines(item, indent + "  ")
                lines += [f"{indent}- {nested[0].lstrip()}", *nested[1:]]
            else:
                lines.append(f"{indent}- {_yaml_scalar(item)}")
    return lines


def _yaml_item(head: str, item: Any, indent: str) -> list[str]:
    if isinstance(item, dict | list) and item:
        return [head, *_yaml_lines(item, indent)]
    return [f"{head} {_yaml_scalar(item)}"]


def _yaml_scalar(value: Any) -> str:
    if not isinstance(value, str):
        return msgspec.json.encode(value).decode()
    text = msgspec.json.encode(value).decode()
    # JSON leaves a few characters as they are that YAML only accepts escaped.
    return "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in text)


def _is_word(key: str) -> bool:
    return not isinstance(plain_scalar(key), str)
