"""The engines of a test run: started when first asked for, stopped at its end.

`tests/conformance` and `tests/engines` ask. Where there can be none, the reason is remembered and told to every test.
"""

from __future__ import annotations

import atexit
import os

from tests.engines.installing import CannotInstall
from tests.engines.running import Engine

_started: dict[tuple[str, str, bool, bool], Engine | str] = {}


def engine(kind: str, suite: str = "trixie", *, cdi_on: bool = True, rootless: bool = False) -> Engine | str:
    """The engine with a small image in it; or why there is none."""
    key = (kind, suite, cdi_on, rootless)
    if key not in _started:
        if os.environ.get("DIBS_ENGINES") == "off":
            _started[key] = "DIBS_ENGINES=off"
        else:
            try:
                one = Engine(kind, suite, cdi_on=cdi_on, rootless=rootless)
                if not any(isinstance(other, Engine) for other in _started.values()):
                    atexit.register(stop_all)
                _started[key] = one
                one.start()
                one.load()
            except CannotInstall as error:
                if isinstance(_started.get(key), Engine):
                    one.stop()
                _started[key] = str(error)
    return _started[key]


def stop_all() -> None:
    for one in _started.values():
        if isinstance(one, Engine):
            one.stop()
    _started.clear()
