"""Calls that a client repeats, because it did not hear the answer: with the same `request_id` they happen once.

A unary call is given the answer of the first one. A command is never started twice, and its output is not kept, so a
repetition is refused. `server` asks for every unary call that has such an id, `exec` for commands; a create has its id
in the booking itself (`workloads.admission`).
"""

from __future__ import annotations

import hashlib
from typing import Any

from dibs.errors import Conflict, DibsError, InvalidRequest
from dibs.gateway.openshell import names, schema
from dibs.gateway.openshell.calls import Call, Method
from dibs.ledger.replies import Replies
from dibs.workloads.identity import Identity
from dibs.workloads.service import Workloads

COMMAND = "command"


async def once(call: Call, method: Method, request: Any) -> Any:
    """The answer to a call. One that was refused has had no effect, so its id is free again."""
    text, who, pool = request.request_id, call.who, call.gateway.pool
    problem = names.request_id_problem(text)
    if problem:
        raise InvalidRequest(problem)
    digest = digest_of(request)
    known = await pool.call(lambda work: Replies(work.ledger).begin(who.tenant, method.name, text, digest))
    if known is not None:
        if known.answer is None:
            raise Conflict(
                "a call with this id was begun, and how it ended is not known", field="request_id", value=text,
                code="OUTCOME_UNKNOWN", remedy="look whether it has happened; to do it again, take a new id",
            )  # fmt: skip
        return schema.message(method.gives).FromString(known.answer)
    try:
        answer = await method.work(call, request)
    except DibsError:
        await pool.call(lambda work: Replies(work.ledger).forget(who.tenant, method.name, text))
        raise
    data = answer.SerializeToString()
    await pool.call(lambda work: Replies(work.ledger).finish(who.tenant, method.name, text, data))
    return answer


def claim_command(workloads: Workloads, who: Identity, request: Any) -> None:
    """Before a command is started. Raises Conflict if one with this id was started already."""
    if Replies(workloads.ledger).begin(who.tenant, COMMAND, request.request_id, digest_of(request)) is not None:
        raise Conflict(
            "the command with this id was started already; its output is not sent again", field="request_id",
            value=request.request_id, code="REQUEST_ID_USED", remedy="to run it again, take a new id",
        )  # fmt: skip


def release_command(workloads: Workloads, who: Identity, request: Any) -> None:
    """After a command that could not be started."""
    Replies(workloads.ledger).forget(who.tenant, COMMAND, request.request_id)


def digest_of(request: Any) -> str:
    return hashlib.sha256(request.SerializeToString(deterministic=True)).hexdigest()
