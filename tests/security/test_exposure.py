"""What can be reached: the ports that the documentation names, and nothing else, before and while sandboxes run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.gateway.conftest import RunningGateway
from tests.gateway.test_serving import listening

from dibs.home import Home
from dibs.process import start_time

from .conftest import Scene

PAGE = Path(__file__).parents[2] / "docs" / "gateway.md"


def documented() -> dict[str, str]:
    """The table of places in the documentation: place → whether it is open after the start."""
    rows = re.findall(r"^\| (.+?) \| (.+?) \| (.+?) \|$", PAGE.read_text(), re.MULTILINE)
    head = next(number for number, row in enumerate(rows) if row[0] == "address")
    found: dict[str, str] = {}
    for where, state, _ in rows[head + 1 :]:
        word = re.split("[;,]", state)[0]
        if word not in ("open", "closed"):
            break
        found[where] = word
    return found


def everything_that_listens(home: Home) -> set[str]:
    """Of all processes that belong to a gateway's home: itself, its helpers, its sandboxes' shims."""
    found: set[str] = set()
    needle = str(home.state).encode()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            named = needle in (entry / "environ").read_bytes() or needle in (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if named and start_time(int(entry.name)) is not None:
            try:
                found |= listening(int(entry.name))
            except OSError:
                continue  # it has ended meanwhile
    return found


def test_what_is_open_after_the_start_is_what_the_documentation_says(home: Home, tmp_path: Path) -> None:
    """Started as the page says, without a flag: its table is compared with what the kernel says of the process."""
    table = documented()
    assert table == {
        "`gateway.sock` in the state folder": "open", "127.0.0.1:8080": "open", "any other address": "closed",
    }  # fmt: skip
    checked = subprocess.run(
        [sys.executable, "-m", "dibs", "serve", "--check"], capture_output=True, text=True, check=True
    ).stdout
    assert str(home.state / "gateway.sock") in checked
    assert "http://127.0.0.1:8080" in checked
    gateway = RunningGateway(home, tmp_path)
    gateway.socket = home.state / "gateway.sock"
    gateway.start()  # on a free port in place of 8080, which may be in use
    try:
        assert listening(gateway.process.pid) == {f"tcp:{gateway.port}:AF_INET", f"unix:{gateway.socket}"}
    finally:
        assert gateway.stop() == 0


def test_sandboxes_and_helpers_open_no_port(scene: Scene) -> None:
    found = everything_that_listens(scene.gateway.home)
    assert {name for name in found if not name.startswith("unix:")} == {f"tcp:{scene.gateway.port}:AF_INET"}
    for name in found:
        path = name.removeprefix("unix:")
        if name.startswith("unix:"):
            assert path == str(scene.gateway.socket) or path.startswith(str(scene.gateway.home.state)), name


def test_every_socket_in_the_state_folder_is_its_owners_alone(scene: Scene) -> None:
    sockets = [path for path in scene.gateway.home.state.rglob("*") if path.is_socket()]
    assert sockets
    for path in (*sockets, scene.gateway.home.state / "gateway.token", scene.gateway.home.ledger):
        assert path.stat().st_mode & 0o077 == 0 or path.parent.stat().st_mode & 0o077 == 0, path
