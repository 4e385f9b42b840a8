"""Who computes on AMD's cards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dibs.devices.kfd import users


def topology(host: Any, **cards: int) -> None:
    host.file("/sys/class/kfd/kfd/topology/nodes/0/gpu_id", "0\n")
    for place, (number, minor) in enumerate(cards.items(), 1):
        folder = f"/sys/class/kfd/kfd/topology/nodes/{place}"
        host.file(f"{folder}/gpu_id", number.removeprefix("g") + "\n")
        host.file(f"{folder}/properties", f"simd_count 304\ndrm_render_minor {minor}\n")


def holds(host: Any, pid: int, number: int, amount: int | str) -> None:
    host.file(f"/sys/class/kfd/kfd/proc/{pid}/vram_{number}", f"{amount}\n")


def test_a_process_counts_where_it_has_memory(host: Any) -> None:
    topology(host, g51545=128, g2000=129)
    holds(host, 10, 51545, 4096)
    holds(host, 10, 2000, 0)
    holds(host, 11, 51545, 1)
    assert users(host.roots) == ({"/dev/dri/renderD128": (10, 11)}, ())


def test_a_host_without_the_driver_has_no_users_and_no_error(host: Any) -> None:
    assert users(host.roots) == ({}, ())


def test_accounting_that_cannot_be_read_is_an_error(host: Any) -> None:
    topology(host, g1=128)
    holds(host, 10, 1, 5)
    host.file("/sys/class/kfd/kfd/proc/10/vram_1", "lots")
    found, (error,) = users(host.roots)
    assert found == {}
    assert (error.source, "lots" in error.reason) == ("kfd", True)
    Path(host.roots.file("/sys/class/kfd/kfd/proc/10/vram_1")).unlink()
    Path(host.roots.file("/sys/class/kfd/kfd/proc/10/vram_1")).mkdir()
    assert "Is a directory" in users(host.roots)[1][0].reason


def test_use_by_others_is_shown_on_the_card_and_our_own_is_not(host: Any) -> None:
    nodes = {"0": ["/dev/kfd", "/dev/dri/card0", "/dev/dri/renderD128"], "1": ["/dev/kfd", "/dev/dri/renderD129"]}
    host.spec("amd.json", "amd.com/gpu", nodes)
    topology(host, g5=128, g6=129)
    for pid, number in ((10, 5), (11, 5), (11, 6)):
        holds(host, pid, number, 1 << 30)
    host.file("/proc/10/cmdline", "python\0train.py\0")
    inventory = host.look(ours=(11,))
    assert inventory.errors == ()
    first, second = inventory.devices
    assert [(use.pid, use.command) for use in first.used_by] == [(10, "python train.py")]
    assert second.used_by == ()
    holds(host, 10, 5, "nonsense")
    assert [error.source for error in host.look().errors] == ["kfd"]
