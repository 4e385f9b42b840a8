"""Bodies and query strings into the types of the API. Strict, and every problem at once.

Used by `gateway.native`. msgspec stops at the first mistake, so the fields are read one by one. A message shows what
was sent, shortened; it is the caller's own.
"""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import msgspec

from dibs.errors import InvalidRequest, Problem, quoted

T = TypeVar("T", bound=msgspec.Struct)


def read_json(body: bytes) -> Any:
    """Any JSON. Raises InvalidRequest."""
    try:
        return msgspec.json.decode(body, strict=True)
    except RecursionError:
        raise refuse("JSON_INVALID", "body", "", "it is nested too deeply", "send something flatter") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise refuse("JSON_INVALID", "body", "", f"it is not JSON: {error}", "send one JSON object") from None


def read_object(body: bytes) -> dict[str, Any]:
    """A JSON object. Raises InvalidRequest."""
    data = read_json(body)
    if not isinstance(data, dict):
        reason = f"it is {_kind(data)}, not an object"
        raise refuse("BODY_INVALID", "body", _shown(data), reason, "send one JSON object")
    return data


def read_body(kind: type[T], body: bytes) -> T:
    """A body of a type, or InvalidRequest with every problem."""
    return convert(kind, read_object(body), strict=True)


def read_query(kind: type[T], query: bytes) -> T:
    """A query string of a type. A parameter may stand twice only where a list is meant; unknown ones are refused."""
    try:
        pairs = parse_qsl(query.decode("ascii"), keep_blank_values=True, strict_parsing=bool(query), errors="strict")
    except ValueError:
        raise refuse("QUERY_INVALID", "query", "", "it cannot be read", "write NAME=VALUE&NAME=VALUE") from None
    lists = _lists(kind)
    data: dict[str, Any] = {}
    problems: list[Problem] = []
    for name, value in pairs:
        if name in lists:
            data.setdefault(name, []).append(value)
        elif name in data:
            problems.append(Problem("QUERY_INVALID", name, _shown(value), "it is given twice", "say it once"))
        else:
            data[name] = value
    return convert(kind, data, strict=False, problems=problems)


def convert(kind: type[T], data: dict[str, Any], *, strict: bool, problems: list[Problem] | None = None) -> T:
    """Field by field, so that every mistake is told."""
    found = problems or []
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    for name, value in data.items():
        if name not in fields:
            remedy = f"the known ones are {', '.join(fields)}" if fields else "there are none"
            found.append(Problem("UNKNOWN_FIELD", quoted(name)[1:-1], _shown(value), "no such field", remedy))
    values: dict[str, Any] = {}
    for name, field in fields.items():
        if name not in data:
            if field.required:
                found.append(Problem("FIELD_MISSING", name, "", "it is needed", "add it"))
            continue
        try:
            values[field.name] = msgspec.convert(data[name], field.type, strict=strict)
        except (msgspec.ValidationError, ValueError, OverflowError) as error:
            reason = str(error).replace("`$", f"`{name}").replace("`", "")
            found.append(Problem("FIELD_INVALID", name, _shown(data[name]), reason, "see GET /openapi.json"))
    if found:
        raise InvalidRequest(found)
    return kind(**values)


@cache
def _lists(kind: type[msgspec.Struct]) -> frozenset[str]:
    return frozenset(
        field.encode_name
        for field in msgspec.structs.fields(kind)
        if str(field.type).startswith(("tuple", "typing.Annotated[tuple"))
    )


def _kind(data: Any) -> str:
    return "null" if data is None else f"a {type(data).__name__}"


def _shown(value: Any) -> str:
    return quoted(value)[1:-1]


def refuse(code: str, field: str, value: str, reason: str, remedy: str) -> InvalidRequest:
    return InvalidRequest(Problem(code, field, value, reason, remedy))
