"""Lists that can go on: the newest state of a kind, and what has changed on the way there.

An API server has a number for every change. Here the state is looked at as a whole, and compared: what differs gets a
new number, the last changes are kept, and a watch goes on from a number that it knows. A number that is not known any
more, or is another gateway's, is `Expired` (410), and a client then lists again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Literal

import msgspec

from dibs.gateway.kubeflow import selectors, tables
from dibs.gateway.kubeflow.requests import ListQuery
from dibs.gateway.kubeflow.resources import Resource
from dibs.gateway.problems import Refused
from dibs.gateway.state import Gateway

Json = dict[str, Any]
Key = tuple[str, str]
_KEPT = 4096  # changes; a watch that was away for longer lists again
_LONGEST = 1800  # seconds that a watch lasts if it does not say
_LOOK = 1.0  # seconds between two looks while nothing is told
_ENCODER = msgspec.json.Encoder()


class Change(msgspec.Struct, frozen=True):
    version: int
    kind: Literal["ADDED", "MODIFIED", "DELETED"]
    value: Json


class Collection:
    """All objects of a kind, of all namespaces. `read` looks at them; `seq` is a number that only grows."""

    def __init__(self, read: Callable[[], Awaitable[list[Json]]], seq: Callable[[], Awaitable[int]]) -> None:
        self._read = read
        self._seq = seq
        self._lock = asyncio.Lock()
        self._now: dict[Key, Json] = {}
        self._changes: deque[Change] = deque(maxlen=_KEPT)
        self.version = 0
        self._oldest = 0

    async def refresh(self) -> None:
        """Look, and number what is different."""
        async with self._lock:
            seq = await self._seq()
            found = {(one["metadata"]["namespace"], one["metadata"]["name"]): one for one in await self._read()}
            if not self.version:
                self.version = self._oldest = max(seq, 1)
                self._now = {key: _versioned(one, self.version) for key, one in found.items()}
                return
            version = max(self.version + 1, seq)
            told = list(self._differences(found, version))
            if not told:
                return
            if len(self._changes) + len(told) > _KEPT:
                self._oldest = self._changes[len(told) - 1].version if len(told) <= len(self._changes) else version
            self._changes.extend(told)
            self.version = version

    def _differences(self, found: dict[Key, Json], version: int) -> Any:
        for key in [one for one in self._now if one not in found]:
            yield Change(version, "DELETED", _versioned(self._now.pop(key), version))
        for key, value in found.items():
            before = self._now.get(key)
            if before is not None and before["metadata"]["uid"] != value["metadata"]["uid"]:
                yield Change(version, "DELETED", _versioned(before, version))
                before = None
            kept = _versioned(value, int(before["metadata"]["resourceVersion"]) if before else version)
            if before == kept:
                continue
            self._now[key] = _versioned(value, version)
            yield Change(version, "MODIFIED" if before else "ADDED", self._now[key])

    def items(self, namespace: str | None) -> list[Json]:
        return [one for (place, _), one in self._now.items() if namespace is None or place == namespace]

    def find(self, namespace: str, name: str) -> Json | None:
        return self._now.get((namespace, name))

    def since(self, version: int) -> list[Change]:
        """What came after a number. Raises Refused (410) if that is not known."""
        if version < self._oldest or version > self.version:
            reason = f"too old resource version: {version} ({self.version})"
            raise Refused(410, code="WATCH_EXPIRED", reason=reason, field="", remedy="ask for the list again")
        return [one for one in self._changes if one.version > version]


def _versioned(value: Json, version: int) -> Json:
    return {**value, "metadata": {**value["metadata"], "resourceVersion": str(version)}}


async def stream(
    gateway: Gateway,
    collection: Collection,
    resource: Resource,
    asked: ListQuery,
    namespace: str | None,
    as_table: bool,
) -> AsyncIterator[bytes]:
    """The lines of a watch. It ends after its time, and when the gateway stops."""
    loop = asyncio.get_running_loop()
    until = loop.time() + (asked.timeoutSeconds or _LONGEST)
    await collection.refresh()
    first: list[Change] = []
    if asked.resourceVersion in ("", "0"):
        version = collection.version
        first = [Change(version, "ADDED", one) for one in collection.items(namespace)]
    else:
        version = int(asked.resourceVersion)
        first = collection.since(version)
    yield b""  # what is wrong was an error until here, and not a broken stream
    while True:
        for change in first:
            place = change.value["metadata"]["namespace"]
            if (namespace is None or place == namespace) and selectors.matches(asked, change.value):
                yield _line(change, resource, as_table)
        version = collection.version
        if gateway.stopping or loop.time() >= until:
            return
        await gateway.changes.wait(min(_LOOK, max(0.0, until - loop.time())))
        await collection.refresh()
        try:
            first = collection.since(version)
        except Refused as error:
            from dibs.gateway.kubeflow.status import status_object

            gone = status_object(error, 410, str(error), error.problems, "")
            yield _ENCODER.encode({"type": "ERROR", "object": gone}) + b"\n"
            return


def _line(change: Change, resource: Resource, as_table: bool) -> bytes:
    value = change.value
    if as_table:
        value = tables.table(resource, [value], value["metadata"]["resourceVersion"])
    return _ENCODER.encode({"type": change.kind, "object": value}) + b"\n"
