"""Kubernetes' strategic merge patch: a patch is merged into an object by what its lists mean, not by their position.

`patches` calls it to apply the runtimePatches of a TrainJob. Which lists are merged, and by which key, stands in a
table (`merge_keys`); the rest is the same for every kind. All directives are understood (`$patch`, `$retainKeys`,
`$setElementOrder/x`, `$deleteFromPrimitiveList/x`). Pure: the arguments are left as they are.

Where the reference goes through a patch in the random order of a Go map and the order matters, here deletions from a
list come before additions to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from dibs.errors import InvalidRequest
from dibs.kube.merge_keys import Fields

Json = Any
Object = Mapping[str, Any]

DIRECTIVE: Final = "$patch"
RETAIN_KEYS: Final = "$retainKeys"
DELETE_FROM: Final = "$deleteFromPrimitiveList/"
ELEMENT_ORDER: Final = "$setElementOrder/"

NO_KEY: Final = "does not contain declared merge key"
BAD_DIRECTIVE: Final = "unknown patch type"
NO_LIST_MERGE: Final = "merging lists cannot yet be specified in the patch"
BAD_RETAIN_KEYS: Final = "invalid patch format of retainKeys"
BAD_ELEMENT_ORDER: Final = "invalid patch format of setElementOrder list"
OTHER_ORDER: Final = "the order in the patch doesn't match $setElementOrder"
MIXED: Final = "list element types are not identical"


class MergeRefused(InvalidRequest):
    default_code = "PATCH_INVALID"


def merge(original: Object, patch: Json, fields: Fields) -> dict[str, Any]:
    """The object with the patch in it. Raises MergeRefused with the path of what cannot be merged."""
    if not isinstance(patch, Mapping):
        raise _refusal("", patch, "a patch must be an object")
    return _objects(original, patch, fields, "")


def _objects(original: Object, patch: Object, fields: Fields, path: str) -> dict[str, Any]:
    if DIRECTIVE in patch:
        directive = patch[DIRECTIVE]
        if directive == "replace":
            return {key: value for key, value in patch.items() if key != DIRECTIVE}
        if directive == "delete":
            return {}
        raise _refusal(_below(path, DIRECTIVE), directive, BAD_DIRECTIVE)
    merged = dict(original)
    rest = dict(patch)
    if RETAIN_KEYS in rest:
        kept = _retained(rest.pop(RETAIN_KEYS), rest, path)
        merged = {key: value for key, value in merged.items() if key in kept}
    for directive in [key for key in rest if key.startswith(ELEMENT_ORDER)]:
        _reorder(merged, rest, directive, fields, path)
    for key in [key for key in rest if key.startswith(DELETE_FROM)]:
        _delete_from(merged, key.removeprefix(DELETE_FROM), rest.pop(key), fields, path)
    for key, value in rest.items():
        _field(merged, key, value, fields, _below(path, key))
    return merged


def _field(merged: dict[str, Any], key: str, value: Json, fields: Fields, path: str) -> None:
    if value is None:
        merged.pop(key, None)
        return
    present = merged.get(key)
    if isinstance(present, Mapping) and isinstance(value, Mapping):
        merged[key] = _objects(present, value, fields.below(key), path)
    elif isinstance(present, list) and isinstance(value, list):
        rule = fields.merged.get(key)
        merged[key] = value if rule is None else _lists(present, value, rule, fields.below(key), path)
    else:
        cleaned = _without_directives(_without_nulls(value))
        if cleaned is _NOTHING:
            merged.pop(key, None)
        else:
            merged[key] = cleaned


def _lists(original: list[Json], patch: list[Json], key: str, fields: Fields, path: str) -> list[Json]:
    if not original and not patch:
        return original
    if not _are_objects(original, patch, path):
        both: list[Json] = []
        for item in (*original, *patch):
            if not _holds(both, item):
                both.append(item)
        return _in_order(both, patch, original, "")
    if not key:
        raise _refusal(path, None, "cannot merge lists without merge key")
    original, patch = _directed(original, patch, key, path)
    merged = list(original)
    for index, item in enumerate(patch):
        place = _find(merged, key, _key_of(item, key, f"{path}[{index}]"))
        if place is None:
            merged.append(item)
        else:
            merged[place] = _objects(merged[place], item, fields, f"{path}[{index}]")
    for index, item in enumerate(merged):
        _key_of(item, key, f"{path}[{index}]")
    return _in_order(merged, patch, original, key)


def _directed(original: list[Json], patch: list[Json], key: str, path: str) -> tuple[list[Json], list[Json]]:
    """What is left of both lists once the items that carry a directive have done their work."""
    plain: list[Json] = []
    replace = False
    for index, item in enumerate(patch):
        where = f"{path}[{index}]"
        if DIRECTIVE not in item:
            plain.append(item)
        elif item[DIRECTIVE] == "delete":
            gone = _key_of(item, key, where)
            original = [one for one in original if key not in one or not _same(one[key], gone)]
        elif item[DIRECTIVE] == "replace":
            replace = True
        elif item[DIRECTIVE] == "merge":
            raise _refusal(_below(where, DIRECTIVE), "merge", NO_LIST_MERGE)
        else:
            raise _refusal(_below(where, DIRECTIVE), item[DIRECTIVE], BAD_DIRECTIVE)
    return (plain, []) if replace else (original, plain)


def _in_order(merged: list[Json], wanted: list[Json], original: list[Json], key: str) -> list[Json]:
    """What the patch names comes in its order; what only the object has is put between, where it stood."""
    named = _sorted([item for item in merged if _place(wanted, item, key) is not None], wanted, key)
    unnamed = _sorted([item for item in merged if _place(wanted, item, key) is None], original, key)
    result: list[Json] = []
    while named and unnamed:
        left, right = _place(original, unnamed[0], key), _place(original, named[0], key)
        earlier = left is not None and right is not None and left < right
        result.append((unnamed if earlier else named).pop(0))
    return [*result, *named, *unnamed]


def _sorted(items: list[Json], order: list[Json], key: str) -> list[Json]:
    """Insertion sort, because what `order` does not name counts as smaller than everything: no order for `sorted`."""
    result: list[Json] = []
    for item in items:
        at = len(result)
        mine = _place(order, item, key)
        while at:
            other = _place(order, result[at - 1], key)
            if mine is not None and other is not None and mine >= other:
                break
            at -= 1
        result.insert(at, item)
    return result


def _retained(keys: Json, patch: Object, path: str) -> set[Json]:
    if not isinstance(keys, list):
        raise _refusal(_below(path, RETAIN_KEYS), keys, BAD_RETAIN_KEYS)
    kept = {key for key in keys if isinstance(key, str)}
    for key, value in patch.items():
        if value is not None and key not in kept and not key.startswith((DELETE_FROM, ELEMENT_ORDER)):
            raise _refusal(_below(path, RETAIN_KEYS), keys, f'{BAD_RETAIN_KEYS}: "{key}" is set but not retained')
    return kept


def _reorder(merged: dict[str, Any], rest: dict[str, Any], directive: str, fields: Fields, path: str) -> None:
    order = rest.pop(directive)
    key = directive.removeprefix(ELEMENT_ORDER)
    where = _below(path, directive)
    present, patch = merged.get(key), rest.get(key)
    if not all(one is None or isinstance(one, list) for one in (present, patch)) or not isinstance(order, list):
        raise _refusal(where, order, BAD_ELEMENT_ORDER)
    rule = fields.merged.get(key)
    _check_order(patch or [], order, rule or "", where)
    if key in rest and patch is None:  # null and an order at once
        raise _refusal(where, order, BAD_ELEMENT_ORDER)
    if patch is None and present is None:
        return
    if patch is None:
        result = present or []
    elif present is None:
        result = _without_directives(patch)
    else:
        result = patch if rule is None else _lists(present, patch, rule, fields.below(key), _below(path, key))
    if not (present or patch):
        raise _refusal(where, order, "no elements in any of the given lists")
    if rule:
        for index, item in enumerate((*result, *order)):
            _key_of(item, rule, f"{where}[{index}]")
    before = _overwritten(present, patch, rule) if present and patch and rule else present or []
    merged[key] = _in_order(result, order, before, rule or "")
    rest.pop(key, None)


def _overwritten(original: list[Json], patch: list[Json], key: str) -> list[Json]:
    """The list that `$setElementOrder` sorts by in the reference: the original, over which its merge has written.

    There deletions move what follows to the front and leave the end as it was; additions then fill that end.
    """
    if not _are_objects(original, patch, ""):
        return original
    kept = list(original)
    left = list(original)
    for gone in (item for item in patch if item.get(DIRECTIVE) == "delete"):
        kept = [item for item in kept if key not in item or not _same(item[key], gone[key])]
        left[: len(kept)] = kept
    if any(item.get(DIRECTIVE) == "replace" for item in patch):
        return left
    for item in patch:
        if DIRECTIVE not in item and _find(kept, key, item[key]) is None:
            left[len(kept) : len(kept) + 1] = [item] if len(kept) < len(original) else []
            kept.append(item)
    return left


def _check_order(patch: list[Json], order: list[Json], key: str, path: str) -> None:
    """What the patch sets stands in the wanted order, in the same sequence. Deletions do not count."""
    if not patch or not order:
        return
    left = [item for item in patch if not (isinstance(item, Mapping) and DIRECTIVE in item)]
    for one in order:
        if left and _same(_identity(left[0], key, path), _identity(one, key, path)):
            left.pop(0)
    if left:
        raise _refusal(path, order, OTHER_ORDER)


def _delete_from(merged: dict[str, Any], key: str, gone: Json, fields: Fields, path: str) -> None:
    if gone is None:
        merged.pop(key, None)
        return
    present = merged.get(key)
    if not isinstance(present, list) or not isinstance(gone, list):
        return
    where = _below(path, DELETE_FROM + key)
    if (present or gone) and not _are_objects(present, gone, where):
        merged[key] = [item for item in present if not _holds(gone, item)]
    elif present or gone:
        merged[key] = _lists(present, gone, fields.merged.get(key) or "", fields.below(key), where)


def _without_nulls(value: Json) -> Json:
    if isinstance(value, Mapping):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value


_NOTHING: Final = object()


def _without_directives(value: Json) -> Json:
    """A value that is taken over as it is; what carries `$patch` is not, because there is nothing to apply it to."""
    if isinstance(value, Mapping):
        if DIRECTIVE in value:
            return _NOTHING
        pairs = ((key, _without_directives(item)) for key, item in value.items())
        return {key: item for key, item in pairs if item is not _NOTHING}
    if isinstance(value, list):
        return [item for item in map(_without_directives, value) if item is not _NOTHING]
    return value


def _are_objects(first: Sequence[Json], second: Sequence[Json], path: str) -> bool:
    kinds = {type(item) for item in (*first, *second)}
    if list in kinds:
        raise _refusal(path, None, "lists of lists are not supported")
    if len(kinds) > 1:
        raise _refusal(path, None, MIXED)
    return kinds == {dict}


def _identity(item: Json, key: str, path: str) -> Json:
    return _key_of(item, key, path) if key else item


def _key_of(item: Json, key: str, path: str) -> Json:
    if not isinstance(item, Mapping) or key not in item:
        raise _refusal(path, item, f"{NO_KEY}: {key}")
    return item[key]


def _place(items: Sequence[Json], wanted: Json, key: str) -> int | None:
    if key:
        return _find(items, key, wanted.get(key))
    return next((index for index, item in enumerate(items) if _same(item, wanted)), None)


def _find(items: Sequence[Json], key: str, value: Json) -> int | None:
    return next((index for index, item in enumerate(items) if key in item and _same(item[key], value)), None)


def _holds(items: Sequence[Json], wanted: Json) -> bool:
    return any(_same(item, wanted) for item in items)


def _same(left: Json, right: Json) -> bool:
    return type(left) is type(right) and bool(left == right)


def _below(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _refusal(path: str, value: Json, reason: str) -> MergeRefused:
    from dibs.errors import as_written

    return MergeRefused(reason, field=path, value="" if value is None else as_written(value))
