"""Sandboxes on the local backend for the agentless execd, without a server in between."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from dibs.gateway.execd.script_runner import Inside
from dibs.gateway.threads import Pool
from dibs.request import parse_spec
from dibs.workloads.identity import this_process
from dibs.workloads.service import Workloads

T = TypeVar("T")


@pytest.fixture(scope="session")
def busybox_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root folder with nothing in it but a static busybox."""
    program = shutil.which("busybox")
    if program is None:
        pytest.skip("there is no busybox here (Debian: apt install busybox-static)")
    root = tmp_path_factory.mktemp("busybox")
    for name in ("bin", "etc", "proc", "dev", "sys", "tmp", "run", "root", "work"):
        (root / name).mkdir()
    (root / "etc" / "passwd").write_text("root:x:0:0:root:/root:/bin/sh\nguest:x:1000:1000::/:/bin/sh\n")
    (root / "etc" / "group").write_text("root:x:0:\nguest:x:1000:\n")
    shutil.copy(program, root / "bin" / "busybox")
    names = subprocess.run([program, "--list"], check=True, capture_output=True, text=True).stdout.split()
    for name in set(names) - {"busybox"}:
        (root / "bin" / name).symlink_to("busybox")
    return root


@pytest.fixture
def pool(service: Workloads) -> Iterator[Pool]:
    pool = Pool(lambda: Workloads(service.home))
    yield pool
    pool.close()


@pytest.fixture(params=["host", "busybox"])
def root(request: pytest.FixtureRequest) -> str:
    if request.param == "host":
        return "host"
    return str(request.getfixturevalue("busybox_root"))


@pytest.fixture
def sandbox_id(service: Workloads, root: str) -> str:
    """A running sandbox, once with the host's own root (bash, coreutils), once with busybox alone."""
    spec = {"root": root, "command": ["sleep", "1000"], "env": {"HOME": "/tmp"}}
    return service.create(parse_spec(spec), base_env={"PATH": "/bin:/usr/bin"}).id


Run = Callable[[Coroutine[Any, Any, T]], T]


@pytest.fixture
def inside(pool: Pool, sandbox_id: str) -> Inside:
    return Inside(pool, this_process(), sandbox_id)
