"""What a sandbox uses, against what it may use: its own limits, not the host's.

`routes` calls it. How busy the processors are is the difference between two looks; the last look at each sandbox is
kept, so that no caller has to wait for the second one. Without an earlier look it is the average since the first.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable

import msgspec

from dibs.backends.port import Usage
from dibs.errors import DibsError
from dibs.gateway.execd import answers
from dibs.gateway.execd.script_runner import Inside

EVERY = 1.0  # seconds between two lines of a watch
KEPT = 4096
SHORTEST = 0.2  # seconds: what was used in less is chance
FIRST = 0.1  # seconds between the first two looks at a sandbox
_encoder = msgspec.json.Encoder()


class Metrics(msgspec.Struct, frozen=True):
    cpu_count: float
    cpu_used_pct: float
    mem_total_mib: float
    mem_used_mib: float
    timestamp: int  # milliseconds


class Measures:
    """One per gateway."""

    def __init__(self, stopping: Callable[[], bool] = lambda: False) -> None:
        self._stopping = stopping
        self._before: OrderedDict[str, tuple[float, Usage]] = OrderedDict()
        self._share: dict[str, float] = {}

    async def measure(self, inside: Inside) -> Metrics:
        key = inside.sandbox_id
        if key not in self._before:
            self._keep(key, await inside.usage())
            await asyncio.sleep(FIRST)
        usage = await inside.usage()
        at, before = self._before.get(key, (0.0, usage))
        passed = time.monotonic() - at
        if passed >= SHORTEST or key not in self._share:
            used = max(0.0, usage.cpu_seconds - before.cpu_seconds)
            self._share[key] = min(100.0, 100.0 * used / (passed * usage.cpus)) if usage.cpus > 0 else 0.0
            self._keep(key, usage)
        return Metrics(
            round(usage.cpus, 3),
            round(self._share[key], 2),
            round(usage.memory_limit / (1 << 20), 2),
            round(usage.memory_bytes / (1 << 20), 2),
            int(time.time() * 1000),
        )

    def _keep(self, key: str, usage: Usage) -> None:
        self._before[key] = (time.monotonic(), usage)
        self._before.move_to_end(key)
        while len(self._before) > KEPT:
            old, _ = self._before.popitem(last=False)
            self._share.pop(old, None)

    async def watch(self, inside: Inside) -> answers.Streamed:
        """A line each second, until the client or the sandbox goes."""
        first = await self.measure(inside)

        async def tell(client: answers.Client) -> None:
            line = _encoder.encode(first)
            while True:
                await client.write(b"data: " + line + b"\n\n")
                await client.wait(asyncio.sleep(EVERY))
                if client.gone.is_set():
                    return
                if self._stopping():
                    await client.write(b"", last=True)
                    return
                try:
                    line = _encoder.encode(await self.measure(inside))
                except DibsError as error:
                    await client.write(b"data: " + _encoder.encode({"error": str(error)}) + b"\n\n", last=True)
                    return

        return answers.Streamed(
            tell, headers=((b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache"))
        )
