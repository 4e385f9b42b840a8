"""Who makes a snapshot, so that another can go on with it; whose an event is, also when its sandbox is forgotten."""

from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.execute("ALTER TABLE snapshots ADD COLUMN owner TEXT NOT NULL DEFAULT 'null'")
    op.execute("ALTER TABLE events ADD COLUMN tenant TEXT")
    op.execute("UPDATE events SET tenant = (SELECT tenant FROM sandboxes WHERE sandboxes.id = events.sandbox_id)")
    on_sqlite = op.get_bind().dialect.name == "sqlite"
    op.execute("PRAGMA user_version = 3" if on_sqlite else "UPDATE settings SET value = '3' WHERE key = 'schema'")
