"""A specification calls the options of one backend `options`."""

from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    on_sqlite = op.get_bind().dialect.name == "sqlite"
    # A quote within a string is escaped, so only a key can match.
    op.execute("""UPDATE sandboxes SET spec = REPLACE(spec, '"wishes":{', '"options":{')""")
    op.execute("PRAGMA user_version = 7" if on_sqlite else "UPDATE settings SET value = '7' WHERE key = 'schema'")
