"""What a person sees while dibs waits. To stderr, never mixed with a program's output."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from dibs.cli.output import say
from dibs.errors import printable

if TYPE_CHECKING:
    from dibs.workloads.waiting import WaitNews


class Progress:
    """One line on the terminal that says what is waited for; one line per change where there is no terminal."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._live = sys.stderr.isatty()
        self._last = ""

    def waiting(self, news: WaitNews) -> None:
        from dibs.backends.local.spawning import drop_early
        from dibs.request.durations import show_duration

        drop_early()  # many may wait, and each would keep a second process
        if self._quiet:
            return
        text = printable(f"dibs: number {news.place} of {news.length} in the queue; {news.waits_for}")
        if self._live:
            line = f"{text} (waited {show_duration(news.waited)})"
            width = os.get_terminal_size(2).columns
            sys.stderr.write("\r\033[K" + (line if len(line) < width else line[: width - 2] + "…"))
            sys.stderr.flush()
        elif _lasting(text) != _lasting(self._last):
            say(text)
        self._last = text

    def done(self) -> None:
        if self._live and self._last:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()


def _lasting(text: str) -> str:
    """The text without how long it has been so: time alone is no news."""
    import re

    return re.sub(r" for [0-9][0-9smhd]*", "", text)
