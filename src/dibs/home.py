"""Where dibs keeps its state.

`DIBS_HOME` names one folder for everything; else the XDG folders are used. Two installations with different folders
never meet. Everybody who needs a path asks here; nobody else reads these variables.

    <state>/ledger.db             leases, queue, sandboxes, events
    <state>/sandboxes/<id>/       one folder per sandbox: shim socket, log, exit status
    <state>/late-<uid>/           what an engine may still make for creators that were killed
    <state>/simulated.json        the simulated world, while one is switched on
    <config>/classes/*.yaml       further device classes
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

import msgspec

from dibs.errors import StateError

HOST_WIDE = Path("/var/lib/dibs")
HOST_SOCKETS = Path("/run/dibs")


class Home(msgspec.Struct, frozen=True):
    """The folders of one installation."""

    state: Path
    config: Path

    @property
    def ledger(self) -> Path:
        return self.state / "ledger.db"

    @property
    def sandboxes(self) -> Path:
        return self.state / "sandboxes"

    @property
    def simulated(self) -> Path:
        return self.state / "simulated.json"

    @property
    def shared(self) -> bool:
        """Whether this is the host-wide home that several users share."""
        return self.state == HOST_WIDE

    def sandbox(self, sandbox_id: str) -> Path:
        return self.sandboxes / sandbox_id

    def make(self) -> Home:
        """Create the folders, private to the user (to the group where the home is host-wide)."""
        mode = 0o770 if self.shared else 0o700
        for folder in (self.state, self.sandboxes):
            try:
                folder.mkdir(parents=True, exist_ok=True, mode=mode)
            except OSError as error:
                raise StateError(
                    f"the state folder cannot be made: {error.strerror}",
                    field="DIBS_HOME",
                    value=str(folder),
                    code="STATE_FOLDER_UNUSABLE",
                    remedy="set DIBS_HOME to a folder that you can write to",
                ) from error
        return self


def find_home(environ: dict[str, str] | os._Environ[str] | None = None) -> Home:
    """The home that this process uses: DIBS_HOME, else a host-wide one that we may write to, else the XDG folders."""
    env = os.environ if environ is None else environ
    explicit = env.get("DIBS_HOME")
    if explicit:
        root = Path(explicit).expanduser().absolute()
        return Home(state=root, config=root / "config")
    user = Path(env.get("HOME") or "~").expanduser()
    config = Path(env.get("XDG_CONFIG_HOME") or user / ".config") / "dibs"
    if is_host_wide_home(HOST_WIDE):
        return Home(state=HOST_WIDE, config=Path("/etc/dibs"))
    state = Path(env.get("XDG_STATE_HOME") or user / ".local" / "state") / "dibs"
    return Home(state=state, config=config)


def is_host_wide_home(folder: Path) -> bool:
    """A folder that an administrator made for a group, with the set-group-id bit, and that we may write to."""
    try:
        mode = folder.stat().st_mode
    except OSError:
        return False
    return bool(stat.S_ISDIR(mode) and mode & stat.S_ISGID and os.access(folder, os.W_OK | os.X_OK))
