"""Concurrent callers share one look, and none gets a look that began before its call."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from dibs.backends.engines.singleflight import Together


class Door:
    """A lock that counts who has been through."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.passed = 0

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.passed += 1
        self._lock.release()

    def until(self, passed: int) -> None:
        deadline = time.monotonic() + 60.0
        while self.passed < passed:
            assert time.monotonic() < deadline, f"{self.passed} of {passed} have come"
            time.sleep(0.001)


def test_callers_during_a_look_share_the_next_one_even_if_it_fails() -> None:
    looks = 0
    go = threading.Semaphore(0)

    def look(_: str) -> int:
        nonlocal looks
        looks += 1
        number = looks
        go.acquire()
        if number == 3:
            raise ValueError("the third fails")
        return number

    together = Together(look)
    together._joining = door = Door()  # type: ignore[assignment]
    with ThreadPoolExecutor(20) as pool:
        first = pool.submit(together, "")
        door.until(2)  # it has come, and has begun
        second = [pool.submit(together, "") for _ in range(8)]
        door.until(10)
        go.release()
        assert first.result() == 1
        door.until(11)  # one of them has begun, for all
        third = [pool.submit(together, "") for _ in range(4)]
        door.until(15)
        # Waiters are not served in order: a third may look while some of the second still wait.
        go.release(2)
        assert {one.result() for one in second} == {2}
        for one in third:
            with pytest.raises(ValueError, match="the third fails"):
                one.result()
        go.release()
        assert together("") == 4
