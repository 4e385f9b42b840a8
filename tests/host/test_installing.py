"""`dibs host`, below a folder of its own: nothing of the real machine is touched."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from dibs.errors import Conflict, DibsError, InvalidRequest
from dibs.gateway import host
from dibs.gateway.host import Machine, install, status, uninstall, unit_text
from dibs.home import Home
from dibs.workloads.service import Workloads


@pytest.fixture
def machine(open_folder: Path) -> Machine:
    return Machine(str(open_folder))


def with_systemd(machine: Machine) -> Machine:
    machine.path("/run/systemd/system").mkdir(parents=True)
    return machine


def mode(path: Path) -> str:
    return f"{stat.S_IMODE(path.stat().st_mode):04o}"


def test_everything_is_set_up_and_the_second_time_nothing_is_to_do(machine: Machine) -> None:
    with_systemd(machine)
    first = list(install(machine, start=False))
    assert any(step.done for step in first)
    assert mode(machine.state) == "0711"
    assert "[gateway]" in machine.config.read_text()
    assert machine.unit.read_text() == unit_text()
    assert not any(step.done for step in install(machine, start=False))


def test_a_changed_configuration_is_kept_and_a_changed_unit_is_brought_up_to_date(machine: Machine) -> None:
    with_systemd(machine)
    list(install(machine, start=False))
    machine.config.write_text("# mine\n")
    machine.unit.write_text("# of an older dibs\n")
    steps = list(install(machine, start=False))
    assert machine.config.read_text() == "# mine\n"
    assert machine.unit.read_text() == unit_text()
    assert [step.what for step in steps if step.done] == [f"file {machine.unit} brought up to date"]


def test_without_systemd_the_command_for_another_supervisor_is_reported(machine: Machine) -> None:
    notes = [step.note for step in install(machine, start=True)]
    assert any("dibs serve --host-service" in note for note in notes)
    assert not machine.unit.exists()


def test_the_unit_is_one_that_systemd_takes(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not there to verify it")
    path = tmp_path / "dibs.service"
    path.write_text(unit_text())
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(path)], capture_output=True, text=True, check=False
    )
    about_us = [line for line in (done.stdout + done.stderr).splitlines() if "dibs.service" in line]
    assert about_us == [], about_us


def test_a_stop_of_the_unit_leaves_sandboxes_alone() -> None:
    assert "KillMode=process" in unit_text().splitlines()
    assert f"ExecStart={sys.executable} -I -m dibs serve --host-service" in unit_text().splitlines()


def test_odd_characters_in_the_interpreters_path_are_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", '/opt/my "own" %h/python')
    assert 'ExecStart="/opt/my \\"own\\" %%h/python" -I' in unit_text()


def test_an_installation_that_users_cannot_read_is_refused(open_folder: Path) -> None:
    private = open_folder / "private" / "bin"
    private.mkdir(parents=True)
    (private / "python").write_text("")
    private.parent.chmod(0o700)
    assert host.unreadable_for_others([str(private / "python")]) == [str(private.parent)]
    private.parent.chmod(0o711)
    private.chmod(0o755)
    (private / "python").chmod(0o755)
    assert host.unreadable_for_others([str(private / "python")]) == []


def test_only_root_may_change_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    for change in (install(Machine(), start=False), uninstall(Machine(), force=False, purge=False)):
        with pytest.raises(InvalidRequest) as refusal:
            list(change)
        assert refusal.value.code == "ROOT_NEEDED"


def test_the_status_of_a_machine_without_a_service(machine: Machine) -> None:
    found = status(machine)
    assert (found.installed, found.running, found.usable) == (False, False, False)


def test_taking_it_away_keeps_the_ledger_unless_it_is_to_go(machine: Machine) -> None:
    with_systemd(machine)
    list(install(machine, start=False))
    with Workloads(machine.home) as service:
        assert service.sandboxes() == []
    list(uninstall(machine, force=False, purge=False))
    assert not machine.unit.exists()
    assert machine.home.ledger.exists()
    assert machine.config.exists()
    list(uninstall(machine, force=False, purge=True))
    assert not machine.state.exists()
    assert not machine.config.parent.exists()
    assert list(uninstall(machine, force=False, purge=True)) == []


def test_it_is_not_taken_away_while_sandboxes_run(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    from dibs.request.spec import parse_spec

    list(install(machine, start=False))
    work = machine.path("/work")
    work.mkdir()
    monkeypatch.chdir(work)
    with Workloads(machine.home) as service:
        service.create(parse_spec({"name": "busy", "command": ["sleep", "100"]}))
    with pytest.raises(Conflict) as refusal:
        list(uninstall(machine, force=False, purge=False))
    assert refusal.value.code == "SANDBOXES_RUNNING"
    assert "busy" in str(refusal.value)
    steps = list(uninstall(machine, force=True, purge=True))
    assert any("busy" in step.what for step in steps)
    assert not machine.state.exists()


def test_a_command_of_the_machine_that_fails_is_reported_with_its_words() -> None:
    with pytest.raises(DibsError) as failure:
        Machine().run("sh", "-c", "echo no such group >&2; exit 6")
    assert "no such group" in str(failure.value)


def test_the_command_line_prints_the_unit_and_changes_nothing(home: Home, tmp_path: Path) -> None:
    env = {**os.environ, "DIBS_HOST_ROOT": str(tmp_path / "nowhere")}
    done = subprocess.run(
        [sys.executable, "-m", "dibs", "host", "install", "--print"],
        env=env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout == unit_text()
    assert not (tmp_path / "nowhere").exists()
