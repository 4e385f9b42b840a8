"""A gateway with two tenants, red and blue, and what red has: the same for all tests here."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from tests.gateway.conftest import Reply, RunningGateway, end_all

from dibs.devices.simulated import parse_world, simulate
from dibs.home import Home

BODY = {"image": {"uri": "host"}, "entrypoint": ["tail", "-f", "/dev/null"], "timeout": 3600}


class Scene(msgspec.Struct):
    """`box` is red's sandbox, reached at `execd` with `door`; blue has a token, and nothing else."""

    gateway: RunningGateway
    red: str
    blue: str
    box: str
    execd: str
    door: dict[str, str]

    def inside(self, method: str, path: str, body: object = None, **more: str) -> Reply:
        """A request to red's own sandbox."""
        return self.gateway.ask(method, self.execd + path, body, token=None, headers={**self.door, **more})


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    root = tmp_path_factory.mktemp("scene")
    home = Home(state=root / "home", config=root / "home" / "config").make()
    simulate(home, parse_world("8", model="H100"))
    gateway = RunningGateway(home, root, env={"DIBS_GATEWAY_LOG_LEVEL": "debug"}).start()
    try:
        red, blue = (gateway.make_token(name, "--tenant", name) for name in ("red", "blue"))
        body = {**BODY, "resourceLimits": {"gpu": "1"}, "metadata": {"team": "crimson"}, "env": {"PASSWORD": "hunter2"}}
        box = gateway.ask("POST", "/v1/sandboxes", body, token=red).data["id"]
        found = gateway.until(lambda: _there(gateway, box, red))
        scene = Scene(gateway, red, blue, box, "/" + found["endpoint"].partition("/")[2], found["headers"])
        assert scene.inside("GET", "/ping").status == 200
        yield scene
    finally:
        code = gateway.stop()
        end_all(home)
    assert code == 0, gateway.log[-4000:]
    assert "Traceback" not in gateway.log, gateway.log[-4000:]


def _there(gateway: RunningGateway, box: str, token: str) -> dict[str, dict[str, str]] | None:
    answer = gateway.ask("GET", f"/v1/sandboxes/{box}/endpoints/44772", token=token)
    return answer.data if answer.status == 200 else None
