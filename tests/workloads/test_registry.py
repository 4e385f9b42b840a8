"""The backends of an installation are made from its settings, wherever those come from."""

from __future__ import annotations

import pytest

from dibs.backends.engines.backend import EngineBackend
from dibs.errors import BackendUnavailable
from dibs.home import Home
from dibs.settings import Settings
from dibs.workloads.registry import Registry


@pytest.mark.parametrize("kind", ["docker", "podman"])
def test_an_engine_is_where_the_given_settings_say(home: Home, kind: str) -> None:
    """Not where the installation's own file says: a gateway may have been started with another one."""
    home.config.mkdir(exist_ok=True)
    (home.config / "config.toml").write_text(f'[{kind}]\nsocket = "/in/the/file.sock"\n')
    given = "/given/at/the/start.sock"
    settings = Settings(docker_socket=given) if kind == "docker" else Settings(podman_socket=given)
    for registry, path in ((Registry(home, settings), given), (Registry(home), "/in/the/file.sock")):
        engine = next(one for one in registry.shared_engines() if one.name == kind)
        assert isinstance(engine, EngineBackend)
        with pytest.raises(BackendUnavailable) as caught:
            engine.client()
        assert path in caught.value.problems[0].value
