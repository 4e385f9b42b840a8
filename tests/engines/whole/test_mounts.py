"""Mounts on engines: each of them is there and proved, or the request is refused before anything is made."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.engines.whole.house import House

from dibs.errors import InvalidRequest


def folder(tmp_path: Path, name: str) -> Path:
    path = tmp_path / name
    path.mkdir()
    (path / "name").write_text(f"{name}\n")
    return path


@pytest.mark.parametrize("target", ["/run/secrets", "/dev/data", "/opt", "/etc/data", "/srv/deep/er"])
def test_a_mount_is_there_and_proved_wherever_it_is(house: House, tmp_path: Path, target: str) -> None:
    source = folder(tmp_path, "mounted")
    said, result = house.run("cat", f"{target}/name", mounts=[f"{source}:{target}"])
    assert (said, result.code) == ("mounted\n", 0)
    (row,) = house.service.sandboxes(all=True)[:1]
    receipt = house.service.receipt(row.id)
    assert receipt.verdict in ("delivered", "not observed")
    assert receipt.problems == ()


@pytest.mark.parametrize("target", ["/etc/hosts", "/etc/resolv.conf"])
def test_a_file_in_place_of_the_engines_own_is_there_and_proved(house: House, tmp_path: Path, target: str) -> None:
    source = folder(tmp_path, "instead") / "name"
    row = house.create(mounts=[f"{source}:{target}"], command=["sleep", "1000"])
    receipt = house.service.receipt(row.id)
    assert receipt.verdict == "delivered"
    assert [line.outcome for line in receipt.lines if line.field == "mount"] == ["delivered"]
    assert house.exec(row.id, "cat", target)[0] == "instead\n"


def test_a_mount_inside_another_is_there_in_any_order(house: House, tmp_path: Path) -> None:
    inner, outer = folder(tmp_path, "inner"), folder(tmp_path, "outer")
    (outer / "sub").mkdir()
    mounts = [f"{inner}:/srv/data/sub", f"{outer}:/srv/data"]
    row = house.create(mounts=mounts, command=["sleep", "1000"])
    assert house.exec(row.id, "cat", "/srv/data/sub/name", "/srv/data/name")[0] == "inner\nouter\n"


@pytest.mark.parametrize(
    ("mounts", "words"),
    [
        (["{a}:/srv/data", "{a}/..:/srv/data/"], "two mounts have this target"),
        (["/dev:/srv/dev"], "the host's devices"),
        (["/:/host"], "the host's devices"),
        (["{a}:/proc/sys"], "kernel's own"),
        (["{a}:/dev"], "kernel's own"),
        (["{a}:/dev/simgpu0"], "a device's"),
    ],
)
def test_what_cannot_be_proved_is_refused_before_anything_is_made(
    house: House, tmp_path: Path, mounts: list[str], words: str
) -> None:
    source = folder(tmp_path, "a")
    with pytest.raises(InvalidRequest, match=words):
        house.create(gpu=1, mounts=[mount.format(a=source) for mount in mounts], command=["sleep", "1000"])
    assert not house.service.leases()
    assert not house.service.sandboxes(all=True)


def test_what_is_recorded_is_what_the_engine_was_sent(house: House, tmp_path: Path) -> None:
    source = folder(tmp_path, "data")
    sent: list[dict[str, object]] = []
    backend = house.service.registry.get(house.kind)
    make = backend._make  # type: ignore[attr-defined]

    def listening(client: object, name: str, body: dict[str, object]) -> object:
        sent.append(body)
        return make(client, name, body)

    backend._make = listening  # type: ignore[attr-defined]
    row = house.create(gpu=1, mounts=[f"{source}:/data"], env={"TOKEN": "secret"}, command=["sleep", "1000"])
    told = house.service.receipt(row.id).rendered["create"]
    (body,) = sent
    names = {"Env", "env"}
    assert {key: value for key, value in told.items() if key not in names} == {
        key: value for key, value in body.items() if key not in names
    }
    assert "secret" not in str(told)
