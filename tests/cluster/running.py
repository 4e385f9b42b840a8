"""A running test cluster, as tests see it: a control plane alone, or one with real nodes.

`shared` starts one of each per worker. It ends with the pipe to its keeper.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster.binaries import CannotBuild, binaries
from tests.engines import installing

from dibs.kube import client as kube
from dibs.kube import objects as core
from dibs.kube.client import Cluster
from dibs.kube.config import find_cluster


class CannotRun(Exception):
    """There is no cluster here; the text says why."""


_PATIENCE = 120.0  # s; it takes 2 on an idle machine
NODES = ("node-a", "node-b")

# The host's own programs with the folders of a node in their places, as a DaemonSet's host paths would have them. The
# layer above /var and the new /run keep mount points off the host.
_ON = """
set -e
mkdir -p {folder}/on/upper {folder}/on/work
mount -t overlay overlay -o lowerdir=/var,upperdir={folder}/on/upper,workdir={folder}/on/work /var
mount -t tmpfs tmpfs /run
mkdir -p /var/lib/kubelet /run/cdi /etc/cdi
mount --bind {folder}/kubelet /var/lib/kubelet
mount --bind {folder}/run-cdi /run/cdi
exec "$@"
"""


@dataclass
class RunningNode:
    name: str
    folder: Path  # kubelet/, etc-cdi/ and run-cdi/ in it are the node's /var/lib/kubelet, /etc/cdi and /run/cdi
    init: int  # the process that holds its namespaces

    def popen(self, *words: str, env: Mapping[str, str] | None = None, log: str = "") -> subprocess.Popen[bytes]:
        """A program of the host, started with the node's /var/lib/kubelet and /run/cdi. It dies with the caller."""
        with (self.folder / "log" / f"{log or Path(words[0]).name}.log").open("ab") as out:
            return subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--propagation", "private", "sh", "-c",
                 _ON.format(folder=self.folder), "sh", *words],
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, env={**os.environ, **(env or {})},
            )  # fmt: skip

    def log(self, name: str) -> str:
        return (self.folder / "log" / f"{name}.log").read_text(errors="replace")


class RunningCluster:
    def __init__(self, nodes: Sequence[str] = ()) -> None:
        """`nodes`: real ones, of `NODES`; they need root."""
        if nodes and os.geteuid() != 0:
            raise CannotRun("real nodes need root")
        try:
            self.binaries = binaries()
        except CannotBuild as reason:
            raise CannotRun(str(reason)) from None
        if nodes and not os.access(self.binaries / "kubelet", os.X_OK):
            raise CannotRun(f"there is no kubelet in {self.binaries}")
        if nodes:
            try:
                installing.install("trixie")
            except installing.CannotInstall as reason:
                raise CannotRun(str(reason)) from None
        self._keeper = subprocess.Popen(
            [sys.executable, "-m", "tests.cluster.keeper", str(self.binaries), *nodes],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
            cwd=Path(__file__).parents[2],
        )  # fmt: skip
        answer = self._answer()
        if "error" in answer:
            self.stop()
            raise RuntimeError(f"the test cluster does not start: {answer['error']}")
        self.folder = Path(answer["folder"])
        self.server = str(answer["server"])
        self.nodes = {name: RunningNode(name, self.folder / name, init) for name, init in answer["nodes"].items()}

    def await_nodes(self) -> None:
        """Wait until every node is ready and its taints are gone."""
        with self.client() as cluster:
            end = time.monotonic() + _PATIENCE
            while True:
                found = {one.name: one for one in cluster.items(kube.NODES, core.Node)}
                late = [n for n in self.nodes if n not in found or not found[n].ready or found[n].spec.taints]
                if not late:
                    return
                if time.monotonic() > end:
                    tail = self.nodes[late[0]].log("kubelet").splitlines()[-5:]
                    raise RuntimeError(f"{late[0]} is not ready: {' | '.join(tail)}")
                time.sleep(0.05)

    def kubeconfig(self, user: str = "admin") -> Path:
        return self.folder / f"{user}.kubeconfig"

    def client(self, user: str = "admin") -> Cluster:
        before = os.environ.get("KUBECONFIG")
        os.environ["KUBECONFIG"] = str(self.kubeconfig(user))
        try:
            return Cluster(find_cluster())
        finally:
            if before is None:
                del os.environ["KUBECONFIG"]
            else:
                os.environ["KUBECONFIG"] = before

    def kubectl(self, *arguments: str, user: str = "admin") -> str:
        done = subprocess.run(
            [str(self.binaries / "kubectl"), f"--kubeconfig={self.kubeconfig(user)}", *arguments],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def command(self, text: str) -> None:
        """`stop kube-scheduler`, `start kube-scheduler`, `stop kubelet@node-a`, `load /path/of/image.tar`."""
        assert self._keeper.stdin is not None
        self._keeper.stdin.write(text + "\n")
        self._keeper.stdin.flush()
        assert self._answer() == {"done": text}

    def stop(self) -> None:
        assert self._keeper.stdin is not None
        assert self._keeper.stdout is not None
        self._keeper.stdin.close()
        self._keeper.wait()
        self._keeper.stdout.close()

    def _answer(self) -> Any:
        assert self._keeper.stdout is not None
        line = self._keeper.stdout.readline()
        return json.loads(line) if line else {"error": f"its keeper ended with {self._keeper.wait()}"}
