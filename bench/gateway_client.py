"""The clients of `bench.gateway`, in a process of their own: what they cost is not the gateway's.

`python -m bench.gateway_client` reads one job per line, as JSON, and answers each with one line: seconds per request.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from tests.stress.clients import Answer, Client, output

NSENTER = shutil.which("nsenter") or "nsenter"
_BOUNDARY = "dibs-bench"


class Jobs:
    """What can be measured on one gateway. Every method returns lists of seconds, and what the next job needs."""

    def __init__(self, port: int, token: str) -> None:
        self._port = port
        self._token = token

    def _client(self) -> Client:
        return Client(self._port, {"authorization": f"Bearer {self._token}"})

    async def many(self, path: str, clients: int, each: int, body: Any = None, expect: int = 200) -> dict[str, Any]:
        """So many clients, each asking again as soon as it has its answer."""
        seconds: list[float] = []
        ids: list[str] = []

        async def one() -> None:
            client = self._client()
            await client.ask("GET", "/health")  # connected
            for _ in range(each):
                began = time.perf_counter()
                answer = await client.ask("POST" if body is not None else "GET", path, body)
                seconds.append(time.perf_counter() - began)
                must(answer, expect)
                if expect == 202:
                    ids.append(answer.data["id"])
            await client.close()

        began = time.perf_counter()
        await asyncio.gather(*(one() for _ in range(clients)))
        return {"seconds": seconds, "ids": ids, "took": time.perf_counter() - began}

    async def ready(self, ids: list[str], clients: int = 16) -> dict[str, Any]:
        """Wait until all of them are there."""
        await self._each(ids, clients, self._endpoint)
        return {}

    async def remove(self, ids: list[str], clients: int = 16) -> dict[str, Any]:
        async def gone(client: Client, name: str) -> None:
            must(await client.ask("DELETE", f"/v1/sandboxes/{name}"), 204)

        await self._each(ids, clients, gone)
        return {}

    async def _each(self, ids: list[str], clients: int, work: Callable[[Client, str], Awaitable[Any]]) -> None:
        waiting = list(ids)

        async def one() -> None:
            client = self._client()
            while waiting:
                await work(client, waiting.pop())
            await client.close()

        await asyncio.gather(*(one() for _ in range(min(clients, len(ids)))))

    async def life(self, rounds: int, body: dict[str, Any]) -> dict[str, Any]:
        """From the request to the first output, one after the other."""
        found: dict[str, list[float]] = {"accepted": [], "ready": [], "output": [], "deleted": []}
        client = self._client()
        for _ in range(rounds + 1):
            began = time.perf_counter()
            name = must(await client.ask("POST", "/v1/sandboxes", body), 202).data["id"]
            found["accepted"].append(time.perf_counter() - began)
            endpoint, headers = await self._endpoint(client, name)
            must(await client.ask("GET", f"/{endpoint}/ping", headers=headers), 200)
            found["ready"].append(time.perf_counter() - began)
            answer = must(await client.ask("POST", f"/{endpoint}/command", {"command": "echo x"}, headers), 200)
            assert output(answer.body).strip() == "x", answer.body
            found["output"].append(time.perf_counter() - began)
            began = time.perf_counter()
            must(await client.ask("DELETE", f"/v1/sandboxes/{name}"), 204)
            found["deleted"].append(time.perf_counter() - began)
        await client.close()
        return {name: values[1:] for name, values in found.items()}

    async def commands(self, name: str, pid: int, rounds: int) -> dict[str, Any]:
        """`true` in a sandbox, in turns: by nsenter alone, through execd's API (as words, in a shell), through ours."""
        found: dict[str, list[float]] = {"nsenter": [], "argv": [], "execd": [], "native": []}
        client = self._client()
        endpoint, headers = await self._endpoint(client, name)
        for _ in range(rounds + 2):
            began = time.perf_counter()
            child = os.posix_spawn(NSENTER, [NSENTER, "-t", str(pid), "-a", "true"], os.environ)
            assert os.waitpid(child, 0)[1] == 0
            found["nsenter"].append(time.perf_counter() - began)
            for kind, body in (("argv", {"argv": ["true"]}), ("execd", {"command": "true"})):
                began = time.perf_counter()
                answer = must(await client.ask("POST", f"/{endpoint}/command", body, headers), 200)
                found[kind].append(time.perf_counter() - began)
                assert b"execution_complete" in answer.body, answer.body
            began = time.perf_counter()
            must(await client.ask("POST", f"/api/v1/sandboxes/{name}/exec", {"command": ["true"]}), 200)
            found["native"].append(time.perf_counter() - began)
        await client.close()
        return {name: values[2:] for name, values in found.items()}

    async def files(self, name: str, size: int, rounds: int) -> dict[str, Any]:
        """Write a file and read it back."""
        found: dict[str, list[float]] = {"write": [], "read": []}
        client = self._client()
        endpoint, headers = await self._endpoint(client, name)
        data = os.urandom(size)
        metadata = json.dumps({"path": "/tmp/bench.bin", "mode": 644}).encode()
        body = b"".join(
            (
                f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="metadata"; filename="metadata"\r\n'
                "Content-Type: application/json\r\n\r\n".encode(), metadata,
                f'\r\n--{_BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="bench.bin"\r\n'
                "Content-Type: application/octet-stream\r\n\r\n".encode(), data, f"\r\n--{_BOUNDARY}--\r\n".encode(),
            )
        )  # fmt: skip
        sent = {**headers, "content-type": f"multipart/form-data; boundary={_BOUNDARY}"}
        for _ in range(rounds + 1):
            began = time.perf_counter()
            must(await client.ask("POST", f"/{endpoint}/files/upload", body, sent), 200)
            found["write"].append(time.perf_counter() - began)
            began = time.perf_counter()
            answer = must(
                await client.ask("GET", f"/{endpoint}/files/download?path=/tmp/bench.bin", None, headers), 200
            )
            found["read"].append(time.perf_counter() - began)
            assert answer.body == data
        await client.close()
        return {name: values[1:] for name, values in found.items()}

    async def _endpoint(self, client: Client, name: str) -> tuple[str, dict[str, str]]:
        while (answer := await client.ask("GET", f"/v1/sandboxes/{name}/endpoints/44772")).status == 404:
            await asyncio.sleep(0.01)
        data = must(answer, 200).data
        return data["endpoint"].partition("/")[2], data["headers"]


def must(answer: Answer, status: int) -> Answer:
    if answer.status != status:
        raise SystemExit(f"bench: the gateway answers {answer.status}, not {status}: {answer.body[:500]!r}")
    return answer


def main() -> None:
    first = json.loads(sys.stdin.readline())
    jobs = Jobs(first["port"], first["token"])
    for line in sys.stdin:
        asked = json.loads(line)
        job: Callable[..., Any] = getattr(jobs, asked.pop("job"))
        print(json.dumps(asyncio.run(job(**asked))), flush=True)


if __name__ == "__main__":
    main()
