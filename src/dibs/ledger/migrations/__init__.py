"""Upgrades of a ledger that an older dibs has made. Loaded only when one is met; brings Alembic with it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any


def upgrade_sqlite(path: Path, revision: str = "head") -> None:
    """Bring the ledger at `path` to a revision. Safe to run from several processes: the first one does it."""
    from sqlalchemy import create_engine, event

    engine = create_engine(f"sqlite:///{path}", connect_args={"timeout": 60.0, "isolation_level": None})
    # The driver must not open transactions by itself: BEGIN IMMEDIATE makes the upgrade exclusive from its first look.
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
    with engine.begin() as connection:
        version = int(connection.exec_driver_sql("PRAGMA user_version").scalar_one())
        _run(connection, version, revision)
    engine.dispose()


def upgrade_postgres(connect: Callable[[], Any], lock: str, version: Callable[[], int], revision: str = "head") -> None:
    """The same on PostgreSQL. `connect` makes a connection, `lock` is the statement that makes us the only writer,
    `version` looks at the schema again, once we are."""
    from sqlalchemy import create_engine

    engine = create_engine("postgresql+psycopg://", creator=connect)
    with engine.begin() as connection:
        connection.exec_driver_sql(lock)
        _run(connection, version(), revision)
    engine.dispose()


def _run(connection: Any, version: int, revision: str) -> None:
    """A ledger that was made in one go has the tables of a revision, but nothing that says so to Alembic."""
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent))
    config.attributes["connection"] = connection
    if version:
        command.stamp(config, f"{version:04d}")
    command.upgrade(config, revision)
