"""Stored JSON has the names of the code: `options` of one backend, `remote` submitters."""

from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    on_sqlite = op.get_bind().dialect.name == "sqlite"
    # A quote within a string is escaped, so only a key can match.
    op.execute("""UPDATE sandboxes SET spec = REPLACE(spec, '"wishes":{', '"options":{')""")
    op.execute("""UPDATE sandboxes SET pending = REPLACE(pending, '"wishes":{', '"options":{')""")
    op.execute("""UPDATE sandboxes SET pending = REPLACE(pending, '"afar"\\:true', '"remote"\\:true')""")
    op.execute("""UPDATE jobs SET spec = REPLACE(spec, '"afar"\\:true', '"remote"\\:true')""")
    op.execute("PRAGMA user_version = 7" if on_sqlite else "UPDATE settings SET value = '7' WHERE key = 'schema'")
