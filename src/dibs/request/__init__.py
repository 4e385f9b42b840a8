"""The request: what is asked for, in every spelling, as one canonical form.

Lenient in, canonical out. `parse_request` takes a mapping (from YAML, JSON, the command line or Python) and gives a
`Request`, or raises InvalidRequest with all problems at once. Pure: no device is looked at here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dibs.request.model import ALL, GpuSelector, MemoryRange, Request
    from dibs.request.parse import parse_request
    from dibs.request.spec import SandboxSpec, parse_spec

__all__ = ["ALL", "GpuSelector", "MemoryRange", "Request", "SandboxSpec", "parse_request", "parse_spec"]

_HOME = {
    "ALL": "model", "GpuSelector": "model", "MemoryRange": "model", "Request": "model",
    "parse_request": "parse", "SandboxSpec": "spec", "parse_spec": "spec",
}  # fmt: skip


def __getattr__(name: str) -> object:
    """Loaded when it is first used: the values of a request are needed by all, its reading by few."""
    from importlib import import_module

    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
