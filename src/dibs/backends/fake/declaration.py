"""What the two fakes say of themselves. See `dibs.backends.declaration`."""

from __future__ import annotations

from dibs.backends.declaration import BY_DIBS, Cell, Declaration, Place, delegated, delivered, refused
from dibs.backends.port import Backend
from dibs.settings import Settings

_CHOSEN = delivered("chosen by dibs, booked in the ledger")
_IN_MEMORY = delivered("kept in memory; nothing runs")
_NOTHING_RUNS = refused("nothing runs")
_SCHEDULED = delegated(
    "the cluster's scheduler chooses; followed until it is bound to a node, then proved like any other"
)

_COLUMN: dict[str, Cell] = {
    **BY_DIBS,
    "gpu.count": _IN_MEMORY,
    "gpu.vendor": _CHOSEN,
    "gpu.models": _CHOSEN,
    "gpu.memory": _CHOSEN,
    "gpu.profile": _CHOSEN,
    "gpu.all": _CHOSEN,
    "devices": _CHOSEN,
    "where": _CHOSEN,
    "claim": _CHOSEN,
    "allow_busy": _CHOSEN,
    "cpu": _IN_MEMORY,
    "memory": _IN_MEMORY,
    "pids": _IN_MEMORY,
    "command": _IN_MEMORY,
    "backend": delivered("this one; never taken by auto"),
    "env": _IN_MEMORY,
    "workdir": _IN_MEMORY,
    "root": _IN_MEMORY,
    "image": _NOTHING_RUNS,
    "entrypoint": _NOTHING_RUNS,
    "user": _NOTHING_RUNS,
    "shm": _NOTHING_RUNS,
    "read_only": _NOTHING_RUNS,
    "platform": _NOTHING_RUNS,
    "options": refused("this backend has no options of its own"),
    "network": _IN_MEMORY,
    "publish": _IN_MEMORY,
    "mounts": _IN_MEMORY,
    "volumes": _NOTHING_RUNS,
    "ttl": _IN_MEMORY,
    "grace": _IN_MEMORY,
    "tty": refused("nothing runs, so there is no terminal"),
    "interactive": refused("nothing runs that reads"),
}

_ON_CLUSTER: dict[str, Cell] = {
    **_COLUMN,
    "gpu.count": _SCHEDULED,
    "gpu.vendor": refused("its cards have models only"),
    "gpu.models": _SCHEDULED,
    "gpu.memory": refused("its cards have models only"),
    "gpu.profile": refused("its cards have models only"),
    "gpu.all": refused("a count is needed: a scheduler is asked for a number", "COUNT_NEEDED"),
    "devices": refused("the scheduler chooses"),
    "where": refused("its scheduler knows no CEL"),
    "claim": refused("its scheduler knows no claims"),
    "allow_busy": refused("the scheduler chooses"),
    "wait": delivered("how long the scheduler may take, by the wall clock; a minute if it is not said"),
}


def _fake(_: Place) -> Backend:
    from dibs.backends.fake import FakeBackend

    return FakeBackend()


def _cluster(place: Place) -> Backend:
    from dibs.backends.fake.scheduled import FakeClusterBackend

    return FakeClusterBackend(place.settings.fake_cluster)


def _domains(settings: Settings) -> tuple[str, ...]:
    return (f"cluster:{settings.fake_cluster}",) if settings.fake_cluster else ()


FAKE = Declaration(name="fake", make=_fake, column=_COLUMN, testing=True, root="none")

FAKE_CLUSTER = Declaration(
    name="fake-cluster",
    make=_cluster,
    column=_ON_CLUSTER,
    testing=True,
    root="none",
    host_files=False,
    scheduled=True,
    domains=_domains,
)
