"""What the handlers of a gateway share. Made by `app.make_app`, found as `request.app.state.gateway`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dibs.errors import DibsError
from dibs.home import Home
from dibs.settings import Settings

if TYPE_CHECKING:
    from dibs.gateway.admission_queue import Desk
    from dibs.gateway.auth import Auth
    from dibs.gateway.changes import Changes
    from dibs.gateway.metrics import Metrics
    from dibs.gateway.threads import Pool
    from dibs.workloads.dispatcher import Dispatcher


class Gateway:
    """One running gateway."""

    def __init__(
        self,
        *,
        settings: Settings,
        home: Home,
        pool: Pool,
        auth: Auth,
        metrics: Metrics,
        dispatcher: Dispatcher,
        desk: Desk,
        changes: Changes,
    ) -> None:
        self.settings = settings
        self.home = home
        self.pool = pool
        self.auth = auth
        self.metrics = metrics
        self.dispatcher = dispatcher
        self.desk = desk
        self.changes = changes
        self.started = 0.0
        self.stopping = False  # a stop was asked for: streams end, /ready says no
        self.methods: dict[str, str] = {}  # what each path takes, for Allow; filled by `make_app`
        self.urls: tuple[str, ...] = ()  # where it listens, filled by the server
        self.openshell = ""  # where OpenShell's service listens, if it does
        self.failure: DibsError | None = None  # why it could not be started, where that is known

    def stop_streams(self) -> None:
        self.stopping = True
        self.changes.stopping()
