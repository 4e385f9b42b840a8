"""Runtimes that a TrainJob can refer to: those that come with dibs, and those that an administrator keeps here.

A ClusterTrainingRuntime is everyone's, a TrainingRuntime is a tenant's. The gateway's Kubeflow surface writes them;
a job keeps a copy of its runtime, so a later edit changes nothing. What is kept was judged by `train.review` before it
came here.
"""

from __future__ import annotations

import uuid
from typing import Any

import msgspec

from dibs.errors import Conflict
from dibs.ledger.objects import ObjectRow, Objects
from dibs.ledger.store import Ledger
from dibs.train import shipped
from dibs.train.objects import CLUSTER_RUNTIME
from dibs.workloads.identity import HOST

Json = dict[str, Any]

_SHIPPED = uuid.UUID("6b1f2a52-7f0e-4f0b-9a39-0d5c7f0f8a11")  # the names in it make the uids of what comes with dibs


class Kept(msgspec.Struct, frozen=True):
    """A runtime and where it is from. `row` is None for one that comes with dibs."""

    runtime: Json
    tenant: str
    uid: str
    version: str = "1"
    created_at: float = 0.0
    row: ObjectRow | None = None


class Runtimes:
    """The runtimes of one ledger. `tenant` is that of a TrainingRuntime; a ClusterTrainingRuntime has none."""

    def __init__(self, ledger: Ledger) -> None:
        self._objects = Objects(ledger)

    def list(self, kind: str, tenant: str | None) -> list[Kept]:
        """By name. `tenant` None: of all tenants."""
        found = [_kept(row) for row in self._objects.list(kind.lower(), HOST if kind == CLUSTER_RUNTIME else tenant)]
        if kind == CLUSTER_RUNTIME:
            found += [_shipped(runtime) for runtime in shipped.all_runtimes()]
        return sorted(found, key=lambda one: (one.tenant, one.runtime["metadata"]["name"]))

    def find(self, kind: str, tenant: str, name: str) -> Kept | None:
        if kind == CLUSTER_RUNTIME:
            own = shipped.runtime(name)
            if own is not None:
                return _shipped(own)
            tenant = HOST
        if not name or "/" in name or "%" in name or "_" in name:
            return None
        row = self._objects.find(kind.lower(), tenant, name)
        return None if row is None else _kept(row)

    def runtime(self, kind: str, tenant: str, name: str) -> Json | None:
        """The runtime alone, as `train.review` looks it up."""
        found = self.find(kind, tenant, name)
        return None if found is None else found.runtime

    def add(self, kind: str, tenant: str, runtime: Json) -> Kept:
        """Raises Conflict (NAME_TAKEN) if there is one of that name."""
        name = runtime["metadata"]["name"]
        if kind == CLUSTER_RUNTIME and shipped.runtime(name) is not None:
            raise Conflict(
                "a runtime of that name comes with dibs", field="metadata.name", value=name, code="NAME_TAKEN",
                remedy="take another name",
            )  # fmt: skip
        return _kept(self._objects.add(kind.lower(), tenant, name, _text(runtime)))

    def change(self, before: Kept, runtime: Json) -> Kept:
        return _kept(self._objects.change(_own(before), _text(runtime)))

    def remove(self, before: Kept) -> None:
        row = _own(before)
        self._objects.remove(row.kind, row.tenant, row.name)


def _own(kept: Kept) -> ObjectRow:
    if kept.row is None:
        raise Conflict(
            "it comes with dibs, and stays as it is", field="metadata.name", value=kept.runtime["metadata"]["name"],
            code="RUNTIME_SHIPPED", remedy="create one of your own under another name",
        )  # fmt: skip
    return kept.row


def _kept(row: ObjectRow) -> Kept:
    return Kept(msgspec.json.decode(row.body), row.tenant, row.id, str(row.version), row.created_at, row)


def _shipped(runtime: Json) -> Kept:
    return Kept(runtime, HOST, str(uuid.uuid5(_SHIPPED, runtime["metadata"]["name"])))


def _text(runtime: Json) -> str:
    return msgspec.json.encode(runtime).decode()
