"""`dibs node` itself: one process per node that looks, serves and publishes until it is told to stop.

`cli/node.py` runs it. The order matters: prepared claims are restored, then sockets are opened, then slices are
published, so that no pod is sent here before its claim can be prepared. Trouble with the API server, the kubelet or a
source of devices is said and tried again; it never ends the process. A lock keeps a second one off the same node: two
could offer the same devices twice.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from pathlib import Path
from typing import IO, Any

import msgspec

from dibs.cdi.cache import Cache
from dibs.cdi.errors import CdiError
from dibs.claims.slices import ResourceSlice
from dibs.errors import Conflict, DibsError, InvalidRequest, StateError
from dibs.kube import client as kube
from dibs.kube.client import Cluster
from dibs.kube.config import ClusterConfig
from dibs.node.devices import Looked, Source
from dibs.node.kubelet import DraEndpoint, Say
from dibs.node.plugin import DevicePlugin
from dibs.node.prepare import Claim, Preparer
from dibs.node.publish import Publisher, changes
from dibs.node.records import Records

_TICK = 1.0  # s between two looks whether the kubelet was restarted
_LONGEST_PAUSE = 30.0  # s between two tries
_STATE = "dibs-node"  # folder below `plugins`: the lock, and which mode was used last


class NodeSettings(msgspec.Struct, frozen=True, kw_only=True):
    node: str
    kubelet: Path = Path("/var/lib/kubelet")
    cdi_folder: Path = Path("/var/run/cdi")
    static_folders: tuple[str, ...] = ("/etc/cdi", "/var/run/cdi")
    resource: str = ""  # of the device plugin; "": DRA
    refresh: float = 10.0  # s between two looks at the devices
    resync: float = 300.0  # s between two looks at the API server's slices while nothing is heard of a change


class NodeDriver:
    def __init__(self, settings: NodeSettings, source: Source, config: ClusterConfig | None, say: Say) -> None:
        self._settings = settings
        self._source = source
        self._say = say
        self._config = config
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._looked: Looked | None = None
        self._published: tuple[tuple[ResourceSlice, ...], bool] | None = None
        self._next_check = 0.0
        self._complaints: dict[str, str] = {}
        self._endpoints: dict[str, tuple[DraEndpoint, Preparer]] = {}
        self._static = Cache(settings.static_folders)
        self._claims: Cluster | None = None  # the connection of `prepare`, whose calls come from the kubelet's threads
        self._claims_lock = threading.Lock()

    def stop(self) -> None:
        self._stop.set()
        self._wake.set()

    def run(self) -> None:
        """Until `stop`. Raises only for what a person must change: another process on this node, a damaged record."""
        lock = self._lock()
        try:
            self._refuse_other_mode()
            if self._settings.resource:
                self._run_plugin()
            else:
                self._run_dra()
        finally:
            lock.close()

    # -- DRA

    def _run_dra(self) -> None:
        if self._config is None:
            raise InvalidRequest("a DRA driver needs an API server", field="--cluster", code="CLUSTER_UNREACHABLE")
        publisher: Publisher | None = None
        failures = 0
        with Cluster(self._config) as cluster:
            threading.Thread(target=self._watch, args=(self._config,), name="slices", daemon=True).start()
            try:
                while not self._stop.is_set():
                    try:
                        publisher = publisher or Publisher(cluster, self._settings.node)
                        self._look()
                        self._serve()
                        self._publish(publisher)
                        failures = 0
                        self._quiet("cluster")
                    except (DibsError, OSError) as error:
                        if isinstance(error, StateError):
                            raise
                        failures += 1
                        self._complain("cluster", str(error))
                    self._wake.wait(self._settings.refresh if not failures else _pause(failures))
                    self._wake.clear()
            finally:
                # The slices stay: after an upgrade the next process takes them over. If none comes, the kubelet
                # removes them some 30 s after the sockets have gone.
                for endpoint, _ in self._endpoints.values():
                    endpoint.close()

    def _watch(self, config: ClusterConfig) -> None:
        """Wake the loop when a slice of this node changes: a kubelet that starts removes all of them, for one."""
        failures = 0
        while not self._stop.is_set():
            try:
                with Cluster(config) as cluster:
                    for _ in changes(cluster, self._settings.node):
                        failures = 0
                        self._next_check = 0.0
                        self._wake.set()
            except (DibsError, OSError):
                failures += 1  # the loop meets the same trouble, and says so
            self._next_check = 0.0  # what happened between two watches is seen by a look
            self._stop.wait(_pause(failures) if failures else 0)

    def _serve(self) -> None:
        """Every driver that has devices, or had prepared claims when we were started, has its sockets."""
        assert self._looked is not None
        for driver in (*self._looked.drivers, *self._remembered()):
            if driver in self._endpoints:
                continue
            preparer = Preparer(
                driver, Records(self._records_folder(driver)), cdi_folder=self._settings.cdi_folder,
                static=self._static, look=self._current, fetch=self._fetch,
            )  # fmt: skip
            for line in preparer.restore():
                self._say(f"{driver}: {line}")
            self._endpoints[driver] = (DraEndpoint(driver, preparer, self._settings.kubelet, self._say), preparer)

    def _publish(self, publisher: Publisher) -> None:
        assert self._looked is not None
        wanted = (self._looked.slices, self._looked.certain)
        if wanted == self._published and time.monotonic() < self._next_check:
            return
        self._next_check = time.monotonic() + self._settings.resync  # before: a change meanwhile sets it back
        done = publisher.publish(self._looked.slices, certain=self._looked.certain)
        if done.written or done.deleted:
            count = len(self._looked.by_id)
            self._say(f"published {count} devices: {done.written} slices written, {done.deleted} deleted")
        if done.kept:
            self._complain("kept", f"not seen now, but a source could not be read, so still offered: {done.kept}")
        else:
            self._quiet("kept")
        self._published = wanted

    def _current(self) -> Looked:
        assert self._looked is not None
        return self._looked

    def _fetch(self, namespace: str, name: str) -> Claim:
        with self._claims_lock:
            if self._claims is None:
                assert self._config is not None
                self._claims = Cluster(self._config, timeout=10.0)
            return self._claims.get(kube.CLAIMS, name, Claim, namespace)

    # -- device plugin

    def _run_plugin(self) -> None:
        plugin = DevicePlugin(
            self._settings.resource, kubelet=self._settings.kubelet, cdi_folder=self._settings.cdi_folder,
            static=self._static, say=self._say,
        )  # fmt: skip
        next_look = 0.0
        try:
            while not self._stop.is_set():
                try:
                    if time.monotonic() >= next_look:
                        plugin.update(self._look())
                        next_look = time.monotonic() + self._settings.refresh
                    plugin.check()
                    self._quiet("kubelet")
                except (DibsError, CdiError, OSError) as error:
                    self._complain("kubelet", str(error))
                self._stop.wait(_TICK)
        finally:
            plugin.close()

    # -- both

    def _look(self) -> Looked:
        looked = self._source.look()
        self._looked = looked
        if looked.errors:
            self._complain("source", "; ".join(f"{one.source}: {one.reason}. {one.remedy}" for one in looked.errors))
        elif not looked.by_id:
            self._complain("source", f"no devices on this node; looked in {', '.join(self._settings.static_folders)}")
        else:
            self._quiet("source")
        return looked

    def _complain(self, about: str, text: str) -> None:
        """Say it once, until it changes or has passed."""
        if self._complaints.get(about) != text:
            self._complaints[about] = text
            self._say(text)

    def _quiet(self, about: str) -> None:
        if self._complaints.pop(about, None) is not None:
            self._say(f"{about}: all right again")

    # -- state on the node

    def _state(self) -> Path:
        return self._settings.kubelet / "plugins" / _STATE

    def _records_folder(self, driver: str) -> Path:
        return self._settings.kubelet / "plugins" / driver / "claims"

    def _remembered(self) -> list[str]:
        """Drivers with prepared claims, though none of their devices may be there now."""
        return sorted(
            folder.parent.name
            for folder in (self._settings.kubelet / "plugins").glob("*/claims")
            if any(folder.iterdir())
        )

    def _lock(self) -> IO[Any]:
        try:
            self._state().mkdir(parents=True, exist_ok=True)
            lock = (self._state() / "lock").open("w")
        except OSError as error:
            raise StateError(
                f"the kubelet's folder cannot be used: {error.strerror}", field="--kubelet-dir",
                value=str(self._settings.kubelet), code="NODE_STATE_INVALID",
                remedy="run as root on the node, with its /var/lib/kubelet at the same path",
            ) from error  # fmt: skip
        told = False
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return lock
            except BlockingIOError:
                if not told:
                    self._say("another dibs node runs on this node; waiting for its end")
                    told = True
            if self._stop.wait(_TICK):
                lock.close()
                raise Conflict("another dibs node runs on this node", field="node", value=self._settings.node)

    def _refuse_other_mode(self) -> None:
        """What was given in one mode must be given back before the other may offer the same devices."""
        file = self._state() / "resource"
        if self._settings.resource:
            drivers = self._remembered()
            if drivers:
                raise Conflict(
                    f"claims of {', '.join(drivers)} are prepared here, and their devices would be offered twice",
                    field="--device-plugin", value=self._settings.resource, code="DRIVER_CONFLICT",
                    remedy="drain the node first",
                )  # fmt: skip
            file.write_text(self._settings.resource)
            return
        before = file.read_text() if file.exists() else ""
        held = _held_by_pods(self._settings.kubelet, before)
        if before and held:
            raise Conflict(
                f"{held} devices of {before} were given to pods by the device plugin, and would be offered twice",
                field="node", value=self._settings.node, code="DRIVER_CONFLICT", remedy="drain the node first",
            )  # fmt: skip
        file.unlink(missing_ok=True)


def _pause(failures: int) -> float:
    return float(min(2 ** min(failures - 1, 10), _LONGEST_PAUSE))


def _held_by_pods(kubelet: Path, resource: str) -> int:
    """How many devices of a resource the kubelet's device manager has given to pods that are still there. It forgets
    those of a pod that is gone only when it gives to the next one; the folder of a pod goes when the pod does."""
    checkpoint, pods = kubelet / "device-plugins" / "kubelet_internal_checkpoint", kubelet / "pods"
    try:
        found = msgspec.json.decode(checkpoint.read_bytes())
        entries = found["Data"]["PodDeviceEntries"] or ()
        given = [
            one["DeviceIDs"]
            for one in entries
            if one["ResourceName"] == resource and ((pods / one["PodUID"]).is_dir() or not pods.is_dir())
        ]
    except FileNotFoundError:
        return 0
    except (msgspec.DecodeError, KeyError, TypeError, OSError) as error:
        raise StateError(
            f"the kubelet's checkpoint of device plugins cannot be read: {error}", field="checkpoint",
            value=str(checkpoint), code="NODE_STATE_INVALID", remedy="drain the node and remove it, then start again",
        ) from error  # fmt: skip
    return sum(len(ids) for devices in given for ids in (devices.values() if isinstance(devices, dict) else [devices]))


def node_name(given: str) -> str:
    """The node's name: as given, else NODE_NAME, else this host's."""
    return given or os.environ.get("NODE_NAME", "") or os.uname().nodename
