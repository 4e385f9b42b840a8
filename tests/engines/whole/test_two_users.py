"""Two users on one socket: root, and an ordinary user who may write to it (the group `docker`). Such a user could start
containers, but not look into them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.engines.images import REFERENCE
from tests.engines.running import NOBODY
from tests.engines.whole.house import Card, House, vendor_spec
from tests.installation import private

from dibs.devices.simulated import off


class Member:
    """The other user, with a home of its own on the same engine."""

    def __init__(self, house: House, home: Path) -> None:
        self.home = home
        self.options = ("--backend", house.kind, "--image", REFERENCE)
        (home / "config").mkdir(parents=True)
        (home / "config" / "config.toml").write_text(f'[{house.kind}]\nsocket = "{house.engine.socket}"\n')
        for folder in (home, home / "config"):
            os.chown(folder, NOBODY, NOBODY)

    def dibs(self, *words: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-m", "dibs", *words], cwd=self.home, text=True, check=False, timeout=120,
            env={name: os.environ[name] for name in ("PATH", "DIBS_CDI_DIRS") if name in os.environ}
            | {"HOME": str(self.home), "DIBS_HOME": str(self.home)},
            user=NOBODY, group=NOBODY, extra_groups=[], stdin=subprocess.DEVNULL, capture_output=True,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr


@pytest.fixture
def member(house: House) -> Iterator[Member]:
    if reason := private():
        pytest.skip(reason)
    house.engine.folder.chmod(0o755)
    house.engine.socket.chmod(0o666)
    yield Member(house, house.work / f"member-{house.kind}")
    house.engine.socket.chmod(0o600)
    house.engine.folder.chmod(0o700)
    subprocess.run(["rm", "-rf", str(house.work / f"member-{house.kind}")], check=True)


@pytest.mark.parametrize("command", [("true",), ("sleep", "1000")])
def test_a_user_who_cannot_inspect_containers_is_refused_before_one_is_created(
    house: House, member: Member, command: tuple[str, ...]
) -> None:
    """Also a command so short that its end would come before the look."""
    assert member.dibs("gpus", "simulate", "2")[0] == 0
    before = house.names()
    status, said = member.dibs("run", *member.options, "--gpu", "1", "--", *command)
    assert (status, "OBSERVATION_FAILED" in said, "dibs host install" in said) == (81, True, True), said
    assert house.names() == before
    status, said = member.dibs("explain", *member.options, "--gpu", "1")
    assert (status, "only root may look" in said) == (81, True), said
    assert "only root may look" not in member.dibs("explain", "--backend", "local", "--gpu", "1")[1]
    assert "may not look into the containers" in member.dibs("doctor")[1]


def test_a_card_of_one_user_is_not_free_for_the_other_and_neither_reaches_the_others_sandbox(
    house: House, member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    off(house.home)
    monkeypatch.setenv("DIBS_CDI_DIRS", str(house.engine.etc_cdi))
    # A user who cannot look inside goes by what the engine says, and Podman names only nodes that are in /dev.
    # Docker has another one: both may run this at the same time.
    source = "/dev/full" if house.kind == "docker" else "/dev/random"
    numbers = os.stat(source).st_rdev
    vendor_spec(house.engine, [Card("0", source, os.major(numbers), os.minor(numbers))])
    row = house.create(device="vendor.example/gpu=0", command=["sleep", "1000"])
    status, said = member.dibs("gpus")
    assert status == 0, said
    assert f"dibs-{row.id}" in said, "the card is in a container of another user"
    status, said = member.dibs("sandbox", "stop", row.id)
    assert (status, "NOT_FOUND" in said) == (89, True), said
    status, said = member.dibs("run", "--backend", "local", "--device", "vendor.example/gpu=0", "--", "true")
    assert status != 0, said
    assert house.again().sandbox(row.id).state == "running"
