"""The caller: a process of this host, or one that a gateway has recognised by a token or by the peer of its socket.

`workloads` asks it two questions: may this one see a sandbox, may this one touch it. A tenant's people see what is
their tenant's and nothing else; what they may not see does not exist for them.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec

from dibs.ledger.rows import Ticket
from dibs.process import username
from dibs.sandbox import Sandbox

if TYPE_CHECKING:
    from dibs.ledger.jobs import JobRow

SCOPES = ("sandboxes:read", "sandboxes:write", "devices:write", "admin")
HOST = ""  # the tenant of all users of the host itself


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """`sees_all`: not bound to one tenant. `owns_all`: may touch what others have made (root, an administrator)."""

    name: str
    uid: int
    tenant: str = HOST
    scopes: frozenset[str] = frozenset(SCOPES)
    sees_all: bool = False
    owns_all: bool = False
    token: str = ""  # the id of the token, if there is one
    gateway: bool = False  # comes through a gateway, by whatever way
    remote: bool = False  # came by a token: the host's folders are not this one's

    def sees(self, tenant: str) -> bool:
        return self.sees_all or self.tenant == tenant

    def touches(self, row: Sandbox | Ticket | JobRow) -> bool:
        """Within a tenant every user may; on the host itself only its owner."""
        return self.owns_all or (self.sees(row.tenant) and (self.tenant != HOST or self.uid == row.uid))


def this_process() -> Identity:
    """The user of this process. On a shared ledger every user sees everything; root may change it, too."""
    uid = os.getuid()
    return Identity(name=username(), uid=uid, sees_all=True, owns_all=uid == 0)
