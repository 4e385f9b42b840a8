"""The caller's working directory with an image: what comes along unasked depends on the backend that is chosen.

`explain` asks `bring` when it knows the backend, `rendering` tells what was left behind. A folder that a request names
is a mount like any other, and a backend that cannot see it refuses it.
"""

from __future__ import annotations

import msgspec

from dibs.backends.declaration import Declaration
from dibs.errors import Problem, quoted
from dibs.request.model import MountSpec
from dibs.request.spec import SandboxSpec


def bring(spec: SandboxSpec, backend: Declaration) -> SandboxSpec:
    """The same request with the folder mounted writable at the same place, if the backend sees folders of this host."""
    if not spec.brought or not backend.host_files:
        return spec
    mounts = (*spec.mounts, MountSpec(spec.brought, spec.brought, writable=True))
    return msgspec.structs.replace(spec, workdir=spec.brought, mounts=mounts, brought="")


def brought_problems(asked: SandboxSpec, meant: SandboxSpec) -> list[Problem]:
    """What reading the request would have said, had it named the folder."""
    if asked.brought == meant.brought:
        return []
    from dibs.request.volumes import same_target

    problems = same_target(meant.mounts, meant.volumes) if meant.volumes else []
    if not asked.brought.isprintable():
        reason = "the name of your working directory has characters that cannot be printed"
        remedy = "start from another folder, or name one of the image with --workdir"
        problems.append(Problem("WORKDIR_INVALID", "workdir", quoted(asked.brought)[1:-1], reason, remedy))
    return problems


def left_behind(spec: SandboxSpec, backend: str) -> str:
    """What there is to say where the folder did not come along; empty if none would have."""
    if not spec.brought:
        return ""
    return f"your working directory does not come along: the {backend} backend sees no folders of this host"
