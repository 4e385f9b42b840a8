"""Gateways: queued sandboxes with a tenant, labels and a time to live; tokens, idempotency keys, commands, snapshots.

SQLite cannot change a check, so the two tables that change are written anew; PostgreSQL changes them in place.
"""

from alembic import op

from dibs.ledger.dialect import postgres_schema

revision = "0002"
down_revision = "0001"

_OLD = (
    "id, host, name, backend, state, uid, username, owner, spec, folder, handle, receipt, exit, reason, simulated,"
    " created_at, started_at, ended_at"
)

SQLITE = f"""
CREATE TABLE sandboxes_new (
    id          TEXT PRIMARY KEY,
    host        TEXT NOT NULL,
    name        TEXT NOT NULL,
    backend     TEXT NOT NULL,
    state       TEXT NOT NULL
                CHECK (state IN ('queued', 'creating', 'running', 'paused', 'stopping', 'exited', 'failed')),
    uid         INTEGER NOT NULL,
    username    TEXT NOT NULL,
    owner       TEXT NOT NULL,
    spec        TEXT NOT NULL,
    folder      TEXT NOT NULL,
    handle      TEXT,
    receipt     TEXT,
    exit        TEXT,
    reason      TEXT,
    simulated   INTEGER NOT NULL DEFAULT 0,
    created_at  REAL NOT NULL,
    started_at  REAL,
    ended_at    REAL,
    tenant      TEXT NOT NULL DEFAULT '',
    labels      TEXT NOT NULL DEFAULT '{{}}',
    annotations TEXT NOT NULL DEFAULT '{{}}',
    pending     TEXT,
    origin      TEXT NOT NULL DEFAULT '',
    expires_at  REAL
);
INSERT INTO sandboxes_new ({_OLD}) SELECT {_OLD} FROM sandboxes;
DROP TABLE sandboxes;
ALTER TABLE sandboxes_new RENAME TO sandboxes;
CREATE TABLE tickets_new (
    seq         INTEGER PRIMARY KEY AUTOINCREMENT,
    id          TEXT NOT NULL UNIQUE,
    host        TEXT NOT NULL,
    uid         INTEGER NOT NULL,
    username    TEXT NOT NULL,
    owner       TEXT NOT NULL,
    request     TEXT NOT NULL,
    created_at  REAL NOT NULL,
    sandbox_id  TEXT
);
INSERT INTO tickets_new (seq, id, host, uid, username, owner, request, created_at)
SELECT seq, id, host, uid, username, owner, request, created_at FROM tickets;
DROP TABLE tickets;
ALTER TABLE tickets_new RENAME TO tickets
"""  # noqa: S608 - fixed text

POSTGRESQL = """
ALTER TABLE sandboxes DROP CONSTRAINT sandboxes_state_check;
ALTER TABLE sandboxes ADD CONSTRAINT sandboxes_state_check
CHECK (state IN ('queued', 'creating', 'running', 'paused', 'stopping', 'exited', 'failed'));
ALTER TABLE sandboxes ADD COLUMN tenant TEXT NOT NULL DEFAULT '';
ALTER TABLE sandboxes ADD COLUMN labels TEXT NOT NULL DEFAULT '{}';
ALTER TABLE sandboxes ADD COLUMN annotations TEXT NOT NULL DEFAULT '{}';
ALTER TABLE sandboxes ADD COLUMN pending TEXT;
ALTER TABLE sandboxes ADD COLUMN origin TEXT NOT NULL DEFAULT '';
ALTER TABLE sandboxes ADD COLUMN expires_at REAL;
ALTER TABLE tickets ADD COLUMN sandbox_id TEXT;
DROP INDEX sandboxes_live_name;
DROP INDEX sandboxes_by_end
"""

BOTH = """
CREATE UNIQUE INDEX sandboxes_live_name ON sandboxes (host, tenant, name) WHERE ended_at IS NULL;
CREATE INDEX sandboxes_by_end ON sandboxes (host, ended_at);
CREATE INDEX sandboxes_by_creation ON sandboxes (host, created_at, id);
CREATE INDEX sandboxes_live ON sandboxes (host, created_at, id) WHERE ended_at IS NULL;
CREATE INDEX tickets_by_sandbox ON tickets (sandbox_id);
CREATE TABLE tokens (
    id           TEXT PRIMARY KEY,
    name         TEXT NOT NULL,
    hash         TEXT NOT NULL UNIQUE,
    scopes       TEXT NOT NULL,
    tenant       TEXT NOT NULL,
    created_at   REAL NOT NULL,
    expires_at   REAL,
    revoked_at   REAL,
    last_used_at REAL
);
CREATE UNIQUE INDEX tokens_live_name ON tokens (name) WHERE revoked_at IS NULL;
CREATE TABLE idempotency (
    tenant      TEXT NOT NULL,
    key         TEXT NOT NULL,
    body_hash   TEXT NOT NULL,
    sandbox_id  TEXT NOT NULL,
    created_at  REAL NOT NULL,
    PRIMARY KEY (tenant, key)
);
CREATE INDEX idempotency_by_sandbox ON idempotency (sandbox_id);
CREATE INDEX idempotency_by_age ON idempotency (created_at);
CREATE TABLE commands (
    id          TEXT PRIMARY KEY,
    sandbox_id  TEXT NOT NULL REFERENCES sandboxes (id),
    command     TEXT NOT NULL,
    pid_path    TEXT NOT NULL,
    log_path    TEXT NOT NULL,
    detail      TEXT NOT NULL DEFAULT '{}',
    started_at  REAL NOT NULL,
    finished_at REAL,
    exit_code   INTEGER,
    error       TEXT
);
CREATE INDEX commands_by_sandbox ON commands (sandbox_id, started_at);
CREATE TABLE snapshots (
    id          TEXT PRIMARY KEY,
    host        TEXT NOT NULL,
    sandbox_id  TEXT NOT NULL,
    tenant      TEXT NOT NULL,
    name        TEXT NOT NULL,
    backend     TEXT NOT NULL,
    image       TEXT NOT NULL,
    state       TEXT NOT NULL CHECK (state IN ('creating', 'ready', 'failed')),
    reason      TEXT NOT NULL,
    created_at  REAL NOT NULL
);
CREATE INDEX snapshots_by_tenant ON snapshots (tenant, created_at);
CREATE TABLE settings (
    key         TEXT PRIMARY KEY,
    value       TEXT NOT NULL
)
"""


def upgrade() -> None:
    on_sqlite = op.get_bind().dialect.name == "sqlite"
    for statement in (*(SQLITE if on_sqlite else POSTGRESQL).split(";"), *BOTH.split(";")):
        if statement.strip():
            op.execute(statement if on_sqlite else postgres_schema(statement))
    # From here on PostgreSQL has a place for the number, too. Alembic's own table is there only after an upgrade.
    op.execute("PRAGMA user_version = 2" if on_sqlite else "INSERT INTO settings (key, value) VALUES ('schema', '2')")
