"""The `opensandbox` package, unmodified, through the whole life of a sandbox: asynchronous and sync."""

from __future__ import annotations

import asyncio
from typing import Any

from opensandbox.sync.manager import SandboxManagerSync
from opensandbox.sync.sandbox import SandboxSync
from tests.opensandbox.conftest import Place
from tests.opensandbox.life import Awaitable, Client, live

from opensandbox import Sandbox, SandboxManager


def test_a_whole_life_with_the_asynchronous_sdk(anywhere: Place, proxy: bool) -> None:
    place = anywhere

    async def create(*args: Any, **kwargs: Any) -> Any:
        return await Sandbox.create(*args, connection_config=place.asynchronous(proxy=proxy), **kwargs)

    async def connect(sandbox_id: str) -> Any:
        return await Sandbox.connect(sandbox_id, connection_config=place.asynchronous(proxy=proxy))

    async def resume(sandbox_id: str) -> Any:
        return await Sandbox.resume(sandbox_id, connection_config=place.asynchronous(proxy=proxy))

    async def manager() -> Any:
        return await SandboxManager.create(place.asynchronous(proxy=proxy))

    asyncio.run(live(place, Client(create, connect, resume, manager)))


def test_a_whole_life_with_the_sync_sdk(anywhere: Place, proxy: bool) -> None:
    place = anywhere

    async def create(*args: Any, **kwargs: Any) -> Any:
        config = place.sync(proxy=proxy)
        return Awaitable(await asyncio.to_thread(SandboxSync.create, *args, connection_config=config, **kwargs))

    async def connect(sandbox_id: str) -> Any:
        config = place.sync(proxy=proxy)
        return Awaitable(await asyncio.to_thread(SandboxSync.connect, sandbox_id, connection_config=config))

    async def resume(sandbox_id: str) -> Any:
        config = place.sync(proxy=proxy)
        return Awaitable(await asyncio.to_thread(SandboxSync.resume, sandbox_id, connection_config=config))

    async def manager() -> Any:
        return Awaitable(SandboxManagerSync.create(place.sync(proxy=proxy)))

    asyncio.run(live(place, Client(create, connect, resume, manager)))
