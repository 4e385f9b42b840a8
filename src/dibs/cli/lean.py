"""Loading the libraries that every verb needs, without what they load for cases that a plain command line never has.

`quick` calls it before it loads a verb. Each of these libraries imports others at its top that it uses in one or two
functions. They find a stand-in there, which loads the real module when it is used; nothing else sees a stand-in, and
nothing behaves differently. It took a quarter of the start of `dibs gpus`.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class StandIn(ModuleType):
    """A module that is loaded when something of it is used."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # the import system asks for its own, `__path__` and such
            raise AttributeError(name)
        from importlib import import_module

        return getattr(import_module(self.__name__), name)


def load() -> None:
    """Load msgspec and pathlib, and no more of what they import than they use at once."""
    if "datetime" not in sys.modules and sys.version_info < (3, 12):
        sys.modules["datetime"] = _datetime()
    if "msgspec" not in sys.modules:
        # msgspec asks typing_extensions for names that `typing` has in every Python that we support, and takes them
        # from there without it. The C library behind `_uuid` is for `uuid1` alone, which works without it.
        with _Instead(typing_extensions=None, platform=_platform(), _uuid=None):
            import uuid  # noqa: F401  # asks `platform` for the name of the system, as `uname` says it
        unused = {name: StandIn(name) for name in ("textwrap", "msgspec.inspect", "msgspec.toml", "msgspec.yaml")}
        schemas = {"msgspec._json_schema": _with("msgspec._json_schema", "schema", "schema_components")}
        with _Instead(typing_extensions=None, **unused, **schemas):
            import msgspec  # noqa: F401
    if "pathlib" not in sys.modules:
        unused = {name: StandIn(name) for name in ("fnmatch", "ntpath")}
        with _Instead(**unused, **{"urllib.parse": _with("urllib.parse", "quote_from_bytes")}):
            import pathlib  # noqa: F401


def _datetime() -> ModuleType:
    """As Python 3.12 has it. Before, the module makes all its classes in Python, and then takes those in C instead."""
    from importlib import import_module

    compiled = import_module("_datetime")
    module = ModuleType("datetime", compiled.__doc__)
    module.__dict__.update({name: value for name, value in vars(compiled).items() if not name.startswith("__")})
    return module


def _with(name: str, *functions: str) -> ModuleType:
    """A stand-in with functions that another module takes from it by name at once."""
    stand_in = StandIn(name)

    def lazy(function: str) -> Callable[..., Any]:
        def call(*words: Any, **named: Any) -> Any:
            from importlib import import_module

            return getattr(import_module(name), function)(*words, **named)

        return call

    for function in functions:
        setattr(stand_in, function, lazy(function))
    return stand_in


def _platform() -> ModuleType:
    stand_in = StandIn("platform")
    stand_in.system = lambda: os.uname().sysname  # type: ignore[attr-defined]
    return stand_in


class _Instead:
    """Within it, these names stand for these modules, unless the real ones are loaded already."""

    def __init__(self, **stand_ins: ModuleType | None) -> None:
        self._ours = {name: module for name, module in stand_ins.items() if name not in sys.modules}

    def __enter__(self) -> None:
        sys.modules.update(self._ours)  # type: ignore[arg-type]

    def __exit__(self, *_: object) -> None:
        for name, module in self._ours.items():
            if name in sys.modules and sys.modules[name] is module:
                del sys.modules[name]
