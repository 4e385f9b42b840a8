"""`python -m bench [NAME…]`: all benchmarks, or those that are named."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from bench import allocator, cel, commands, engines, gateway, kubernetes, leases, openshell, trace, train


def benchmarks() -> dict[str, Callable[[], None]]:
    found: dict[str, Callable[[], None]] = {
        "startup": commands.startup,
        "everyday": commands.everyday,
        "run": commands.run,
        "gpus": commands.gpus,
        "shim": commands.shim,
        "leases": leases.leases,
        "gateway": gateway.gateway,
        "openshell": openshell.openshell,
        "engines": engines.engines,
        "kubernetes": kubernetes.kubernetes,
        "train": train.train,
        "cel": cel.cel,
        "allocator": allocator.table,
        "trace": trace.trace,
    }
    return found


def main() -> None:
    known = benchmarks()
    names = sys.argv[1:] or list(known)
    unknown = [name for name in names if name not in known]
    if unknown:
        sys.exit(f"bench: there is no {', '.join(unknown)}; there are {', '.join(known)}")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # as users have it: nothing is compiled twice
    print("Medians of runs taken in turns. A ratio compares two things measured in this run, on this machine.")
    for name in names:
        known[name]()


if __name__ == "__main__":
    main()
