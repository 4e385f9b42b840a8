"""Single flight: concurrent callers share one look. A caller never gets one that began before its call.

`backend` looks so for containers that others have started: sixteen who want one at once ask the engine twice.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

A = TypeVar("A")
T = TypeVar("T")


class Together(Generic[A, T]):
    """Call it, from any thread. Of the arguments, those of the caller who looks for all are used."""

    def __init__(self, look: Callable[[A], T]) -> None:
        self._look = look
        self._looking = threading.Lock()
        self._joining = threading.Lock()
        self._next: _Look[T] | None = None  # that has not begun

    def __call__(self, argument: A) -> T:
        with self._joining:
            if self._next is None:
                self._next = _Look()
            mine = self._next
        with self._looking:
            if not mine.over:
                with self._joining:
                    self._next = None  # who comes from now on must not get this one
                try:
                    mine.found = self._look(argument)
                except Exception as error:  # noqa: BLE001 - raised below, in every caller
                    mine.error = error
                mine.over = True
        if mine.error is not None:
            raise mine.error
        return mine.found  # type: ignore[return-value]  # there is no error, so it was found


class _Look(Generic[T]):
    def __init__(self) -> None:
        self.over = False
        self.found: T | None = None
        self.error: Exception | None = None
