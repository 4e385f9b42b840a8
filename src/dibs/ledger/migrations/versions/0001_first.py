"""The first ledger.

Its tables are written out here and never changed again: later migrations start from them.
"""

from alembic import op

from dibs.ledger.dialect import postgres_schema

revision = "0001"
down_revision = None

STATEMENTS = """
CREATE TABLE sandboxes (
    id          TEXT PRIMARY KEY,
    host        TEXT NOT NULL,
    name        TEXT NOT NULL,
    backend     TEXT NOT NULL,
    state       TEXT NOT NULL CHECK (state IN ('creating', 'running', 'paused', 'stopping', 'exited', 'failed')),
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
    ended_at    REAL
);
CREATE UNIQUE INDEX sandboxes_live_name ON sandboxes (host, name) WHERE ended_at IS NULL;
CREATE INDEX sandboxes_by_end ON sandboxes (ended_at);
CREATE TABLE leases (
    id          TEXT PRIMARY KEY,
    sandbox_id  TEXT NOT NULL REFERENCES sandboxes (id),
    host        TEXT NOT NULL,
    state       TEXT NOT NULL CHECK (state IN ('reserved', 'attached', 'draining', 'free')),
    devices     TEXT NOT NULL,
    created_at  REAL NOT NULL,
    changed_at  REAL NOT NULL
);
CREATE INDEX leases_by_sandbox ON leases (sandbox_id);
CREATE INDEX leases_live ON leases (host) WHERE state <> 'free';
CREATE TABLE lease_units (
    lease_id    TEXT NOT NULL REFERENCES leases (id),
    host        TEXT NOT NULL,
    unit_id     TEXT NOT NULL,
    live        INTEGER NOT NULL CHECK (live IN (0, 1)),
    PRIMARY KEY (lease_id, unit_id)
);
CREATE UNIQUE INDEX lease_units_live ON lease_units (host, unit_id) WHERE live = 1;
CREATE TABLE lease_shares (
    lease_id    TEXT NOT NULL REFERENCES leases (id),
    host        TEXT NOT NULL,
    device_id   TEXT NOT NULL,
    share_id    TEXT NOT NULL,
    capacity    TEXT NOT NULL,
    amount      TEXT NOT NULL,
    live        INTEGER NOT NULL CHECK (live IN (0, 1)),
    PRIMARY KEY (share_id, capacity)
);
CREATE INDEX lease_shares_live ON lease_shares (host, device_id) WHERE live = 1;
CREATE TABLE taints (
    host        TEXT NOT NULL,
    device_id   TEXT NOT NULL,
    key         TEXT NOT NULL,
    value       TEXT NOT NULL,
    effect      TEXT NOT NULL CHECK (effect IN ('None', 'NoSchedule', 'NoExecute')),
    username    TEXT NOT NULL,
    created_at  REAL NOT NULL,
    PRIMARY KEY (host, device_id, key, effect)
);
CREATE TABLE tickets (
    seq         INTEGER PRIMARY KEY AUTOINCREMENT,
    id          TEXT NOT NULL UNIQUE,
    host        TEXT NOT NULL,
    uid         INTEGER NOT NULL,
    username    TEXT NOT NULL,
    owner       TEXT NOT NULL,
    request     TEXT NOT NULL,
    created_at  REAL NOT NULL
);
CREATE TABLE events (
    seq         INTEGER PRIMARY KEY AUTOINCREMENT,
    at          REAL NOT NULL,
    kind        TEXT NOT NULL,
    sandbox_id  TEXT,
    lease_id    TEXT,
    detail      TEXT NOT NULL DEFAULT ''
);
CREATE INDEX events_by_sandbox ON events (sandbox_id);
PRAGMA user_version = 1
"""


def upgrade() -> None:
    on_sqlite = op.get_bind().dialect.name == "sqlite"
    for statement in STATEMENTS.split(";"):
        if statement.strip() and (on_sqlite or "PRAGMA" not in statement):
            op.execute(statement if on_sqlite else postgres_schema(statement))
