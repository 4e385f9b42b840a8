"""Which kernels a ledger has been used on; sandboxes in the order of their creation whatever the clock says; tickets
with a deadline and a way to be called."""

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

ALTER TABLE sandboxes ADD COLUMN seq INTEGER NOT NULL DEFAULT 0;
UPDATE sandboxes SET seq = ordered.n
FROM (SELECT id, row_number() OVER (ORDER BY created_at, id) AS n FROM sandboxes) AS ordered
WHERE ordered.id = sandboxes.id;
DROP INDEX sandboxes_by_creation;
DROP INDEX sandboxes_live;
CREATE INDEX sandboxes_by_creation ON sandboxes (host, seq);
DROP INDEX sandboxes_live_name;
CREATE UNIQUE INDEX sandboxes_live_name ON sandboxes (host, tenant, uid, name) WHERE ended_at IS NULL;
CREATE INDEX sandboxes_by_name ON sandboxes (host, name, seq);
CREATE INDEX sandboxes_live ON sandboxes (host, seq) WHERE ended_at IS NULL;
ALTER TABLE tickets ADD COLUMN tenant TEXT NOT NULL DEFAULT '';
ALTER TABLE tickets ADD COLUMN boot TEXT NOT NULL DEFAULT '';
ALTER TABLE tickets ADD COLUMN deadline REAL;
ALTER TABLE tickets ADD COLUMN wake TEXT NOT NULL DEFAULT '';
ALTER TABLE tickets ADD COLUMN called_at REAL;
ALTER TABLE tickets ADD COLUMN kept REAL NOT NULL DEFAULT 0;
UPDATE tickets SET tenant = sandboxes.tenant FROM sandboxes WHERE sandboxes.id = tickets.sandbox_id;
"""


def upgrade() -> None:
    on_sqlite = op.get_bind().dialect.name == "sqlite"
    for statement in split_statements(STATEMENTS):
        op.execute(statement if on_sqlite else postgres_schema(statement))
    op.execute("PRAGMA user_version = 4" if on_sqlite else "UPDATE settings SET value = '4' WHERE key = 'schema'")
