"""Which kernels a ledger has been used on."""

from alembic import op

from dibs.ledger.database import split_statements
from dibs.ledger.dialect import postgres_schema

revision = "0004"
down_revision = "0003"

STATEMENTS = """
CREATE TABLE kernels (
    host        TEXT NOT NULL,
    boot        TEXT NOT NULL,
    hostname    TEXT NOT NULL,
    addresses   TEXT NOT NULL,
    home        TEXT NOT NULL,
    filesystem  TEXT NOT NULL,
    since       REAL NOT NULL,
    ended_at    REAL,
    PRIMARY KEY (host, boot)
);

CREATE UNIQUE INDEX kernels_current ON kernels (host) WHERE ended_at IS NULL;
"""


def upgrade() -> None:
    on_sqlite = op.get_bind().dialect.name == "sqlite"
    for statement in split_statements(STATEMENTS):
        op.execute(statement if on_sqlite else postgres_schema(statement))
    op.execute("PRAGMA user_version = 4" if on_sqlite else "UPDATE settings SET value = '4' WHERE key = 'schema'")
