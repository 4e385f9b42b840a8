"""Conversations with what runs in a container: its command, further commands, its ports.

`sessions` carries the bytes, `exec` the further commands. A command that is not there is told before anything is
started: engines tell it in the middle of its output.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from dibs.backends import input_wait, proc
from dibs.backends.engines import port_connect, process_view, rendering, ttl
from dibs.backends.engines.engine import container
from dibs.backends.engines.sessions import Call, StreamSession
from dibs.backends.engines.status import Lives, not_running
from dibs.backends.port import Exec, Exit, ExitReason, Handle, Phase, Session, Status
from dibs.errors import BackendUnavailable, InvalidRequest, NotFound, Unsupported
from dibs.http import query
from dibs.process import absent

if TYPE_CHECKING:
    import socket


class Conversations(Lives):
    """Talking to what runs."""

    def attach(self, handle: Handle) -> Session:
        folder = Path(handle.folder)
        held = folder.is_dir() and not (folder / "init").exists() and ttl.ending(folder) is None
        status = Status(Phase.HELD) if held else self.status(handle)
        if status.phase not in (Phase.RUNNING, Phase.PAUSED, Phase.HELD):
            raise not_running(status, handle)
        interactive = handle.data.get("interactive") == "1"
        tty = handle.data.get("tty") == "1"
        path = container(handle) + "/attach" + query(stream=True, stdin=interactive or tty, stdout=True, stderr=True)
        try:
            sock = self.hijack(handle, path)
        except BackendUnavailable as error:
            if error.code != "RUNTIME_DIED" or status.phase is not Phase.HELD:
                raise
            sock = self.hijack(handle, path)  # Podman sets all up for that; nothing has run yet, so it may try again
        pipe = -1
        if handle.data.get("foreground") and status.phase is Phase.HELD:
            pipe = ttl.offer_client(folder)

        def ended(wait: bool) -> Exit | None:
            found = self.wait(handle) if wait else self.status(handle)
            if found.phase is Phase.ABSENT:
                return found.exit or Exit(137, ExitReason.LOST, 9, "the container was removed")
            return found.exit

        def closed(over: bool) -> None:  # noqa: ARG001
            if pipe >= 0:
                os.close(pipe)
                unused = ttl.take_client(folder)
                if unused >= 0:
                    os.close(unused)

        call = Call(
            ended=ended,
            signal=lambda number: self._signal(handle, number),
            resize=lambda rows, columns: self.resize(f"{container(handle)}/resize", rows, columns),
            closed=closed,
        )

        def waits() -> bool | None:
            known = ttl.read(folder, "init")
            if not known:
                return False  # not started yet
            init = ttl.init_of(folder)
            if init is None:  # not to be seen from here, or over before it could be
                return None if self.status(handle).phase is Phase.RUNNING else False
            return not absent(init) and input_wait.waits_for_input(init.pid, process_view.becomes)

        return StreamSession(sock, call, tty=tty, can_send=interactive or tty, reading=waits)

    def _signal(self, handle: Handle, number: int) -> None:
        self._await_init(handle)
        self.ask(handle, "POST", f"{container(handle)}/kill?signal={number}", accept=(404, 409))

    def resize(self, path: str, rows: int, columns: int) -> None:
        # The size of a terminal that is not there yet, or gone, does not matter.
        self.ask(None, "POST", path + query(h=rows, w=columns), accept=(400, 404, 409, 500))

    def exec(self, handle: Handle, command: Exec) -> Session:
        from dibs.backends.engines.exec import execute

        self._check_program(handle, command)
        return execute(self, handle, command)

    def _check_program(self, handle: Handle, command: Exec) -> None:
        """Engines tell a missing command in the middle of its output."""
        if not command.command or not command.command[0]:
            raise InvalidRequest("there is no command", field="command", code="COMMAND_INVALID")
        init = self._visible(handle)
        if init is None:
            return
        try:
            path = command.env.get("PATH") or process_view.environment(init.pid).get("PATH") or rendering.DEFAULT_PATH
            workdir = command.workdir or handle.data.get("workdir") or "/"
            proc.check_command(init.pid, command.command[0], path, workdir)
        except (OSError, BackendUnavailable):
            return  # not visible from here, or just ending: the engine says the same later

    def _must_listen(self, init: int, port: int) -> None:
        """On the host's network a port is reached only if the container itself listens there."""
        from dibs.backends import sockets

        try:
            if sockets.owned(port, proc.members(init), init):
                return
        except OSError as error:
            raise proc.unreadable("who listens on the port", error, "run dibs as root") from error
        raise NotFound("nothing listens there", field="port", value=str(port))

    def connect(self, handle: Handle, port: int) -> socket.socket:
        init = self._visible(handle)
        shared = handle.data.get("network") == "host"
        if shared and init is not None:
            self._must_listen(init.pid, port)
        if init is not None and os.geteuid() == 0:
            return port_connect.connect(init.pid, port)
        status = self.status(handle)
        if status.phase not in (Phase.RUNNING, Phase.PAUSED):
            raise not_running(status, handle)
        document = self.ask(handle, "GET", container(handle) + "/json")
        networks = (document.get("NetworkSettings") or {}).get("Networks") or {}
        address = next((one["IPAddress"] for one in networks.values() if one and one.get("IPAddress")), "")
        if shared and init is not None:
            address = address or "127.0.0.1"
        elif shared:
            raise Unsupported(
                "the container's process is not visible from here, so its ports cannot be told from others",
                field="port", value=str(port), remedy="run dibs on the host of the engine, as root",
            )  # fmt: skip
        if not address:
            raise Unsupported(
                "the sandbox has no network that can be reached from here", field="port", value=str(port),
                remedy="run dibs as root, or give the sandbox a network",
            )  # fmt: skip
        return port_connect.connect_to(address, port)
