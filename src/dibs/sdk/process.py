"""A running command: its output as it comes, its end, and ways to end it early.

`sandbox` makes one for each command, `aio` drives it from a worker thread. `kill` may be called from any thread.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING

import msgspec

from dibs.backends.port import Exit, Output, Session
from dibs.errors import Conflict, Timeout
from dibs.receipt import Receipt
from dibs.request.durations import show_duration

if TYPE_CHECKING:
    from typing import Self

_ENDING = 10.0  # seconds in which a killed command has ended


class Result(msgspec.Struct, frozen=True):
    """How a command ended, and what it wrote."""

    code: int
    stdout: bytes
    stderr: bytes
    exit: Exit
    receipt: Receipt

    @property
    def ok(self) -> bool:
        return self.code == 0

    @property
    def text(self) -> str:
        """Its stdout as text; bytes that are not UTF-8 are escaped."""
        return self.stdout.decode(errors="backslashreplace")

    def __repr__(self) -> str:
        how = f"code={self.code}" if self.exit.reason == "exited" else f"code={self.code}, {self.exit.reason}"
        devices = ", ".join(device.id.rpartition("/")[2] for device in self.receipt.devices) or "no devices"
        return f"<Result {how}, {len(self.stdout)} bytes out, {len(self.stderr)} bytes err, {devices}>"


class Process:
    """Iterate over it for the output as it comes; `result()` waits for the end.

    with dibs.stream("for i in 1 2 3; do echo $i; sleep 1; done", gpu=1) as process:
        for piece in process:
            print(piece.stream, piece.data)
        print(process.result().code)

    Leaving the block ends a command that still runs.
    """

    def __init__(
        self,
        session: Session,
        finish: Callable[[], Receipt],
        *,
        input: bytes = b"",  # noqa: A002
        timeout: float | None = None,
    ) -> None:
        """`finish` is called once, after the end, and gives the receipt."""
        self._session = session
        self._finish = finish
        self._pieces: dict[str, list[bytes]] = {"stdout": [], "stderr": []}
        self._exit: Exit | None = None
        self._result: Result | None = None
        self._closed = False
        self._timeout = timeout
        self._deadline = None if timeout is None else time.monotonic() + timeout
        if input:
            session.send(input)
        session.end_of_input()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[Output]:
        while self._exit is None:
            for item in self._session.receive(self._left()):
                if isinstance(item, Exit):
                    self._exit = item
                else:
                    self._pieces[item.stream].append(item.data)
                    yield item
            if self._exit is None and self._deadline is not None and time.monotonic() >= self._deadline:
                self._give_up()

    def _left(self) -> float | None:
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def _give_up(self) -> None:
        limit = self._timeout or 0.0
        shown = show_duration(limit) if limit >= 1 else f"{limit:g}s"
        self.close()
        raise Timeout(
            f"the command did not end within {shown}, and was killed",
            field="timeout", value=f"{limit:g}", code="COMMAND_TIMEOUT", remedy="give it more time",
        )  # fmt: skip

    def result(self) -> Result:
        """Wait for the end. Raises `dibs.Timeout` if it takes longer than `timeout`; the command is killed then."""
        for _ in self:
            pass
        if self._result is None:
            assert self._exit is not None
            self._session.close()
            out, err = (b"".join(self._pieces[name]) for name in ("stdout", "stderr"))
            self._closed = True
            self._result = Result(self._exit.code, out, err, self._exit, self._finish())
        return self._result

    def kill(self) -> None:
        """End the command at once. The end is seen by `result`."""
        try:
            self._session.signal(signal.SIGKILL)
        except Conflict:
            return  # it has ended by itself

    def close(self) -> None:
        """End the command if it still runs, and give its devices back."""
        if self._closed:
            return
        self._closed = True
        if self._exit is None:
            self.kill()
            until = time.monotonic() + _ENDING
            while self._exit is None and time.monotonic() < until:
                for item in self._session.receive(max(0.0, until - time.monotonic())):
                    if isinstance(item, Exit):
                        self._exit = item
        self._session.close()
        self._finish()

    def __repr__(self) -> str:
        return f"<Process {'running' if self._exit is None else f'ended with {self._exit.code}'}>"
