"""The backends of a host service: only those whose sandboxes can run as their users."""

from __future__ import annotations

from dibs.backends.declaration import Declaration
from dibs.backends.installed import ON_HOST, find
from dibs.errors import Unsupported
from dibs.workloads.registry import Registry


def _as_root(kind: Declaration) -> bool:
    """A cluster has users of its own, and the fakes run nothing."""
    return not (kind.per_user or kind.scheduled or kind.testing)


class HostRegistry(Registry):
    """Engines are root's own: control of an engine is control of the machine."""

    def permit(self, name: str, uid: int | None) -> None:
        found = find(name)
        if found is not None and _as_root(found) and uid not in (None, 0):
            raise Unsupported(
                "a container engine would run it as root, and the host service runs everything as its users",
                field="backend", value=name, code="ENGINE_NOT_FOR_USERS",
                remedy=f"use --backend {ON_HOST}; only root may use engines through the host service",
            )  # fmt: skip
