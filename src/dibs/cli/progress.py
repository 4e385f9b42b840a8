"""What a person sees while dibs waits. To stderr, never mixed with a program's output."""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING

from dibs.cli.output import paint, say
from dibs.errors import printable
from dibs.patterns import lazy_pattern

if TYPE_CHECKING:
    from dibs.workloads.waiter import WaitNews


# Of a line that is too long: how many are free and wanted, and which devices are held.
_WHICH = lazy_pattern(r"(?:[0-9]+ free, [0-9]+ wanted: )?(?:[\w./-]+, )*[\w./-]+(?: and [0-9]+ more)? held by")


class Progress:
    """One line on the terminal that says what is waited for; one line per change where there is no terminal."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._live = sys.stderr.isatty()
        self._last = ""

    def waiting(self, news: WaitNews) -> None:
        from dibs.backends.local.spawning import drop_early

        drop_early()  # many may wait, and each would keep a second process
        if self._quiet:
            return
        text = printable(f"dibs: number {news.place} of {news.length} in the queue; {news.waits_for}")
        if self._live:
            width = os.get_terminal_size(2).columns or 80
            sys.stderr.write("\r\033[K" + paint(live_line(news, width - 1), "yellow", sys.stderr))
            sys.stderr.flush()
        elif _lasting(text) != _lasting(self._last):
            say(text + (f"; {expected(news)}" if news.frees_in is not None else ""))
        self._last = text

    def done(self) -> None:
        if self._live and self._last:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()


def live_line(news: WaitNews, width: int) -> str:
    """How long already, which place, when to expect it, and who holds what is wanted: the last gives way."""
    from dibs.request.durations import show_duration

    place = f"number {news.place} of {news.length}"
    parts = [f"dibs: waiting {show_duration(news.waited)}", place, *filter(None, [expected(news)])]
    line = printable(", ".join(parts) + f": {news.waits_for}")
    if len(line) > width:  # who holds them says more than which they are
        line = _WHICH.sub("held by", line)
    if len(line) > width:  # for how long would be cut in the middle of a number
        line = _lasting(line)
    return line if len(line) <= width else line[: max(width - 1, 0)] + "…"


def expected(news: WaitNews) -> str:
    """When the devices are free, as far as that can be told: their holders' TTLs are the only promise there is."""
    from dibs.request.durations import show_duration

    if news.frees_in is None:
        return ""
    return f"free within {show_duration(news.frees_in)}"


def _lasting(text: str) -> str:
    """The text without how long it has been so: time alone is no news."""
    return re.sub(r" for [0-9][0-9smhd]*", "", text)
