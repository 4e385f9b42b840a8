"""The async twin: the same calls, each in a worker thread, one at a time per sandbox.

Written once in `sandbox`; nothing here decides anything. A cancelled task leaves nothing behind: what was being made
is removed when its thread comes back.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from dibs.backends.port import Exit
from dibs.sdk.sandbox import Command, Result, Sandbox, run
from dibs.workloads.receipt import Receipt

T = TypeVar("T")


async def run_async(command: Command, **request: Any) -> Result:
    """`dibs.run` without blocking the event loop."""
    return await asyncio.to_thread(run, command, **request)


class AsyncSandbox:
    """`dibs.Sandbox` for async code: `async with dibs.AsyncSandbox(gpu=1) as box: await box.run("ls")`."""

    def __init__(self, **request: Any) -> None:
        self._box = Sandbox(**request)
        self._lock = threading.Lock()

    async def _call(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        def locked() -> T:
            with self._lock:
                return function(*args, **kwargs)

        return await asyncio.to_thread(locked)

    async def __aenter__(self) -> AsyncSandbox:
        starting = asyncio.ensure_future(self._call(self._box.start))
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            await asyncio.wait([starting])
            await self._call(self._box.close)
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.shield(self._call(self._box.close))

    @property
    def id(self) -> str:
        return self._box.id

    async def receipt(self) -> Receipt:
        return await self._call(lambda: self._box.receipt)

    async def run(
        self,
        command: Command,
        *,
        input: bytes = b"",  # noqa: A002
        env: Mapping[str, str] | None = None,
        workdir: str | None = None,
    ) -> Result:
        return await self._call(self._box.run, command, input=input, env=env, workdir=workdir)

    async def copy_to(self, source: str, path: str) -> None:
        await self._call(self._box.copy_to, source, path)

    async def copy_from(self, path: str, target: str) -> None:
        await self._call(self._box.copy_from, path, target)

    async def pause(self) -> None:
        await self._call(self._box.pause)

    async def resume(self) -> None:
        await self._call(self._box.resume)

    async def wait(self, timeout: float | None = None) -> Exit:
        return await self._call(self._box.wait, timeout)

    async def close(self) -> None:
        await self._call(self._box.close)
