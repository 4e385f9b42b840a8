"""A ledger belongs to one kernel per host: names of hosts may change or be cloned, a boot id cannot."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.ledger.books import book, device

from dibs import process
from dibs.errors import Busy, Conflict, StateError
from dibs.home import Home
from dibs.ledger import kernels
from dibs.ledger.store import Ledger
from dibs.process import absent, myself
from dibs.request import parse_spec
from dibs.workloads.service import Workloads

Become = Callable[..., None]
UNSHARE = ["unshare", "-m"] if os.getuid() == 0 else ["unshare", "-rm"]
TAKE_ALL = """
from dibs.request import parse_spec
from dibs.workloads.service import Workloads
with Workloads() as service:
    print(service.create(parse_spec({"gpu": 8, "command": ["sleep", "1000"]})).id)
"""


def _clear() -> None:
    for cached in (process.host_id, process.boot_id, process.myself):
        cached.cache_clear()


@pytest.fixture
def become(monkeypatch: pytest.MonkeyPatch) -> Iterator[Become]:
    """Be another kernel, or the same one under another name."""

    def change(*, host: str = "", boot: str = "", addresses: tuple[str, ...] | None = None) -> None:
        for name, value in (("DIBS_HOST_ID", host), ("DIBS_BOOT_ID", boot)):
            if value:
                monkeypatch.setenv(name, value)
        if addresses is not None:
            monkeypatch.setattr(kernels, "hardware_addresses", lambda: addresses)
        process.ended_boots.clear()
        _clear()

    yield change
    process.ended_boots.clear()
    monkeypatch.undo()
    _clear()


def _other_host_name(tmp_path: Path, kind: str) -> list[str]:
    """A command before another one that shows it another name of this host."""
    fake = tmp_path / "machine-id"
    fake.write_text("0123456789abcdef0123456789abcdef\n" if kind == "machine id" else "")
    ids = [path for path in ("/etc/machine-id", "/var/lib/dbus/machine-id") if os.path.exists(path)]
    if kind == "machine id" and not ids:
        pytest.skip("this host has no machine id to be hidden")
    binds = "".join(f"mount --bind {fake} {path} && " for path in ids)
    name = "hostname elsewhere && " if kind == "host name" else ""
    return [*UNSHARE, *(["-u"] if name else []), "sh", "-c", f'{binds}{name}exec "$@"', "sh"]


@pytest.mark.parametrize("kind", ["machine id", "host name"])
def test_a_kernel_with_two_names_gives_a_card_once(service: Workloads, tmp_path: Path, kind: str) -> None:
    row = service.create(parse_spec({"gpu": 8, "command": ["sleep", "1000"]}))
    result = subprocess.run(
        [*_other_host_name(tmp_path, kind), sys.executable, "-c", TAKE_ALL],
        env={**os.environ, "DIBS_HOME": str(service.home.state)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "Busy" in result.stderr, result.stderr + result.stdout
    assert service.sandbox(row.id).state == "running"


def test_what_was_made_under_another_name_can_be_stopped(service: Workloads, become: Become) -> None:
    become(host="in-a-container")
    with Workloads(service.home) as inside:
        row = inside.create(parse_spec({"gpu": 8, "command": ["sleep", "1000"]}))
    become(host="on-the-host")
    with Workloads(service.home) as outside:
        assert outside.stop(row.id, 0.0).state == "exited"
        assert outside.leases() == []


def test_after_a_restart_under_another_name_nothing_of_the_last_boot_is_held(home: Home, become: Become) -> None:
    become(host="container-1", boot="boot-1")
    with Ledger(home) as ledger:
        book(ledger, device("gpu-0"))
    before = myself()
    become(host="container-2", boot="boot-2")
    with Ledger(home) as ledger:
        assert ledger.holders(), "the rows of the last boot are this host's"
        assert absent(before)
    become(host="container-3")
    assert not absent(before)
    with Ledger(home):
        assert absent(before), "every later process knows it too"


@pytest.mark.parametrize("kind", ["nfs4", "9p", "virtiofs"])
def test_a_ledger_that_other_kernels_may_see_is_refused(home: Home, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(kernels, "file_system_of", lambda *_: kind)
    with pytest.raises(StateError) as caught:
        Ledger(home)
    problem = caught.value.problems[0]
    assert problem.code == "LEDGER_ON_NETWORK"
    assert kind in problem.reason
    assert "DIBS_LEDGER_ON_NETWORK=1" in problem.remedy


@pytest.mark.parametrize("seen_as", [("9p", "9p"), ("9p", "ext4"), ("ext4", "9p")])
def test_a_forced_ledger_is_not_taken_from_a_kernel_that_may_run(
    home: Home, become: Become, monkeypatch: pytest.MonkeyPatch, seen_as: tuple[str, str]
) -> None:
    """A guest and its host, on the host's folder: each sees the other's boot, and neither has restarted."""
    monkeypatch.setenv("DIBS_LEDGER_ON_NETWORK", "1")
    monkeypatch.setattr(kernels, "file_system_of", lambda *_: seen_as[0])
    become(host="same", boot="guest")
    with Ledger(home) as ledger:
        book(ledger, device("gpu-0"))
    monkeypatch.setattr(kernels, "file_system_of", lambda *_: seen_as[1])
    become(boot="host")
    with pytest.raises(Conflict) as caught:
        Ledger(home)
    assert caught.value.code == "LEDGER_OTHER_KERNEL"
    assert "DIBS_ENDED_BOOT=guest" in caught.value.problems[0].remedy
    monkeypatch.setenv("DIBS_ENDED_BOOT", "guest")
    Ledger(home).close()
    monkeypatch.delenv("DIBS_ENDED_BOOT")
    Ledger(home).close()
    monkeypatch.setattr(kernels, "file_system_of", lambda *_: seen_as[0])
    become(boot="guest")
    with pytest.raises(Conflict):
        Ledger(home)


def test_a_clone_is_refused_and_frees_nothing(postgres: str, tmp_path: Path, become: Become) -> None:
    """Two machines with one machine id on one ledger: what lives on the first is none of the second's business."""
    first, second = (Home(state=tmp_path / name, config=tmp_path) for name in ("first", "second"))
    become(host="cloned", boot="boot-1", addresses=("52:54:00:00:00:01",))
    with Ledger(first) as ledger:
        book(ledger, device("gpu-0"))
    become(boot="boot-2", addresses=("52:54:00:00:00:02",))
    with pytest.raises(Conflict) as caught:
        Workloads(second).ledger  # noqa: B018
    problem = caught.value.problems[0]
    assert problem.code == "HOST_IDENTITY_TAKEN"
    assert problem.value == "cloned"
    assert "machine id" in problem.remedy
    assert "DIBS_HOST_ID" in problem.remedy
    become(host="renamed")
    with Ledger(second) as ledger:
        assert ledger.holders() == {}
        book(ledger, device("gpu-0"))
    become(host="cloned", boot="boot-1", addresses=("52:54:00:00:00:01",))
    with Ledger(first) as ledger:
        assert list(ledger.holders()) == ["gpu-0"]


@pytest.mark.parametrize(
    ("addresses", "home_kept", "accepted"),
    [(("a", "b"), False, True), ((), True, True), ((), False, False), (("z",), True, False)],
)
def test_a_restart_is_told_from_a_clone(
    postgres: str, tmp_path: Path, become: Become, addresses: tuple[str, ...], home_kept: bool, accepted: bool
) -> None:
    first, second = (Home(state=tmp_path / name, config=tmp_path) for name in ("first", "second"))
    become(host="box", boot="boot-1", addresses=("a",) if addresses else ())
    Ledger(first).close()
    become(boot="boot-2", addresses=addresses)
    if accepted:
        Ledger(first if home_kept else second).close()
        return
    with pytest.raises(Conflict) as caught:
        Ledger(first if home_kept else second)
    assert caught.value.code == "HOST_IDENTITY_TAKEN"


def test_two_names_of_one_kernel_share_their_rows_on_postgresql(postgres: str, tmp_path: Path, become: Become) -> None:
    first, second = (Home(state=tmp_path / name, config=tmp_path) for name in ("first", "second"))
    become(host="host", boot="boot-1")
    with Ledger(first) as ledger:
        book(ledger, device("gpu-0"))
    become(host="container")
    with Ledger(second) as ledger, pytest.raises(Busy):
        book(ledger, device("gpu-0"))
