"""A simulated cluster in a file: nodes with cards, a scheduler that takes its time, and a clock that is moved by hand.

`scheduled` is the backend over it. Tests make one, turn it, and look into it; several processes may use one file at
once, and any of them may be killed at any time. Nothing runs: a command is one of a few words that are known to end.

    pending    waits for the scheduler, with its words: held by `hold`, delayed by `delay`, or no node has what it wants
    bound      has a node and cards of it; `start` lets the command run
    running → ended, or lost with its node
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from dibs.backends.port import Exit, ExitReason, PlacedDevice, Placement
from dibs.devices.model import ClaimAttachment

EPOCH = 1_700_000_000.0  # its clock starts here
_PATIENCE = 60.0  # seconds to wait for another process
_TABLES = """
CREATE TABLE IF NOT EXISTS settings (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS cards (id TEXT PRIMARY KEY, node TEXT NOT NULL, model TEXT NOT NULL, number INTEGER NOT NULL,
    pod TEXT);
CREATE TABLE IF NOT EXISTS pods (id TEXT PRIMARY KEY, count INTEGER NOT NULL, models TEXT NOT NULL, state TEXT NOT NULL,
    node TEXT NOT NULL DEFAULT '', reason TEXT NOT NULL DEFAULT '', created REAL NOT NULL, workload TEXT NOT NULL,
    exit TEXT, expires REAL, output TEXT NOT NULL DEFAULT '', starts INTEGER NOT NULL DEFAULT 0);
"""


class Pod(msgspec.Struct, frozen=True):
    id: str
    count: int
    models: tuple[str, ...]
    state: str  # pending, bound, running, ended, refused
    node: str
    reason: str
    created: float
    workload: dict[str, Any]
    exit: Exit | None
    output: str
    starts: int


class FakeCluster:
    """One file. Each verb is one transaction of it."""

    def __init__(self, path: str) -> None:
        self.path = path

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        connection = sqlite3.connect(self.path, timeout=_PATIENCE, isolation_level=None)
        connection.row_factory = sqlite3.Row
        try:
            connection.execute("PRAGMA synchronous = OFF")
            connection.execute("BEGIN IMMEDIATE")
            yield connection
            connection.execute("COMMIT")
        finally:
            connection.close()

    # -- what tests turn ----------------------------------------------------------------------------------------------

    @classmethod
    def make(cls, path: str, *, nodes: int = 2, cards: int = 4, model: str = "H100") -> FakeCluster:
        """A new cluster: nodes called node-0, node-1 …, with cards called node-0/gpu-0 …"""
        made = cls(path)
        with sqlite3.connect(path, timeout=_PATIENCE) as connection:
            connection.executescript(_TABLES)
        connection.close()
        with made._open() as db:
            db.execute("INSERT OR REPLACE INTO settings VALUES ('now', ?)", (str(EPOCH),))
            for node in range(nodes):
                for card in range(cards):
                    name = f"node-{node}"
                    db.execute(
                        "INSERT INTO cards (id, node, model, number) VALUES (?, ?, ?, ?)",
                        (f"{name}/gpu-{card}", name, model, card),
                    )
        return made

    def advance(self, seconds: float) -> None:
        """Let time pass: the scheduler comes to what it was told to delay, and what has a time to live ends."""
        with self._open() as db:
            now = _now(db) + seconds
            db.execute("UPDATE settings SET value = ? WHERE key = 'now'", (str(now),))
            for row in db.execute("SELECT id FROM pods WHERE state = 'running' AND expires <= ?", (now,)).fetchall():
                _end(db, row["id"], Exit(143, ExitReason.EXPIRED, 15, at=now))

    def delay(self, seconds: float) -> None:
        """The scheduler comes to a pod only so long after it was created, by the cluster's clock."""
        self._set("delay", str(seconds))

    def hold(self, reason: str) -> None:
        """The scheduler places nothing, and says why; "": it goes on."""
        self._set("hold", reason)

    def refuse(self, pod: str, reason: str) -> None:
        """The scheduler will never place it."""
        with self._open() as db:
            db.execute("UPDATE cards SET pod = NULL WHERE pod = ?", (pod,))
            db.execute("UPDATE pods SET state = 'refused', node = '', reason = ? WHERE id = ?", (reason, pod))

    def move(self, pod: str, node: str) -> None:
        """The cluster puts it on another node, which must have room."""
        with self._open() as db:
            found = _pod(db.execute("SELECT * FROM pods WHERE id = ?", (pod,)).fetchone())
            db.execute("UPDATE cards SET pod = NULL WHERE pod = ?", (pod,))
            assert _bind(db, found, node), f"{node} has no room"

    def lose(self, pod: str) -> None:
        """Its node goes away with it."""
        with self._open() as db:
            db.execute("UPDATE cards SET pod = NULL WHERE pod = ?", (pod,))
            db.execute("DELETE FROM pods WHERE id = ?", (pod,))

    def break_card(self, pod: str) -> None:
        """One card of it is not there, whatever the scheduler says."""
        self._set(f"broken:{pod}", "1")

    def pods(self) -> list[Pod]:
        with self._open() as db:
            return [_pod(row) for row in db.execute("SELECT * FROM pods ORDER BY created, id").fetchall()]

    def cards_of(self, pod: str) -> list[str]:
        with self._open() as db:
            return [row["id"] for row in db.execute("SELECT id FROM cards WHERE pod = ? ORDER BY id", (pod,))]

    def _set(self, key: str, value: str) -> None:
        with self._open() as db:
            db.execute("INSERT OR REPLACE INTO settings VALUES (?, ?)", (key, value))

    # -- what the backend calls ---------------------------------------------------------------------------------------

    def submit(self, pod: str, count: int, models: tuple[str, ...], workload: dict[str, Any]) -> None:
        """Ask for a pod; one of that id is found again."""
        with self._open() as db:
            db.execute(
                "INSERT OR IGNORE INTO pods (id, count, models, state, created, workload)"
                " VALUES (?, ?, ?, 'pending', ?, ?)",
                (pod, count, "|".join(models), _now(db), msgspec.json.encode(workload).decode()),
            )

    def find(self, pod: str) -> Pod | None:
        with self._open() as db:
            _schedule(db)
            row = db.execute("SELECT * FROM pods WHERE id = ?", (pod,)).fetchone()
            return _pod(row) if row else None

    def placement(self, pod: str) -> Placement | None:
        with self._open() as db:
            _schedule(db)
            row = db.execute("SELECT * FROM pods WHERE id = ?", (pod,)).fetchone()
            if row is None:
                return None
            if row["state"] in ("pending", "refused"):
                return Placement(row["state"], row["reason"])
            cards = db.execute("SELECT * FROM cards WHERE pod = ? ORDER BY id", (pod,)).fetchall()
            claim = ClaimAttachment(pod, "gpu")
            devices = tuple(PlacedDevice(one["id"], one["model"], attachment=claim) for one in cards)
            return Placement("bound", node=row["node"], devices=devices)

    def present(self, pod: str) -> list[tuple[str, int]]:
        """The cards that are really in a pod."""
        with self._open() as db:
            cards = db.execute("SELECT id, number FROM cards WHERE pod = ? ORDER BY id", (pod,)).fetchall()
            broken = db.execute("SELECT 1 FROM settings WHERE key = ?", (f"broken:{pod}",)).fetchone()
            return [(row["id"], row["number"]) for row in (cards[1:] if broken else cards)]

    def start(self, pod: str, output: str, ended: int | None, ttl: float | None) -> bool:
        """Let its command run. False if it does already, or has."""
        with self._open() as db:
            row = db.execute("SELECT state FROM pods WHERE id = ?", (pod,)).fetchone()
            if row is None or row["state"] != "bound":
                return False
            now = _now(db)
            db.execute(
                "UPDATE pods SET state = 'running', output = ?, expires = ?, starts = starts + 1 WHERE id = ?",
                (output, None if ttl is None else now + ttl, pod),
            )
            if ended is not None:
                _end(db, pod, Exit(ended, at=now))
            return True

    def end(self, pod: str, ended: Exit) -> None:
        with self._open() as db:
            if db.execute("SELECT 1 FROM pods WHERE id = ? AND exit IS NULL", (pod,)).fetchone():
                _end(db, pod, msgspec.structs.replace(ended, at=_now(db)))

    def expire_at(self, pod: str, at: float | None) -> None:
        with self._open() as db:
            db.execute("UPDATE pods SET expires = ? WHERE id = ?", (at, pod))

    def delete(self, pod: str) -> None:
        with self._open() as db:
            db.execute("UPDATE cards SET pod = NULL WHERE pod = ?", (pod,))
            db.execute("DELETE FROM pods WHERE id = ?", (pod,))


def _now(db: sqlite3.Connection) -> float:
    return float(_setting(db, "now", str(EPOCH)))


def _setting(db: sqlite3.Connection, key: str, default: str) -> str:
    row = db.execute("SELECT value FROM settings WHERE key = ?", (key,)).fetchone()
    return str(row["value"]) if row else default


def _schedule(db: sqlite3.Connection) -> None:
    """One round of the scheduler: first come, first served, and a reason for those that are not."""
    now, delay, held = _now(db), float(_setting(db, "delay", "0")), _setting(db, "hold", "")
    for row in db.execute("SELECT * FROM pods WHERE state = 'pending' ORDER BY created, rowid").fetchall():
        pod = _pod(row)
        nodes = [one["node"] for one in db.execute("SELECT DISTINCT node FROM cards ORDER BY node")]
        if held or now < pod.created + delay:
            _say(db, pod, held or "the scheduler has not come to it yet")
        elif not any(_bind(db, pod, node) for node in nodes):
            _say(db, pod, f"0/{len(nodes)} nodes have {pod.count} free {' or '.join(pod.models) or 'cards'}")


def _say(db: sqlite3.Connection, pod: Pod, reason: str) -> None:
    if pod.reason != reason:
        db.execute("UPDATE pods SET reason = ? WHERE id = ?", (reason, pod.id))


def _bind(db: sqlite3.Connection, pod: Pod, node: str) -> bool:
    free = [
        row["id"]
        for row in db.execute("SELECT * FROM cards WHERE node = ? AND pod IS NULL ORDER BY id", (node,))
        if not pod.models or row["model"] in pod.models
    ]
    if len(free) < pod.count:
        return False
    for card in free[: pod.count]:
        db.execute("UPDATE cards SET pod = ? WHERE id = ?", (pod.id, card))
    state = "bound" if pod.state == "pending" else pod.state
    db.execute("UPDATE pods SET state = ?, node = ?, reason = '' WHERE id = ?", (state, node, pod.id))
    return True


def _end(db: sqlite3.Connection, pod: str, ended: Exit) -> None:
    db.execute("UPDATE cards SET pod = NULL WHERE pod = ?", (pod,))
    db.execute("UPDATE pods SET state = 'ended', exit = ? WHERE id = ?", (msgspec.json.encode(ended).decode(), pod))


def _pod(row: sqlite3.Row) -> Pod:
    return Pod(
        row["id"], row["count"], tuple(word for word in row["models"].split("|") if word), row["state"], row["node"],
        row["reason"], row["created"], msgspec.json.decode(row["workload"]),
        msgspec.json.decode(row["exit"], type=Exit) if row["exit"] else None, row["output"], row["starts"],
    )  # fmt: skip
