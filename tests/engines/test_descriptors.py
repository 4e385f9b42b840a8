"""What is open in the process that uses dibs stays with it."""

from __future__ import annotations

import os
from pathlib import Path

from tests.engines.conftest import Bench

from dibs.backends.engines import ttl


def test_the_keeper_of_a_container_inherits_no_descriptors(bench: Bench) -> None:
    root = os.open("/", os.O_RDONLY)
    os.set_inheritable(root, True)
    try:
        handle = bench.start("sleep", "1000", ttl_seconds=600.0)
    finally:
        os.close(root)
    keeper = ttl.keeper_of(Path(handle.folder))
    assert keeper is not None
    folder = f"/proc/{keeper.pid}/fd"
    assert "/" not in [os.readlink(f"{folder}/{name}") for name in os.listdir(folder)]
