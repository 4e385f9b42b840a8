"""The clients of `bench.openshell`, in a process of their own: what they cost is not the gateway's.

`python -m bench.openshell_client` reads one job per line, as JSON, and answers each with one line: seconds per request.
Both kinds of clients run on one event loop and hold one connection each, so that they differ only in what they speak.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

import grpc
from openshell._proto import datamodel_pb2, openshell_pb2_grpc
from openshell._proto import openshell_pb2 as pb
from tests.stress.clients import Client

from bench.gateway_client import must

SANDBOXES = "/api/v1/sandboxes"
BODY = {"image": "host", "backend": "local", "gpu": "1", "command": ["tail", "-f", "/dev/null"], "grace": 0}
PLACE = datamodel_pb2.WorkspaceSelector(workspace="default")
Work = Callable[[], Awaitable[str]]


def spec() -> pb.SandboxSpec:
    """The same as BODY."""
    found = pb.SandboxSpec()
    found.template.image = "host"
    found.template.annotations["dibs.backend"] = "local"
    found.resource_requirements.gpu.count = 1
    return found


class Http:
    """One client of dibs' own API."""

    def __init__(self, first: dict[str, Any]) -> None:
        self._client = Client(first["port"], {"authorization": f"Bearer {first['token']}"})

    async def greet(self) -> None:
        await self._client.ask("GET", "/health")

    async def create(self) -> str:
        return str(must(await self._client.ask("POST", SANDBOXES, BODY), 202).data["name"])

    async def exec(self, name: str) -> str:
        answer = await self._client.ask("POST", f"{SANDBOXES}/{name}/exec", {"command": ["true"]})
        return str(must(answer, 200).data["exit_code"])

    async def close(self) -> None:
        await self._client.close()


class Grpc:
    """One client of OpenShell's API, by the SDK's own stubs."""

    def __init__(self, first: dict[str, Any]) -> None:
        # A connection of its own for each, as clients in processes of their own have.
        self._channel = grpc.aio.insecure_channel(first["openshell"], [("grpc.use_local_subchannel_pool", 1)])
        make: Any = openshell_pb2_grpc.OpenShellStub
        self._calls = make(self._channel)
        self._who = (("authorization", f"Bearer {first['token']}"),)

    async def greet(self) -> None:
        await self._calls.Health(pb.HealthRequest())

    async def create(self) -> str:
        request = pb.CreateSandboxRequest(workspace_scope=PLACE, spec=spec())
        answer = await self._calls.CreateSandbox(request, metadata=self._who)
        return str(answer.sandbox.metadata.name)

    async def exec(self, name: str) -> str:
        request = pb.ExecSandboxRequest(workspace_scope=PLACE, sandbox=name, command=["true"], no_login_shell=True)
        code = -1
        async for event in self._calls.ExecSandbox(request, metadata=self._who):
            if event.HasField("exit"):
                code = event.exit.exit_code
        return str(code)

    async def close(self) -> None:
        await self._channel.close()


KINDS: dict[str, type[Http | Grpc]] = {"http": Http, "grpc": Grpc}


class Jobs:
    """What can be measured on one gateway."""

    def __init__(self, first: dict[str, Any]) -> None:
        self._first = first

    async def many(self, kind: str, clients: int, each: int, name: str = "") -> dict[str, Any]:
        """So many clients, each asking again as soon as it has its answer: to create, or for a command in `name`."""
        seconds: list[float] = []
        answers: list[str] = []

        async def one() -> None:
            client = KINDS[kind](self._first)
            await client.greet()  # connected
            for _ in range(each):
                began = time.perf_counter()
                answer = await (client.exec(name) if name else client.create())
                seconds.append(time.perf_counter() - began)
                answers.append(answer)
            await client.close()

        await asyncio.gather(*(one() for _ in range(clients)))
        return {"seconds": seconds, "answers": answers}

    async def clear(self, names: list[str], remove: bool = True) -> dict[str, Any]:
        """Wait until they are there, and remove them."""
        client = Client(self._first["port"], {"authorization": f"Bearer {self._first['token']}"})
        for name in names:
            must(await client.ask("GET", f"{SANDBOXES}/{name}/wait?until=ready&timeout=60"), 200)
            if remove:
                must(await client.ask("DELETE", f"{SANDBOXES}/{name}"), 200)
        await client.close()
        return {}


def main() -> None:
    jobs = Jobs(json.loads(sys.stdin.readline()))
    for line in sys.stdin:
        asked = json.loads(line)
        job: Callable[..., Any] = getattr(jobs, asked.pop("job"))
        print(json.dumps(asyncio.run(job(**asked))), flush=True)


if __name__ == "__main__":
    main()
