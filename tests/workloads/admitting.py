"""A sandbox asked for as a gateway's desk does it, by one who stands alone in line."""

from __future__ import annotations

from typing import Any

from dibs.request.spec import SandboxSpec
from dibs.workloads.admission import Admitted, Asking, admit_all
from dibs.workloads.service import Workloads


def admit(workloads: Workloads, spec: SandboxSpec, **more: Any) -> Admitted:
    """`more`: the other fields of an `Asking`. What it is refused for is raised."""
    [answer] = admit_all([Asking(workloads=workloads, spec=spec, **more)])
    if isinstance(answer, Exception):
        raise answer
    return answer
