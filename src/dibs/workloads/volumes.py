"""Named volumes: what a request calls one, and what its backend does.

`booking` and `dispatcher` check them before anything is booked, `rendering` puts them into the workload. A volume of a
tenant has the tenant's name before its own, `team-a.data`: what another tenant has made is not there for it. A tenant's
name has no dot, so no two of them can mean the same. Users of the host, and callers without a tenant, name volumes as
the engine or the cluster does.
"""

from __future__ import annotations

from dibs.backends.port import Backend, KeepsVolumes, Volume
from dibs.errors import InvalidRequest, Problem
from dibs.request.spec import SandboxSpec


def volumes_of(spec: SandboxSpec, tenant: str) -> tuple[Volume, ...]:
    """The volumes of a request, as its backend knows them."""
    return tuple(
        Volume(
            name=f"{tenant}.{one.name}" if tenant else one.name,
            target=one.target,
            sub_path=one.sub_path,
            writable=one.writable,
            create=one.create,
            size_bytes=one.size_bytes,
            storage_class=one.storage_class,
            access_modes=one.access_modes,
        )
        for one in spec.volumes
    )


def volume_problems(backend: Backend, spec: SandboxSpec, tenant: str) -> list[Problem]:
    """What stands against the volumes of a request; nothing is created. Raises BackendUnavailable."""
    if not spec.volumes or not isinstance(backend, KeepsVolumes):
        return []  # where there are none, the delivery table refuses them
    return backend.check_volumes(volumes_of(spec, tenant))


def check_volumes(backend: Backend, spec: SandboxSpec, tenant: str) -> None:
    """Raise InvalidRequest with everything that stands against them."""
    problems = volume_problems(backend, spec, tenant)
    if problems:
        raise InvalidRequest(problems)
