"""One call: who makes it, in which workspace, on which gateway. What every method gets, and how a method is described.

A method is a coroutine `(call, request)`. A unary one returns its answer; a streaming one writes with `call.send`.
"""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar

import grpc
import msgspec

from dibs.errors import InvalidRequest, NotFound
from dibs.gateway.problems import ClientGone
from dibs.gateway.state import Gateway
from dibs.workloads.identity import HOST, Identity

READ, WRITE, ADMIN = "sandboxes:read", "sandboxes:write", "admin"
DEFAULT = "default"  # the workspace that is always there: the caller's own tenant
T = TypeVar("T")
LARGEST_PAGE = 1000
_USUAL_PAGE = 100
# What grpcio raises for a write to a call that has ended: the client is gone, its deadline is over, the server stops.
_GONE = (grpc.aio.InternalError, grpc.aio.UsageError)


class Method(NamedTuple):
    """`kind`: unary, stream (one request, many answers) or talk (many of both)."""

    name: str
    takes: str
    gives: str
    work: Callable[[Call, Any], Awaitable[Any]]
    scope: str = READ
    kind: str = "unary"


class Place(NamedTuple):
    """A workspace as it was asked for, and the caller as one who is in it."""

    name: str
    who: Identity


class Call:
    """One call of a method."""

    def __init__(self, gateway: Gateway, context: Any, who: Identity | None) -> None:
        self.gateway = gateway
        self.context = context
        self._who = who
        self.facts: dict[str, str] = {}  # for ErrorInfo, if the call is refused

    @property
    def who(self) -> Identity:
        assert self._who is not None  # only Health is open to all
        return self._who

    async def send(self, message: Any) -> None:
        """Write one answer of a stream. Waits while the client does not read; raises ClientGone when it is gone."""
        try:
            await self.context.write(message)
        except _GONE as error:
            raise ClientGone from error

    async def place(self, scope: Any) -> Place:
        """The workspace of a request. Another tenant's is as unknown as one that never was."""
        if scope.WhichOneof("selection") != "workspace" or not scope.workspace:
            raise InvalidRequest(
                "one workspace must be named", field="workspace_scope.workspace", code="WORKSPACE_MISSING",
                remedy=f"write {DEFAULT}",
            )  # fmt: skip
        tenant = await self.tenant_of(scope.workspace)
        return Place(scope.workspace, self.within(tenant))

    async def tenant_of(self, workspace: str) -> str:
        """The tenant behind a workspace's name."""
        who = self.who
        if workspace == DEFAULT:
            return HOST if who.sees_all else who.tenant
        if not who.sees_all and workspace == who.tenant:
            return workspace
        if who.sees_all:
            from dibs.gateway.openshell import workspaces

            if await self.gateway.pool.call(workspaces.exists, workspace):
                return workspace
        raise unknown_workspace(workspace)

    def within(self, tenant: str) -> Identity:
        """The caller, bound to one tenant. No caller here gets a folder of the host."""
        return msgspec.structs.replace(self.who, tenant=tenant, sees_all=False, remote=True)


def unknown_workspace(name: str) -> NotFound:
    return NotFound(
        "there is no such workspace", field="workspace", value=name[:64], code="WORKSPACE_NOT_FOUND",
        remedy=f"{DEFAULT} is always there",
    )  # fmt: skip


def page_size(asked: int) -> int:
    """How many a page has: at most what was asked for, and never more than OpenShell gives."""
    if asked < 0:
        raise InvalidRequest("must not be negative", field="page_size", value=str(asked), code="PAGE_INVALID")
    return min(asked, LARGEST_PAGE) or _USUAL_PAGE


def page_token(last: Any) -> str:
    """Where the next page begins: after this."""
    return base64.urlsafe_b64encode(msgspec.json.encode(last)).decode()


def page_begin(token: str, kind: type[T]) -> T | None:
    """What the page before ended with; None for the first page."""
    if not token:
        return None
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(token), type=kind)
    except (ValueError, msgspec.DecodeError):
        raise InvalidRequest(
            "this is not a page token of this gateway", field="page_token", value=token[:64], code="PAGE_INVALID",
            remedy="leave it out to begin anew",
        ) from None  # fmt: skip
