"""`dibs node` on the real nodes of the test cluster: started, killed and changed by tests."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from tests.cluster.place import Place

from dibs.devices.simulated import parse_world, simulate
from dibs.home import Home
from dibs.kube import client as kube

NVIDIA = "gpu.nvidia.com"

_DEADLY = """
import importlib, os, signal, sys
when, step = sys.argv[1:3]
module, owner, verb = step.split(".")
kind = getattr(importlib.import_module(f"dibs.node.{module}"), owner)
real = getattr(kind, verb)
def deadly(*args, **kwargs):
    if when == "after":
        real(*args, **kwargs)
    os.kill(os.getpid(), signal.SIGKILL)
setattr(kind, verb, deadly)
sys.argv[:] = ["dibs", *sys.argv[3:]]
from dibs.__main__ import main
main()
"""


class NodeProcess:
    """One `dibs node` on one node, with a home of its own whose simulated world it offers."""

    def __init__(self, place: Place, node: str, folder: Path, *, world: str = "4") -> None:
        self.place = place
        self.node = place.running.nodes[node]
        self.home = Home(state=folder / f"home-{node}", config=folder / f"home-{node}/config").make()
        self.process: subprocess.Popen[bytes] | None = None
        self.simulate(world)

    def simulate(self, world: str, **more: object) -> None:
        simulate(self.home, parse_world(world, model="H100" if world.isdigit() else None, **more))  # type: ignore[arg-type]

    def start(self, *options: str, die: tuple[str, str] | None = None, await_line: str = "registered") -> NodeProcess:
        """`die`: kill itself `before` or `after` a step (`module.Class.method`), the first time."""
        assert self.process is None
        before = len(self.said())
        words = ("-c", _DEADLY, *die) if die else ("-m", "dibs")
        self.process = self.node.popen(
            sys.executable, *words, "node", "--node-name", self.node.name, "--refresh", "1s", *options,
            env={
                "KUBECONFIG": str(self.place.running.kubeconfig(self.node.name)),
                "DIBS_HOME": str(self.home.state), "PYTHONUNBUFFERED": "1",
            },
            log="dibs-node",
        )  # fmt: skip
        self.await_line(await_line, before)
        return self

    def said(self) -> str:
        try:
            return self.node.log("dibs-node")
        except FileNotFoundError:
            return ""

    def await_line(self, text: str, after: int = 0) -> None:
        def there() -> bool:
            assert self.process is None or self.process.poll() is None, self.said()[after:]
            return text in self.said()[after:]

        self.place.until(there, f"dibs node says {text!r}", lambda: self.said()[after:])

    def stop(self, number: int = signal.SIGTERM) -> None:
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait()
            self.process = None

    def devices(self) -> dict[str, dict[str, object]]:
        """What the API server has of this node."""
        found = self.place.cluster.items(kube.SLICES, dict[str, object], fields=f"spec.nodeName={self.node.name}")
        return {
            str(device["name"]): device
            for one in found
            for device in one["spec"].get("devices", ())  # type: ignore[attr-defined]
        }

    def specs(self) -> list[str]:
        """The CDI specs of claims on the node."""
        return sorted(file.name for file in (self.node.folder / "run-cdi").glob("*claim*"))

    def records(self) -> list[str]:
        return sorted(file.name for file in (self.node.folder / "kubelet/plugins").glob("*/claims/*"))

    def clear(self) -> None:
        """Nothing of it stays for the next test."""
        self.stop()
        self.place.cluster.delete_all(kube.SLICES)
        for file in (
            *(self.node.folder / "run-cdi").glob("*"),
            *(self.node.folder / "kubelet/plugins").glob("*/claims/*"),
        ):
            file.unlink()
        (self.node.folder / "kubelet/plugins/dibs-node/resource").unlink(missing_ok=True)
