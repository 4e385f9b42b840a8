"""Where an engine listens.

First what was set (docker.socket, podman.socket), then the engine's own variable, then the usual places. A place that
was named is taken as it is: that nothing listens there is told, not worked around.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from functools import lru_cache

import msgspec

VARIABLES = {"docker": "DOCKER_HOST", "podman": "CONTAINER_HOST"}


class Found(msgspec.Struct, frozen=True):
    """An address, and who named it. Without an address: the reason."""

    target: str
    said_by: str
    reason: str = ""
    remedy: str = ""


def places(engine: str, environ: Mapping[str, str]) -> list[str]:
    """Where the engine's packages put its socket: a user's own before the host's."""
    runtime = environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    if engine == "docker":
        home = environ.get("HOME", "")
        own = [f"{runtime}/docker.sock"] + ([f"{home}/.docker/run/docker.sock"] if home else [])
        return ["/var/run/docker.sock", *own]
    return (["/run/podman/podman.sock"] if os.getuid() == 0 else []) + [
        f"{runtime}/podman/podman.sock",
        "/run/podman/podman.sock",
    ]


def find(engine: str, named: str, environ: Mapping[str, str] | None = None) -> Found:
    """`named`: the address that the settings give, or nothing."""
    env = os.environ if environ is None else environ
    if named:
        return _address(named, f"the setting {engine}.socket")
    variable = VARIABLES[engine]
    address = env.get(variable)
    if address:
        return _address(address, variable)
    tried = tuple(dict.fromkeys(places(engine, env)))
    for path in tried:
        try:
            if stat.S_ISSOCK(os.stat(path).st_mode):
                return Found(path, "its usual place")
        except PermissionError:
            return Found(path, "its usual place")  # it is there; connecting says what is missing
        except OSError:
            continue
    return _nowhere(engine, tried, os.getuid())


@lru_cache(maxsize=16)
def _nowhere(engine: str, tried: tuple[str, ...], uid: int) -> Found:
    """Most hosts have one engine at most, and are asked for all of them at every look."""
    reason = f"no socket was found: looked at {', '.join(tried)}"
    return Found("", "", reason, _remedy(engine, uid))


def _address(text: str, said_by: str) -> Found:
    if text.startswith(("/", "unix://", "tcp://", "http://", "https://")):
        return Found(text, said_by)
    reason = f"{said_by} is {text!r}, which dibs cannot speak to"
    return Found("", said_by, reason, "write it as unix:///path/to/socket or tcp://host:port")


def _remedy(engine: str, uid: int) -> str:
    if engine == "docker":
        return "install and start Docker (systemctl start docker), or name its socket: docker.socket in config.toml"
    unit = "systemctl start podman.socket" if uid == 0 else "systemctl --user start podman.socket"
    return f"install Podman and start its service ({unit}), or name its socket: podman.socket in config.toml"
