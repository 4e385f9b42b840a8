"""Sockets between this process and the kubelet: served for DRA and registration, called for device plugins.

`driver` opens them. A kubelet finds a DRA driver by its socket in `plugins_registry`, also after it was restarted
itself; nothing has to be done for that. Errors of a claim travel in its answer, in words; a failed call would hide
which claim it was.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

from dibs.cdi.errors import CdiError
from dibs.errors import DibsError, StateError
from dibs.node import wire
from dibs.node.prepare import Preparer

_THREADS = 8
_GRACE = 2.0  # s for calls under way when a socket is closed
_LONGEST_PATH = 107  # bytes of a unix socket's address

Say = Callable[[str], None]


class Socket:
    """gRPC services on a unix socket."""

    def __init__(self, path: Path, services: Mapping[str, Mapping[str, Any]]) -> None:
        self.path = path
        if len(os.fsencode(path)) > _LONGEST_PATH:
            raise StateError(
                f"the path of a socket has at most {_LONGEST_PATH} bytes", field="socket", value=str(path),
                code="NODE_STATE_INVALID", remedy="choose a shorter --driver or --kubelet-dir",
            )  # fmt: skip
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)  # of a process that was killed: the caller holds the lock of this node
        self._server = grpc.server(ThreadPoolExecutor(_THREADS), options=(("grpc.so_reuseport", 0),))
        for service, methods in services.items():
            self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, dict(methods)),))
        before = os.umask(0o177)  # only root talks to us
        try:
            self._server.add_insecure_port(f"unix:{path}")
        except RuntimeError as error:
            raise StateError(
                f"the socket cannot be opened: {error}", field="socket", value=str(path), code="NODE_STATE_INVALID"
            ) from error
        finally:
            os.umask(before)
        self._server.start()

    def close(self) -> None:
        self.path.unlink(missing_ok=True)  # a kubelet takes this for the end of a plugin
        self._server.stop(_GRACE).wait()


def unary(request: Any, function: Callable[[Any], Any]) -> Any:
    """A method: `request` is the class of its argument."""

    def answer(argument: Any, _context: Any) -> Any:
        return function(argument)

    return grpc.unary_unary_rpc_method_handler(answer, request.FromString, lambda found: found.SerializeToString())


def streaming(request: Any, function: Callable[[Any, Any], Iterator[Any]]) -> Any:
    return grpc.unary_stream_rpc_method_handler(function, request.FromString, lambda found: found.SerializeToString())


class DraEndpoint:
    """One DRA driver at the kubelet: its service, then its registration."""

    def __init__(self, driver: str, preparer: Preparer, kubelet: Path, say: Say) -> None:
        self._driver = driver
        self._preparer = preparer
        self._say = say
        self.registered = False
        path = kubelet / "plugins" / driver / "dra.sock"
        self._endpoint = str(path)
        self._service = Socket(
            path,
            {
                wire.DRA_SERVICE: {
                    "NodePrepareResources": unary(wire.dra["NodePrepareResourcesRequest"], self._prepare),
                    "NodeUnprepareResources": unary(wire.dra["NodeUnprepareResourcesRequest"], self._unprepare),
                }
            },
        )
        # Only now: the kubelet calls as soon as it sees this one.
        self._registration = Socket(
            kubelet / "plugins_registry" / f"{driver}-reg.sock",
            {
                wire.REGISTRATION_SERVICE: {
                    "GetInfo": unary(wire.registration["InfoRequest"], self._info),
                    "NotifyRegistrationStatus": unary(wire.registration["RegistrationStatus"], self._notified),
                }
            },
        )

    def close(self) -> None:
        self._registration.close()
        self._service.close()

    def _info(self, _request: Any) -> Any:
        return wire.registration["PluginInfo"](
            type="DRAPlugin", name=self._driver, endpoint=self._endpoint, supported_versions=[wire.DRA_VERSION]
        )

    def _notified(self, status: Any) -> Any:
        self.registered = bool(status.plugin_registered)
        self._say(f"{self._driver}: " + ("registered" if self.registered else f"not registered: {status.error}"))
        return wire.registration["RegistrationStatusResponse"]()

    def _prepare(self, request: Any) -> Any:
        answer = wire.dra["NodePrepareResourcesResponse"]()
        for claim in request.claims:
            found = answer.claims[claim.uid]
            try:
                devices = self._preparer.prepare(claim.namespace, claim.name, claim.uid)
            except (DibsError, CdiError, OSError) as error:
                found.error = str(error)
                self._say(f"{self._driver}: claim {claim.namespace}/{claim.name} is not prepared: {error}")
                continue
            for one in devices:
                device = found.devices.add(
                    request_names=one.requests, pool_name=one.pool, device_name=one.device, cdi_device_ids=one.cdi
                )
                if one.share:
                    device.share_id = one.share
            names = ", ".join(one.device for one in devices)
            self._say(f"{self._driver}: claim {claim.namespace}/{claim.name} has {names}")
        return answer

    def _unprepare(self, request: Any) -> Any:
        answer = wire.dra["NodeUnprepareResourcesResponse"]()
        for claim in request.claims:
            answer.claims[claim.uid].error = ""
            try:
                self._preparer.unprepare(claim.uid)
            except (DibsError, CdiError, OSError) as error:
                answer.claims[claim.uid].error = str(error)
                self._say(f"{self._driver}: claim {claim.namespace}/{claim.name} is not given back: {error}")
                continue
            self._say(f"{self._driver}: claim {claim.namespace}/{claim.name} is given back")
        return answer
