"""The shapes of TrainJob and TrainingRuntime: strict reading, defaults, bounds, and the CRDs' own CEL rules.

`objects` calls it. The table (`schemas.json`, made by scripts/generate_train_schema.py) holds what the CRDs of Kubeflow
Trainer say. Mistakes read as an API server prints them, with one difference: what an API server prunes, an unknown
field, is refused. An explicit null counts as unset, as in Kubernetes. Knows nothing of what the fields mean.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Final

import msgspec

from dibs.claims.fielderrors import DUPLICATE, INVALID, REQUIRED, TOO_LONG, TOO_MANY, UNSUPPORTED
from dibs.quantity import Quantity
from dibs.train.refusals import Printed, Refusal, Refusals

Schema = Mapping[str, Any]

_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "object": (dict,), "array": (list,), "string": (str,), "boolean": (bool,), "integer": (int,), "number": (int, float)
}  # fmt: skip
_RANGES: Final = {"int32": 2**31, "int64": 2**63}
_SELF: Final = re.compile(r"\bself\b")
_PARTS: Final = re.compile(r"\bself\.(\w+)")
_NO_RULES: Final[list[list[str]]] = []
_TEXTS: Final = (
    "name", "generateName", "namespace", "uid", "resourceVersion", "creationTimestamp", "deletionTimestamp", "selfLink"
)  # fmt: skip
_METADATA: Final[Schema] = {
    "type": "object",
    "properties": {
        **{key: {"type": "string"} for key in _TEXTS},
        "generation": {"type": "integer"},
        "deletionGracePeriodSeconds": {"type": "integer"},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        "annotations": {"type": "object", "additionalProperties": {"type": "string"}},
        "finalizers": {"type": "array", "items": {"type": "string"}},
        "ownerReferences": {"type": "array", "items": {"type": "object"}},
        "managedFields": {"type": "array", "items": {"type": "object"}},
    },
}  # fmt: skip


def normalised(value: object, kind: str, found: Refusals) -> Any:
    """The object without nulls, with defaults and canonical quantities. What does not fit is added to `found`."""
    return _Reader(found).read(value, _root(kind), "")


def check_rules(value: Any, old: Any, kind: str, found: Refusals) -> None:
    """Evaluate the CEL rules of the CRD on an object of the right shape; `old` is what an update replaces, or None."""
    _rules(value, old, _root(kind), "", found)


def is_bound(one: Refusal) -> bool:
    """Whether a value is of the right shape, and only too small, too large or misspelt: its rules can be evaluated."""
    return " in body should " in one.error.detail


@cache
def _tables() -> Any:
    return msgspec.json.decode((files("dibs.train") / "schemas.json").read_bytes())


@cache
def _root(kind: str) -> Schema:
    root: Schema = _resolved(_tables()[kind])
    return {**root, "properties": {**root["properties"], "metadata": _METADATA}}


def _resolved(schema: Schema) -> Schema:
    found: Schema = _tables()["types"][schema["ref"]] if "ref" in schema else schema
    return found


class _Reader:
    def __init__(self, found: Refusals) -> None:
        self.found = found

    def read(self, value: Any, schema: Schema, path: str) -> Any:
        schema = _resolved(schema)
        if schema.get("intOrString"):
            return self.int_or_string(value, schema, path)
        kind = schema.get("type", "")
        if kind == "integer" and isinstance(value, float) and value.is_integer():
            value = int(value)  # JSON knows one kind of number
        wanted = _TYPES.get(kind, (object,))
        if not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted and kind):
            where = path or "the object"
            self.found.invalid(path, value, f'{where} in body must be of type {kind}: "{_type_name(value)}"')
            return value
        if isinstance(value, dict):
            value = self.object(value, schema, path)
        elif isinstance(value, list):
            value = self.array(value, schema, path)
        else:
            self.scalar(value, schema, path)
        return value

    def object(self, value: dict[str, Any], schema: Schema, path: str) -> dict[str, Any]:
        properties: Mapping[str, Schema] = schema.get("properties", {})
        every = schema.get("additionalProperties")
        result: dict[str, Any] = {}
        for key, item in value.items():
            if item is None:
                continue
            where = f"{path}.{key}" if path else str(key)
            if key in properties:
                result[key] = self.read(item, properties[key], where)
            elif every is not None:
                result[key] = self.read(item, every, where)
            elif properties:
                known = ", ".join(sorted(properties))
                self.found.add(where, "unknown field", None, "", f"the fields here are {known}")
            else:
                result[key] = item
        for key, below in properties.items():
            if key not in result and "default" in _resolved(below):
                result[key] = _resolved(below)["default"]
        for key in schema.get("required", ()):
            if key not in result:
                self.found.add(f"{path}.{key}" if path else key, REQUIRED)
        if len(result) < schema.get("minProperties", 0):
            few = f"{path} in body should have at least {schema['minProperties']} properties"
            self.found.invalid(path, len(result), few)
        return result

    def array(self, value: list[Any], schema: Schema, path: str) -> list[Any]:
        most, least = schema.get("maxItems"), schema.get("minItems", 0)
        if most is not None and len(value) > most:
            self.found.add(path, TOO_MANY, Printed(len(value)), f"must have at most {most} items")
        if len(value) < least:
            self.found.invalid(path, len(value), f"{path} in body should have at least {least} items")
        items = schema.get("items", {})
        result = [self.read(item, items, f"{path}[{index}]") for index, item in enumerate(value)]
        keys = schema.get("keys", ())
        if schema.get("list") in ("map", "set"):
            seen: list[Any] = []
            for index, item in enumerate(result):
                identity = {k: item[k] for k in keys if k in item} if keys and isinstance(item, dict) else item
                if identity in seen:
                    self.found.add(f"{path}[{index}]", DUPLICATE, identity)
                seen.append(identity)
        return result

    def scalar(self, value: Any, schema: Schema, path: str) -> None:
        if "enum" in schema and value not in schema["enum"]:
            listed = ", ".join(f'"{one}"' for one in schema["enum"])
            self.found.add(path, UNSUPPORTED, value, f"supported values: {listed}")
        if isinstance(value, str):
            if len(value) < schema.get("minLength", 0):
                self.found.invalid(path, value, f"{path} in body should be at least {schema['minLength']} chars long")
            if len(value.encode("utf-8", "surrogatepass")) > schema.get("maxLength", len(value) * 4):
                self.found.add(path, TOO_LONG, None, f"may not be more than {schema['maxLength']} bytes")
            if "pattern" in schema and not re.search(schema["pattern"].replace("$", r"\Z"), value):
                self.found.invalid(path, value, f"{path} in body should match '{schema['pattern']}'")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            if value < schema.get("minimum", value):
                least = f"{path} in body should be greater than or equal to {schema['minimum']}"
                self.found.invalid(path, value, least)
            if value > schema.get("maximum", value):
                self.found.invalid(path, value, f"{path} in body should be less than or equal to {schema['maximum']}")
            bound = _RANGES.get(schema.get("format", ""))
            if bound is not None and not -bound <= value < bound:
                self.found.invalid(path, value, f"{path} in body must be of type integer, {schema['format']}")

    def int_or_string(self, value: Any, schema: Schema, path: str) -> Any:
        numbers = (int, float) if schema.get("quantity") else (int,)
        if isinstance(value, bool) or not isinstance(value, (str, *numbers)):
            self.found.invalid(path, value, f'{path} in body must be of type integer or string: "{_type_name(value)}"')
            return value
        if not schema.get("quantity"):
            return value
        try:
            return str(Quantity.parse(value if isinstance(value, str) else repr(value)))
        except ValueError as error:
            self.found.invalid(path, value, str(error))
            return value


def _type_name(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    return next((name for name, types in _TYPES.items() if isinstance(value, types)), "unknown")


def _rules(value: Any, old: Any, schema: Schema, path: str, found: Refusals) -> None:
    schema = _resolved(schema)
    if not _ruled(schema, changes=old is not None):
        return
    for rule, message in schema.get("rules", _NO_RULES):
        transition = "oldSelf" in rule
        if transition and old is None:
            continue
        if transition:
            variables = {"self": _comparable(value, schema), "oldSelf": _comparable(old, schema)}
        else:
            variables = {"self": _named_parts(value, rule)}
        if not _program(rule).evaluate(variables):
            printed = message if isinstance(value, dict | list) else f"{Printed.of(value)}: {message}"
            found.add(path, INVALID, Printed(printed))
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        for key, item in value.items():
            below = properties.get(key, schema.get("additionalProperties"))
            if below is not None:
                before = old.get(key) if isinstance(old, dict) else None
                _rules(item, before, below, f"{path}.{key}" if path else key, found)
    elif isinstance(value, list):
        keys = schema.get("keys", ())
        for index, item in enumerate(value):
            before = _correlated(item, old, keys) if isinstance(old, list) else None
            _rules(item, before, schema.get("items", {}), f"{path}[{index}]", found)


_RULED: Final[dict[tuple[int, bool], bool]] = {}  # by the identity of a schema: the tables are read once and stay


def _ruled(schema: Schema, *, changes: bool) -> bool:
    """Whether a schema, or one below it, has rules; without `changes` those about an old value do not count."""
    schema = _resolved(schema)
    key = (id(schema), changes)
    if key not in _RULED:
        _RULED[key] = False  # for a schema that has itself below it
        below = [*schema.get("properties", {}).values()]
        below += [schema[part] for part in ("additionalProperties", "items") if isinstance(schema.get(part), dict)]
        own = any(changes or "oldSelf" not in rule for rule, _ in schema.get("rules", _NO_RULES))
        _RULED[key] = own or any(_ruled(one, changes=changes) for one in below)
    return _RULED[key]


def _named_parts(value: Any, rule: str) -> Any:
    """The value as far as a rule looks at it: CEL copies what it is given, and most rules name one field."""
    if not isinstance(value, dict):
        return value
    named = _PARTS.findall(rule)
    return {key: value[key] for key in named if key in value} if len(named) == len(_SELF.findall(rule)) else value


def _correlated(item: Any, old: list[Any], keys: tuple[str, ...]) -> Any:
    """The item that this one was: known only in a list with keys."""
    if not keys:
        return None
    wanted = [item.get(key) for key in keys]
    return next((one for one in old if [one.get(key) for key in keys] == wanted), None)


def _comparable(value: Any, schema: Schema) -> Any:
    """The value with its keyed lists and sets in one order: for CEL they are equal whatever the order."""
    schema = _resolved(schema)
    if isinstance(value, dict):
        properties, every = schema.get("properties", {}), schema.get("additionalProperties", {})
        return {key: _comparable(item, properties.get(key, every)) for key, item in value.items()}
    if isinstance(value, list):
        items = [_comparable(item, schema.get("items", {})) for item in value]
        if schema.get("list") in ("map", "set"):
            keys = schema.get("keys", ())
            items.sort(key=lambda item: str([item.get(key) for key in keys]) if keys else str(item))
        return items
    return value


@cache
def _program(rule: str) -> Any:
    from dibs import cel

    return cel.Environment({"self": cel.DYN, "oldSelf": cel.DYN}).compile(rule)
