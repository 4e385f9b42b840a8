"""What a rank prints: `GET pods/NAME/log`, whole or as it comes.

With `follow` the answer waits until the rank runs, and ends when the rank has. Nothing is gathered in memory, but for
the last lines that were asked for.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any, Literal

import msgspec
from litestar import Response, get
from litestar.response import Stream
from msgspec import Meta

from dibs.backends.port import LogRecord
from dibs.errors import InvalidRequest
from dibs.gateway.auth import require
from dibs.gateway.kubeflow import clusters, pods, requests
from dibs.gateway.kubeflow.namespaces import READ, tenant_in
from dibs.gateway.kubeflow.resources import PODS
from dibs.gateway.native.common import Ask, gateway_of
from dibs.gateway.state import Gateway
from dibs.workloads import log_lines
from dibs.workloads.identity import Identity
from dibs.workloads.jobs.service import Jobs
from dibs.workloads.service import Workloads

Json = dict[str, Any]


class LogQuery(msgspec.Struct, frozen=True):
    """As the API has it. `previous` is refused: what a rank printed before a restart is in the job's own logs."""

    container: str = ""
    follow: bool = False
    previous: bool = False
    tailLines: Annotated[int, Meta(ge=0)] | None = None  # noqa: N815
    sinceSeconds: Annotated[int, Meta(ge=1)] | None = None  # noqa: N815
    limitBytes: Annotated[int, Meta(ge=1)] | None = None  # noqa: N815
    timestamps: bool = False
    stream: Literal["All", "Stdout", "Stderr"] = "All"
    pretty: str = ""
    insecureSkipTLSVerifyBackend: bool = False  # noqa: N815


@get(PODS.one + "/log")
async def pod_log(request: Ask) -> Response[Any]:
    who = require(request, READ)
    asked: LogQuery = requests.query(request, LogQuery)
    pod = await pods.find(request, who)
    name = pod["metadata"]["name"]
    known = [one["name"] for one in pod["spec"]["containers"]]
    if asked.container and asked.container not in known:
        reason = f"container {asked.container[:63]} is not valid for pod {name}"
        raise InvalidRequest(reason, field="container", code="FIELD_INVALID", remedy=f"it has {', '.join(known)}")
    gateway = gateway_of(request)
    cluster = await gateway.pool.call(clusters.backend_of, pod)
    if cluster:
        there = _from_cluster(gateway, who, cluster, tenant_in(request, who), name, asked)
        await anext(there)
        return Stream(there, media_type="text/plain")
    if asked.previous:
        reason = f'previous terminated container "{known[0]}" in pod "{name}" not found'
        remedy = "a rank that is started again is a new sandbox; `dibs train logs` has what earlier ones have written"
        raise InvalidRequest(reason, field="previous", code="FIELD_INVALID", remedy=remedy)
    if pod["status"]["phase"] == "Pending" and not asked.follow:
        state = pod["status"]["containerStatuses"][0]["state"].get("waiting", {})
        reason = f'container "{known[0]}" in pod "{name}" is waiting to start: {state.get("reason", "Pending")}'
        remedy = state.get("message") or "ask again, or follow it"
        raise InvalidRequest(reason, field="", code="STILL_CREATING", remedy=remedy)
    job = pod["metadata"]["ownerReferences"][0]["uid"]
    pieces = _pieces(gateway, who, job, name, asked)
    await anext(pieces)
    return Stream(pieces, media_type="text/plain")


async def _pieces(gateway: Gateway, who: Identity, job: str, rank: str, asked: LogQuery) -> AsyncIterator[bytes]:
    """First an empty piece, which is not sent: with it the stream has its place."""
    left = asked.limitBytes
    with gateway.pool.place(who):
        yield b""
        async with gateway.pool.stream(_records, who, job, rank, asked) as records:
            async for record in records:
                if gateway.stopping:
                    return
                data = record.data if left is None else record.data[:left]
                if data:
                    yield data
                if left is not None:
                    left -= len(data)
                    if left <= 0:
                        return


async def _from_cluster(
    gateway: Gateway, who: Identity, backend: str, tenant: str, pod: str, asked: LogQuery
) -> AsyncIterator[bytes]:
    """As the cluster streams it. What is wrong is said before the first piece."""
    said = {key: value for key, value in msgspec.to_builtins(asked).items() if value not in (None, False, "", "All")}
    with gateway.pool.place(who):
        async with gateway.pool.stream(clusters.log, backend, tenant, pod, said) as pieces:
            first = await anext(pieces, None)
            yield b""
            if first:
                yield first
            async for piece in pieces:
                if gateway.stopping:
                    return
                if piece:
                    yield piece


def _records(workloads: Workloads, who: Identity, job: str, rank: str, asked: LogQuery) -> Iterator[LogRecord]:
    found = Jobs(workloads.seen_by(who)).logs(job, rank=rank, follow=asked.follow)
    records: Iterator[LogRecord] = (one.record for one in found)
    if asked.stream != "All":
        records = (one for one in records if one.stream == asked.stream.lower())
    now = time.time()
    if asked.tailLines is not None or asked.timestamps or asked.sinceSeconds is not None:
        records = log_lines.lines(records)
    if asked.sinceSeconds is not None:
        records = log_lines.since(records, now - asked.sinceSeconds)
    if asked.tailLines is not None:
        records = log_lines.tail(records, asked.tailLines, now)
    if asked.timestamps:
        records = log_lines.stamped(records)
    return records


HANDLERS = (pod_log,)
