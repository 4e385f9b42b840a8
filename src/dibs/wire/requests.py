"""The body that asks for a sandbox, as JSON Schema: the same mapping as a request file.

It is made from the table in `request.fields`. `request.spec` reads a body and says every problem; this tells clients
its shape. Where the grammar is richer than JSON Schema can say (a GPU, an amount, a claim) only the type is given; the
page about requests says the rest.
"""

from __future__ import annotations

from typing import Any

from dibs.request.fields import COUNT, FIELDS, RESOURCES, TEXT
from dibs.request.gpu import VENDORS

_EVERY: dict[str, Any] = {
    field.name: {**field.schema, **({"description": field.note} if field.note else {})} for field in FIELDS
}
_RESOURCES: dict[str, Any] = {
    **{name: _EVERY[name] for name in RESOURCES},
    **{f"{vendor}.com/gpu": COUNT for vendor in VENDORS},
}
_BASE_ENV = {
    "type": "object",
    "additionalProperties": TEXT,
    "description": "variables that the sandbox starts from, as those of a shell; `env` stands over them",
}
REQUEST_SCHEMA: dict[str, Any] = {
    "type": "object",
    "title": "Request",
    "description": "what is asked for: devices, limits, and what runs with them",
    "properties": {
        **_RESOURCES,
        **{name: schema for name, schema in _EVERY.items() if name not in RESOURCES},
        "base_env": _BASE_ENV,
        "resources": {"type": "object", "properties": _RESOURCES, "additionalProperties": False},
    },
    "additionalProperties": False,
}
EXPLAIN_SCHEMA: dict[str, Any] = {
    **REQUEST_SCHEMA,
    "title": "Question",
    "properties": {name: schema for name, schema in REQUEST_SCHEMA["properties"].items() if name != "base_env"},
}
