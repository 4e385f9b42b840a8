"""A running test cluster, as tests see it. `conftest` starts one per worker; it ends with the pipe to its keeper."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.cluster.binaries import CannotBuild, binaries

from dibs.kube.client import Cluster
from dibs.kube.config import find_cluster


class CannotRun(Exception):
    """There is no cluster here; the text says why."""


class RunningCluster:
    def __init__(self) -> None:
        try:
            self.binaries = binaries()
        except CannotBuild as reason:
            raise CannotRun(str(reason)) from None
        self._keeper = subprocess.Popen(
            [sys.executable, "-m", "tests.cluster.keeper", str(self.binaries)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
            cwd=Path(__file__).parents[2],
        )  # fmt: skip
        answer = self._answer()
        if "error" in answer:
            self.stop()
            raise RuntimeError(f"the test cluster does not start: {answer['error']}")
        self.folder = Path(answer["folder"])
        self.server = str(answer["server"])

    def kubeconfig(self, user: str = "admin") -> Path:
        return self.folder / f"{user}.kubeconfig"

    def client(self, user: str = "admin") -> Cluster:
        import os

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
        """`stop kube-scheduler`, `start kube-scheduler`."""
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
