"""The real Helm and the project's chart on a test cluster."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from tests.cluster.running import RunningCluster

CHART = Path(__file__).parents[2] / "deploy" / "helm" / "dibs"


class Helm:
    def __init__(self, program: Path, running: RunningCluster, namespace: str, folder: Path) -> None:
        self.program = program
        self._running = running
        self._namespace = namespace
        self.folder = folder

    def run(self, *words: str, values: Mapping[str, Any] | None = None) -> subprocess.CompletedProcess[str]:
        """A command of Helm in the namespace; the caller looks at its exit code."""
        file = self.folder / "values.yaml"
        file.write_text(json.dumps(values or {}))
        also = ["--values", str(file)] if values is not None else []
        return subprocess.run(
            [str(self.program), *words, "--namespace", self._namespace, *also],
            capture_output=True, text=True, check=False, env=self.environment(),
        )  # fmt: skip

    def rendered(self, values: Mapping[str, Any], chart: Path = CHART) -> list[dict[str, Any]]:
        """The objects of a release, with its cluster asked for what is there already."""
        done = self.run("template", "dibs", str(chart), "--dry-run=server", values=values)
        assert done.returncode == 0, done.stderr
        return [one for one in yaml.safe_load_all(done.stdout) if one]

    def uninstall(self, release: str = "dibs") -> None:
        done = self.run("uninstall", release, "--ignore-not-found", "--wait=watcher", "--timeout=120s")
        assert done.returncode == 0, done.stderr

    def environment(self) -> dict[str, str]:
        home = str(self.folder)
        return {
            "HOME": home, "HELM_CACHE_HOME": f"{home}/cache", "HELM_CONFIG_HOME": f"{home}/config",
            "HELM_DATA_HOME": f"{home}/data", "KUBECONFIG": str(self._running.kubeconfig()), "PATH": "/usr/bin:/bin",
        }  # fmt: skip
