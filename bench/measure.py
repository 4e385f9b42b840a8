"""How things are measured: side by side, in turns, so that whatever else the machine does hits both alike."""

from __future__ import annotations

import resource
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence


def processor_time() -> float:
    """Seconds that the children which have ended have used, whatever else the machine does."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def in_turns(
    jobs: Mapping[str, Callable[[], object]], rounds: int, *, clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Seconds of each job in each round. One round of warming up is not counted."""
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for number in range(rounds + 1):
        for name, job in jobs.items():
            began = clock()
            job()
            if number:
                times[name].append(clock() - began)
    return times


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def command(words: Sequence[str], **options: object) -> Callable[[], object]:
    """A job that runs a command to its end and insists that it worked."""

    def job() -> object:
        return subprocess.run(words, check=True, capture_output=True, stdin=subprocess.DEVNULL, **options)  # type: ignore[call-overload]

    return job


def shown(seconds: float) -> str:
    return (
        f"{seconds * 1e6:.0f} µs"
        if seconds < 0.001
        else f"{seconds * 1e3:.1f} ms"
        if seconds < 1
        else f"{seconds:.2f} s"
    )


def title(text: str) -> None:
    print(f"\n{text}\n{'-' * len(text)}")


def row(name: str, value: str, ratio: str = "", goal: str = "") -> None:
    print(f"  {name:<46} {value:>12}  {ratio:>8}  {goal}".rstrip())
