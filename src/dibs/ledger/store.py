"""The ledger's verbs. Each is one short transaction, or part of one that the caller has opened with `writing()`.

`workloads` and the gateway are the callers. The ledger knows nothing of backends: who is alive is decided above and
told here. The verbs are in `sandboxes`, `leases`, `tickets`, `taints` and `books` (events); this joins them.
"""

from __future__ import annotations

import os

from dibs.home import Home
from dibs.ledger.books import new_id
from dibs.ledger.database import Database
from dibs.ledger.sandboxes import Sandboxes
from dibs.ledger.taints import Taints
from dibs.process import host_id

__all__ = ["Ledger", "new_id"]


class Ledger(Sandboxes, Taints):
    """One open ledger of one host."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.host = host_id()
        self._db = Database(home.make().ledger)
        if home.shared:
            _share(home)

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._db.close()

    def changes_by_others(self) -> int:
        return self._db.changes_by_others()


def _share(home: Home) -> None:
    """A host-wide ledger: the group may write what we have made."""
    for path in (home.ledger, home.ledger.with_name("ledger.db-wal"), home.ledger.with_name("ledger.db-shm")):
        try:
            if path.stat().st_uid == os.getuid():
                path.chmod(0o660)
        except FileNotFoundError:
            continue
