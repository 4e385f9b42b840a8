"""The conversation with a sandbox's main command.

`attach` hands it out, also before the command has started. A command without input or terminal is read from its log,
from the beginning, so nothing that it says is missed. One with input or a terminal is attached to as soon as it runs;
what it had said before comes from its log. A thread does that; `receive` never waits longer than it was told to.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

import msgspec

from dibs.backends.kubernetes.pods import SandboxPod, exit_of
from dibs.backends.port import Exit, ExitReason, Handle, Output, Phase
from dibs.errors import Conflict, DibsError
from dibs.kube.client import RESIZE, STDERR, STDIN, STDOUT

if TYPE_CHECKING:
    from dibs.backends.kubernetes.streams import Talks
    from dibs.kube.channels import Channels

_SETTLING = 10.0  # seconds that a status may be behind the container
_COMPARED = 1 << 20  # bytes of a conversation up to which it is compared with the log
_STEP = 0.5  # seconds after which the thread sees that it is closed


class PodSession:
    """See `Session` in the port."""

    def __init__(self, backend: Talks, handle: Handle) -> None:
        self._backend = backend
        self._handle = handle
        self._changed = threading.Condition()
        self._pieces: deque[Output | Exit] = deque()
        self._input: list[tuple[int, bytes]] = []  # until there is a line to send it on
        self._channels: Channels | None = None
        self._size: tuple[int, int] | None = None
        self._over = False
        self._closed = False
        self._trouble: DibsError | None = None
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        pod = backend.pod(handle)
        main = pod.main if pod is not None else backend.promised(handle)
        self._tty = main.tty
        self._can_send = main.stdin or main.tty
        self._thread = threading.Thread(target=self._run, name="dibs-pod-session", daemon=True)
        self._thread.start()

    def fileno(self) -> int:
        return self._bell

    # -- to it

    def send(self, data: bytes) -> None:
        if not self._can_send:
            raise Conflict("it was started without input", code="INPUT_CLOSED", remedy="start it with --interactive")
        if self._closed or self._over:
            raise Conflict("the connection to the command is closed", code="SESSION_CLOSED")
        self._send(STDIN, data)

    def end_of_input(self) -> None:
        if self._can_send and not self._closed and not self._over:
            self._send(STDIN, b"\x04") if self._tty else self._send(-1, b"")

    def _send(self, channel: int, data: bytes) -> None:
        """Now, or as soon as there is a line. Channel -1: the input ends."""
        with self._changed:
            channels = self._channels
            if channels is None:
                self._input.append((channel, data))
                return
        try:
            if channel < 0:
                channels.close_channel(STDIN)
            else:
                channels.send(channel, data)
        except BrokenPipeError as error:
            raise Conflict("the connection to the command is closed", code="SESSION_CLOSED") from error

    def signal(self, number: int) -> None:
        if not self._over:
            self._backend.kill_main(self._handle, number)

    def resize(self, rows: int, columns: int) -> None:
        if self._tty and not self._over:
            self._send(RESIZE, msgspec.json.encode({"Width": columns, "Height": rows}))

    # -- from it

    def receive(self, timeout: float | None = None) -> list[Output | Exit]:
        with self._changed:
            self._changed.wait_for(lambda: self._pieces or self._trouble or self._over or self._closed, timeout)
            found = list(self._pieces)
            self._pieces.clear()
            if not self._closed:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._bell)
            if not found and self._trouble is not None:
                raise self._trouble
            return found

    def close(self) -> None:
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
        self._thread.join(_STEP * 4)
        os.close(self._bell)

    # -- its thread

    def _run(self) -> None:
        try:
            pod = self._started()
            if pod is not None and self._can_send and pod.runs:
                self._converse(pod)
            elif pod is not None:
                self._read_log()
            if not self._closed:
                self._tell_end()
        except DibsError as error:
            with self._changed:
                self._trouble = error
                self._ring()

    def _started(self) -> SandboxPod | None:
        pod = self._backend.pod(self._handle)
        while not self._closed and not (pod is not None and (pod.runs or exit_of(pod) is not None)):
            if pod is None and not self._backend.is_to_come(self._handle):
                return None
            pod = self._backend.wait_for(
                self._handle, lambda one: one is not None and (one.runs or exit_of(one) is not None), _STEP
            )
        return pod

    def _read_log(self) -> None:
        for record in self._backend.logs(self._handle, follow=True):
            if self._closed:
                return
            if record.data:
                self._push(Output(record.stream, record.data))

    def _converse(self, pod: SandboxPod) -> None:
        before = self._log()
        try:
            channels = self._backend.open_attach(pod)
        except DibsError:
            if not self._has_ended():
                raise
            self._read_log()  # it was too quick for us: there is nothing left to attach to
            return
        if before:
            self._push(Output("stdout", before))
        told = 0
        try:
            with self._changed:
                waiting, self._input = self._input, []
                self._channels = channels
            for channel, data in waiting:
                self._send(channel, data)
            while not self._closed and not channels.over:
                for channel, data in channels.receive(_STEP):
                    if channel in (STDOUT, STDERR) and data:
                        told += len(data)
                        self._push(Output("stdout" if channel == STDOUT else "stderr", data))
        finally:
            channels.close()
        if not self._closed and told < _COMPARED:
            self._tell_missed(before, told)

    def _tell_missed(self, before: bytes, told: int) -> None:
        """What it said between the look at its log and the moment of attaching is in neither; the log has it now."""
        if not self._has_ended():
            return  # the line was cut, and it goes on
        whole = self._log()
        missed = len(whole) - len(before) - told
        if missed > 0 and whole.startswith(before):
            self._push(Output("stdout", whole[len(before) : len(before) + missed]))

    def _has_ended(self) -> bool:
        """Whether the command has ended, or is about to: a pod's status comes a moment later."""
        found = self._backend.wait_for(self._handle, lambda one: one is None or exit_of(one) is not None, _SETTLING)
        return found is None or exit_of(found) is not None

    def _log(self) -> bytes:
        return b"".join(record.data for record in self._backend.logs(self._handle))

    def _tell_end(self) -> None:
        status = self._backend.wait(self._handle, 0.0)
        while status.phase not in (Phase.EXITED, Phase.ABSENT):
            if self._closed:
                return
            status = self._backend.wait(self._handle, _STEP)
        with self._changed:
            self._over = True
        self._push(status.exit or Exit(137, ExitReason.LOST, 9, "the pod is gone", time.time()))

    def _push(self, piece: Output | Exit) -> None:
        with self._changed:
            self._pieces.append(piece)
            self._ring()

    def _ring(self) -> None:
        self._changed.notify_all()
        if not self._closed:
            os.eventfd_write(self._bell, 1)
