"""The application: every surface on one Litestar app, behind one edge. `server` runs it, tests may call it in process.

A surface is a module with `route_handlers()`. The native API is under /api/v1; OpenSandbox's is under /v1 and bare;
Kubeflow's is under /kubeflow.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

from litestar import Litestar, Request, Response
from litestar.exceptions import HTTPException
from litestar.routes import HTTPRoute
from litestar.types import ASGIApp

from dibs.backends.per_user.backend import acting_for
from dibs.errors import DibsError, Internal
from dibs.gateway import execd, kubeflow, native, opensandbox
from dibs.gateway.admission_queue import Desk
from dibs.gateway.auth import Auth
from dibs.gateway.changes import Changes
from dibs.gateway.host_registry import HostRegistry
from dibs.gateway.logs import log
from dibs.gateway.metrics import Metrics
from dibs.gateway.middleware import Edge
from dibs.gateway.problems import ClientGone, answer, from_http, request_id_of
from dibs.gateway.state import Gateway
from dibs.gateway.threads import Pool
from dibs.gateway.tracing import traced
from dibs.home import Home
from dibs.sandbox import Sandbox
from dibs.settings import Settings
from dibs.workloads.admission import rehearse
from dibs.workloads.dispatcher import Dispatcher
from dibs.workloads.registry import Registry
from dibs.workloads.service import Workloads

if TYPE_CHECKING:
    from dibs.gateway.openshell.server import OpenShellServer


class App:
    """An ASGI application with its gateway. `gateway` is there before it starts."""

    def __init__(self, asgi: ASGIApp, litestar: Litestar, gateway: Gateway) -> None:
        self.asgi = asgi
        self.litestar = litestar
        self.gateway = gateway

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.asgi(scope, receive, send)


def make_app(settings: Settings, home: Home, *, host_service: bool = False) -> App:
    """The whole gateway, not yet started. `host_service`: sandboxes run as the users who asked for them."""
    make = maker(settings, home, host_service=host_service)
    pool = Pool(make, threads=settings.gateway.threads)
    metrics = Metrics()
    metrics.in_threads.set_function(lambda: pool.long_running)

    def delivered(row: Sandbox, seconds: float) -> None:
        metrics.create_seconds.labels(row.backend, "ready").observe(seconds)

    def in_flight() -> int:
        return pool.in_flight + desk.waiting

    dispatcher = Dispatcher(make, workers=settings.gateway.delivery_workers, on_ready=delivered, in_flight=in_flight)
    desk = Desk(pool, dispatcher.submit)
    gateway = Gateway(
        settings=settings,
        home=home,
        pool=pool,
        auth=Auth(pool, settings.gateway, host_service=host_service),
        metrics=metrics,
        dispatcher=dispatcher,
        desk=desk,
        changes=Changes(pool),
    )

    @contextlib.asynccontextmanager
    async def life(_: Litestar) -> AsyncIterator[None]:
        await gateway.auth.start()
        gateway.changes.start()
        dispatcher.start()
        gateway.started = time.time()
        service = _openshell(gateway)
        if service is not None:
            try:
                await service.start()
            except DibsError as error:
                gateway.failure = error
                raise
            gateway.openshell = service.where
        rehearsal = asyncio.create_task(_rehearse(pool))
        try:
            yield
        finally:
            await rehearsal
            gateway.stop_streams()
            if service is not None:
                await service.stop()
            await gateway.changes.stop()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(settings.gateway.drain):
                    await execd.close(gateway)
            await pool.finish(lambda: dispatcher.stop(settings.gateway.drain))
            pool.close()

    litestar = Litestar(
        route_handlers=_handlers(),
        openapi_config=None,
        lifespan=[life],
        exception_handlers={DibsError: _refuse, HTTPException: _refuse_http, Exception: _fail},
        logging_config=None,
        debug=False,
        request_max_body_size=None,
    )
    litestar.state.gateway = gateway
    for route in litestar.routes:
        if isinstance(route, HTTPRoute):
            gateway.methods[route.path_format] = ", ".join(sorted(route.methods))
    return App(traced(Edge(litestar, gateway), settings.gateway), litestar, gateway)


def _openshell(gateway: Gateway) -> OpenShellServer | None:
    """OpenShell's service, where the settings say that it is served. Nothing else loads grpcio."""
    if not gateway.settings.gateway.openshell:
        return None
    from dibs.gateway.openshell.server import OpenShellServer

    return OpenShellServer(gateway)


async def _rehearse(pool: Pool) -> None:
    try:
        await pool.call(rehearse)
    except DibsError as error:
        # Callers are told the same; until then it is no more than a remark.
        log.info("the local backend is not to be had: %s", error, extra={"data": {"code": error.code}})
    except Exception:  # noqa: BLE001 - the trace is in the log; nothing awaits this
        log.exception("a defect in the rehearsal")


def maker(settings: Settings, home: Home, *, host_service: bool) -> Callable[[], Workloads]:
    """How a thread gets its `Workloads`. The backends are shared, the ledger's connection is not."""
    if host_service:
        registry: Registry = HostRegistry(home, settings, long_lived=True, as_user=acting_for(home))
    else:
        registry = Registry(home, settings, long_lived=True)
    return lambda: Workloads(home, registry=registry, compare=False)


def _handlers() -> list[Any]:
    return [
        *native.route_handlers(),
        *opensandbox.route_handlers(),
        *execd.route_handlers(),
        *kubeflow.route_handlers(),
    ]


def _refuse(request: Request[Any, Any, Any], error: DibsError) -> Response[bytes]:
    return answer(error, request)


def _refuse_http(request: Request[Any, Any, Any], error: HTTPException) -> Response[bytes]:
    if error.status_code >= 500:
        return _fail(request, error)
    return answer(from_http(error), request)


def _fail(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    if isinstance(error, ClientGone | ConnectionError):
        return Response(b"", status_code=499)  # never sent; for the log line and the metrics
    data = {"request_id": request_id_of(request), "path": request.scope["path"]}
    log.error("a defect", exc_info=error, extra={"data": data})
    return answer(Internal("something went wrong here; it was logged", remedy="report it with the request id"), request)
