"""This node's ResourceSlices at the API server: made, kept as they should be, removed.

`driver` calls it after every look. Slices are told by a label and by a hash of what was meant, because the API server
fills in fields of its own. All slices of a pool are written with one new generation whenever one of them changes, so an
allocator never mixes old and new. A slice is deleted only after it was listed: for a node's own identity the deletion
of an absent one is forbidden rather than not found.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import Any

import msgspec

from dibs.claims.slices import ResourceSlice
from dibs.errors import Conflict
from dibs.http import query
from dibs.kube import client as kube
from dibs.kube import errors
from dibs.kube.client import Cluster

LABEL = "app.kubernetes.io/managed-by"
OURS = "dibs-node"
HASH = "dibs/spec"  # annotation: what was meant


class Published(msgspec.Struct, frozen=True):
    """What one call did."""

    written: int = 0
    deleted: int = 0
    kept: str = ""  # why what has gone here was left at the API server


class Publisher:
    def __init__(self, cluster: Cluster, node: str) -> None:
        self._cluster = cluster
        self._node = node
        self._uid = ""
        self._generations: dict[str, int] = {}  # metadata.generation of what we wrote: another one is not ours

    def publish(self, wanted: Sequence[ResourceSlice], *, certain: bool = True) -> Published:
        """Make the API server's slices of this node those that are wanted.

        `certain`: what is not wanted has really gone. Otherwise a pool that would lose devices stays as it is.
        """
        there = self._listed({one.spec.driver for one in wanted})
        pools: dict[tuple[str, str], list[ResourceSlice]] = {}
        for one in wanted:
            pools.setdefault((one.spec.driver, one.spec.pool.name), []).append(one)
        written = deleted = 0
        kept = []
        for key in sorted({*pools, *(_pool(one) for one in there)}):
            now = [one for one in there if _pool(one) == key]
            mine = pools.get(key, [])
            lost = {name for one in now for name in _names(one)} - {d.name for one in mine for d in one.spec.devices}
            if lost and not certain:
                kept.append(f"{key[0]}: {', '.join(sorted(lost))}")
                continue
            made, gone = self._pool(mine, now)
            written, deleted = written + made, deleted + gone
        return Published(written, deleted, "; ".join(kept))

    def withdraw(self) -> int:
        """Remove all slices of this node that are ours."""
        there = self._listed(set())
        for one in there:
            self._delete(one)
        return len(there)

    def _listed(self, drivers: set[str]) -> list[dict[str, Any]]:
        """Our slices of this node. Those of another driver under one of our names are a conflict."""
        found = self._cluster.items(kube.SLICES, dict[str, Any], fields=f"spec.nodeName={self._node}")
        ours = [one for one in found if one["metadata"].get("labels", {}).get(LABEL) == OURS]
        others = sorted({_pool(one)[0] for one in found if one not in ours} & drivers)
        if others:
            raise Conflict(
                f"another DRA driver publishes under this name on {self._node}",
                field="driver", value=", ".join(others), code="DRIVER_CONFLICT",
                remedy="remove the other one, or name ours with --driver: but a device must not be offered twice",
            )  # fmt: skip
        return ours

    def _pool(self, wanted: Iterable[ResourceSlice], there: list[dict[str, Any]]) -> tuple[int, int]:
        by_name = {one["metadata"]["name"]: one for one in there}
        meant = {one.metadata.name: (one, _hash(one)) for one in wanted}
        same = by_name.keys() == meant.keys() and all(self._is(by_name[name], meant[name][1]) for name in meant)
        if same and len({one["spec"]["pool"]["generation"] for one in there}) <= 1:
            return 0, 0
        generation = max((one["spec"]["pool"]["generation"] for one in there), default=0) + 1
        for name, (one, digest) in meant.items():
            body = self._body(one, digest, generation, by_name.get(name))
            answer = self._cluster.replace(kube.SLICES, body) if name in by_name else self._create(body)
            self._generations[name] = int(answer["metadata"].get("generation", 0))
        gone = [left for name, left in by_name.items() if name not in meant]
        for left in gone:
            self._delete(left)
        return len(meant), len(gone)

    def _is(self, there: dict[str, Any], digest: str) -> bool:
        metadata = there["metadata"]
        if metadata.get("annotations", {}).get(HASH) != digest:
            return False
        # After a start the hash is believed; what is changed while we run is put right.
        now = int(metadata.get("generation", 0))
        return self._generations.setdefault(metadata["name"], now) == now

    def _create(self, body: dict[str, Any]) -> Any:
        try:
            return self._cluster.create(kube.SLICES, body)
        except errors.Exists as error:
            raise Conflict(
                "there is a slice of this name that is not ours", field="slice", value=body["metadata"]["name"],
                code="DRIVER_CONFLICT", remedy="delete it, or give our driver another name with --driver",
            ) from error  # fmt: skip

    def _delete(self, one: dict[str, Any]) -> None:
        name = one["metadata"]["name"]
        self._generations.pop(name, None)
        try:
            self._cluster.delete(kube.SLICES, name)
        except errors.Missing:
            return  # the kubelet, or a removed node's garbage collection, was faster
        except (errors.Forbidden, errors.Rejected):
            if any(left["metadata"]["name"] == name for left in self._listed(set())):
                raise

    def _body(self, one: ResourceSlice, digest: str, generation: int, there: dict[str, Any] | None) -> dict[str, Any]:
        body: dict[str, Any] = msgspec.to_builtins(one)
        body["spec"]["pool"]["generation"] = generation
        metadata = body["metadata"]
        metadata["labels"] = {LABEL: OURS}
        metadata["annotations"] = {**one.metadata.annotations, HASH: digest}
        owner = {"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": self._node_uid(), "controller": True}
        metadata["ownerReferences"] = [owner]
        if there is not None:
            metadata["resourceVersion"] = there["metadata"]["resourceVersion"]
        return body

    def _node_uid(self) -> str:
        if not self._uid:
            found = self._cluster.get(kube.NODES, self._node, dict[str, Any])
            self._uid = str(found["metadata"]["uid"])
        return self._uid


def changes(cluster: Cluster, node: str) -> Iterator[None]:
    """Something happened to a slice of this node, until the server ends the watch."""
    fields = f"spec.nodeName={node}"
    head = cluster.raw(kube.SLICES.path() + query(limit=1, fieldSelector=fields))
    yield  # whatever happened before
    for change, _ in cluster.watch(
        kube.SLICES, msgspec.Raw, since=head["metadata"]["resourceVersion"], fields=fields, seconds=600
    ):
        if change != "BOOKMARK":
            yield


def _pool(one: dict[str, Any]) -> tuple[str, str]:
    return one["spec"]["driver"], one["spec"]["pool"]["name"]


def _names(one: dict[str, Any]) -> list[str]:
    return [device["name"] for device in one["spec"].get("devices") or ()]


def _hash(one: ResourceSlice) -> str:
    return blake2b(msgspec.json.encode(one), digest_size=12).hexdigest()
