"""Patches of an object: JSON merge patch (RFC 7386) and JSON patch (RFC 6902), as `kubectl patch` and `apply` send.

Strategic merge needs types that custom resources do not have, here as on an API server; server-side apply needs field
managers, which are not kept. Both are refused by name. Pure.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from dibs.errors import InvalidRequest
from dibs.gateway.kubeflow.requests import media_type, unsupported_media
from dibs.gateway.native.common import Ask
from dibs.wire.reading import read_json, read_object

Json = dict[str, Any]

MERGE, JSON_PATCH = "application/merge-patch+json", "application/json-patch+json"
_KNOWN = f"{MERGE} (`kubectl patch --type=merge`) or {JSON_PATCH}"


async def merged(request: Ask) -> Callable[[Json], Json]:
    """What the body of a PATCH does to an object."""
    kind, data = media_type(request), await request.body()
    if kind == MERGE:
        patch = read_object(data)
        return lambda value: merge(value, patch)
    if kind == JSON_PATCH:
        operations = read_json(data)
        return lambda value: apply(value, operations)
    raise unsupported_media(kind, _KNOWN)


def merge(value: Any, patch: Any) -> Any:
    """RFC 7386: null removes, objects merge, everything else replaces."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = dict(value) if isinstance(value, dict) else {}
    for key, item in patch.items():
        if item is None:
            result.pop(key, None)
        else:
            result[key] = merge(result.get(key), item)
    return result


def apply(value: Json, operations: Any) -> Json:
    """RFC 6902. Raises InvalidRequest with the number of the operation that cannot be done."""
    if not isinstance(operations, list):
        raise _refuse("", "a JSON patch is a list of operations")
    holder: Json = {"": copy.deepcopy(value)}
    for number, one in enumerate(operations):
        where = f"[{number}]"
        if not isinstance(one, dict) or not isinstance(one.get("path"), str):
            raise _refuse(where, "an operation has an op and a path")
        try:
            _operate(holder, one)
        except (KeyError, IndexError, ValueError, TypeError) as error:
            raise _refuse(where, f"{one.get('op')} {one['path']}: {error}") from error
    result: Json = holder[""]
    return result


def _operate(holder: Json, one: Json) -> None:
    kind, path = one.get("op"), _pointer(one["path"])
    if kind in ("move", "copy"):
        source = _pointer(one["from"])
        found = copy.deepcopy(_get(holder, source))
        if kind == "move":
            _remove(holder, source)
        _add(holder, path, found)
    elif kind == "add":
        _add(holder, path, copy.deepcopy(one["value"]))
    elif kind == "remove":
        _remove(holder, path)
    elif kind == "replace":
        _get(holder, path)
        _remove(holder, path)
        _add(holder, path, copy.deepcopy(one["value"]))
    elif kind == "test":
        if _get(holder, path) != one["value"]:
            raise ValueError("the value is another one")
    else:
        raise ValueError("the operations are add, remove, replace, move, copy and test")


def _pointer(text: str) -> list[str]:
    if text and not text.startswith("/"):
        raise ValueError("a path begins with /")
    return ["", *(part.replace("~1", "/").replace("~0", "~") for part in text.split("/")[1:])]


def _get(holder: Any, path: list[str]) -> Any:
    for key in path:
        holder = holder[_index(key, len(holder))] if isinstance(holder, list) else holder[key]
    return holder


def _add(holder: Any, path: list[str], value: Any) -> None:
    parent, last = _get(holder, path[:-1]), path[-1]
    if isinstance(parent, list):
        at = len(parent) if last == "-" else _index(last, len(parent) + 1)
        parent.insert(at, value)
    else:
        parent[last] = value


def _remove(holder: Any, path: list[str]) -> None:
    parent, last = _get(holder, path[:-1]), path[-1]
    del parent[_index(last, len(parent)) if isinstance(parent, list) else last]


def _index(text: str, length: int) -> int:
    if not text.isdigit() or (len(text) > 1 and text[0] == "0") or int(text) >= length:
        raise ValueError(f"there is no item {text}")
    return int(text)


def _refuse(where: str, reason: str) -> InvalidRequest:
    return InvalidRequest(reason, field=f"patch{where}", code="PATCH_INVALID", remedy="see RFC 6902")
