"""The events of a running command, as execd's clients read them.

`commands` and `shells` write them. A frame is bare JSON and an empty line, which is what execd itself writes and what
all of its clients take. `init` comes first and once, then one event for each line of output, at last exactly one
terminal event; `Lines` cuts the streams into lines.
"""

from __future__ import annotations

import codecs
import time
from collections.abc import Iterable, Iterator
from typing import Any, Literal

import msgspec

from dibs.backends.port import Exit, Output

Stream = Literal["stdout", "stderr"]
PING_SECONDS = 3.0
LONGEST = 1 << 20  # characters of a line; a longer one is told in several events, so that it needs no more memory
PORTION = 1 << 14  # bytes of output that are made events at once
MEDIA_TYPE = "text/event-stream; charset=utf-8"
_encoder = msgspec.json.Encoder()


def event(kind: str, **fields: Any) -> bytes:
    return _encoder.encode({"type": kind, "timestamp": int(time.time() * 1000), **fields}) + b"\n\n"


def init(execution_id: str) -> bytes:
    return event("init", text=execution_id)


def ping() -> bytes:
    return event("ping", text="pong")


def complete(seconds: float) -> bytes:
    return event("execution_complete", execution_time=max(0, round(seconds * 1000)))


def failed(code: int, *words: str) -> bytes:
    """The terminal event of a command that did not end with 0. Clients take the exit code from `evalue`."""
    error = {"ename": "CommandExecError", "evalue": str(code), "traceback": list(words) or [f"exit status {code}"]}
    return event("error", error=error)


def portions(pieces: Iterable[Output | Exit]) -> Iterator[tuple[Stream, bytes]]:
    """Output in small parts: an event is some seventy bytes, even if its line has one."""
    for piece in pieces:
        if isinstance(piece, Output):
            for at in range(0, len(piece.data), PORTION):
                yield piece.stream, piece.data[at : at + PORTION]


class Lines:
    """One stream of a command, cut into lines, which end with LF, CR LF or CR.

    Bytes that are not UTF-8 are shown as the replacement character.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""
        self._after_return = False  # a line feed that comes next belongs to the end that was told already

    def feed(self, data: bytes, *, final: bool = False) -> bytes:
        """The events for the lines that are whole now; with `final` also for what is left."""
        text = self._decoder.decode(data, final)
        if text:
            if self._after_return and text[0] == "\n":
                text = text[1:]
            self._after_return = text.endswith("\r")
            # A carriage return ends a line too: a progress bar is told as it moves, not at its end.
            text = text.replace("\r\n", "\n").replace("\r", "\n")
        *lines, rest = (self._rest + text).split("\n")
        # An empty line is told as its terminator: an event without text would look like no event at all.
        frames = [event(self._stream, text=line or "\n") for line in lines]
        while len(rest) > LONGEST:
            frames.append(event(self._stream, text=rest[:LONGEST]))
            rest = rest[LONGEST:]
        if final and rest:
            frames.append(event(self._stream, text=rest))
            rest = ""
        self._rest = rest
        return b"".join(frames)
