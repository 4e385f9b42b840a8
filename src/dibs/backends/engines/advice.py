"""Commands and settings that an administrator needs to make an engine usable. `doctor` prints them."""

from __future__ import annotations

from collections.abc import Iterable


def start(engine: str) -> str:
    """How its service is started."""
    return "sudo systemctl start docker" if engine == "docker" else "sudo systemctl start podman.socket"


def allow(engine: str, target: str) -> str:
    """How a user gets access to its socket."""
    return "sudo usermod -aG docker $USER && newgrp docker" if engine == "docker" else f"ls -l {target}"


def spec_folders(engine: str, folders: Iterable[str]) -> str:
    """How it is told to read CDI specs from these folders."""
    listed = ", ".join(f'"{folder}"' for folder in folders)
    if engine == "docker":
        return f'set "cdi-spec-dirs": [{listed}] in /etc/docker/daemon.json, then: sudo systemctl restart docker'
    return f"set cdi_spec_dirs = [{listed}] under [engine] in /etc/containers/containers.conf"
