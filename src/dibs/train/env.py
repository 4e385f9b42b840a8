"""Entries of a container that are set by name: variables, ports, volumes, mounts. In place where one is there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dibs.train.names import COMPLETION_INDEX, PORT

Json = dict[str, Any]


def value(name: str, text: object) -> Json:
    return {"name": name, "value": str(text)}


def completion_index(name: str) -> Json:
    """A variable that holds the pod's index in its job: the rank."""
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": COMPLETION_INDEX}}}


def upsert(owner: Json, field: str, key: str, entries: Iterable[Json]) -> None:
    """Each entry replaces the one with the same key whole, or is appended."""
    items: list[Json] = owner.setdefault(field, [])
    for entry in entries:
        at = next((index for index, item in enumerate(items) if item.get(key) == entry[key]), None)
        if at is None:
            items.append(dict(entry))
        else:
            items[at] = dict(entry)
    if not items:
        del owner[field]


def set_env(container: Json, variables: Iterable[Json]) -> None:
    upsert(container, "env", "name", variables)


def open_port(container: Json) -> None:
    """The rendezvous port, beside those that the runtime has."""
    ports: list[Json] = container.setdefault("ports", [])
    if not any(one["containerPort"] == PORT and one.get("protocol", "TCP") == "TCP" for one in ports):
        ports.append({"containerPort": PORT, "protocol": "TCP"})
