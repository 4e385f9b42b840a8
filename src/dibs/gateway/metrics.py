"""Numbers for Prometheus, in a registry of their own. Requests are counted as they end; the rest is read when asked.

`middleware.Edge` counts, `GET /metrics` prints. Everything about leases, devices, the queue and sandboxes comes from
the ledger at the moment of the scrape, so that several gateways on one ledger say the same.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric

from dibs._version import __version__
from dibs.errors import DibsError

if TYPE_CHECKING:
    from dibs.workloads.service import Workloads

_REQUEST_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_CREATE_BUCKETS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 2, 5, 10, 30, 60, 300)
SANDBOX_STATES = ("queued", "creating", "running", "paused", "stopping")
DEVICE_STATES = ("free", "held", "shared", "external", "unhealthy", "tainted", "unusable")
LEASE_STATES = ("reserved", "attached", "draining")


class Metrics:
    """One per gateway."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each, that is of no use
        self.registry = CollectorRegistry(auto_describe=False)
        self.requests = Counter(
            "dibs_http_requests_total", "Answered requests.", ("route", "method", "status"), registry=self.registry
        )
        self.request_seconds = Histogram(
            "dibs_http_request_seconds", "How long requests took; streams are not counted.", ("route", "method"),
            buckets=_REQUEST_BUCKETS, registry=self.registry,
        )  # fmt: skip
        self.calls = Counter(
            "dibs_grpc_calls_total",
            "Answered calls of OpenShell's service.",
            ("method", "code"),
            registry=self.registry,
        )
        self.call_seconds = Histogram(
            "dibs_grpc_call_seconds", "How long calls took; streams are not counted.", ("method",),
            buckets=_REQUEST_BUCKETS, registry=self.registry,
        )  # fmt: skip
        self.create_seconds = Histogram(
            "dibs_create_seconds", "From the request to the started command.",
            ("backend", "outcome"), buckets=_CREATE_BUCKETS, registry=self.registry,
        )  # fmt: skip
        self.connections = Gauge("dibs_streams", "Open streams and WebSockets.", ("kind",), registry=self.registry)
        self.in_threads = Gauge(
            "dibs_work_in_threads",
            "Stops, copies and streams that run in threads now.",
            registry=self.registry,
        )
        info = Gauge("dibs_build_info", "The version of this gateway.", ("version",), registry=self.registry)
        info.labels(__version__).set(1)

    def count(self, route: str, method: str, status: int, seconds: float | None) -> None:
        self.requests.labels(route, method, str(status)).inc()
        if seconds is not None:
            self.request_seconds.labels(route, method).observe(seconds)

    def count_call(self, method: str, code: str, seconds: float | None) -> None:
        self.calls.labels(method, code).inc()
        if seconds is not None:
            self.call_seconds.labels(method).observe(seconds)

    def page(self, workloads: Workloads) -> bytes:
        """The whole page. Blocks: it reads the ledger and looks at the devices."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Now(workloads))
        return generate_latest(self.registry) + generate_latest(registry)


class _Now:
    """What the ledger says at this moment."""

    def __init__(self, workloads: Workloads) -> None:
        self._workloads = workloads

    def collect(self) -> Iterator[Metric]:
        ledger = self._workloads.ledger
        yield _states(
            "dibs_sandboxes",
            "Sandboxes by state.",
            SANDBOX_STATES,
            [row.state for row in ledger.sandboxes(live_only=True)],
        )
        leases = ledger.leases()
        yield _states("dibs_leases", "Leases by state.", LEASE_STATES, [lease.state for lease in leases])
        yield _one("dibs_queue_length", "Requests that wait for devices.", len(ledger.tickets()))
        info = GaugeMetricFamily(
            "dibs_lease_info", "Who has which device.", labels=("device", "uuid", "sandbox", "tenant", "backend")
        )
        for lease in leases:
            for device in lease.devices:
                info.add_metric((device.id, device.uuid, lease.sandbox_id, lease.tenant, lease.backend), 1)
        yield info
        try:
            inventory, states = self._workloads.devices()
        except DibsError:
            yield _one("dibs_device_source_errors", "Sources of devices that cannot be read.", 1)
            return
        yield _states("dibs_devices", "Devices by state.", DEVICE_STATES, [one.state for one in states])
        yield _one("dibs_device_source_errors", "Sources of devices that cannot be read.", len(inventory.errors))
        yield _one("dibs_simulated", "Whether the devices are simulated.", int(inventory.simulated))


def _states(name: str, meaning: str, known: tuple[str, ...], found: list[str]) -> Metric:
    family = GaugeMetricFamily(name, meaning, labels=("state",))
    tally = Tally(found)
    for state in (*known, *sorted(set(tally) - set(known))):
        family.add_metric((state,), tally[state])
    return family


def _one(name: str, meaning: str, value: float) -> Metric:
    family = GaugeMetricFamily(name, meaning)
    family.add_metric((), value)
    return family
