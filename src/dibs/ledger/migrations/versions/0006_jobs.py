"""Training jobs: what was submitted, how far it has come, and who drives it."""

from alembic import op

from dibs.ledger.database import split_statements
from dibs.ledger.dialect import postgres_schema

revision = "0006"
down_revision = "0005"

STATEMENTS = """
CREATE TABLE jobs (
    id          TEXT PRIMARY KEY,
    domain      TEXT NOT NULL,
    name        TEXT NOT NULL,
    backend     TEXT NOT NULL,
    state       TEXT NOT NULL CHECK
                (state IN ('queued', 'creating', 'running', 'stopping', 'suspended', 'complete', 'failed')),
    wanted      TEXT NOT NULL CHECK (wanted IN ('run', 'suspend', 'remove')),
    uid         INTEGER NOT NULL,
    username    TEXT NOT NULL,
    tenant      TEXT NOT NULL,
    owner       TEXT NOT NULL,
    fence       INTEGER NOT NULL,
    attended    INTEGER NOT NULL CHECK (attended IN (0, 1)),
    spec        TEXT NOT NULL,
    status      TEXT NOT NULL,
    version     INTEGER NOT NULL,
    created_at  REAL NOT NULL,
    ended_at    REAL
);

CREATE UNIQUE INDEX jobs_live_name ON jobs (domain, tenant, uid, name) WHERE ended_at IS NULL;
CREATE INDEX jobs_live ON jobs (domain, version) WHERE ended_at IS NULL;
CREATE INDEX jobs_by_name ON jobs (domain, tenant, name, created_at);
"""


def upgrade() -> None:
    on_sqlite = op.get_bind().dialect.name == "sqlite"
    for statement in split_statements(STATEMENTS):
        op.execute(statement if on_sqlite else postgres_schema(statement))
    op.execute("PRAGMA user_version = 6" if on_sqlite else "UPDATE settings SET value = '6' WHERE key = 'schema'")
