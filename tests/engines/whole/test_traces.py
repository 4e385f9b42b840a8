"""What real engines leave on the host that runs the tests: nothing. And what is told where there can be none."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.engines import installing
from tests.engines.installing import CannotInstall
from tests.engines.running import Engine
from tests.engines.whole.house import House, until

ROOT = Path(__file__).resolve().parents[3]


def said(*command: str) -> str:
    if shutil.which(command[0]) is None:
        return f"there is no {command[0]}"
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def host() -> dict[str, str]:
    """Everything that an engine might leave, but for processes."""
    tables = [Path(f"/proc/net/{name}") for name in ("ip_tables_names", "ip6_tables_names", "arp_tables_names")]
    return {
        "links": "\n".join(sorted(os.listdir("/sys/class/net"))),
        "addresses": Path("/proc/net/fib_trie").read_text(),
        "routes": Path("/proc/net/route").read_text(),
        "nft": said("nft", "list", "ruleset"),
        "iptables": said("iptables-save"),
        "tables": "".join(path.read_text() for path in tables if path.exists()),
        "mounts": "\n".join(_mounts()),
        "forwarding": Path("/proc/sys/net/ipv4/ip_forward").read_text(),
    }


def _mounts() -> list[str]:
    """Those of engines of tests: others come and go on a machine."""
    ours = (str(installing.cache()), "dibs-engines-")
    lines = [line.split(" ", 2)[2] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [line for line in lines if any(one in line for one in ours)]


def groups(container: str) -> list[str]:
    return [folder for folder, _, _ in os.walk("/sys/fs/cgroup") if container in folder]


def processes(token: str) -> list[str]:
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            try:
                words = Path(f"/proc/{entry}/cmdline").read_bytes()
            except OSError:
                continue
            found += [words.decode(errors="replace")] if token.encode() in words else []
    return found


@pytest.mark.root
@pytest.mark.parametrize("kind", ["docker", "podman"])
def test_a_whole_life_of_an_engine_leaves_no_rule_bridge_mount_or_process(kind: str) -> None:
    before = host()
    try:
        engine = Engine(kind)
        engine.start()
        engine.load()
    except CannotInstall as error:
        pytest.skip(f"{kind} is not here: {error}")
    folder = str(engine.folder)
    try:
        house = House(engine, engine.home)
        house.world()
        rows = [house.create(gpu=1, ttl="1h", network="none"), house.create(gpu=1, network="host")]
        containers = [str(house.container(row)["Id"]) for row in rows]
        assert all(groups(container) for container in containers)
        engine.kill()
        engine.start()
        house.close()
    finally:
        engine.stop()
    until(lambda: not processes(Path(folder).name), why="processes are left")
    assert not Path(folder).exists()
    assert host() == before
    assert [groups(container) for container in containers] == [[], []]


def asked(prepare: str, **environment: str) -> str:
    code = f"import os; from tests.engines import shared; {prepare}; print(shared.engine('docker'))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    return done.stdout.strip()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change its uid")
def test_without_root_the_reason_says_that_engines_need_it() -> None:
    ordinary = "os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)"
    assert asked(ordinary) == "real engines need root"


@pytest.mark.skipif(os.geteuid() != 0, reason="real engines need root")
def test_without_a_mirror_it_is_told_what_failed(tmp_path: Path) -> None:
    if shutil.which("debootstrap") is None:
        pytest.skip("debootstrap is not here")
    told = asked("pass", DIBS_ENGINES_CACHE=str(tmp_path), DIBS_ENGINES_MIRROR="http://127.0.0.1:9/debian")
    assert told.startswith("debootstrap failed (")
    assert str(tmp_path) in told


def test_engines_can_be_switched_off() -> None:
    assert asked("pass", DIBS_ENGINES="off") == "DIBS_ENGINES=off"
