"""The clusters of a test process: started when first asked for, stopped at its end.

`cluster()` is a control plane alone (5 s, any user), `nodes()` one with two real nodes (10 s, root). The fixtures of
those names call them; so does what picks a backend by its name. Where there can be none, the reason is remembered and
told to every test.
"""

from __future__ import annotations

import atexit

from tests.cluster.running import NODES, CannotRun, RunningCluster

_started: dict[tuple[str, ...], RunningCluster | str] = {}


def cluster() -> RunningCluster | str:
    """The control plane without nodes; or why there is none."""
    return _one(())


def nodes() -> RunningCluster | str:
    """The control plane with real nodes, each ready; or why there is none."""
    return _one(NODES)


def _one(names: tuple[str, ...]) -> RunningCluster | str:
    if names not in _started:
        if not _started:
            atexit.register(stop_all)
        try:
            found = RunningCluster(names)
            _started[names] = found
            found.await_nodes()
        except CannotRun as reason:
            _started[names] = str(reason)
    return _started[names]


def stop_all() -> None:
    for one in _started.values():
        if isinstance(one, RunningCluster):
            one.stop()
    _started.clear()
