"""The network between a test cluster's API server, which runs on the host, and its nodes.

A bridge lives in a network namespace of its own, the hub. One veth pair leads from the host into it, one from each
node. The kernel removes all of it together with the hub's and the nodes' processes: nothing stays on the host, however
they end. The `keeper` makes one per cluster, with a range of addresses that no other cluster on this machine uses.
"""

from __future__ import annotations

import fcntl
import ipaddress
import json
import random
import subprocess
import tempfile
from pathlib import Path

_POOL = ipaddress.IPv4Network("10.224.0.0/12")
_LOCK = "dibs-network.lock"
_PODS = {"node-a": 1, "node-b": 2}  # which /24 of the range a node's pods have; the nodes have the first


class CannotConnect(Exception):
    """The network cannot be made here; the text says why."""


class Network:
    def __init__(self, name: str) -> None:
        self._link = name  # at most 15 characters
        self._hub = die_with_us("unshare", "--net", "sleep", "infinity")
        await_namespace(self._hub.pid, "net")
        # Free ranges are looked for and taken under one lock, because other clusters start at the same time.
        with (Path(tempfile.gettempdir()) / _LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._range = _free_range()
            self.host = str(self._range[1])
            self._connect()

    def _connect(self) -> None:
        hub = ("nsenter", "--target", str(self._hub.pid), "--net", "ip")
        run("ip", "link", "add", self._link, "type", "veth", "peer", "name", "host", "netns", str(self._hub.pid))
        run("ip", "addr", "add", f"{self.host}/24", "dev", self._link)
        run("ip", "link", "set", self._link, "up")
        run(*hub, "link", "add", "bridge", "type", "bridge")
        run(*hub, "link", "set", "bridge", "up")
        run(*hub, "link", "set", "host", "master", "bridge", "up")
        for node in _PODS:
            run("ip", "route", "add", self.pods(node), "via", self.address(node))

    def join(self, node: str, pid: int) -> None:
        """Give the network namespace of a process the node's address and routes."""
        hub = ("nsenter", "--target", str(self._hub.pid), "--net", "ip")
        inside = ("nsenter", "--target", str(pid), "--net", "ip")
        run(*hub, "link", "add", node, "type", "veth", "peer", "name", "eth0", "netns", str(pid))
        run(*hub, "link", "set", node, "master", "bridge", "up")
        run(*inside, "link", "set", "lo", "up")
        run(*inside, "addr", "add", f"{self.address(node)}/24", "dev", "eth0")
        run(*inside, "link", "set", "eth0", "up")
        run(*inside, "route", "add", "default", "via", self.host)
        for other in _PODS:
            if other != node:
                run(*inside, "route", "add", self.pods(other), "via", self.address(other))

    def address(self, node: str) -> str:
        return str(self._range[10 + _PODS[node]])

    def pods(self, node: str) -> str:
        return f"{self._range[256 * _PODS[node]]}/24"

    def stop(self) -> None:
        self._hub.kill()
        self._hub.wait()


def _free_range() -> ipaddress.IPv4Network:
    listed = subprocess.run(["ip", "-json", "-4", "route", "show", "table", "all"], capture_output=True, check=True)
    used = [ipaddress.IPv4Network(one["dst"]) for one in json.loads(listed.stdout) if one["dst"] != "default"]
    ranges = list(_POOL.subnets(new_prefix=22))
    for one in random.sample(ranges, len(ranges)):
        if not any(one.overlaps(other) for other in used):
            return one
    raise CannotConnect(f"no range of addresses in {_POOL} is free")


def run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotConnect(f"{' '.join(words)}: {done.stderr.strip()}")


def die_with_us(*words: str, log: Path | None = None) -> subprocess.Popen[bytes]:
    """A process that the kernel kills when its parent ends."""
    with (log or Path("/dev/null")).open("ab") as out:
        return subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *words], stdin=subprocess.DEVNULL, stdout=out, stderr=out
        )


def await_namespace(pid: int, kind: str) -> None:
    """Wait until a process that was just started has left our namespace."""
    own = Path(f"/proc/self/ns/{kind}").readlink()
    while True:
        try:
            if Path(f"/proc/{pid}/ns/{kind}").readlink() != own:
                return
        except OSError as error:
            raise CannotConnect(f"a namespace ({kind}) cannot be made: {error.strerror}") from None
