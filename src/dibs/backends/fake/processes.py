"""Commands of the fake world: small Python programs.

`true`, `false`, `echo`, `env`, `cat`, `sleep` and `exit` come with it; `FakeBackend(programs=…)` adds more. A program
runs in the thread of its starter, and must not block: it says what it does with input and signals, and goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from dibs.backends.port import Exit

Stream = Literal["stdout", "stderr"]


class FakeProcess:
    """A command of the fake world. A program gets it, writes to it, and may set what it does with input and signals."""

    def __init__(self, command: tuple[str, ...], env: dict[str, str], write: Callable[[Stream, bytes], None]) -> None:
        self.command = command
        self.env = env
        self.user = ""
        self.write = write
        self.exit: Exit | None = None
        self.on_input: Callable[[bytes], None] | None = None
        self.on_end_of_input: Callable[[], int | None] | None = None
        self.on_signal: Callable[[int], int | None] | None = None
        self.size: tuple[int, int] | None = None


# A program gives its exit code, or None to go on until it is told to end.
Program = Callable[[FakeProcess], int | None]


def _echo(process: FakeProcess) -> int:
    process.write("stdout", (" ".join(process.command[1:]) + "\n").encode())
    return 0


def _env(process: FakeProcess) -> int:
    process.write("stdout", "".join(f"{k}={v}\n" for k, v in process.env.items()).encode())
    return 0


def _cat(process: FakeProcess) -> None:
    process.on_input = lambda data: process.write("stdout", data)
    process.on_end_of_input = lambda: 0


PROGRAMS: dict[str, Program] = {
    "true": lambda _: 0,
    "false": lambda _: 1,
    "exit": lambda process: int(process.command[1]),
    "sleep": lambda _: None,
    "echo": _echo,
    "env": _env,
    "cat": _cat,
}
