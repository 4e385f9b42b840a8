"""Where dibs keeps its state.

`DIBS_HOME` names one folder for everything; else the XDG folders are used. Two installations with different folders
never meet. All paths come from here; no other module reads these variables.

    <state>/ledger.db             leases, queue, sandboxes, events
    <state>/live/<id>             a second record of a live sandbox, for a lost ledger
    <state>/sandboxes/<id>/       one folder per sandbox: shim socket, log, exit status
    <state>/queue/<ticket>        one FIFO per process that waits for devices
    <state>/late-<uid>/           notes on containers that an engine may still create
    <state>/simulated.json        the simulated world, while one is switched on
    <state>/simulated-id          distinguishes this home's simulated devices from another's
    <config>/classes/*.yaml       further device classes
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
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
    def queue(self) -> Path:
        return self.state / "queue"

    @property
    def simulated(self) -> Path:
        return self.state / "simulated.json"

    @property
    def shared(self) -> bool:
        """Whether this is a host-wide home that several users share, each with processes of their own. (The folder of
        the host service is at the same place, and root's alone.)"""
        return self.state == HOST_WIDE and is_host_wide_home(HOST_WIDE)

    def sandbox(self, sandbox_id: str) -> Path:
        return self.state.joinpath("sandboxes", sandbox_id)

    @property
    def file_mode(self) -> int:
        """The mode of every file that holds state: the owner's alone, the group's too where the home is the group's."""
        return 0o660 if self.shared else 0o600

    def make_folder(self, folder: Path) -> None:
        """A folder of the state, as private as the state itself."""
        _make_folder(folder, self)

    def make(self) -> Home:
        """Create the folders, private to the user (to the group where the home is host-wide), or check that those that
        exist are: what is kept here decides over devices, and holds secrets."""
        try:
            _make_folder(self.state, self)
            _make_folder(self.sandboxes, self)
        except OSError as error:
            raise StateError(
                f"the state folder cannot be made: {error.strerror}",
                field="DIBS_HOME",
                value=str(error.filename or self.state),
                code="STATE_FOLDER_UNUSABLE",
                remedy="set DIBS_HOME to a folder that you can write to",
            ) from error
        return self


def _make_folder(folder: Path, home: Home) -> None:
    mode = 0o2770 if home.shared else 0o700
    try:
        os.mkdir(folder, mode)
    except FileExistsError:
        _check_folder(folder, home)
        return
    except FileNotFoundError:
        # Parents too are made for this user alone, whatever the umask says.
        for parent in reversed([one for one in folder.parents if not one.exists()]):
            with suppress(FileExistsError):
                os.mkdir(parent, 0o700)
        os.mkdir(folder, mode)
    os.chmod(folder, mode)  # a umask may have taken from it


def _check_folder(folder: Path, home: Home) -> None:
    """A folder that exists belongs to this user, and only this user may write to it."""
    found = os.stat(folder)
    mode = stat.S_IMODE(found.st_mode)
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(20, "it is not a folder", str(folder))
    if home.shared:
        return  # an administrator made it, for a group
    if found.st_uid != os.geteuid():
        raise unsafe(folder, f"it belongs to user {found.st_uid}, who could change what is kept in it",
                     "set DIBS_HOME to a folder of your own")  # fmt: skip
    if mode & 0o022:
        if mode & (stat.S_ISVTX | stat.S_ISGID):
            raise unsafe(folder, f"others may write to it (mode {mode:04o})",
                         "set DIBS_HOME to a folder of your own, such as one below it")  # fmt: skip
        os.chmod(folder, mode & ~0o022)


def check_private(path: Path, home: Home) -> bool:
    """Whether a file of the state folder exists. It belongs to this user, and only this user may read it."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return False
    if not stat.S_ISREG(found.st_mode):
        raise unsafe(path, "it is not a regular file", "move it away")
    if found.st_uid != os.geteuid():
        if home.shared:
            return True
        raise unsafe(path, f"it belongs to user {found.st_uid}, who could read and change it",
                     f"if you trust it, take it over: chown {os.geteuid()} {path}")  # fmt: skip
    if found.st_mode & 0o777 & ~home.file_mode:
        os.chmod(path, home.file_mode)
    return True


def make_private(path: Path, home: Home) -> None:
    """Make an empty file, if there is none, that only this user can read, whatever the umask says.

    It appears under its name when it is closed: SQLite's locks on a file go when any descriptor of it is closed.
    """
    if check_private(path, home):
        return
    draft = path.with_name(f".{path.name}.{os.urandom(6).hex()}")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, home.file_mode)
    try:
        os.fchmod(fd, home.file_mode)
    finally:
        os.close(fd)
    try:
        os.link(draft, path)
    except FileExistsError:
        check_private(path, home)  # another process was faster
    finally:
        os.unlink(draft)


def write_private(path: Path, text: str) -> None:
    """Write a small file that only this user can read, whatever the umask says."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), "w") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(text)


def no_room(error: OSError) -> bool:
    """Whether something failed because the disk is full, or the user's share of it."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def unsafe(path: Path, reason: str, remedy: str) -> StateError:
    return StateError(reason, field="DIBS_HOME", value=str(path), code="STATE_FOLDER_UNSAFE", remedy=remedy)


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
