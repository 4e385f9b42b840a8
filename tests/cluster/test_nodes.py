"""The real nodes of the test cluster: pods run on them, and nothing of them stays."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cluster.place import Place
from tests.cluster.running import CannotRun, RunningCluster
from tests.cluster.test_harness import ROOT, _of, _until


def test_a_pod_runs_prints_and_answers_on_each_node(place: Place) -> None:
    for node in place.running.nodes:
        place.pod(f"on-{node}", command=("sh", "-c", "echo hello from $HOSTNAME; sleep 2147483647"), node=node)
    for node in place.running.nodes:
        assert place.phase(f"on-{node}")["spec"]["nodeName"] == node
        place.until(lambda node=node: place.logs(f"on-{node}") == f"hello from on-{node}\n", "its output")  # type: ignore[misc]
        assert place.exec(f"on-{node}", "cat", "/proc/1/comm") == "sleep\n"


def test_pods_reach_each_other_over_nodes_and_the_api_server(place: Place) -> None:
    serve = "mkdir /www; echo from a > /www/index.html; httpd -f -p 8080 -h /www"
    place.pod("server", command=("sh", "-c", serve), node="node-a")
    address = place.phase("server")["status"]["podIP"]
    place.pod("client", node="node-b")
    place.phase("client")
    place.until(lambda: place.exec("client", "sh", "-c", f"wget -qO- {address}:8080 || true") == "from a\n", "the page")
    assert place.exec("client", "sh", "-c", "nc -w 5 10.96.0.1 443 < /dev/null && echo reached") == "reached\n"


def test_a_limit_is_in_the_control_group_of_the_node(place: Place) -> None:
    place.pod("small", limits={"memory": "64Mi", "cpu": "1"})
    place.phase("small")
    group = "cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory.max 2>/dev/null || true"
    assert place.exec("small", "sh", "-c", group).split() == [str(64 << 20)]


def test_a_kubelet_that_was_killed_comes_back_and_its_pods_have_not_noticed(place: Place) -> None:
    place.pod("before", node="node-a")
    started = place.phase("before")["status"]["containerStatuses"][0]["state"]
    place.running.command("stop kubelet@node-a")
    place.running.command("start kubelet@node-a")
    place.pod("after", node="node-a")
    place.phase("after")
    assert place.get("before")["status"]["containerStatuses"][0]["state"] == started


@pytest.mark.root
@pytest.mark.parametrize("victim", ["tests", "keeper"])
def test_a_kill_leaves_no_process_no_link_no_group_and_no_folder(victim: str) -> None:
    script = (
        "import json, time\nfrom tests.cluster.running import CannotRun, RunningCluster\n"
        "try:\n    found = RunningCluster(('node-a',))\n    found.await_nodes()\n"
        "except CannotRun as reason:\n    print(json.dumps({'skip': str(reason)}), flush=True)\n"
        "else:\n    print(json.dumps({'folder': str(found.folder), 'keeper': found._keeper.pid}), flush=True)\n"
        "    time.sleep(600)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT}/src"},
    )  # fmt: skip
    assert process.stdout is not None
    with process.stdout:
        said = json.loads(process.stdout.readline())
    if "skip" in said:
        pytest.skip(f"no Kubernetes nodes: {said['skip']}")
    folder = Path(said["folder"])
    suffix = folder.name.removeprefix("dibs-cluster-")
    owner = (folder / "keeper").read_text().replace(" ", "-")
    assert _of(str(folder))
    assert _links(suffix)
    assert _groups(owner)
    os.kill(process.pid if victim == "tests" else said["keeper"], signal.SIGKILL)
    _until(lambda: not _of(str(folder)))
    if victim == "keeper":
        from tests.cluster.keeper import sweep

        process.kill()
        process.wait()
        sweep()
    _until(lambda: not folder.exists())
    _until(lambda: not _links(suffix))
    assert not _groups(owner)
    assert str(folder) not in Path("/proc/self/mounts").read_text()
    process.wait()


def test_without_root_there_are_no_nodes_and_the_reason_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(CannotRun, match="need root"):
        RunningCluster(("node-a",))


def _links(suffix: str) -> list[str]:
    return [one.name for one in Path("/sys/class/net").iterdir() if one.name == f"dibs-{suffix}"]


def _groups(owner: str) -> list[Path]:
    root = Path("/sys/fs/cgroup")
    return [*root.glob(f"dibs-test-node-{owner}-*"), *root.glob(f"*/dibs-test-node-{owner}-*")]
