"""Podman as an ordinary user runs it: without root nothing can make device nodes, and without delegation there are no
control groups. dibs is run by the same user here, through its command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.engines import shared
from tests.engines.images import REFERENCE
from tests.engines.running import NOBODY, Engine
from tests.engines.whole.house import House, nodes_of, until
from tests.installation import private

from dibs.errors import Unsupported
from dibs.process import name_of

OPTIONS = ("--backend", "podman", "--image", REFERENCE)


class User:
    """An ordinary user with a Podman and a home of dibs, which has four simulated cards."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.folder = engine.own / "home"
        config = engine.home / "config"
        config.mkdir(exist_ok=True)
        (config / "config.toml").write_text(f'[podman]\nsocket = "{engine.socket}"\n')
        self.asked("gpus", "simulate", "4")

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "dibs", *words], cwd=self.folder, text=True,
            env={"PATH": os.environ["PATH"], "HOME": str(self.folder), "DIBS_HOME": str(self.engine.home)},
            user=NOBODY, group=NOBODY, extra_groups=[],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def dibs(self, *words: str) -> tuple[int, str, str]:
        child = self.start(*words)
        out, err = child.communicate(timeout=120)
        return child.returncode, out, err

    def asked(self, *words: str) -> str:
        status, out, err = self.dibs(*words)
        assert status == 0, err
        return out

    def data(self, *words: str) -> Any:
        return json.loads(self.asked(*words, "-o", "json"))

    def cards(self) -> list[str]:
        return [card["state"] for card in self.data("gpus")["devices"]]

    def inspected(self, name: str) -> dict[str, Any]:
        sandbox = self.data("sandbox", "show", name)["id"]
        status, document = self.engine.api("GET", f"{self.engine.prefix}/containers/dibs-{sandbox}/json")
        assert status == 200, document
        assert isinstance(document, dict)
        return document


@pytest.fixture
def user() -> Iterator[User]:
    engine = shared.engine("podman", rootless=True)
    if isinstance(engine, str):
        pytest.skip(f"no rootless podman here: {engine}")
    if reason := private():
        pytest.skip(reason)
    one = User(engine)
    yield one
    for box in one.data("sandbox", "ls")["sandboxes"]:
        one.asked("sandbox", "rm", "--grace", "0s", box["id"])
    engine.remove_containers()
    assert one.cards() == ["free"] * 4


def test_a_sandbox_has_its_cards_for_its_whole_life(user: User) -> None:
    user.asked("sandbox", "create", "--name", "one", *OPTIONS, "--gpu", "2", "--", "sleep", "1000")
    pid = int(user.inspected("one")["State"]["Pid"])
    assert nodes_of(pid) == ["simgpu0 c 1:3", "simgpu1 c 1:3"]
    receipt = user.data("receipt", "one")
    lines = {line["field"]: line for line in receipt["lines"]}
    assert {line["outcome"] for line in receipt["lines"]} == {"delivered"}
    assert (lines["user"]["observed"], lines["groups"]["observed"]) == ("0", "none")
    assert "rootless" in json.dumps(receipt), "it says why they went as nodes and not by name"
    assert user.cards() == ["held", "held", "free", "free"]

    assert user.asked("sandbox", "exec", "one", "--", "id", "-u") == "0\n"
    (user.folder / "file").write_text("there and back")
    user.asked("sandbox", "cp", str(user.folder / "file"), "one:/tmp/file")
    user.asked("sandbox", "cp", "one:/tmp/file", str(user.folder / "back"))
    assert (user.folder / "back").read_text() == "there and back"

    user.asked("sandbox", "stop", "--grace", "0s", "one")
    assert name_of(pid) is None
    assert user.cards() == ["free"] * 4


def test_what_a_user_cannot_have_is_refused_before_a_container_is_made(user: User) -> None:
    wanted = {"LIMIT_NOT_ENFORCEABLE": ("--memory", "64Mi"), "OBSERVATION_FAILED": ("--user", "1000")}
    if not _tun_is_open():
        wanted["NETWORK_UNAVAILABLE"] = ("--network", "private")
    for code, options in wanted.items():
        status, _, err = user.dibs("run", *OPTIONS, "--gpu", "1", *options, "--", "true")
        assert (status, code in err) == (81, True), err
        assert "→" in err
    assert user.engine.containers() == []


def test_root_proves_a_sandbox_of_another_user_in_a_rootless_container(
    user: User, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root may look at every process; the ids of the container are not those of the host."""
    house = House(user.engine, tmp_path / "home")
    monkeypatch.setenv("DIBS_HOME", str(house.home.state))
    try:
        row = house.create(command=["sleep", "1000"], user="1000")
        receipt = house.service.receipt(row.id)
        lines = {line.field: line for line in receipt.lines}
        assert (lines["user"].observed, lines["groups"].observed) == ("1000", "none")
        with pytest.raises(Unsupported) as caught:
            house.create(command=["true"], user="70000")
        assert caught.value.code == "ROOTLESS_LIMITED"
    finally:
        house.close()


def test_a_pause_that_is_impossible_says_why_and_the_sandbox_runs_on(user: User) -> None:
    if os.path.exists("/sys/fs/cgroup/cgroup.controllers"):
        pytest.skip("with control groups of version 2 a user's container can be paused")
    user.asked("sandbox", "create", "--name", "one", *OPTIONS, "--", "sleep", "1000")
    status, _, err = user.dibs("sandbox", "pause", "one")
    assert (status, "ROOTLESS_LIMITED" in err, "cgroup" in err) == (81, True, True), err
    assert user.data("sandbox", "show", "one")["state"] == "running"


def test_a_killed_client_takes_its_container_with_it_and_frees_the_card(user: User) -> None:
    child = user.start("run", "--name", "one", *OPTIONS, "--gpu", "1", "--", "sh", "-c", "echo up; sleep 1000")
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "up\n"
        pid = int(user.inspected("one")["State"]["Pid"])
    finally:
        child.kill()
        child.communicate()
    until(lambda: name_of(pid) is None, why="the container of a client that was killed runs on")
    until(lambda: user.cards() == ["free"] * 4)


def test_a_card_is_held_while_its_engine_is_away_and_freed_when_its_process_is_gone(user: User) -> None:
    """Without control groups its absence can only be proved by its first process."""
    user.asked("sandbox", "create", "--name", "one", *OPTIONS, "--gpu", "1", "--", "sleep", "1000")
    pid = int(user.inspected("one")["State"]["Pid"])
    user.engine.kill()
    try:
        assert user.cards()[0] == "held"
        os.kill(pid, 9)
        until(lambda: name_of(pid) is None)
    finally:
        user.engine.start()
    until(lambda: user.cards()[0] == "free")


def _tun_is_open() -> bool:
    try:
        return bool(Path("/dev/net/tun").stat().st_mode & 0o006)
    except OSError:
        return False
