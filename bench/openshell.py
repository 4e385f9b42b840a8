"""OpenShell's API against our own: the same sandbox and command over gRPC and over HTTP, in turns, in one run."""

from __future__ import annotations

from bench.gateway import Bench, line, running
from bench.measure import title

LEVELS = ((1, 20, 3), (50, 2, 2))  # clients, requests of each, rounds
GOAL = "against HTTP, goal ≤ 1.2×"


def openshell() -> None:
    title("OpenShell's API: p50, p99, and both against the same through our HTTP API")
    with running(512, "--openshell", "127.0.0.1:0", clients="bench.openshell_client") as bench:
        (name,) = bench.ask("many", kind="http", clients=1, each=1)["answers"]
        bench.ask("clear", names=[name], remove=False)
        for clients, each, rounds in LEVELS:
            words = f"{clients} client{'' if clients == 1 else 's'}"
            print(f"\n  {words}")
            for what, sandbox in (("create", ""), ("exec true", name)):
                times = _in_turns(bench, clients, each, rounds, sandbox)
                line(f"{what}, HTTP", times["http"])
                line(f"{what}, gRPC", times["grpc"], times["http"], GOAL)
        bench.ask("clear", names=[name])


def _in_turns(bench: Bench, clients: int, each: int, rounds: int, sandbox: str) -> dict[str, list[float]]:
    """Seconds of every request. The first round warms up and is not counted; who begins changes with each round."""
    times: dict[str, list[float]] = {"http": [], "grpc": []}
    for number in range(rounds + 1):
        for kind in ("http", "grpc") if number % 2 else ("grpc", "http"):
            found = bench.ask("many", kind=kind, clients=clients, each=each, name=sandbox)
            if number:
                times[kind] += found["seconds"]
            if not sandbox:
                bench.ask("clear", names=found["answers"])
            elif set(found["answers"]) != {"0"}:
                raise SystemExit(f"bench: true ended with {set(found['answers'])}")
    return times
