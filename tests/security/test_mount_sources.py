"""A source of a mount is what was checked, whatever is renamed meanwhile."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dibs.backends.local.backend import LocalBackend
from dibs.backends.port import Mount, Workload
from dibs.errors import DibsError, InvalidRequest
from dibs.gateway.opensandbox.volumes import allowed
from dibs.request import parse_spec
from dibs.workloads.service import Workloads

AT_FDCWD = -100
EXCHANGE = 2
_libc = ctypes.CDLL(None, use_errno=True)


def exchange(one: Path, other: Path) -> None:
    """In one step, as only the kernel can."""
    if _libc.renameat2(AT_FDCWD, bytes(one), AT_FDCWD, bytes(other), EXCHANGE):
        raise OSError(ctypes.get_errno(), "renameat2")


class Places:
    """A folder that may be mounted, one that may not, and a link to that one beside it."""

    def __init__(self, tmp: Path) -> None:
        self.shared, self.secret = tmp / "shared", tmp / "secret"
        self.folder, self.link = self.shared / "folder", self.shared / "link"
        for path, text in ((self.folder, "public"), (self.secret, "secret")):
            path.mkdir(parents=True)
            (path / "word").write_text(text)
        self.link.symlink_to(self.secret)


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path)


def request_(places: Places) -> dict[str, Any]:
    return {"mounts": [f"{places.folder}:/srv/data"], "command": ["cat", "/srv/data/word"]}


def said(service: Workloads, reference: str) -> str:
    service.wait(reference, 60)
    return b"".join(record.data for record in service.logs(reference)).decode()


def test_a_folder_that_becomes_a_link_after_the_plan_is_not_mounted(
    service: Workloads, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = LocalBackend.create

    def behind_the_back(backend: LocalBackend, *args: Any) -> Any:
        exchange(places.folder, places.link)
        return create(backend, *args)

    monkeypatch.setattr(LocalBackend, "create", behind_the_back)
    with pytest.raises(DibsError, match="symbolic link"):
        service.create(parse_spec(request_(places)))
    assert service.leases() == []


def test_a_folder_that_becomes_another_after_the_plan_is_not_mounted(
    service: Workloads, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = LocalBackend.create

    def behind_the_back(backend: LocalBackend, *args: Any) -> Any:
        exchange(places.folder, places.secret)
        return create(backend, *args)

    monkeypatch.setattr(LocalBackend, "create", behind_the_back)
    with pytest.raises(DibsError, match="another file or folder"):
        service.create(parse_spec(request_(places)))


@pytest.fixture
def restless(places: Places) -> Iterator[Places]:
    """The folder and the link change places all the time."""
    over = threading.Event()

    def run() -> None:
        while not over.is_set():
            exchange(places.folder, places.link)

    thread = threading.Thread(target=run)
    thread.start()
    yield places
    over.set()
    thread.join()


def test_a_folder_and_a_link_that_change_places_all_the_time_never_show_the_secret(
    service: Workloads, restless: Places
) -> None:
    outcomes = []
    for _ in range(12):
        try:
            row = service.create(parse_spec({**request_(restless), "workdir": str(restless.shared.parent / "work")}))
        except DibsError as error:
            outcomes.append(error.code)
        else:
            # A local request may name a link, and gets what it leads to: never what it does not name.
            source = next(line.asked for line in service.receipt(row.id).lines if line.field == "mount")
            outcomes.append(source.partition(":")[0].rpartition("/")[2] + " " + said(service, row.id))
    assert set(outcomes) - {"MOUNT_INVALID", "SANDBOX_SETUP_FAILED", "DELIVERY_MISMATCH"} <= {
        "folder public", "secret secret",
    }  # fmt: skip


def test_for_a_remote_request_no_link_is_followed_after_the_check(service: Workloads, places: Places) -> None:
    backend = service.registry.get("local")
    workload = Workload(
        id="remote", name="remote", command=("true",), env={}, workdir="/", private=True,
        mounts=(Mount(str(places.link), "/srv/data"),),
    )  # fmt: skip
    with pytest.raises(InvalidRequest, match="symbolic link"):
        backend.render(workload, places.shared)


def test_what_is_compared_with_the_allowed_folders_is_the_path_itself(places: Places) -> None:
    assert allowed(str(places.folder), (str(places.shared),))
    outside = places.secret.parent / "outside"
    outside.symlink_to(places.folder)
    assert not allowed(str(outside), (str(places.shared),))
    assert not allowed(os.path.realpath(places.link), (str(places.shared),))


def test_a_source_is_mounted_by_its_descriptor_and_none_stays_open(service: Workloads, places: Places) -> None:
    row = service.create(parse_spec({**request_(places), "command": ["sh", "-c", "ls -l /proc/self/fd /proc/1/fd"]}))
    assert str(places.folder) not in said(service, row.id)
