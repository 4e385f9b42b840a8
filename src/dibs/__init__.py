"""dibs: ask for accelerators once; get them, with a receipt, or be told exactly why not.

    import dibs

    result = dibs.run(["python", "train.py"], gpu="H100:2", wait="10m")
    print(result.code, result.text, result.receipt.devices)

    with dibs.Sandbox(gpu=1, memory="16Gi") as box:
        print(box.run("ls /dev").text)

Every error is a `dibs.DibsError` with a list of problems: code, field, value, reason, remedy. The names below are the
public interface; everything is loaded when it is first used.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as typing has it, without loading typing: `dibs --version` must answer at once
if TYPE_CHECKING:
    from typing import Any

    from dibs._version import __version__
    from dibs.errors import (
        BackendUnavailable,
        Busy,
        CommandFailed,
        Conflict,
        DeliveryMismatch,
        DibsError,
        Internal,
        InvalidRequest,
        NoMatch,
        NotFound,
        Problem,
        QuotaExceeded,
        StateError,
        Timeout,
        Unhealthy,
        Unsupported,
    )
    from dibs.sdk.aio import AsyncProcess, AsyncSandbox, run_async, stream_async
    from dibs.sdk.process import Process, Result
    from dibs.sdk.sandbox import Sandbox, explain, gpus, run, stream

_HOMES = {
    "__version__": "dibs._version",
    "AsyncProcess": "dibs.sdk.aio",
    "AsyncSandbox": "dibs.sdk.aio",
    "run_async": "dibs.sdk.aio",
    "stream_async": "dibs.sdk.aio",
    "Process": "dibs.sdk.process",
    "Result": "dibs.sdk.process",
    "Sandbox": "dibs.sdk.sandbox",
    "explain": "dibs.sdk.sandbox",
    "gpus": "dibs.sdk.sandbox",
    "run": "dibs.sdk.sandbox",
    "stream": "dibs.sdk.sandbox",
}

__all__ = [
    "AsyncProcess",
    "AsyncSandbox",
    "BackendUnavailable",
    "Busy",
    "CommandFailed",
    "Conflict",
    "DeliveryMismatch",
    "DibsError",
    "Internal",
    "InvalidRequest",
    "NoMatch",
    "NotFound",
    "Problem",
    "Process",
    "QuotaExceeded",
    "Result",
    "Sandbox",
    "StateError",
    "Timeout",
    "Unhealthy",
    "Unsupported",
    "__version__",
    "explain",
    "gpus",
    "run",
    "run_async",
    "stream",
    "stream_async",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'dibs' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES.get(name, "dibs.errors")), name)


def __dir__() -> list[str]:
    return sorted(__all__)
