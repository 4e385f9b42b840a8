"""Rows belong to a domain, which is a host or a cluster; a delivery has steps, an owner that gives signs of life, and a
number that fences off the owner before it; sandboxes may be a group."""

from alembic import op

from dibs.ledger.database import split_statements
from dibs.ledger.dialect import postgres_schema

revision = "0005"
down_revision = "0004"

STATEMENTS = """
ALTER TABLE sandboxes RENAME COLUMN host TO domain;
ALTER TABLE leases RENAME COLUMN host TO domain;
ALTER TABLE lease_units RENAME COLUMN host TO domain;
ALTER TABLE lease_shares RENAME COLUMN host TO domain;
ALTER TABLE taints RENAME COLUMN host TO domain;
ALTER TABLE tickets RENAME COLUMN host TO domain;

ALTER TABLE sandboxes ADD COLUMN step TEXT NOT NULL DEFAULT 'booked';
ALTER TABLE sandboxes ADD COLUMN fence INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sandboxes ADD COLUMN waits_for TEXT NOT NULL DEFAULT '';
ALTER TABLE sandboxes ADD COLUMN group_id TEXT NOT NULL DEFAULT '';
ALTER TABLE sandboxes ADD COLUMN rank INTEGER NOT NULL DEFAULT 0;
CREATE INDEX sandboxes_by_group ON sandboxes (group_id, rank) WHERE group_id <> '';

ALTER TABLE leases ADD COLUMN allocation TEXT NOT NULL DEFAULT 'booked';
ALTER TABLE leases ADD COLUMN claim TEXT NOT NULL DEFAULT '';
ALTER TABLE leases ADD COLUMN node TEXT NOT NULL DEFAULT '';

CREATE TABLE heartbeats (
    owner       TEXT PRIMARY KEY,
    beat        INTEGER NOT NULL,
    at          REAL NOT NULL
);
"""


def upgrade() -> None:
    on_sqlite = op.get_bind().dialect.name == "sqlite"
    for statement in split_statements(STATEMENTS):
        op.execute(statement if on_sqlite else postgres_schema(statement))
    op.execute("PRAGMA user_version = 5" if on_sqlite else "UPDATE settings SET value = '5' WHERE key = 'schema'")
