"""SQLite under the ledger: one error per trouble with its file, and upgrades of older ones."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.ledger.books import book, device

from dibs.errors import Busy, StateError
from dibs.home import Home
from dibs.ledger.database import SCHEMA, schema_statements
from dibs.ledger.migrations import upgrade_sqlite
from dibs.ledger.rows import encode
from dibs.ledger.sqlite import SqliteDatabase
from dibs.ledger.store import Ledger
from dibs.process import host_id, myself
from dibs.sandbox import SandboxState

GPU_0 = '[{"id":"gpu-0","units":["gpu-0"]}]'
OLD_SPEC = '{"wishes":{"docker":{"cdi_devices":["nvidia.com/gpu=0"]}}}'
OLD_SANDBOX = {
    "id": "sb-1", "name": "train", "backend": "fake", "state": "running", "uid": 0, "username": "anna",
    "spec": OLD_SPEC, "folder": "/nowhere", "created_at": 1.0,
}  # fmt: skip


@pytest.mark.parametrize(
    "content", [b"this is not a database, it is prose" * 100, b"SQLite format 3\0" + b"\xff" * 4096]
)
def test_a_corrupt_ledger_is_one_clear_error(home: Home, content: bytes) -> None:
    home.ledger.write_bytes(content)
    with pytest.raises(StateError) as caught:
        Ledger(home)
    assert caught.value.code == "LEDGER_CORRUPT"
    assert "move the file away" in caught.value.problems[0].remedy
    assert home.ledger.read_bytes() == content, "evidence is not overwritten"


def test_a_ledger_that_is_damaged_inside_is_one_clear_error(home: Home) -> None:
    with Ledger(home) as ledger:
        for number in range(50):
            book(ledger, device(f"gpu-{number}"))
    data = bytearray(home.ledger.read_bytes())
    data[4096:] = b"\x5a" * (len(data) - 4096)
    home.ledger.write_bytes(data)
    with pytest.raises(StateError) as caught, Ledger(home) as ledger:
        ledger.sandboxes()
        ledger.holders()
    assert caught.value.code == "LEDGER_CORRUPT"


def test_a_ledger_of_a_newer_dibs_is_left_alone(home: Home) -> None:
    Ledger(home).close()
    with sqlite3.connect(home.ledger) as connection:
        connection.execute(f"PRAGMA user_version = {SCHEMA + 1}")
    connection.close()
    with pytest.raises(StateError) as caught:
        Ledger(home)
    assert caught.value.code == "LEDGER_TOO_NEW"


@pytest.mark.skipif(os.getuid() == 0, reason="root writes to read-only files; an ordinary user runs it")
def test_a_read_only_ledger_is_one_clear_error(home: Home) -> None:
    Ledger(home).close()
    home.ledger.chmod(0o400)
    home.state.chmod(0o500)
    try:
        with pytest.raises(StateError) as caught, Ledger(home) as ledger:
            book(ledger, device("gpu-0"))
        assert caught.value.code in ("LEDGER_READ_ONLY", "LEDGER_UNUSABLE")
    finally:
        home.state.chmod(0o700)


@pytest.mark.skipif(os.getuid() != 0 or not shutil.which("mount"), reason="needs root, to mount a tiny file system")
def test_a_full_disk_is_one_clear_error_and_nothing_is_half_done(tmp_path: Path) -> None:
    """In a mount namespace of its own, so that nothing is left mounted whatever happens."""
    script = f"""
import os, sys
sys.path[:0] = {sys.path!r}
from pathlib import Path
from dibs.errors import StateError
from dibs.home import Home
from books import book, device
from dibs.ledger.store import Ledger
root = Path({str(tmp_path)!r}) / "tiny"
home = Home(state=root, config=root)
ledger = Ledger(home)
(root / "filler").write_bytes(b"x" * 2_000_000)
done = 0
try:
    while done < 10_000:
        book(ledger, device(f"gpu-{{done}}"))
        done += 1
except StateError as error:
    assert error.code == "DISK_FULL", error.code
else:
    raise SystemExit("the disk never got full")
left = os.statvfs(root)
assert left.f_bfree * left.f_frsize > 200_000, "what is kept for reading and freeing is not used up by booking"
(root / "filler").unlink()
assert len(ledger.leases()) == done == len(ledger.holders()), (len(ledger.leases()), done)
book(ledger, device("gpu-after"))
print("ok", done)
"""
    (tmp_path / "tiny").mkdir()
    command = f'mount -t tmpfs -o size=4m,mode=700 tmpfs {tmp_path}/tiny && exec {sys.executable} -c "$SCRIPT"'
    result = subprocess.run(
        ["unshare", "-m", "sh", "-c", command],
        env={**os.environ, "SCRIPT": script, "PYTHONPATH": str(Path(__file__).parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.stdout.startswith("ok"), result.stderr


def test_a_state_folder_that_cannot_be_made_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StateError) as caught:
        Ledger(Home(state=tmp_path / "file" / "state", config=tmp_path))
    assert caught.value.code == "STATE_FOLDER_UNUSABLE"
    assert "DIBS_HOME" in str(caught.value)


# -- migrations --


def _schema(path: Path) -> set[str]:
    connection = sqlite3.connect(path)
    rows = connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'alembic%'")
    # A renamed table is quoted, an added column has its spaces elsewhere.
    found = {re.sub(r"\s*([(),])\s*", r"\1", " ".join(row[0].replace('"', "").split())) for row in rows}
    found.add(f"version {connection.execute('PRAGMA user_version').fetchone()[0]}")
    connection.close()
    return {text for text in found if "alembic_version" not in text and "sqlite_sequence" not in text}


def test_the_migrations_lead_to_the_same_tables_as_a_new_ledger(tmp_path: Path) -> None:
    SqliteDatabase(Home(state=tmp_path, config=tmp_path)).close()
    upgrade_sqlite(tmp_path / "old.db")
    assert _schema(tmp_path / "old.db") == _schema(tmp_path / "ledger.db")


def test_the_schema_file_is_split_into_whole_statements() -> None:
    assert len(schema_statements()) > 10
    assert all(statement.startswith("CREATE") for statement in schema_statements())


def test_a_ledger_of_the_first_schema_is_upgraded_with_all_it_holds(home: Home) -> None:
    """It was made in one go, as a new one always is, so Alembic knows nothing of it."""
    first = importlib.import_module("dibs.ledger.migrations.versions.0001_first")
    connection = sqlite3.connect(home.ledger)
    connection.executescript(first.STATEMENTS)
    old = {**OLD_SANDBOX, "host": host_id(), "owner": encode(myself())}
    connection.execute(
        f"INSERT INTO sandboxes ({', '.join(old)}) VALUES ({', '.join('?' * len(old))})", [*old.values()]
    )
    connection.execute("INSERT INTO leases VALUES ('ls-1', 'sb-1', ?, 'attached', ?, 1, 1)", (host_id(), GPU_0))
    connection.execute("INSERT INTO lease_units VALUES ('ls-1', ?, 'gpu-0', 1)", (host_id(),))
    connection.execute(
        "INSERT INTO tickets (id, host, uid, username, owner, request, created_at)"
        " VALUES ('tk-1', ?, 0, 'a', ?, '{}', 1)",
        (host_id(), encode(myself())),
    )
    connection.commit()
    connection.close()
    with Ledger(home) as ledger:
        row = ledger.sandbox("train")
        assert (row.state, row.tenant, row.labels, row.origin) == ("running", "", {}, "")
        assert row.spec.options == {"docker": {"cdi_devices": ["nvidia.com/gpu=0"]}}
        assert list(ledger.holders()) == ["gpu-0"]
        assert [(ticket.id, ticket.sandbox_id) for ticket in ledger.tickets()] == [("tk-1", None)]
        assert ledger._db.rows("PRAGMA foreign_key_check") == []
        with pytest.raises(Busy):
            book(ledger, device("gpu-0"))
        book(ledger, device("gpu-1"), state=SandboxState.QUEUED)
        with ledger.writing():
            assert ledger.end(row.id, SandboxState.EXITED, exit=None, reason="done")
    Ledger(home).close()


@pytest.mark.parametrize(
    ("verb", "index"),
    [
        (lambda ledger: ledger.sandboxes(live_only=True), "sandboxes_live"),
        (lambda ledger: ledger.page(limit=5), "sandboxes_by_creation"),
        (lambda ledger: ledger.ended_beyond(5), "sandboxes_by_end"),
    ],
)
def test_what_is_asked_often_is_answered_by_an_index(
    home: Home, monkeypatch: pytest.MonkeyPatch, verb: Callable[[Ledger], object], index: str
) -> None:
    """Else every start would read all that has ever ended, or sort it."""
    with Ledger(home) as ledger:
        rows, plans = ledger._db.rows, []

        def explained(statement: str, **values: object) -> Any:
            plans.append([row["detail"] for row in rows(f"EXPLAIN QUERY PLAN {statement}", **values)])
            return rows(statement, **values)

        monkeypatch.setattr(ledger._db, "rows", explained)
        verb(ledger)
    assert [f"SEARCH sandboxes USING INDEX {index}" in " ".join(plan) for plan in plans][-1], plans
    assert not any("TEMP B-TREE" in step for step in plans[-1])


def test_a_connection_keeps_few_pages_because_a_gateway_has_one_per_thread(home: Home) -> None:
    database = SqliteDatabase(home)
    try:
        assert [dict(row) for row in database.rows("PRAGMA cache_size")] == [{"cache_size": -256}]
    finally:
        database.close()


MANY = """
import os, sys
from pathlib import Path
from dibs.home import Home
from dibs.ledger.store import Ledger

failed = 0
for number in range(40):
    folder = Path(sys.argv[1]) / str(number)
    held, go = os.pipe()
    children = []
    for _ in range(6):
        if not (pid := os.fork()):
            os.close(go)
            os.read(held, 1)
            try:
                Ledger(Home(state=folder, config=folder).make()).close()
            except BaseException as error:
                print(error, flush=True)
                os._exit(1)
            os._exit(0)
        children.append(pid)
    os.close(held)
    os.close(go)  # all of them at once
    failed += sum(os.waitpid(pid, 0)[1] != 0 for pid in children)
print(failed)
"""


def test_processes_that_make_a_ledger_at_the_same_moment_wait_for_each_other(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", MANY, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout == "0\n", done.stdout
