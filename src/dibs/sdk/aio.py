"""The async twin: the same calls, each in a worker thread.

Written once in `sandbox`; nothing here decides anything. A cancelled task leaves nothing behind: a command that runs is
killed, a request that waits leaves the queue, and a sandbox that was being made is removed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

from dibs.backends.port import Exit, Output
from dibs.home import Home
from dibs.receipt import Receipt
from dibs.sdk.process import Process, Result
from dibs.sdk.sandbox import Sandbox, _read, launch, words

if TYPE_CHECKING:
    from typing import Self, Unpack

    from dibs.sdk.fields import Command, RequestFields, SandboxFields
    from dibs.workloads.waiter import WaitNews

T = TypeVar("T")


class _Cancelled(Exception):
    """Leaves the queue on behalf of a cancelled task."""


class AsyncProcess:
    """`dibs.Process` for async code: `async for piece in process`, `await process.result()`."""

    def __init__(self, process: Process) -> None:
        self._process = process

    async def __aiter__(self) -> AsyncIterator[Output]:
        pieces = iter(self._process)
        while (piece := await _ending(self._process, lambda: next(pieces, None))) is not None:
            yield piece

    async def result(self) -> Result:
        return await _ending(self._process, self._process.result)

    def kill(self) -> None:
        self._process.kill()

    async def close(self) -> None:
        await asyncio.shield(asyncio.to_thread(self._process.close))


async def _ending(process: Process, function: Callable[[], T]) -> T:
    """Run `function` in a thread; if the task is cancelled, end the process first, so that the thread comes back."""
    working = asyncio.ensure_future(asyncio.to_thread(function))
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        process.kill()
        await asyncio.wait([working])
        if not working.cancelled():
            working.exception()  # looked at, so that nothing complains about it
        await asyncio.shield(asyncio.to_thread(process.close))
        raise


@asynccontextmanager
async def _started(start: Callable[[], Process], cancel: Callable[[], None]) -> AsyncIterator[AsyncProcess]:
    starting = asyncio.ensure_future(asyncio.to_thread(start))
    try:
        process = await asyncio.shield(starting)
    except asyncio.CancelledError:
        cancel()
        await asyncio.wait([starting])
        if starting.exception() is None:
            await asyncio.shield(asyncio.to_thread(starting.result().close))
        raise
    running = AsyncProcess(process)
    try:
        yield running
    finally:
        await running.close()


async def run_async(
    command: Command,
    *,
    input: bytes = b"",  # noqa: A002
    timeout: float | None = None,
    inherit_env: bool = True,
    home: Home | None = None,
    **request: Unpack[RequestFields],
) -> Result:
    """`dibs.run` without blocking the event loop. Cancelling the task ends the command.

    >>> await asyncio.gather(*(dibs.run_async("python eval.py", gpu=1, wait="1h") for _ in range(4)))
    """
    running = stream_async(command, input=input, timeout=timeout, inherit_env=inherit_env, home=home, **request)
    async with running as process:
        return await process.result()


@asynccontextmanager
async def stream_async(
    command: Command,
    *,
    input: bytes = b"",  # noqa: A002
    timeout: float | None = None,
    inherit_env: bool = True,
    home: Home | None = None,
    **request: Unpack[RequestFields],
) -> AsyncIterator[AsyncProcess]:
    """`dibs.stream` for async code.

    >>> async with dibs.stream_async("python train.py", gpu=1) as process:
    ...     async for piece in process:
    ...         print(piece.data)
    """
    spec = _read(request, command=words(command), interactive=bool(input))
    cancelled = asyncio.Event()

    def waiting(_news: WaitNews) -> None:
        if cancelled.is_set():
            raise _Cancelled

    def start() -> Process:
        return launch(spec, input=input, timeout=timeout, inherit_env=inherit_env, home=home, on_wait=waiting)

    async with _started(start, cancelled.set) as process:
        yield process


class AsyncSandbox:
    """`dibs.Sandbox` for async code: `async with dibs.AsyncSandbox(gpu=1) as box: await box.run("ls")`.

    Commands run side by side: `await asyncio.gather(box.run("a"), box.run("b"))`.
    """

    def __init__(self, *, inherit_env: bool = True, home: Home | None = None, **request: Unpack[SandboxFields]) -> None:
        self._box = Sandbox(inherit_env=inherit_env, home=home, **request)

    def __repr__(self) -> str:
        return f"<Async{repr(self._box)[1:]}"

    async def __aenter__(self) -> Self:
        starting = asyncio.ensure_future(asyncio.to_thread(self._box.start))
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            await asyncio.wait([starting])
            await asyncio.to_thread(self._box.close)
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.shield(asyncio.to_thread(self._box.close))

    @property
    def id(self) -> str:
        return self._box.id

    async def receipt(self) -> Receipt:
        return await asyncio.to_thread(lambda: self._box.receipt)

    async def run(
        self,
        command: Command,
        *,
        input: bytes = b"",  # noqa: A002
        env: Mapping[str, str] | None = None,
        workdir: str | None = None,
        timeout: float | None = None,
    ) -> Result:
        """Run one more command in it. Cancelling the task ends the command."""
        async with self.stream(command, input=input, env=env, workdir=workdir, timeout=timeout) as process:
            return await process.result()

    def stream(
        self,
        command: Command,
        *,
        input: bytes = b"",  # noqa: A002
        env: Mapping[str, str] | None = None,
        workdir: str | None = None,
        timeout: float | None = None,
    ) -> AbstractAsyncContextManager[AsyncProcess]:
        """As `run`, with the output as it comes: `async with box.stream("…") as process:` and `async for` over it."""
        box = self._box
        return _started(
            lambda: box.stream(command, input=input, env=env, workdir=workdir, timeout=timeout), lambda: None
        )

    async def copy_to(self, source: str, path: str) -> None:
        await asyncio.to_thread(self._box.copy_to, source, path)

    async def copy_from(self, path: str, target: str) -> None:
        await asyncio.to_thread(self._box.copy_from, path, target)

    async def pause(self) -> None:
        await asyncio.to_thread(self._box.pause)

    async def resume(self) -> None:
        await asyncio.to_thread(self._box.resume)

    async def wait(self, timeout: float | None = None) -> Exit:
        return await asyncio.to_thread(self._box.wait, timeout)

    async def close(self) -> None:
        await asyncio.to_thread(self._box.close)
