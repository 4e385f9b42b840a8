"""The runtimes that come with dibs: what a TrainJob can refer to without an admin having written anything.

The command line looks here for what no file gave, and so does a backend without a cluster. A cluster has its own.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

from dibs.train.objects import read_runtime

Json = dict[str, Any]

NAMES = ("torch-distributed", "jax-distributed", "mpi-distributed", "plain")


@cache
def runtime(name: str) -> Json | None:
    """A shipped runtime, with defaults; None if there is none of that name."""
    if name not in NAMES:
        return None
    import yaml

    text = (files("dibs.train") / "runtimes" / f"{name}.yaml").read_text()
    return read_runtime(yaml.safe_load(text))


def all_runtimes() -> list[Json]:
    return [found for found in map(runtime, NAMES) if found is not None]
