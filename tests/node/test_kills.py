"""A kill at every line of preparing a claim and of giving it back: nothing is lost, left or given twice."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from dibs.cdi.cache import Cache
from dibs.devices.simulated import parse_world
from dibs.errors import Busy
from dibs.home import Home
from dibs.node.devices import Source
from dibs.node.prepare import Claim, Preparer, claim_of
from dibs.node.records import Records

DRIVER = "gpu.nvidia.com"
UID = "6a7c1c6e-0000-4000-8000-000000000001"
OTHER = "6a7c1c6e-0000-4000-8000-000000000002"
_STEPS = ("/dibs/node/prepare.py", "/dibs/node/records.py", "/dibs/node/specs.py", "/dibs/cdi/store.py")


class Node:
    """What is on the disk of a node, and a new process on it whenever one is asked for."""

    def __init__(self, folder: Path) -> None:
        self.records = folder / "claims"
        self.specs = folder / "cdi"
        self.specs.mkdir()
        self._source = Source("node-a", Home(state=folder, config=folder), world=parse_world("2", model="H100"))

    def process(self) -> Preparer:
        looked = self._source.look()
        return Preparer(
            DRIVER, Records(self.records), cdi_folder=self.specs, static=Cache([str(self.specs)]),
            look=lambda: looked, fetch=claim,
        )  # fmt: skip

    def files(self) -> list[str]:
        return sorted(
            file.name for folder in (self.records, self.specs) if folder.exists() for file in folder.iterdir()
        )


@pytest.fixture
def node() -> Iterator[Node]:
    """In memory where that can be had: hundreds of writes go to the disk here."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        yield Node(Path(folder))


def claim(namespace: str, name: str) -> Claim:
    """Both cards for `both`, the first for any other."""
    uid = OTHER if name == "other" else UID
    devices = ("gpu-0", "gpu-1") if name == "both" else ("gpu-0",)
    results: list[Any] = [{"request": "gpu", "driver": DRIVER, "pool": "node-a", "device": one} for one in devices]
    return claim_of({"metadata": {"uid": uid}, "status": {"allocation": {"devices": {"results": results}}}})


def killed_at(line: int, function: Callable[[], object]) -> bool:
    """Run it in a process of its own that kills itself at the nth line; False if it came to its end before."""
    child = os.fork()
    if child == 0:
        left = line

        def trace(frame: FrameType, event: str, _argument: object) -> Any:
            nonlocal left
            if not frame.f_code.co_filename.endswith(_STEPS):
                return None
            if event == "line":
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                left -= 1
            return trace

        sys.settrace(trace)
        function()
        sys.settrace(None)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return True
    assert os.waitstatus_to_exitcode(status) == 0
    return False


def test_after_a_kill_at_any_line_of_prepare_the_claim_can_be_prepared_and_given_back(node: Node) -> None:
    lines = 0
    while killed_at(lines, lambda: node.process().prepare("default", "both", UID)):
        after = node.process()
        after.restore()
        devices = after.prepare("default", "both", UID)
        assert [one.device for one in devices] == ["gpu-0", "gpu-1"]
        assert after.prepare("default", "both", UID) == devices
        names = Cache([str(node.specs)])
        names.refresh()
        assert all(names.device(name) is not None for one in devices for name in one.cdi)
        after.unprepare(UID)
        after.unprepare(UID)
        assert node.files() == []
        lines += 1
    assert lines > 100
    node.process().unprepare(UID)


def test_after_a_kill_at_any_line_of_unprepare_the_devices_are_free_for_another_claim(node: Node) -> None:
    lines = 0
    while True:
        node.process().prepare("default", "both", UID)
        if not killed_at(lines, lambda: node.process().unprepare(UID)):
            break
        after = node.process()
        after.restore()
        if after.prepared:  # until it has been given back, no other claim gets its devices
            with pytest.raises(Busy):
                after.prepare("default", "other", OTHER)
            after.unprepare(UID)
        after.prepare("default", "other", OTHER)
        after.unprepare(OTHER)
        assert node.files() == []
        lines += 1
    assert lines > 10
    assert node.files() == []


def test_after_a_kill_at_any_line_no_device_is_given_to_two_claims(node: Node) -> None:
    lines = 0
    while killed_at(lines, lambda: node.process().prepare("default", "both", UID)):
        after = node.process()
        after.restore()
        if after.prepared:
            with pytest.raises(Busy) as refused:
                after.prepare("default", "other", OTHER)
            assert "claim default/both still has gpu-0 here" in str(refused.value)
        after.unprepare(UID)
        assert node.files() == []
        lines += 3  # the test before has been at every line
    node.process().unprepare(UID)
