"""The gateway's own token: made at the first start, kept for its user in the state folder, so that a client on this
host needs one line to connect. And the question whether there are tokens at all. `cli.serve` asks both."""

from __future__ import annotations

import os
import time
from pathlib import Path

from dibs.errors import StateError
from dibs.home import Home
from dibs.ledger.store import Ledger
from dibs.ledger.tokens import TokenRow, Tokens
from dibs.settings import Settings
from dibs.workloads.service import Workloads

NAME = "gateway"  # the name of the token that the gateway makes for its own user


def open_ledger(settings: Settings, home: Home) -> Ledger:
    from dibs.workloads.registry import Registry

    return Workloads(home, registry=Registry(home, settings)).ledger


def usable_tokens(settings: Settings, home: Home) -> list[TokenRow]:
    """Tokens that would be let in now. The gateway's own does not count: it was not issued to a client."""
    with open_ledger(settings, home) as ledger:
        now = time.time()
        return [
            row
            for row in Tokens(ledger).list()
            if row.revoked_at is None and not row.expired(now) and row.name != _own_name()
        ]


def keep_own_token(settings: Settings, home: Home) -> Path:
    """See that there is a good token in the state folder; where it is. Made anew if it is not there, or revoked."""
    path = home.state / "gateway.token"
    with open_ledger(settings, home) as ledger:
        tokens = Tokens(ledger)
        try:
            kept = path.read_text().strip()
        except FileNotFoundError:
            kept = ""
        except OSError as error:
            raise _unusable(str(path), error) from error
        row = tokens.find(kept) if kept else None
        if row is not None and row.revoked_at is None and not row.expired(time.time()):
            return path
        for old in tokens.list():
            if old.name == _own_name() and old.revoked_at is None:
                tokens.revoke(old.id)
        _, secret = tokens.create(_own_name(), ("admin",), "")
    try:
        draft = path.with_name(f"gateway.token.{os.getpid()}")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secret + "\n")
        draft.replace(path)
    except OSError as error:
        raise _unusable(str(path), error) from error
    return path


def _own_name() -> str:
    """Several hosts may share a ledger; each gateway's own token has a name of its own."""
    return f"{NAME}-{os.uname().nodename}-{os.getuid()}"


def _unusable(path: str, error: OSError) -> StateError:
    return StateError(
        f"the token cannot be kept: {error.strerror}", field="token", value=path, code="STATE_FOLDER_UNUSABLE",
        remedy="check the permissions of the folder",
    )  # fmt: skip
