"""The body that asks for a sandbox, as JSON Schema: the same mapping as a request file.

`request.spec` reads it and says every problem; this tells clients its shape. Where the grammar is richer than JSON
Schema can say (a GPU, an amount, a claim) only the type is given; the page about requests says the rest.
"""

from __future__ import annotations

from typing import Any

_TEXT = {"type": "string"}
_AMOUNT = {"type": ["string", "number"]}
_DURATION = {"type": ["string", "number"], "description": "90s, 10m, 1h30m, or a number of seconds"}
_FLAG = {"type": "boolean"}
_WISH = {"anyOf": [{"type": ["string", "integer"]}, {"type": "array", "items": {"type": ["string", "integer"]}}]}
_TEXTS = {"anyOf": [_TEXT, {"type": "array", "items": _TEXT}]}
_GPU = {
    **_WISH,
    "description": "a count, `all`, or vendor:models:memory:count, as in nvidia:H100:80GB..:2; or a list of these",
}
_RESOURCES: dict[str, Any] = {
    "gpu": _GPU,
    "device": {**_TEXTS, "description": "exact devices, as in nvidia.com/gpu=0"},
    "where": {**_TEXTS, "description": "CEL expressions that each device must fulfil"},
    "claim": {"type": "object", "description": "a ResourceClaim or ResourceClaimTemplate of Kubernetes"},
    "cpu": {**_AMOUNT, "description": "processors: 2, 0.5 or 500m"},
    "memory": {**_AMOUNT, "description": "4Gi, 512Mi or 4G"},
    "pids": {"type": ["string", "integer"]},
    "allow_busy": {**_FLAG, "description": "also cards that processes outside of dibs use"},
    "nvidia.com/gpu": _WISH,
    "amd.com/gpu": _WISH,
    "intel.com/gpu": _WISH,
}
_FIELDS: dict[str, Any] = {
    "command": {**_TEXTS, "description": "the words of the command; without one the sandbox waits for exec"},
    "name": {"type": "string", "pattern": "^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)?$"},
    "backend": {"type": "string", "description": "auto, or one of those that GET /api/v1/capabilities lists"},
    "image": {"type": "string"},
    "entrypoint": _TEXTS,
    "user": {"type": "string"},
    "env": {
        "anyOf": [
            {"type": "object", "additionalProperties": {"type": ["string", "number"]}},
            {"type": "array", "items": _TEXT},
        ]
    },
    "base_env": {
        "type": "object",
        "additionalProperties": _TEXT,
        "description": "variables that the sandbox starts from, as those of a shell; `env` stands over them",
    },
    "workdir": _TEXT,
    "root": _TEXT,
    "network": {"enum": ["host", "none", "private"]},
    "publish": {**_TEXTS, "description": "[ADDRESS:]PORT:PORT: a port of the host that leads to one of the sandbox"},
    "mounts": {"type": "array", "items": _TEXT, "description": "SOURCE:TARGET[:rw], as far as the gateway allows"},
    "ttl": _DURATION,
    "wait": {**_DURATION, "description": "how long it may wait in the queue; without it a busy device is a refusal"},
    "grace": _DURATION,
    "tty": _FLAG,
    "interactive": _FLAG,
    "labels": {"type": "object", "additionalProperties": _TEXT},
    "shm": _AMOUNT,
    "read_only": _FLAG,
    "platform": {"type": "string", "description": "as in linux/amd64"},
    "docker": {"type": "object", "description": "options for Docker alone"},
    "podman": {"type": "object", "description": "options for Podman alone"},
}
REQUEST_SCHEMA: dict[str, Any] = {
    "type": "object",
    "title": "Request",
    "description": "what is asked for: devices, limits, and what runs with them",
    "properties": {
        **_RESOURCES,
        **_FIELDS,
        "resources": {"type": "object", "properties": _RESOURCES, "additionalProperties": False},
    },
    "additionalProperties": False,
}
EXPLAIN_SCHEMA: dict[str, Any] = {
    **REQUEST_SCHEMA,
    "title": "Question",
    "properties": {name: schema for name, schema in REQUEST_SCHEMA["properties"].items() if name != "base_env"},
}
