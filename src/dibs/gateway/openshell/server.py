"""The gRPC server: sockets, TLS, and what every call passes before its method sees it. Runs on the gateway's loop.

In this order: who is calling, the scope, the message, its unknown fields; afterwards one log line and the metrics.
Every DibsError becomes a status with details (`errors`); what is not one is logged and answered as INTERNAL.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import time
from pathlib import Path
from typing import Any

import grpc

from dibs.errors import BackendUnavailable, Conflict, DibsError, Internal, InvalidRequest, Problem, StateError
from dibs.gateway.logs import log
from dibs.gateway.openshell import exec as execution
from dibs.gateway.openshell import info, repeats, restarts, sandboxes, schema, services, templates, watch, workspaces
from dibs.gateway.openshell.auth import Callers, require
from dibs.gateway.openshell.calls import Call, Method
from dibs.gateway.openshell.errors import DETAILS, answer_of
from dibs.gateway.openshell.oidc import Oidc
from dibs.gateway.openshell.refusals import not_offered
from dibs.gateway.problems import ClientGone
from dibs.gateway.state import Gateway
from dibs.settings import GatewaySettings, address
from dibs.workloads.identity import Identity

METHODS: dict[str, Method] = {
    method.name: method
    for module in (info, sandboxes, restarts, execution, watch, services, templates, workspaces)
    for method in module.METHODS
}
_PREFIX = f"/{schema.SERVICE}/"
_KEEP_ALIVE = 30_000  # milliseconds between pings of a connection with calls: who is gone without a word is noticed
_GRACE = 2.0  # seconds that streams get to end when the gateway stops


class OpenShellServer:
    """Made with the gateway, opened by `start`, closed by `stop`."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._settings = gateway.settings.gateway
        self._server: Any = None
        self.where = ""

    async def start(self) -> None:
        """Open the address of the settings. Raises if that cannot be done."""
        settings = self._settings
        self._server = grpc.aio.server(
            options=(
                ("grpc.max_receive_message_length", settings.max_body),
                ("grpc.max_concurrent_streams", settings.max_connections),
                ("grpc.keepalive_time_ms", _KEEP_ALIVE),
                ("grpc.keepalive_timeout_ms", 20_000),
                ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
                ("grpc.so_reuseport", 0),
            )
        )
        port = self._open(settings)
        oidc = Oidc(settings) if settings.oidc_issuer else None
        callers = Callers(self._gateway.auth, oidc, server_port=port)
        self._server.add_generic_rpc_handlers((_Handlers(self._gateway, callers),))
        await self._server.start()

    def _open(self, settings: GatewaySettings) -> int:
        place = settings.openshell
        credentials = _credentials(settings)
        before = os.umask(0o177)  # a unix socket is its owner's alone
        try:
            if place.startswith("unix:"):
                Path(place.removeprefix("unix:")).parent.mkdir(parents=True, exist_ok=True)
            if credentials is None:
                port = int(self._server.add_insecure_port(place))
            else:
                port = int(self._server.add_secure_port(place, credentials))
        except RuntimeError as error:
            raise Conflict(
                f"it cannot be opened: {error}", field="gateway.openshell", value=place, code="ADDRESS_IN_USE",
                remedy="stop what listens there, or name another one with --openshell",
            ) from error  # fmt: skip
        finally:
            os.umask(before)
        scheme = "http" if credentials is None else "https"
        self.where = place if place.startswith("unix:") else f"{scheme}://{place.rpartition(':')[0]}:{port}"
        return port

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(_GRACE)
            if self._settings.openshell.startswith("unix:"):
                Path(self._settings.openshell.removeprefix("unix:")).unlink(missing_ok=True)


def check(settings: GatewaySettings) -> None:
    """What can be said of the settings before anything is opened. Raises InvalidRequest with all of it."""
    problems: list[Problem] = []
    if bool(settings.openshell_certificate) != bool(settings.openshell_key):
        said = settings.openshell_certificate or settings.openshell_key
        reason = "a certificate and its key belong together"
        problems.append(Problem("SETTING_INVALID", "gateway.openshell_certificate", said, reason, "set both"))
    if settings.openshell_client_ca and not settings.openshell_certificate:
        reason = "certificates of clients need TLS"
        remedy = "set openshell_certificate and openshell_key too"
        said = settings.openshell_client_ca
        problems.append(Problem("SETTING_INVALID", "gateway.openshell_client_ca", said, reason, remedy))
    if settings.oidc_issuer and not settings.oidc_audience:
        reason = "tokens that are meant for others would be taken"
        problems.append(Problem("SETTING_INVALID", "gateway.oidc_audience", "", reason, "set it with oidc_issuer"))
    place = settings.openshell
    if not place.startswith("unix:") and not settings.openshell_certificate and not _loopback(address(place)[0]):
        reason = "without TLS tokens would travel in the clear"
        remedy = "listen on 127.0.0.1, or set openshell_certificate and openshell_key"
        problems.append(Problem("SETTING_INVALID", "gateway.openshell", place, reason, remedy))
    if problems:
        raise InvalidRequest(problems)


def _loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _credentials(settings: GatewaySettings) -> Any:
    if not settings.openshell_certificate:
        return None
    certificate = _read(settings.openshell_certificate, "openshell_certificate")
    key = _read(settings.openshell_key, "openshell_key")
    authorities = _read(settings.openshell_client_ca, "openshell_client_ca") if settings.openshell_client_ca else None
    # gRPC either demands a client's certificate or does not ask for one. A bearer token on top of it says more.
    return grpc.ssl_server_credentials([(key, certificate)], authorities, authorities is not None)


def _read(path: str, field: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise StateError(
            f"it cannot be read: {error.strerror}", field=f"gateway.{field}", value=path, code="SETTINGS_UNREADABLE",
            remedy="check the path and its permissions",
        ) from error  # fmt: skip


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpcio has no types
    """Finds the handler of a method. Messages come as bytes: what cannot be parsed gets an answer of ours."""

    def __init__(self, gateway: Gateway, callers: Callers) -> None:
        self._gateway = gateway
        self._callers = callers
        self._made = {name: self._handler(method) for name, method in METHODS.items()}

    def service(self, details: Any) -> Any:
        path: str = details.method
        if path.startswith(_PREFIX):
            name = path.removeprefix(_PREFIX)
            return self._made.get(name) or self._unknown(name)
        return self._unknown(path)

    def _handler(self, method: Method) -> Any:
        if method.kind == "unary":

            async def unary(data: bytes, context: Any) -> Any:
                return await self._serve(method, data, context)

            return grpc.unary_unary_rpc_method_handler(unary, None, _serialize)

        async def streaming(data: Any, context: Any) -> None:
            await self._serve(method, data, context)

        make = (
            grpc.unary_stream_rpc_method_handler if method.kind == "stream" else grpc.stream_stream_rpc_method_handler
        )
        return make(streaming, None, _serialize)

    def _unknown(self, name: str) -> Any:
        async def refuse(_: Any, context: Any) -> None:
            await _abort(context, not_offered(name), {})

        return grpc.stream_stream_rpc_method_handler(refuse, None, _serialize)

    async def _serve(self, method: Method, data: Any, context: Any) -> Any:
        began = time.perf_counter()
        call: Call | None = None
        who: Identity | None = None
        status = "OK"
        streams = self._gateway.metrics.connections.labels("grpc") if method.kind != "unary" else None
        if streams is not None:
            streams.inc()
        try:
            if self._gateway.stopping:
                raise BackendUnavailable(
                    "the gateway is stopping", field="gateway", code="STOPPING", remedy="try again"
                )
            if method.scope:
                who = await self._callers.identify(context)
                require(who, method.scope)
            call = Call(self._gateway, context, who)
            request = None
            if method.kind != "talk":
                request = schema.parsed(method.takes, data)
                if method.name not in _CHECKS_ITSELF:
                    sandboxes.check_unknown(request)
                if method.name not in _CHECKS_ITSELF and _request_id(request):
                    return await repeats.once(call, method, request)
            return await method.work(call, request)
        except DibsError as error:
            answer = answer_of(error)
            status = answer.code.name
            await _abort(context, error, call.facts if call is not None else {})
        except asyncio.CancelledError:
            status = "CANCELLED"
            raise
        except ClientGone:
            status = "CANCELLED"
        except grpc.aio.AbortError:
            raise
        except Exception as error:  # noqa: BLE001 - the trace is in the log; the client is told that there is one
            status = "INTERNAL"
            log.error("a defect", exc_info=error, extra={"data": {"method": method.name}})
            told = Internal("something went wrong here; it was logged", remedy="report it")
            await _abort(context, told, {})
        finally:
            if streams is not None:
                streams.dec()
            seconds = None if method.kind != "unary" else time.perf_counter() - began
            self._gateway.metrics.count_call(method.name, status, seconds)
            _line(method.name, status, began, who)


def _request_id(request: Any) -> str:
    """Empty where the message has no such field."""
    return str(request.request_id) if "request_id" in request.DESCRIPTOR.fields_by_name else ""


_CHECKS_ITSELF = frozenset({"CreateSandbox", "ExecSandbox"})  # with their other problems, all at once


def _serialize(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data


async def _abort(context: Any, error: DibsError, facts: dict[str, str]) -> None:
    answer = answer_of(error, facts)
    await context.abort(answer.code, answer.words, ((DETAILS, answer.details),))


def _line(method: str, status: str, began: float, who: Identity | None) -> None:
    data = {
        "method": method,
        "status": status,
        "ms": round((time.perf_counter() - began) * 1000, 1),
        "who": who.name if who else "",
        "tenant": who.tenant if who else "",
    }
    log.info("call", extra={"data": data})
