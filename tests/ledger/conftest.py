"""Both databases under the ledger. A test that asks for `database` runs on each."""

from __future__ import annotations

import pytest
from tests.postgres import server


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every ledger of the test is on this database."""
    if request.param == "postgresql":
        monkeypatch.setenv("DIBS_LEDGER", server.shared().new_database())
    return str(request.param)


@pytest.fixture
def postgres(monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a new database on PostgreSQL; every ledger of the test is there."""
    url = server.shared().new_database()
    monkeypatch.setenv("DIBS_LEDGER", url)
    return url
