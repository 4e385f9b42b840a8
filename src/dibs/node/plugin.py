"""The device plugin: whole devices of this node as an extended resource, for clusters without DRA.

`driver` runs it in place of the DRA driver, never beside it. A kubelet that starts removes every plugin's socket and
forgets it; `check` sees that and registers again. Containers get devices by CDI name (`cdi-cri`). A device plugin
cannot say that a card and its parts exclude each other: parts are left out, and named.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc

from dibs.cdi.cache import Cache
from dibs.devices.model import Device
from dibs.devices.names import NUMA_NODE
from dibs.devices.slices import published_id
from dibs.errors import BackendUnavailable
from dibs.node import specs, wire
from dibs.node.devices import Looked
from dibs.node.kubelet import Say, Socket, streaming, unary

_PATIENCE = 10.0  # s for the kubelet's answer to a registration
_TICK = 5.0  # s after which a stream looks whether its client is gone


class DevicePlugin:
    """One extended resource at the kubelet."""

    def __init__(self, resource: str, *, kubelet: Path, cdi_folder: Path, static: Cache, say: Say) -> None:
        self._resource = resource
        self._sockets = kubelet / "device-plugins"
        self._folder = cdi_folder
        self._static = static
        self._say = say
        self._devices: dict[str, tuple[Device, str]] = {}  # id -> device and its CDI name
        self._left_out: tuple[str, ...] = ()
        self._changed = threading.Condition()
        self._version = 0
        self._socket: Socket | None = None
        self._kubelet_seen: tuple[int, int, int] | None = None

    def update(self, looked: Looked) -> None:
        """Offer what there is now. What is not seen any more is not offered, unless the look was not certain."""
        offered = {_id(device): device for device in looked.inventory.devices if _whole(device)}
        left_out = tuple(device.name for device in looked.inventory.devices if not _whole(device))
        if left_out != self._left_out:
            self._left_out = left_out
            if left_out:
                self._say(f"{self._resource}: parts of cards are left out, DRA can offer them: {', '.join(left_out)}")
        named = self._named(offered)
        with self._changed:
            if not looked.certain:
                named = {**self._devices, **named}
            if named != self._devices:
                self._devices = named
                self._version += 1
                self._changed.notify_all()
                broken = [f"{key} ({one.health.reason})" for key, (one, _) in named.items() if not one.health.ok]
                unhealthy = f", unhealthy: {', '.join(broken)}" if broken else ""
                self._say(f"{self._resource}: {len(named)} devices{unhealthy}")

    def check(self) -> None:
        """Serve and register, and do so again after the kubelet was restarted. Cheap: it is called every second."""
        seen = _identity(self._sockets / "kubelet.sock")
        if seen is None:
            return  # it is starting
        if self._socket is not None and self._socket.path.exists() and seen == self._kubelet_seen:
            return
        if self._socket is not None:
            self._socket.close()
        self._socket = Socket(self._sockets / f"dibs-{self._resource.replace('/', '-')}.sock", self._services())
        self._register()
        self._kubelet_seen = seen
        self._say(f"{self._resource}: registered")

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        with self._changed:
            self._version = -1
            self._changed.notify_all()

    # -- names

    def _named(self, offered: dict[str, Device]) -> dict[str, tuple[Device, str]]:
        """Each device with a CDI name that the runtime can resolve; a spec is written for those without one."""
        self._static.refresh()
        found: dict[str, tuple[Device, str]] = {}
        own: dict[str, dict[str, Device]] = {}
        for key, device in offered.items():
            if device.cdi is None:
                found[key] = (device, "")
            elif specs.named(self._static, device):
                found[key] = (device, device.cdi.cdi_name)
            else:
                driver, name = published_id(device).driver, published_id(device).device
                own.setdefault(driver, {})[name] = device
                found[key] = (device, f"{specs.node_kind(driver)}={name}")
        for driver, devices in own.items():
            specs.write(specs.node_file(self._folder, driver), specs.spec_of(specs.node_kind(driver), devices))
        return found

    # -- the wire

    def _services(self) -> dict[str, dict[str, Any]]:
        kinds = wire.plugin
        return {
            wire.PLUGIN_SERVICE: {
                "GetDevicePluginOptions": unary(kinds["Empty"], lambda _: kinds["DevicePluginOptions"]()),
                "ListAndWatch": streaming(kinds["Empty"], self._list_and_watch),
                "Allocate": _aborting(kinds["AllocateRequest"], self._allocate),
                "PreStartContainer": unary(
                    kinds["PreStartContainerRequest"], lambda _: kinds["PreStartContainerResponse"]()
                ),
            }
        }

    def _register(self) -> None:
        assert self._socket is not None
        request = wire.plugin["RegisterRequest"](
            version=wire.PLUGIN_VERSION, endpoint=self._socket.path.name, resource_name=self._resource
        )
        with grpc.insecure_channel(f"unix:{self._sockets}/kubelet.sock") as channel:
            call = channel.unary_unary(
                f"/{wire.PLUGIN_REGISTRATION}/Register",
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=wire.plugin["Empty"].FromString,
            )
            try:
                call(request, timeout=_PATIENCE)
            except grpc.RpcError as error:
                raise BackendUnavailable(
                    f"the kubelet does not register it: {error.details()}",
                    field="--device-plugin", value=self._resource, code="KUBELET_UNAVAILABLE",
                ) from error  # fmt: skip

    def _list_and_watch(self, _request: Any, context: Any) -> Iterator[Any]:
        told = None
        while context.is_active():
            with self._changed:
                self._changed.wait_for(lambda told=told: self._version != told, _TICK)  # type: ignore[misc]
                if self._version == -1:
                    return
                if self._version == told:
                    continue
                told = self._version
                answer = wire.plugin["ListAndWatchResponse"]()
                for key, (device, name) in self._devices.items():
                    healthy = device.health.ok and bool(name)
                    one = answer.devices.add(ID=key, health="Healthy" if healthy else "Unhealthy")
                    numa = device.attributes.get(NUMA_NODE)
                    if isinstance(numa, int) and not isinstance(numa, bool) and numa >= 0:
                        one.topology.nodes.add(ID=numa)
            yield answer

    def _allocate(self, request: Any) -> Any:
        """The CDI names of what the kubelet has chosen; ValueError names what cannot be given."""
        answer = wire.plugin["AllocateResponse"]()
        with self._changed:
            devices = dict(self._devices)
        for container in request.container_requests:
            given = answer.container_responses.add()
            for key in container.devices_ids:
                if key not in devices:
                    raise ValueError(f"device {key} of {self._resource} is not on this node any more")
                device, name = devices[key]
                if not device.health.ok or not name:
                    raise ValueError(f"device {key} cannot be used: {device.health.reason or device.unattachable}")
                given.cdi_devices.add(name=name)
            self._say(f"{self._resource}: a container has {', '.join(container.devices_ids)}")
        return answer


def _aborting(request: Any, function: Callable[[Any], Any]) -> Any:
    def answer(argument: Any, context: Any) -> Any:
        try:
            return function(argument)
        except ValueError as error:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))

    return grpc.unary_unary_rpc_method_handler(answer, request.FromString, lambda found: found.SerializeToString())


def _id(device: Device) -> str:
    return device.uuid or published_id(device).device


def _whole(device: Device) -> bool:
    return device.parent is None


def _identity(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino, found.st_ctime_ns
