"""How much dibs costs beside the bare engine API, in the same run. `python -m tests.engines.bench [rounds [engine]]`.

Create → running → first output, and a further command, one at a time and 16 in parallel: through the backend (with all
its looks and proofs) and with nothing but the requests that are needed. Prints medians and their ratio.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.engines import images
from tests.engines.conftest import Bench
from tests.engines.running import Engine

from dibs.backends.engines.client import Client
from dibs.backends.port import Exec, Exit, Handle

_numbers = itertools.count()


def bare(engine: Engine, client: Client, device: str) -> float:
    """What anybody would have to do: create, attach, start, read, remove."""
    name = f"bare-{next(_numbers)}"
    started = time.perf_counter()
    if engine.kind == "docker":
        host = {
            "NetworkMode": "none", "Init": True, "DeviceRequests": [{"Driver": "cdi", "DeviceIDs": [device]}],
        }  # fmt: skip
        body: dict[str, Any] = {
            "Image": images.REFERENCE, "Cmd": ["sh", "-c", "echo up; sleep 1000"], "HostConfig": host,
        }  # fmt: skip
        client.call("POST", f"/containers/create?name={name}", json=body)
    else:
        body = {
            "name": name, "image": images.REFERENCE, "command": ["sh", "-c", "echo up; sleep 1000"], "init": True,
            "netns": {"nsmode": "none"}, "devices": [{"path": device}],
        }  # fmt: skip
        client.call("POST", "/containers/create", json=body)
    sock = client.hijack(f"/containers/{name}/attach?stream=true&stdout=true&stderr=true")
    client.call("POST", f"/containers/{name}/start")
    assert b"up" in sock.recv(4096)
    took = time.perf_counter() - started
    sock.close()
    client.call("DELETE", f"/containers/{name}?force=true&v=true&timeout=0")
    return took


def through_dibs(bench: Bench, device: Any) -> float:
    workload = bench.workload("sh", "-c", "echo up; sleep 1000", devices=(device,), env={})
    folder = bench.home.sandbox(workload.id)
    started = time.perf_counter()
    realisation = bench.backend.render(workload, folder)
    handle = bench.backend.create(workload, realisation, folder)
    session = bench.backend.attach(handle)
    bench.backend.start(handle)
    observed = bench.backend.observe(handle)
    assert observed.nodes == realisation.expectation.nodes
    assert session.receive(60)
    took = time.perf_counter() - started
    session.close()
    bench.backend.discard(handle)
    return took


def bare_exec(client: Client, container: str) -> float:
    started = time.perf_counter()
    body = {"AttachStdin": True, "AttachStdout": True, "AttachStderr": True, "Cmd": ["echo", "up"]}
    made = client.call("POST", f"/containers/{container}/exec", json=body)
    sock = client.hijack(f"/exec/{made['Id']}/start", json={"Detach": False, "Tty": False})
    while sock.recv(4096):
        pass
    sock.close()
    assert client.call("GET", f"/exec/{made['Id']}/json")["ExitCode"] == 0
    return time.perf_counter() - started


def exec_through_dibs(bench: Bench, handle: Handle) -> float:
    started = time.perf_counter()
    session = bench.backend.exec(handle, Exec(command=("echo", "up")))
    done = False
    while not done:
        done = any(isinstance(piece, Exit) for piece in session.receive(60))
    session.close()
    return time.perf_counter() - started


def compare(what: str, one: Callable[[], float], other: Callable[[], float], rounds: int, parallel: int) -> None:
    ours, theirs = [], []
    with ThreadPoolExecutor(parallel) as pool:
        for _ in range(max(1, rounds // parallel)):  # side by side, so that both meet the same machine
            theirs += list(pool.map(lambda _: other(), range(parallel)))
            ours += list(pool.map(lambda _: one(), range(parallel)))
    a, b = statistics.median(ours) * 1000, statistics.median(theirs) * 1000
    print(f"{what}, {parallel} at a time: dibs {a:.0f} ms, bare {b:.0f} ms, {a / b:.2f}×", flush=True)


def measure(kind: str, rounds: int) -> None:
    engine = Engine(kind).start()
    try:
        engine.load()
        with tempfile.TemporaryDirectory() as folder:
            bench = Bench(engine, engine.home, Path(folder))
            device = bench.world("4")[0]
            assert device.cdi is not None
            name = device.cdi.cdi_name
            client = bench.backend.client()
            handle = bench.start("sleep", "1000")
            container = f"dibs-{handle.sandbox_id}"

            def ours() -> float:
                return through_dibs(bench, device)

            def theirs() -> float:
                return bare(engine, client, name)

            def our_exec() -> float:
                return exec_through_dibs(bench, handle)

            def their_exec() -> float:
                return bare_exec(client, container)

            for parallel in (1, 16):
                compare(f"{kind}: create to first output", ours, theirs, rounds, parallel)
                compare(f"{kind}: exec", our_exec, their_exec, rounds * 2, parallel)
            bench.close()
    finally:
        engine.stop()


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 32
    for kind in sys.argv[2:] or ("docker", "podman"):
        measure(kind, rounds)


if __name__ == "__main__":
    main()
