"""`osb`, OpenSandbox's own command line, unmodified, through the whole life of a sandbox.

A life is some fifty calls. Its interpreter takes a second to get ready each time, which proves nothing:
the calls of a life are run by `warm`, the others start the program as a user does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests import needs
from tests.opensandbox.conftest import Place

Osb = Callable[..., subprocess.CompletedProcess[str]]


class Warm:
    """The program, loaded once."""

    def __init__(self, program: Path) -> None:
        words = [
            sys.executable,
            str(Path(__file__).with_name("warm.py")),
            str(program),
            "opensandbox_cli",
            "opensandbox",
        ]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, words: Sequence[str], env: dict[str, str], cwd: Path) -> subprocess.CompletedProcess[str]:
        out, err = cwd / ".out", cwd / ".err"
        asked = {"words": words, "env": env, "cwd": str(cwd), "out": str(out), "err": str(err)}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        code = int(self._process.stdout.readline())
        return subprocess.CompletedProcess(words, code, out.read_text(), err.read_text())

    def close(self) -> None:
        self._process.communicate()


@pytest.fixture(scope="module")
def warm() -> Iterator[Warm]:
    program = Path(sys.executable).with_name("osb")
    if not program.exists():
        pytest.skip("opensandbox-cli is not installed")
    one = Warm(program)
    yield one
    one.close()


@pytest.fixture
def osb(request: pytest.FixtureRequest, anywhere: Place, proxy: bool, tmp_path: Path, warm: Warm) -> Osb:
    place = anywhere
    program = Path(sys.executable).with_name("osb")
    cold = "life" not in request.node.name
    flags = ["--domain", place.domain, "--no-color", "--use-server-proxy" if proxy else "--no-use-server-proxy"]
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "COLUMNS": "200",
        "OPEN_SANDBOX_API_KEY": place.token,
        "OPENSANDBOX_DISABLE_METRICS": "1",
    }

    def run(*words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        if cold:
            done = subprocess.run(
                [program, *flags, *words], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60,
                check=False,
            )  # fmt: skip
        else:
            done = warm.run([*flags, *words], env, tmp_path)
        assert done.returncode == code, (words, done.stdout[-2000:], done.stderr[-2000:])
        return done

    return run


def data(done: subprocess.CompletedProcess[str]) -> Any:
    return json.loads(done.stdout)


def test_a_whole_life_with_osb(anywhere: Place, osb: Osb, tmp_path: Path) -> None:
    needs.limits(anywhere.backend)
    place = anywhere
    made = data(
        osb(
            "sandbox", "create", "--image", place.image, "--timeout", "10m", "--resource", "gpu=2",
            "--resource", "cpu=1", "--resource", "memory=512Mi", "--metadata", "purpose=osb", "--env", "GREETING=hello",
            "--extension", f"dibs.backend={place.backend}", "-o", "json",
        )
    )  # fmt: skip
    sandbox = made["id"]
    info = data(osb("sandbox", "get", sandbox, "-o", "json"))
    assert info["extensions"]["dibs.receipt"] == "delivered"
    assert sandbox in osb("sandbox", "list", "--state", "running", "--metadata", "purpose=osb").stdout
    assert sandbox not in osb("sandbox", "list", "--state", "paused").stdout
    assert osb("sandbox", "health", sandbox).stdout

    seen = osb("command", "run", sandbox, "-w", "/tmp", "-o", "raw", "--", "sh", "-c", "echo $PWD $GREETING").stdout
    assert "/tmp hello" in seen
    assert (
        "CommandExecError: 3" in osb("command", "run", sandbox, "-o", "raw", "--", "sh", "-c", "exit 3", code=1).stderr
    )
    begun = data(osb("command", "run", sandbox, "-d", "-o", "json", "--", "sleep", "1000"))
    execution = begun["execution_id"]
    assert data(osb("command", "status", sandbox, execution, "-o", "json"))["running"]
    osb("command", "interrupt", sandbox, execution)
    place.gateway.until(lambda: not data(osb("command", "status", sandbox, execution, "-o", "json"))["running"])
    osb("command", "logs", sandbox, execution, "-o", "raw")
    session = data(osb("command", "session", "create", sandbox, "-o", "json"))["session_id"]
    osb("command", "session", "run", sandbox, session, "--", "export", "MOOD=good")
    shown = osb("command", "session", "run", sandbox, session, "--", "sh", "-c", "echo $MOOD").stdout
    assert "good" in shown
    osb("command", "session", "delete", sandbox, session)

    osb("file", "mkdir", sandbox, "/tmp/osb")
    osb("file", "write", sandbox, "/tmp/osb/a.txt", "--content", "one two", "--mode", "0640")
    assert osb("file", "cat", sandbox, "/tmp/osb/a.txt").stdout.strip() == "one two"
    osb("file", "replace", sandbox, "/tmp/osb/a.txt", "--old", "two", "--new", "2")
    osb("file", "chmod", sandbox, "/tmp/osb/a.txt", "--mode", "0600")
    osb("file", "mv", sandbox, "/tmp/osb/a.txt", "/tmp/osb/b.txt")
    assert "b.txt" in osb("file", "search", sandbox, "/tmp/osb", "--pattern", "*.txt").stdout
    assert "600" in osb("file", "info", sandbox, "/tmp/osb/b.txt").stdout
    (tmp_path / "up.bin").write_bytes(bytes(range(256)))
    osb("file", "upload", sandbox, "up.bin", "/tmp/osb/up.bin")
    osb("file", "download", sandbox, "/tmp/osb/up.bin", "down.bin")
    assert (tmp_path / "down.bin").read_bytes() == bytes(range(256))
    osb("file", "rm", sandbox, "/tmp/osb/b.txt", "/tmp/osb/up.bin")
    osb("file", "rmdir", sandbox, "/tmp/osb")

    assert data(osb("sandbox", "metrics", sandbox, "-o", "json"))["memory_total_in_mib"] == 512
    before = info["expires_at"]
    osb("sandbox", "renew", sandbox, "--timeout", "2h")
    assert data(osb("sandbox", "get", sandbox, "-o", "json"))["expires_at"] > before
    assert "proxy/8000" in osb("sandbox", "endpoint", sandbox, "--port", "8000").stdout
    osb("diagnostics", "logs", sandbox, "--scope", "container")
    assert "sandbox.running" in osb("diagnostics", "events", sandbox, "--scope", "all").stdout
    for kind in ("logs", "inspect", "events", "summary"):
        osb("devops", kind, sandbox)
    assert sandbox in osb("devops", "inspect", sandbox).stdout
    if place.backend == "kubernetes":
        said = osb("sandbox", "pause", sandbox, code=1)
        assert "cannot pause a sandbox" in said.stdout + said.stderr
    else:
        osb("sandbox", "pause", sandbox)
        assert data(osb("sandbox", "get", sandbox, "-o", "json"))["status"]["state"] == "Paused"
        osb("sandbox", "resume", sandbox)
    assert "awake" in osb("command", "run", sandbox, "-o", "raw", "--", "echo", "awake").stdout
    osb("sandbox", "kill", sandbox)
    osb("sandbox", "get", sandbox, code=1)


def test_osb_shows_why_it_was_refused(anywhere: Place, osb: Osb) -> None:
    done = osb(
        "sandbox", "create", "--image", anywhere.image, "--resource", "gpu=0.5", "--resource", "disk=1Gi", code=1
    )
    said = done.stdout + done.stderr
    assert "the count must be a whole number" in said
    assert "resourceLimits.disk" in said


def test_osb_takes_requests_from_a_file(anywhere: Place, osb: Osb, tmp_path: Path) -> None:
    place = anywhere
    body = {
        "image": place.image, "resourceLimits": {"gpu": "H100:1"}, "resourceRequests": {"gpu": "H100:1"},
        "extensions": {"dibs.backend": place.backend}, "timeout": 600,
    }  # fmt: skip
    (tmp_path / "request.json").write_text(json.dumps(body))
    made = data(osb("sandbox", "create", "--file", "request.json", "-o", "json"))
    info = data(osb("sandbox", "get", made["id"], "-o", "json"))
    models = info["extensions"]["dibs.models"]
    assert "H100" in models if place.backend == "kubernetes" else models == "H100"  # a cluster's driver says more
    osb("sandbox", "kill", made["id"])
