"""Limits for ordinary users, on hosts with cgroup version 2: from their own systemd, and from a delegated group."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from tests.guest.guest import UID, USER, boot
from tests.installation import private

SOAK = bool(os.environ.get("DIBS_SOAK"))  # read now: a test has no DIBS_ variables of ours
ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
# What a login gives a user, apart from a session: commands start in a group that belongs to root.
AS_USER = (
    f"setpriv --reuid {UID} --regid {UID} --clear-groups"
    f" env -i HOME=/home/{USER} USER={USER} LANG=C.UTF-8 PATH={BIN}:/usr/bin:/bin"
)


@pytest.fixture(autouse=True)
def reachable() -> None:
    if reason := private():
        pytest.skip(reason)


def parts(output: str) -> dict[str, str]:
    """What was printed after each line `== NAME`."""
    found: dict[str, str] = {}
    for part in output.split("== ")[1:]:
        name, _, text = part.partition("\n")
        found[name] = text
    return found


@pytest.mark.root
def test_systemd_gives_an_ordinary_user_limits(tmp_path: Path) -> None:
    script = f"""
cd /home/{USER}
as="{AS_USER}"
$as dibs gpus simulate 1 > /dev/null 2>&1
echo "== no manager"; $as COLUMNS=1000 dibs run --gpu 1 --memory 64Mi --cpu 1 --backend local -- true
loginctl enable-linger {USER}
until [ -S /run/user/{UID}/bus ]; do sleep 0.1; done
echo "== run"; $as dibs run --gpu 1 --memory 64Mi --cpu 1 --pids 40 -o json -- true
echo "== detached"; $as dibs run --gpu 1 --memory 64Mi --detach --name one -- sleep 1000
echo "== exec"; $as dibs exec one -- sh -c 'sleep 1000 & echo entered'
scope=$(ls -d /sys/fs/cgroup/user.slice/user-{UID}.slice/user@{UID}.service/app.slice/dibs-*.scope)
echo "== names"; for pid in $(cat $scope/sb-*/cgroup.procs); do cat /proc/$pid/comm; done
echo "== limit"; cat $scope/sb-*/memory.max
echo "== owner"; cat $scope/keeper/cgroup.procs
echo "== copy"; $as dibs cp /etc/hostname one:/tmp/name && $as dibs exec one cat /tmp/name
echo "== paused"; $as dibs sandbox pause one; cat $scope/sb-*/cgroup.freeze; $as dibs sandbox resume one > /dev/null
echo "== killed"; kill -9 $(cat $scope/keeper/cgroup.procs)
while [ -d $scope ]; do sleep 0.05; done; $as dibs ps --all
echo "== scope"
$as XDG_RUNTIME_DIR=/run/user/{UID} systemd-run --quiet --user --scope -p Delegate=yes -- \\
    dibs run --gpu 1 --memory 64Mi --cpu 1 --no-tty -- echo in a scope
left() {{ find /sys/fs/cgroup -name 'dibs*' -o -name 'sb-*'; }}
for i in $(seq 100); do [ -z "$(left)" ] && break; sleep 0.1; done  # systemd removes an empty scope in its own time
echo "== left"; left
echo "== end"
"""
    result = boot(tmp_path, script, systemd=True)
    found = parts(result.output)
    assert "end" in found, result.output
    refused = " ".join(found["no manager"].split())
    assert "LIMIT_NOT_ENFORCEABLE" in refused
    assert f"no systemd user manager runs for {USER}" in refused
    assert f"loginctl enable-linger {USER}" in refused
    assert '"reason": "exit code 0"' in found["run"], result.output
    assert "entered" in found["exec"]
    assert found["names"].split().count("sleep") == 2, result.output  # the command, and what `exec` has left running
    assert found["limit"].strip() == str(64 << 20)
    assert len(found["owner"].split()) == 1
    assert found["copy"].strip()
    assert found["paused"].split()[-1] == "1"
    assert "its shim was killed" in found["killed"], result.output
    assert found["scope"].strip() == "in a scope", result.output
    assert found["left"].strip() == "", result.output


@pytest.mark.root
def test_what_root_is_told_to_run_delegates_a_group(tmp_path: Path) -> None:
    """Without systemd: the remedy is run as it was printed, and then limits work."""
    script = f"""
cd /home/{USER}
as="{AS_USER}"
$as dibs gpus simulate 1 > /dev/null 2>&1
mkfifo /run/wake
$as COLUMNS=10000 sh -c 'dibs run --gpu 1 --memory 64Mi --cpu 1 --pids 40 --backend local -- true 2> /tmp/told;
    read word < /run/wake
    echo "== run"; dibs run --gpu 1 --memory 64Mi --cpu 1 --pids 40 -o json -- true
    echo "== exec"; dibs run --gpu 1 --memory 64Mi --detach --name one -- sleep 1000 && dibs exec one echo entered
    dibs sandbox rm one' &
until grep -q 'have root run' /tmp/told 2> /dev/null; do sleep 0.1; done; sleep 0.2
echo "== told"; cat /tmp/told
sed -n 's/.*have root run: //p' /tmp/told | head -1 > /tmp/remedy
echo "== remedy"; sh -ex /tmp/remedy
echo go > /run/wake; wait
echo "== end"
"""
    result = boot(tmp_path, script, systemd=False)
    found = parts(result.output)
    assert "end" in found, result.output
    assert "LIMIT_NOT_ENFORCEABLE" in found["told"]
    assert '"reason": "exit code 0"' in found["run"], result.output
    assert "entered" in found["exec"], result.output


@pytest.mark.root
@pytest.mark.stress
def test_opensandboxs_clients_and_all_tests_of_limits_pass_for_an_ordinary_user(tmp_path: Path) -> None:
    """On a host with systemd, whose user manager hands on the limits that the SDK asks for by default."""
    if not SOAK:
        pytest.skip("takes minutes: make soak")
    home = f"/home/{USER}"
    tests = "tests/local/test_limits.py tests/opensandbox/test_python_sdk.py"
    script = f"""
ip link set lo up
loginctl enable-linger {USER}
until [ -S /run/user/{UID}/bus ]; do sleep 0.1; done
cd {ROOT}
{AS_USER} TMPDIR={home} HYPOTHESIS_STORAGE_DIRECTORY={home}/h python -B -m pytest -q -rs --tb=short \\
    -p no:cacheprovider --basetemp={home}/t {tests}
"""
    result = boot(tmp_path, script, systemd=True, timeout=1100)
    print(result.output[-2000:])
    assert result.code == 0, result.output[-8000:]
    assert "cannot be enforced" not in result.output
