"""The process that owns a test cluster: it starts everything, says so on stdout, and ends it when its stdin ends.

    python -m tests.cluster.keeper BINARIES [NODE...]

If its parent is killed without warning, the parent's end of the pipe closes, and the cluster goes. If the keeper itself
is killed, its processes die with it, and the next one sweeps its folder and control groups. It reads commands, one per
line, so that tests can take a part of the cluster away: `stop NAME`, `start NAME`, with NAME a process of the control
plane or `kubelet@node-a`, `containerd@node-a`; and `load ARCHIVE`, an image for all nodes.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.cluster.control_plane import CannotStart, ControlPlane
from tests.cluster.network import CannotConnect, Network, die_with_us
from tests.cluster.node import Node, sweep_groups
from tests.cluster.owner import is_alive, own_name
from tests.engines import installing

_PREFIX = "dibs-cluster-"
_TRIES = 3
_YOUNG = 300.0  # s


class Kept:
    """What one keeper owns, in the order in which it is started; it is stopped in the other."""

    def __init__(self, binaries: Path, names: list[str]) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        self._binaries = binaries
        self._names = names
        self._network: Network | None = None
        self._names_process: subprocess.Popen[bytes] | None = None
        self.plane: ControlPlane | None = None
        self.nodes: dict[str, Node] = {}

    def start(self) -> None:
        (self.folder / "keeper").write_text(own_name(os.getpid()))
        if not self._names:
            self.plane = ControlPlane(self._binaries, self.folder)
            self.plane.start()
            return
        lower = installing.install("trixie")
        self._network = Network(f"dibs-{self.folder.name.removeprefix(_PREFIX)}")
        self.plane = ControlPlane(self._binaries, self.folder, self._network.host)
        self.plane.start()
        self._names_process = die_with_us(
            sys.executable, "-m", "tests.cluster.names", self.plane.address, str(self.folder / "admin.kubeconfig"),
            log=self.folder / "names.log",
        )  # fmt: skip
        server = f"{self.plane.address}:{self.plane.port}"
        for name in self._names:
            node = Node(
                name, lower=lower, binaries=self._binaries, plane=self.folder, network=self._network, server=server
            )
            self.nodes[name] = node
            node.start()

    def answer(self) -> dict[str, object]:
        assert self.plane is not None
        return {
            "folder": str(self.folder),
            "server": f"https://{self.plane.address}:{self.plane.port}",
            "nodes": {name: node.init for name, node in self.nodes.items()},
        }

    def stop(self) -> None:
        for node in self.nodes.values():
            node.stop()
        if self._names_process is not None:
            self._names_process.kill()
            self._names_process.wait()
        if self.plane is not None:
            self.plane.stop()
        if self._network is not None:
            self._network.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def obey(self, verb: str, name: str) -> None:
        assert self.plane is not None
        process, _, node = name.partition("@")
        if verb == "load":
            for one in self.nodes.values():
                one.load(Path(name))
        elif node:
            starts = {"kubelet": self.nodes[node].start_kubelet, "containerd": self.nodes[node].start_containerd}
            starts[process]() if verb == "start" else self.nodes[node].kill(process)
        elif verb == "stop":
            self.plane.processes[name].kill()
            self.plane.processes[name].wait()
        else:
            {
                "kube-apiserver": self.plane.start_api_server,
                "kube-controller-manager": self.plane.start_controllers,
                "kube-scheduler": self.plane.start_scheduler,
            }[name]()


def main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests; they close the pipe
    sweep()
    failure = ""
    for _ in range(_TRIES):
        kept = Kept(Path(sys.argv[1]), sys.argv[2:])
        try:
            kept.start()
        except (CannotStart, CannotConnect, installing.CannotInstall) as error:
            failure = str(error)
            kept.stop()
            continue
        try:
            say(kept.answer())
            serve(kept)
        finally:
            kept.stop()
        return 0
    say({"error": failure})
    return 1


def serve(kept: Kept) -> None:
    """Commands until the pipe closes."""
    for line in sys.stdin:
        verb, _, name = line.strip().partition(" ")
        kept.obey(verb, name)
        say({"done": line.strip()})


def say(value: object) -> None:
    print(json.dumps(value), flush=True)


def sweep() -> None:
    """Remove what keepers that were killed have left; their processes died with them."""
    if os.geteuid() == 0:
        sweep_groups()
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        if not folder.is_dir():
            continue
        try:
            name = (folder / "keeper").read_text()
        except PermissionError:
            continue  # of another user
        except FileNotFoundError:
            if not folder.exists() or time.time() - folder.stat().st_mtime < _YOUNG:
                continue  # its keeper is about to write its name
            name = ""
        if name and is_alive(name):
            continue
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
