"""A state machine of the ledger: any order of reserve, attach, crash, restart, release keeps its two promises.

Safety: no unit is in two live leases. Liveness: once all owners are gone, a reconciliation leaves nothing booked.
A crash is the end of a process between any two verbs: its open transaction is lost, its rows stay.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.ledger.books import RECEIPT
from tests.postgres import server

from dibs.backends.port import Handle
from dibs.errors import Busy, Conflict
from dibs.home import Home
from dibs.ledger.rows import LeasedDevice, encode
from dibs.ledger.store import Ledger
from dibs.process import ProcessName, boot_id, host_id, myself, pid_namespace
from dibs.request.spec import SandboxSpec
from dibs.sandbox import Parts, Sandbox, SandboxId, SandboxState
from dibs.workloads.reconcile import reconcile
from dibs.workloads.registry import Registry

UNITS = ("card-0/a", "card-0/b", "card-1", "card-2")
DEVICES = {
    "card-0": ("card-0/a", "card-0/b"),
    "part-a": ("card-0/a",),
    "part-b": ("card-0/b",),
    "card-1": ("card-1",),
    "card-2": ("card-2",),
}
DEAD = ProcessName(host_id(), boot_id(), pid_namespace(), 2**22 + 1, 1)  # a pid that cannot be
REBOOTED = ProcessName(host_id(), "another-boot", pid_namespace(), 1, 1)
ELSEWHERE = ProcessName("another-host", "its-own-boot", pid_namespace(), 1, 1)


class LedgerMachine(RuleBasedStateMachine):
    def new_url(self) -> str:
        """Where a new ledger is. "" is SQLite."""
        return ""

    @initialize()
    def open_it(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        root = Path(self.folder.name)
        self.home = Home(state=root, config=root)
        self.url = self.new_url()
        self.ledger = Ledger(self.home, self.url)
        self.registry = Registry(self.home)
        self.number = 0  # not by chance: what is drawn from sorted names must be the same whenever it is run again
        self.model: dict[str, tuple[set[str], bool]] = {}  # live sandbox -> its units, whether its processes live

    def teardown(self) -> None:
        if hasattr(self, "ledger"):
            self.ledger.close()
            self.folder.cleanup()

    @rule(names=st.sets(st.sampled_from(sorted(DEVICES)), min_size=1, max_size=3), crash=st.booleans())
    def reserve(self, names: set[str], crash: bool) -> None:
        units = [unit for name in names for unit in DEVICES[name]]
        taken = set().union(*(units for units, _ in self.model.values())) if self.model else set()
        row = Sandbox(
            id=SandboxId(f"sb-{self.number:04}"), name=f"n-{self.number}", backend="fake",
            state=SandboxState.CREATING, uid=0,
            username="anna",
            owner=myself(), parts=Parts(spec=SandboxSpec()), folder="/nowhere", created_at=1.0,
        )  # fmt: skip
        self.number += 1
        devices = [LeasedDevice(name, units=DEVICES[name]) for name in sorted(names)]
        possible = len(units) == len(set(units)) and not taken.intersection(units)
        try:
            with self.ledger.writing():
                self.ledger.add_sandbox(row)
                self.ledger.reserve(row.id, devices)
                if crash:
                    raise KeyboardInterrupt
        except KeyboardInterrupt:
            assert crash
            return
        except Busy:
            assert not possible
            return
        assert possible
        self.model[row.id] = (set(units), True)

    @rule(data=st.data())
    def attach(self, data: st.DataObject) -> None:
        live = self.ledger.sandboxes(live_only=True)
        waiting = [row.id for row in live if row.handle is None and row.owner == myself()]
        if not waiting:
            return
        sandbox_id = data.draw(st.sampled_from(sorted(waiting)))
        handle = Handle("fake", sandbox_id, "/nowhere", keeper=myself())
        with self.ledger.writing():
            self.ledger.attach(sandbox_id, handle=handle, receipt=RECEIPT)

    @rule(data=st.data(), how=st.sampled_from([DEAD, REBOOTED, ELSEWHERE]))
    def everything_of_one_dies(self, data: st.DataObject, how: ProcessName) -> None:
        """Owner and workload go away without a word: kill -9, a reboot, or a host that cannot be seen."""
        if not self.model:
            return
        sandbox_id = data.draw(st.sampled_from(sorted(self.model)))
        row = self.ledger.sandbox(sandbox_id)
        self.ledger._db.execute("UPDATE sandboxes SET owner = :o WHERE id = :id", o=encode(how), id=sandbox_id)
        if row.handle is not None:
            handle = msgspec.structs.replace(row.handle, keeper=how)
            self.ledger._db.execute("UPDATE sandboxes SET handle = :h WHERE id = :id", h=encode(handle), id=sandbox_id)
        self.model[sandbox_id] = (self.model[sandbox_id][0], how is ELSEWHERE)

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        if not self.model:
            return
        sandbox_id = data.draw(st.sampled_from(sorted(self.model)))
        with self.ledger.writing():
            assert self.ledger.end(SandboxId(sandbox_id), SandboxState.EXITED, exit=None, reason="done")
        del self.model[sandbox_id]

    @rule()
    def restart(self) -> None:
        self.ledger.close()
        self.ledger = Ledger(self.home, self.url)
        ended = set(reconcile(self.ledger, self.registry))
        dead = {sandbox_id for sandbox_id, (_, alive) in self.model.items() if not alive}
        assert ended == dead, "exactly those that are proved gone are freed"
        for sandbox_id in dead:
            del self.model[sandbox_id]

    @rule(data=st.data())
    def stop_twice(self, data: st.DataObject) -> None:
        if not self.model:
            return
        sandbox_id = data.draw(st.sampled_from(sorted(self.model)))
        try:
            with self.ledger.writing():
                self.ledger.set_state(SandboxId(sandbox_id), SandboxState.STOPPING, expected=(SandboxState.RUNNING,))
        except Conflict:
            assert self.ledger.sandbox(sandbox_id).state != "running"

    @invariant()
    def no_unit_is_booked_twice_and_none_is_lost(self) -> None:
        if not hasattr(self, "ledger"):
            return
        booked: list[str] = [
            unit for lease in self.ledger.leases() for device in lease.devices for unit in device.units
        ]
        assert len(booked) == len(set(booked))
        expected = set().union(*(units for units, _ in self.model.values())) if self.model else set()
        assert set(booked) == set(self.ledger.holders()) == expected


class PostgresMachine(LedgerMachine):
    def new_url(self) -> str:
        return server.shared().new_database()


@pytest.fixture
def _server() -> None:
    server.shared()  # skips the test where there is none


TestLedgerUnderCrashes = LedgerMachine.TestCase
TestLedgerUnderCrashes.settings = settings(max_examples=60, stateful_step_count=30)
TestLedgerOnPostgresUnderCrashes = pytest.mark.usefixtures("_server")(PostgresMachine.TestCase)
TestLedgerOnPostgresUnderCrashes.settings = settings(max_examples=25, stateful_step_count=30)
