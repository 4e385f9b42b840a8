"""Ends further commands in containers when the process that asked for them is gone: a small process beside that one.

`exec_guards` starts it, one for each process that runs commands in containers, and writes to its stdin:

    +MARK TEXT    a command is about to be started; TEXT says how to find it again
    -MARK         its client has seen its end, or has ended it itself

The end of its stdin means that the process is gone, whatever ended it. What is left then is hung up by a full
interpreter (`exec_guards.hang_up`), which takes this one's place: until then nothing of dibs is loaded.

Arguments: the program of that interpreter, and where dibs is.
"""

from __future__ import annotations

import os
import sys


def main() -> None:
    program, root = sys.argv[1:3]
    os.chdir("/")
    left: dict[bytes, bytes] = {}
    held = b""
    while piece := os.read(0, 65536):
        *lines, held = (held + piece).split(b"\n")
        for line in lines:
            mark, _, text = line[1:].partition(b" ")
            if line[:1] == b"+":
                left[mark] = text
            else:
                left.pop(mark, None)
    if left:
        words = [sys.executable, "-I", "-c", program, root]
        os.execv(sys.executable, [*words, *(os.fsdecode(text) for text in left.values())])  # noqa: S606
