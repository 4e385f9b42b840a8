"""A gateway for the tests of a client: on any backend, and at its end nothing is left and nothing went wrong."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.engines import shared
from tests.gateway.conftest import RunningGateway, end_all

from dibs.home import Home
from dibs.ledger.store import Ledger
from dibs.ledger.tokens import Tokens


def engine(kind: str) -> tuple[Home, str]:
    """The home of a real engine's tests, and the settings that name the engine. Skips, with the reason, without one.

    For the tests of one file: the home is that of all tests of the engine, so no gateway may stay there.
    """
    found = shared.engine(kind)
    if isinstance(found, str):
        pytest.skip(f"{kind} is not here: {found}")
    home = Home(state=found.home, config=found.home / "config").make()
    return home, f'backends = ["{kind}"]\n[{kind}]\nsocket = "{found.socket}"\n'


@contextmanager
def gateway(
    home: Home, folder: Path, *flags: str, settings: str = "", env: dict[str, str] | None = None
) -> Iterator[RunningGateway]:
    """Its tokens are revoked at the end, even if it hangs: the next file may have a gateway on the same home."""
    found = RunningGateway(home, folder, *flags, settings=settings, env=env).start()
    try:
        yield found
    finally:
        try:
            code = found.stop()
        finally:
            _clean(home)
    assert code == 0, found.log[-4000:]
    trouble = found.log.partition("Traceback")[2]
    assert not trouble, trouble[:8000]


def _clean(home: Home) -> None:
    try:
        end_all(home)
    finally:
        with Ledger(home) as ledger:
            for one in Tokens(ledger).list():
                Tokens(ledger).revoke(one.id)


def held(home: Home) -> int:
    """How many leases and places in the queue there are, by the ledger itself."""
    with Ledger(home) as ledger:
        return len(ledger.leases()) + len(ledger.tickets())
