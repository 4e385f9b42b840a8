"""The test cluster itself: it leaves nothing after any kill; and it is real."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cluster.binaries import CannotBuild, binaries
from tests.cluster.running import RunningCluster

from dibs.kube import client as kube
from dibs.kube import errors

ROOT = Path(__file__).parents[2]


def test_the_control_plane_is_of_the_version_that_was_built(running: RunningCluster) -> None:
    with running.client() as cluster:
        assert cluster.version().has_dra
        assert cluster.may("create", kube.PODS)


def test_certificates_and_tokens_open_it_and_a_wrong_token_does_not(running: RunningCluster, tmp_path: Path) -> None:
    with running.client("certificate") as cluster:
        assert cluster.may("list", kube.NODES)
    with running.client("stranger") as cluster:
        assert not cluster.may("list", kube.NODES)
        cluster._credentials._token = "wrong"
        with pytest.raises(errors.Unauthorized):
            cluster.version()
            cluster.items(kube.NODES, dict)


def test_a_certificate_of_another_authority_is_not_trusted(running: RunningCluster) -> None:
    import msgspec

    with running.client() as cluster:
        cluster.config = msgspec.structs.replace(cluster.config, ca="")
        cluster._credentials._config = cluster.config
        with pytest.raises(errors.Unreachable) as refused:
            cluster.version()
    assert "not trusted" in str(refused.value)


def test_a_watch_reports_what_changes_and_an_old_version_has_expired(running: RunningCluster) -> None:
    with running.client() as cluster:
        seen = cluster.raw("/api/v1/namespaces/default/configmaps?limit=1")["metadata"]["resourceVersion"]
        maps = kube.Resource("v1", "configmaps", "ConfigMap")
        cluster.create(maps, {"metadata": {"name": "watched"}}, "default")
        cluster.delete(maps, "watched", "default")
        changes = []
        for change, thing in cluster.watch(maps, dict, "default", since=seen, seconds=30):
            if thing["metadata"].get("name") == "watched":
                changes.append(change)
            if len(changes) == 2:
                break
        assert changes == ["ADDED", "DELETED"]


@pytest.mark.parametrize("victim", ["tests", "keeper"])
def test_a_kill_leaves_no_process_and_no_folder(victim: str) -> None:
    try:
        folder = binaries()
    except CannotBuild as reason:
        pytest.skip(f"no Kubernetes: {reason}")
    script = (
        "import time\nfrom tests.cluster.running import RunningCluster\n"
        "found = RunningCluster()\nprint(found.folder, found._keeper.pid, flush=True)\ntime.sleep(600)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT}/src", "KUBEBUILDER_ASSETS": str(folder)},
    )  # fmt: skip
    assert process.stdout is not None
    with process.stdout:
        place, keeper = process.stdout.readline().split()
    assert _of(place)
    os.kill(process.pid if victim == "tests" else int(keeper), signal.SIGKILL)
    _until(lambda: not _of(place))
    if victim == "tests":
        _until(lambda: not Path(place).exists())
    else:
        from tests.cluster.keeper import sweep

        process.kill()
        process.wait()
        sweep()
        assert not Path(place).exists()
    process.wait()


def _of(place: str) -> list[str]:
    """The processes that work in a cluster's folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if place in (entry / "cmdline").read_bytes().decode(errors="replace"):
                found.append(entry.name)
        except OSError:
            continue
    return found


def _until(done: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not done():
        assert time.monotonic() < end
        time.sleep(0.05)
