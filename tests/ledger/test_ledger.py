"""The ledger's promises: exclusive by index, states in order, one error per trouble."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from dibs.errors import Busy, Conflict, DibsError, NotFound, StateError
from dibs.home import Home
from dibs.ledger.database import SCHEMA, Database, split_statements
from dibs.ledger.migrations import upgrade
from dibs.ledger.rows import LeasedDevice, SandboxId, SandboxRow
from dibs.ledger.store import Ledger, new_id
from dibs.process import myself


def sandbox(name: str = "", **more: object) -> SandboxRow:
    sandbox_id = new_id("sb")
    return SandboxRow(
        id=SandboxId(sandbox_id),
        name=name or sandbox_id,
        backend="fake",
        state="creating",
        uid=0,
        username="anna",
        owner=myself(),
        spec=b"{}",
        folder="/nowhere",
        created_at=1.0,
        **more,  # type: ignore[arg-type]
    )


def device(name: str, *units: str, simulated: bool = False) -> LeasedDevice:
    return LeasedDevice(name, units=units or (name,), simulated=simulated)


def book(ledger: Ledger, *devices: LeasedDevice, name: str = "") -> SandboxRow:
    row = sandbox(name)
    with ledger.writing():
        ledger.add_sandbox(row)
        ledger.reserve(row.id, devices)
    return row


def test_a_unit_is_in_at_most_one_live_lease(home: Home) -> None:
    with Ledger(home) as ledger:
        first = book(ledger, device("gpu-0"))
        with pytest.raises(Busy):
            book(ledger, device("gpu-0"))
        assert [lease.sandbox_id for lease in ledger.leases()] == [first.id]
        assert [row.id for row in ledger.sandboxes()] == [first.id], "the refused one must leave no trace"


def test_the_index_itself_forbids_a_second_booking(home: Home) -> None:
    with Ledger(home) as ledger:
        row = book(ledger, device("gpu-0"))
        lease = ledger.leases(sandbox_id=row.id)[0]
    with sqlite3.connect(home.ledger) as connection:
        connection.execute("INSERT INTO leases VALUES ('ls-x', ?, ?, 'reserved', '[]', 0, 0)", (row.id, ledger.host))
        with pytest.raises(sqlite3.IntegrityError):
            connection.execute("INSERT INTO lease_units VALUES ('ls-x', ?, 'gpu-0', 1)", (ledger.host,))
    connection.close()
    assert lease.state == "reserved"


def test_a_part_excludes_its_card(home: Home) -> None:
    with Ledger(home) as ledger:
        book(ledger, device("part", "gpu-0/1"))
        with pytest.raises(Busy):
            book(ledger, device("gpu-0", "gpu-0/0", "gpu-0/1"))
        book(ledger, device("other", "gpu-0/0"))


def test_sd_48_simulated_and_real_devices_never_stand_in_each_others_way(home: Home) -> None:
    with Ledger(home) as ledger:
        book(ledger, device("gpu-0", simulated=True))
        book(ledger, device("gpu-0", simulated=False))
        assert len(ledger.holders()) == 2


def test_a_freed_unit_can_be_booked_again(home: Home) -> None:
    with Ledger(home) as ledger:
        row = book(ledger, device("gpu-0"))
        with ledger.writing():
            assert ledger.end(row.id, "exited", exit=None, reason="done")
            assert not ledger.end(row.id, "exited", exit=None, reason="done"), "an end is recorded once"
        book(ledger, device("gpu-0"))
        assert [lease.state for lease in ledger.leases(live_only=False)] == ["free", "reserved"]


def test_a_lease_goes_through_its_states_in_order(home: Home) -> None:
    with Ledger(home) as ledger:
        row = book(ledger, device("gpu-0"))
        with ledger.writing():
            ledger.attach(row.id, handle=b"{}", receipt=b"{}")
        assert [lease.state for lease in ledger.leases()] == ["attached"]
        with pytest.raises(Conflict), ledger.writing():
            ledger.attach(row.id, handle=b"{}", receipt=b"{}")
        with ledger.writing():
            ledger.set_state(row.id, "stopping", expected=("running",))
        assert [lease.state for lease in ledger.leases()] == ["draining"]
        with pytest.raises(Conflict, match="the sandbox is stopping"), ledger.writing():
            ledger.set_state(row.id, "paused", expected=("running",))
        with ledger.writing():
            ledger.end(row.id, "exited", exit=b"{}", reason="done")
        kinds = [event.kind for event in ledger.events(sandbox_id=row.id)]
        assert kinds == [
            "sandbox.creating", "lease.reserved", "sandbox.running", "sandbox.stopping", "lease.free", "sandbox.exited",
        ]  # fmt: skip


def test_a_name_is_taken_while_its_sandbox_lives(home: Home) -> None:
    with Ledger(home) as ledger:
        row = book(ledger, device("gpu-0"), name="train")
        with pytest.raises(Conflict) as caught:
            book(ledger, device("gpu-1"), name="train")
        assert caught.value.code == "NAME_TAKEN"
        with ledger.writing():
            ledger.end(row.id, "exited", exit=None, reason="done")
        again = book(ledger, device("gpu-0"), name="train")
        assert ledger.sandbox("train").id == again.id, "the live one is meant"


def test_a_sandbox_is_found_by_the_start_of_its_id(home: Home) -> None:
    with Ledger(home) as ledger:
        row = book(ledger, device("gpu-0"))
        assert ledger.sandbox(row.id[:9]).id == row.id
        assert ledger.sandbox(row.id[3:10]).id == row.id
        for nonsense in ("", "x", "sb-", "%", "sb-%", "' OR 1=1 --", "a\0b"):
            with pytest.raises(NotFound):
                ledger.sandbox(nonsense)


def test_the_queue_is_first_come_first_served(home: Home) -> None:
    with Ledger(home) as ledger:
        with ledger.writing():
            tickets = [ledger.enqueue(myself(), 0, "anna", b"{}") for _ in range(3)]
        assert [ticket.id for ticket in ledger.tickets()] == tickets
        with ledger.writing():
            ledger.dequeue(tickets[1], "served")
        assert [ticket.id for ticket in ledger.tickets()] == [tickets[0], tickets[2]]


def test_a_failed_transaction_leaves_nothing(home: Home) -> None:
    with Ledger(home) as ledger:
        with pytest.raises(RuntimeError), ledger.writing():
            row = sandbox()
            ledger.add_sandbox(row)
            ledger.reserve(row.id, [device("gpu-0")])
            raise RuntimeError("crash")
        assert ledger.sandboxes() == []
        assert ledger.holders() == {}


# -- trouble --


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
import sys
sys.path[:0] = {sys.path!r}
from pathlib import Path
from dibs.errors import StateError
from dibs.home import Home
from ledger_helpers import book, device
from dibs.ledger.store import Ledger
root = Path({str(tmp_path)!r}) / "tiny"
home = Home(state=root, config=root)
ledger = Ledger(home)
(root / "filler").write_bytes(b"x" * 600_000)
done = 0
try:
    while done < 10_000:
        book(ledger, device(f"gpu-{{done}}"))
        done += 1
except StateError as error:
    assert error.code == "DISK_FULL", error.code
else:
    raise SystemExit("the disk never got full")
(root / "filler").unlink()
assert len(ledger.leases()) == done == len(ledger.holders()), (len(ledger.leases()), done)
book(ledger, device("gpu-after"))
print("ok", done)
"""
    (tmp_path / "tiny").mkdir()
    helpers = tmp_path / "ledger_helpers.py"
    helpers.write_text(Path(__file__).read_text())
    command = f'mount -t tmpfs -o size=1m tmpfs {tmp_path}/tiny && exec {sys.executable} -c "$SCRIPT"'
    result = subprocess.run(
        ["unshare", "-m", "sh", "-c", command],
        env={**os.environ, "SCRIPT": script, "PYTHONPATH": str(tmp_path)},
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
    found = {" ".join(row[0].replace('"', "").split()) for row in rows}  # a renamed table is quoted
    found.add(f"version {connection.execute('PRAGMA user_version').fetchone()[0]}")
    connection.close()
    return {text for text in found if "alembic_version" not in text and "sqlite_sequence" not in text}


def test_the_migrations_lead_to_the_same_tables_as_a_new_ledger(tmp_path: Path) -> None:
    Database(tmp_path / "new.db").close()
    upgrade(tmp_path / "old.db")
    assert _schema(tmp_path / "old.db") == _schema(tmp_path / "new.db")


def test_the_schema_file_is_split_into_whole_statements() -> None:
    from dibs.ledger import database

    script = Path(database.__file__).with_name("schema.sql").read_text()
    assert all(statement.startswith("CREATE") for statement in split_statements(script))


def test_twenty_processes_may_open_a_new_ledger_at_once(home: Home) -> None:
    code = "from dibs.home import find_home; from dibs.ledger.store import Ledger; Ledger(find_home()).sandboxes()"
    children = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(20)]
    assert [child.wait() for child in children] == [0] * 20


def test_errors_know_what_the_caller_can_do() -> None:
    assert Busy("x").retryable
    assert not StateError("x").retryable
    assert isinstance(Busy("x"), DibsError)
