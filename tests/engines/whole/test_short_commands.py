"""Commands that are over before anybody can look, many at once, while the machine has enough to do already."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.engines.whole.house import PATIENCE, House, conversation

from dibs.sandbox import SandboxId
from dibs.workloads.service import Workloads

MANY = 40
AT_A_TIME = 8  # on four cards, so that half of them wait for the others' ends


@pytest.fixture
def a_busy_machine() -> Iterator[None]:
    spin = "while True: pass"
    children = [subprocess.Popen([sys.executable, "-I", "-S", "-c", spin]) for _ in range(3)]
    yield
    for child in children:
        child.kill()
        child.wait()


@pytest.mark.usefixtures("a_busy_machine")
def test_a_quick_command_never_fails_for_being_quick(house: House) -> None:
    def one(number: int) -> SandboxId:
        with_a_client = number % 2 == 0
        service = Workloads(house.home)
        try:
            spec = house.spec(command=["true"], gpu=1, wait="5m")
            if with_a_client:
                row, session = service.launch(spec)
                try:
                    said, ended = conversation(session)
                finally:
                    session.close()
                assert (said, ended.code, ended.reason) == ("", 0, "exited")
                service.settle(row.id)
            else:
                row = service.create(spec)
                assert service.wait(row.id, PATIENCE).state == "exited"
            return row.id
        finally:
            service.close()

    with ThreadPoolExecutor(AT_A_TIME) as pool:
        made = list(pool.map(one, range(MANY)))
    rows = {row.id: row for row in house.service.sandboxes(all=True)}
    verdicts: Counter[str] = Counter()
    for sandbox in made:
        row = rows[sandbox]
        assert row.state == "exited", row
        receipt = house.service.receipt(sandbox)
        verdicts[receipt.verdict] += 1
        nodes = [str(node) for node in receipt.observed.nodes]
        expected = [] if receipt.verdict == "not observed" else [str(node) for node in receipt.expected.nodes]
        assert nodes == expected
    print(f"{house.kind}: {dict(verdicts)}")
    assert set(verdicts) <= {"delivered", "not observed"}
    assert not house.service.leases()
