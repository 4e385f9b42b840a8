"""dibs on real engines, from end to end. Every test skips, with the reason, where there can be no engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.engines import shared
from tests.engines.whole.house import House

both = ["docker", "podman"]


def a_house(kind: str, state: Path | None = None) -> Iterator[House]:
    engine = shared.engine(kind)
    if isinstance(engine, str):
        pytest.skip(f"{kind} is not here: {engine}")
    if not engine.answers():
        engine.start()
    house = House(engine, state or engine.home)
    try:
        yield house
    finally:
        house.close()
        for file in engine.etc_cdi.iterdir():
            file.unlink()


@pytest.fixture(params=both)
def house(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    """An engine that knows the home's simulated cards by name; there are four."""
    for one in a_house(request.param):
        monkeypatch.setenv("DIBS_HOME", str(one.home.state))
        one.world()
        yield one


@pytest.fixture(params=both)
def outsider(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    """An engine that does not read the specs of the home."""
    for one in a_house(request.param, tmp_path / "home"):
        monkeypatch.setenv("DIBS_HOME", str(one.home.state))
        one.world()
        yield one
