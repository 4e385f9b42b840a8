"""Tables for `kubectl get`: an API server makes the columns, so the client need not know the kind. Pure."""

from __future__ import annotations

from typing import Any

from dibs.gateway.kubeflow.resources import Resource
from dibs.gateway.kubeflow.times import age

Json = dict[str, Any]

_API_VERSION = "meta.k8s.io/v1"


def wanted(accept: str) -> bool:
    """Whether the first form that a client takes is a table."""
    first = accept.partition(",")[0].replace(" ", "")
    return "as=Table" in first and "g=meta.k8s.io" in first and "v=v1;" in f"{first};"


def table(resource: Resource, items: list[Json], version: str) -> Json:
    columns = [
        {
            "name": one.name,
            "type": "string" if one.type == "date" else one.type,
            "format": one.format,
            "description": one.name,
            "priority": 1 if one.wide else 0,
        }
        for one in resource.columns
    ]
    rows = [
        {
            "cells": [_cell(one.type, one.value(item)) for one in resource.columns],
            "object": {
                "kind": "PartialObjectMetadata",
                "apiVersion": _API_VERSION,
                "metadata": item["metadata"],
            },
        }
        for item in items
    ]
    metadata = {"resourceVersion": version}
    return {
        "kind": "Table", "apiVersion": _API_VERSION, "metadata": metadata, "columnDefinitions": columns, "rows": rows
    }  # fmt: skip


def _cell(kind: str, value: Any) -> Any:
    return age(value) if kind == "date" else value
