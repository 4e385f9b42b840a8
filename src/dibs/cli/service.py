"""What the verbs ask of the service beside sandboxes: the claims that are kept, here or at a gateway."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from dibs.errors import NotFound
from dibs.remote.choose import target

if TYPE_CHECKING:
    from dibs.remote.workloads import RemoteWorkloads

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)


@contextmanager
def _gateway() -> Iterator[RemoteWorkloads | None]:
    found = target()
    if found is None:
        yield None
        return
    from dibs.remote.workloads import RemoteWorkloads

    with RemoteWorkloads(found) as service:
        yield service


def kept_claims() -> list[str]:
    from dibs.home import find_home
    from dibs.workloads import claims

    with _gateway() as gateway:
        return claims.kept(find_home()) if gateway is None else gateway.claims()


def keep_claim(name: str, file: str) -> str:
    """Keep the claim of a file; where it is kept."""
    from dibs.home import find_home
    from dibs.workloads import claims

    claim = claims.read(Path(file))
    with _gateway() as gateway:
        if gateway is None:
            return str(claims.keep(find_home(), name, claim))
        gateway.keep_claim(name, claim)
        return f"{gateway.target.address} {name}"


def forget_claim(name: str) -> None:
    from dibs.home import find_home
    from dibs.workloads import claims

    with _gateway() as gateway:
        if gateway is None:
            claims.forget(find_home(), name)
        else:
            gateway.forget_claim(name)


def load_claim(name_or_path: str) -> dict[str, Any]:
    """A claim by the name that it is kept under, or from a file of this machine."""
    from dibs.home import find_home
    from dibs.workloads import claims

    with _gateway() as gateway:
        if gateway is None or _NAME.fullmatch(name_or_path) is None or os.path.exists(name_or_path):
            return claims.load(find_home(), name_or_path)
        try:
            return gateway.claim(name_or_path)
        except NotFound as error:
            names = ", ".join(gateway.claims())
            there = f"there are {names}" if names else "none is kept yet"
            problem = msgspec.structs.replace(
                error.problems[0], remedy=f"{there}; or give a file, as in ./{name_or_path}.yaml"
            )
            raise NotFound(problem) from error
