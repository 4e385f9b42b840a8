"""Starts a container, with what must exist before its command runs.

An engine cannot hold a container before its command: it is observed during the start where possible
(`observe_prestart`), otherwise immediately after.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from dibs.backends import proc
from dibs.backends.engines import errors, ttl
from dibs.backends.engines.client import Client, EngineError, Unreachable
from dibs.backends.engines.observe import Looks
from dibs.backends.engines.stop import GONE, Endings
from dibs.backends.port import Handle
from dibs.errors import CommandFailed, Conflict


class Starts(Looks, Endings):
    """Running what was made."""

    # --- filled in by each engine

    def _ignite(self, handle: Handle, client: Client) -> int:
        """Run it, with a look just before if there can be one. The status of the answer."""
        raise NotImplementedError

    # --- running

    def start(self, handle: Handle) -> None:
        folder = Path(handle.folder)
        if ttl.ending(folder) is not None:
            raise Conflict("the sandbox has ended", code="NOT_HELD", value=handle.sandbox_id)
        client = self.client()
        keeper = self._begin_keeper(handle, client)
        self._remember_look(handle, None)  # unless there is one in a moment
        try:
            status = self._ignite(handle, client)
            if status == 304:
                raise Conflict("the sandbox was started already", code="NOT_HELD", value=handle.sandbox_id)
            self._check_started(handle)
        except Conflict:
            raise
        except EngineError as error:
            self._never_started(handle)
            program = handle.data.get("program", "")
            raise errors.translate(self.name, error, field="command", value=program) from error
        except Unreachable as error:
            self.lost(error)
        except CommandFailed:
            self._never_started(handle)
            raise
        if handle.data.get("ttl"):
            ttl.set_deadline(folder, time.time() + float(handle.data["ttl"]))
        if keeper is not None:
            ttl.finish_keeper(folder, keeper)

    def _begin_keeper(self, handle: Handle, client: Client) -> ttl.Starting | None:
        """The process that ends it in time, or with its client. It is there before the command runs."""
        folder = Path(handle.folder)
        pipe = ttl.take_client(folder)
        seconds = handle.data.get("ttl")
        if seconds:
            ttl.set_deadline(folder, time.time() + float(seconds))
        if not seconds and pipe < 0:
            return None
        try:
            return self._keeper(handle, client, pipe)
        finally:
            if pipe >= 0:
                os.close(pipe)

    def _never_started(self, handle: Handle) -> None:
        ttl.ask_end(Path(handle.folder), "not-started")
        self._discard(handle)

    def _check_started(self, handle: Handle) -> None:
        """Note its first process, and see that the engine's init found the command: it would only exit otherwise."""
        if (Path(handle.folder) / "init").exists():
            return  # done while it was held
        state = self._state(handle) or {}
        pid = int(state.get("Pid") or 0)
        init = ttl.remember_init(Path(handle.folder), pid, handle.data.get("container", ""))
        if not handle.data.get("init"):
            return
        if init is not None:
            try:
                self._check_command(handle, pid)
                return
            except OSError:
                pass  # it ended while we looked
        if pid and self.facts().peer is not None:
            self.wait(handle, GONE)  # its process is gone: the engine is about to know
            state = self._state(handle) or {}
        if state.get("ExitCode") in (1, 126, 127):
            said = b"".join(record.data for record in self.logs(handle)).decode(errors="replace")
            if "[FATAL tini" in said or "(catatonit:" in said:
                raise EngineError(500, said.strip(), "the engine's init")

    def _check_command(self, handle: Handle, pid: int) -> None:
        """Raises CommandFailed; OSError if the process cannot be looked at."""
        program, path, workdir = (handle.data.get(key, "") for key in ("program", "path", "workdir"))
        if program:
            proc.check_command(pid, program, path, workdir)
