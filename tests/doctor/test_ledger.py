"""The ledger's file, its disk, and who shares it."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from dibs.doctor import ledger
from dibs.home import HOST_WIDE, Home
from dibs.ledger.kernels import file_system_of

MOUNTS = """\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 22 0:44 / /home rw - nfs4 server:/home rw
31 30 0:45 / /home/local\\040disk rw - xfs /dev/vdb rw
32 22 0:46 / /mnt/data rw - ext4 /dev/vdc rw
33 22 0:47 / /mnt/data rw - fuse.sshfs other:/ rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/lib/dibs", "ext4"),
        ("/home/a/.local/state/dibs", "nfs4"),
        ("/home", "nfs4"),
        ("/homestead", "ext4"),
        ("/home/local disk/dibs", "xfs"),
        ("/mnt/data/dibs", "fuse.sshfs"),
    ],
)
def test_the_file_system_of_a_path_is_that_of_the_nearest_mount(path: str, kind: str) -> None:
    assert file_system_of(Path(path), MOUNTS) == kind


def test_a_network_file_system_is_refused(patient: Any) -> None:
    patient.file("/proc/self/mountinfo", "22 1 0:44 / / rw - nfs4 server:/ rw\n")
    finding = ledger.file_system(patient.home, patient.roots)
    assert finding.verdict == "fail"
    assert "nfs4" in finding.why
    assert "DIBS_HOME" in finding.fix


def test_a_local_file_system_is_fine_and_unknown_mounts_are_said(patient: Any) -> None:
    assert ledger.file_system(patient.home, patient.roots).verdict == "skip"
    patient.file("/proc/self/mountinfo", "22 1 254:0 / / rw - ext4 /dev/vda rw\n")
    assert ledger.file_system(patient.home, patient.roots).verdict == "ok"


def test_a_ledger_that_is_not_there_yet_is_no_fault(patient: Any) -> None:
    assert ledger.soundness(patient.home).verdict == "ok"
    assert not patient.home.ledger.exists()


def test_a_sound_ledger_is_found_sound(patient: Any) -> None:
    with sqlite3.connect(patient.home.ledger) as database:
        database.execute("PRAGMA journal_mode=wal")
        database.execute("CREATE TABLE leases (id)")
    database.close()
    assert ledger.soundness(patient.home).verdict == "ok"


def test_a_file_that_is_no_database_is_a_fault(patient: Any) -> None:
    patient.home.ledger.write_text("this is not a database, however long it may be" * 100)
    finding = ledger.soundness(patient.home)
    assert finding.verdict == "fail"
    assert "not a database" in finding.why
    assert str(patient.home.ledger) in finding.fix


def test_a_damaged_page_is_a_fault(patient: Any) -> None:
    database = sqlite3.connect(patient.home.ledger)
    database.execute("CREATE TABLE leases (id, text)")
    database.executemany("INSERT INTO leases VALUES (?, ?)", [(n, "x" * 500) for n in range(200)])
    database.commit()
    database.close()
    size = patient.home.ledger.stat().st_size
    with open(patient.home.ledger, "r+b") as file:
        file.seek(size // 2)
        file.write(b"\xff" * 4096)
    assert ledger.soundness(patient.home).verdict == "fail"


def test_a_folder_that_is_not_there_yet_is_judged_by_the_one_above(patient: Any) -> None:
    finding = ledger.folder(Home(state=patient.root / "a" / "b", config=patient.root))
    assert finding.verdict == "ok"
    assert "when it is first needed" in finding.title


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_of_another_user_is_refused(patient: Any) -> None:
    patient.home.state.chmod(0o500)
    assert ledger.folder(patient.home).verdict == "fail"


def test_free_space_is_reported(patient: Any) -> None:
    assert "free at" in ledger.space(patient.home).title


PASSWD = """\
root:x:0:0:root:/root:/bin/bash
daemon:x:1:1::/:/usr/sbin/nologin
ann:x:1000:1000::/home/ann:/bin/bash
bob:x:1001:1001::/home/bob:/usr/bin/zsh
svc:x:1002:1002::/srv:/usr/sbin/nologin
nobody:x:65534:65534::/:/bin/sh
"""


def test_people_are_users_with_a_shell(patient: Any) -> None:
    patient.file("/etc/passwd", PASSWD)
    assert ledger.humans(patient.roots) == ["ann", "bob"]


def test_a_shared_box_is_told_to_share_the_ledger(patient: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "HOST_WIDE", patient.root / "none")
    patient.file("/etc/passwd", PASSWD)
    finding = ledger.sharing(patient.scene([patient.card()]))
    assert finding.verdict == "warn"
    assert "ann, bob" in finding.why
    assert finding.fix.startswith("sudo dibs host install && sudo usermod -aG dibs ")
    assert "sudo usermod -aG dibs bob" in finding.fix


def test_a_host_wide_folder_that_one_may_not_write_is_reported(patient: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "HOST_WIDE", patient.root)
    monkeypatch.delenv("DIBS_HOME", raising=False)
    patient.file("/etc/passwd", PASSWD)
    finding = ledger.sharing(patient.scene([patient.card()]))
    assert "may not write" in finding.title
    assert "usermod -aG dibs $USER" in finding.fix


@pytest.mark.parametrize("passwd", [PASSWD.replace("bob", "b").replace("1001:1001", "999:999"), ""])
def test_a_box_of_one_person_needs_no_shared_ledger(patient: Any, passwd: str) -> None:
    patient.file("/etc/passwd", passwd)
    assert ledger.sharing(patient.scene([patient.card()])).verdict == "ok"


def test_a_box_without_gpus_needs_no_shared_ledger(patient: Any) -> None:
    patient.file("/etc/passwd", PASSWD)
    assert ledger.sharing(patient.scene()).verdict == "ok"


def test_the_host_wide_ledger_is_fine(patient: Any) -> None:
    patient.file("/etc/passwd", PASSWD)
    scene = patient.scene([patient.card()])
    patient.home = Home(state=HOST_WIDE, config=patient.root)
    assert ledger.sharing(patient.scene([patient.card()])).verdict == "ok"
    assert ledger.sharing(scene).verdict == "warn"


def test_a_ledger_on_postgresql_is_asked_and_its_file_is_not(patient: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.postgres.server import shared

    url = shared().new_database()
    monkeypatch.setenv("DIBS_LEDGER", url)
    found = {finding.id: finding for finding in ledger.check(patient.scene())}
    assert found["ledger.server"].verdict == "ok"
    assert "ledger.sound" not in found
    monkeypatch.setenv("DIBS_LEDGER", "postgresql://somebody:secret@127.0.0.1:1/nothing")
    found = {finding.id: finding for finding in ledger.check(patient.scene())}
    assert found["ledger.server"].verdict == "fail"
    assert "secret" not in str(found)


def test_a_ledger_that_others_can_read_is_reported_with_the_command_that_closes_it(patient: Any) -> None:
    patient.home.state.chmod(0o755)
    patient.home.ledger.write_bytes(b"")
    patient.home.ledger.chmod(0o644)
    finding = ledger.private(patient.home)
    assert finding.verdict == "fail"
    assert finding.fix == f"chmod go-rwx {patient.home.ledger}"
    patient.home.ledger.chmod(0o600)
    assert ledger.private(patient.home).verdict == "ok"
    patient.home.state.chmod(0o775)
    assert ledger.private(patient.home).fix == f"chmod go-w {patient.home.state}"
