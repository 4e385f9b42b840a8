"""Setting the host service up, looking at it, taking it away. `dibs host` calls it, as root.

One gateway for all users of a machine: a systemd unit, a group, a socket, a state folder, a configuration. Every step
says what it did or that nothing was to do, so that it may be run twice. Nothing is removed that still runs or that
cannot be made again, unless that is asked for.

DIBS_HOST_ROOT puts all paths below another folder; then no command is run that would change the machine.
"""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from dibs.errors import BackendUnavailable, Conflict, InvalidRequest, StateError
from dibs.home import HOST_WIDE, Home

T = TypeVar("T")
GROUP = "dibs"
UNIT = "dibs.service"
_PRIVATE = 0o600  # what the settings say of a socket when they say nothing
_STARTING = 20.0  # seconds that the service gets to answer

_UNIT = """\
# Made by `dibs host install`; made anew when it is run again. Own settings go into a drop-in: systemctl edit dibs
[Unit]
Description=dibs: accelerators for all users of this host
After=local-fs.target network.target nvidia-persistenced.service

[Service]
Type=exec
ExecStart={command}
Restart=on-failure
RestartSec=2
# Only the gateway itself is stopped: sandboxes outlive a restart, and end by their own rules.
KillMode=process
OOMPolicy=continue
RuntimeDirectory=dibs
RuntimeDirectoryMode=0755
RuntimeDirectoryPreserve=yes
StateDirectory=dibs
StateDirectoryMode=0711
Delegate=yes
TasksMax=infinity
LimitNOFILE=65536
UMask=0077
# No sandboxing of the unit itself: its mounts would be what every sandbox of every user sees.

[Install]
WantedBy=multi-user.target
"""

_CONFIG = """\
# The host service of dibs. `dibs serve --check --host-service` reads it and says what is wrong.
[gateway]
# Only the socket: members of the group dibs may use it, and are known by their uid.
listen = []
socket_mode = "0660"
socket_group = "dibs"
"""


class Step(msgspec.Struct, frozen=True):
    """What was done, or was there already."""

    what: str
    done: bool = True  # False: nothing was to do
    note: str = ""


class Machine(msgspec.Struct, frozen=True):
    """Where things are; below `root` if that is not empty."""

    root: str = ""

    @classmethod
    def this(cls) -> Machine:
        return cls(os.environ.get("DIBS_HOST_ROOT", ""))

    def path(self, place: str) -> Path:
        return Path(f"{self.root}{place}")

    @property
    def unit(self) -> Path:
        return self.path(f"/etc/systemd/system/{UNIT}")

    @property
    def config(self) -> Path:
        return self.path("/etc/dibs/config.toml")

    @property
    def state(self) -> Path:
        return self.path(str(HOST_WIDE))

    @property
    def sockets(self) -> Path:
        return self.path("/run/dibs")

    @property
    def socket(self) -> Path:
        return self.sockets / "dibs.sock"

    @property
    def home(self) -> Home:
        return Home(state=self.state, config=self.path("/etc/dibs"))

    @property
    def has_systemd(self) -> bool:
        """Whether systemd runs this machine; that its programs are there says nothing."""
        return self.path("/run/systemd/system").is_dir()

    def run(self, *words: str) -> str:
        """Run one of the machine's own commands. Below another root it is left out."""
        if self.root:
            return ""
        try:
            done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise BackendUnavailable(f"it cannot be run: {error}", field="host", value=" ".join(words)) from error
        if done.returncode:
            said = (done.stderr or done.stdout).strip().splitlines()
            reason = f"it failed: {said[-1] if said else f'exit code {done.returncode}'}"
            raise BackendUnavailable(reason, field="host", value=" ".join(words), code="HOST_COMMAND_FAILED")
        return done.stdout.strip()


def command() -> list[str]:
    """What the service runs."""
    return [sys.executable, "-I", "-m", "dibs", "serve", "--host-service"]


def unit_text() -> str:
    words = [word if all(c.isalnum() or c in "/-._" for c in word) else _quoted(word) for word in command()]
    return _UNIT.format(command=" ".join(words))


def _quoted(word: str) -> str:
    for sign, instead in (("\\", "\\\\"), ('"', '\\"'), ("%", "%%"), ("$", "$$")):
        word = word.replace(sign, instead)
    return f'"{word}"'


def need_root(machine: Machine) -> None:
    if os.geteuid() != 0 and not machine.root:
        raise InvalidRequest(
            "only root can set a host service up or take it away", field="host", code="ROOT_NEEDED",
            remedy="run it with sudo",
        )  # fmt: skip


def unreadable_for_others(paths: list[str]) -> list[str]:
    """Which of these, or of the folders above them, an ordinary user cannot get to."""
    found: dict[str, None] = {}
    for path in paths:
        real = os.path.realpath(path)
        parts = [real]
        while parts[-1] != "/":
            parts.append(os.path.dirname(parts[-1]))
        for part in reversed(parts):
            mode = os.stat(part).st_mode
            wanted = stat.S_IXOTH if stat.S_ISDIR(mode) else stat.S_IROTH
            if not mode & wanted:
                found[part] = None
                break
    return list(found)


# --- serve


def serving(flags: dict[str, Any], config: str | None) -> Home:
    """The home of the host service; completes the flags of `dibs serve`: its own socket, and nothing else."""
    from dibs.settings import load_settings

    machine = Machine.this()
    if os.geteuid() != 0:
        reason = "only root can run sandboxes as other users"
        raise InvalidRequest(reason, field="host-service", code="ROOT_NEEDED", remedy="leave --host-service out")
    if flags.get("listen"):
        raise InvalidRequest(
            "the host service knows its callers by their users, so it listens on its socket alone",
            field="listen", value=", ".join(flags["listen"]), code="HOST_SERVICE_SOCKET_ONLY",
            remedy="run another gateway for remote callers: dibs serve --listen …",
        )  # fmt: skip
    home = machine.home
    said = load_settings(home, path=config).gateway
    flags["listen"] = []
    flags["socket"] = flags.get("socket") or said.socket or str(machine.socket)
    if not machine.root:
        flags["socket_group"] = said.socket_group or GROUP
        flags["socket_mode"] = None if said.socket_mode != _PRIVATE else "0660"
    return home


# --- install


def install(machine: Machine, *, start: bool) -> Iterator[Step]:
    """Set it up, step by step. What is there already is left, or brought up to date."""
    need_root(machine)
    closed = unreadable_for_others([sys.executable, __file__])
    if closed:
        raise InvalidRequest(
            "ordinary users cannot get to this installation, and the service runs it as them",
            field="host", value=closed[0], code="INSTALLATION_PRIVATE",
            remedy="install dibs where all users can read it, as in: python3 -m venv /opt/dibs",
        )  # fmt: skip
    yield _group(machine)
    yield _folder(machine.state, 0o711)
    yield _folder(machine.config.parent, 0o755)
    yield _file(machine.config, _CONFIG, keep=True)
    if not machine.has_systemd:
        words = " ".join(command())
        yield Step("systemd does not run here", False, f"have another supervisor run, as root: {words}")
        yield _folder(machine.sockets, 0o755)
        return
    unit = _file(machine.unit, unit_text(), keep=False)
    yield unit
    if unit.done:
        machine.run("systemctl", "daemon-reload")
    if not start:
        yield Step("not started", False, f"start it with: systemctl enable --now {UNIT}")
        return
    machine.run("systemctl", "enable", UNIT)
    active = not machine.root and _is_active()
    if active and not unit.done:
        yield Step(f"{UNIT} runs", False)
    else:
        machine.run("systemctl", "restart", UNIT)
        yield Step(f"{UNIT} {'restarted' if active else 'started'}")
    if not machine.root:
        await_answer(machine)
        yield Step(f"it answers at {machine.socket}", False)


def _group(machine: Machine) -> Step:
    import grp

    if machine.root:
        return Step(f"group {GROUP}", False, "left out below another root")
    try:
        grp.getgrnam(GROUP)
    except KeyError:
        machine.run("groupadd", "--system", GROUP)
        return Step(f"group {GROUP} made", note=f"let people use it with: usermod -aG {GROUP} NAME")
    return Step(f"group {GROUP}", False)


def _folder(path: Path, mode: int) -> Step:
    try:
        made = not path.is_dir()
        path.mkdir(parents=True, exist_ok=True)
        changed = stat.S_IMODE(path.stat().st_mode) != mode
        path.chmod(mode)
    except OSError as error:
        raise _unusable(path, error) from error
    return Step(f"folder {path} {mode:04o}", made or changed)


def _file(path: Path, text: str, *, keep: bool) -> Step:
    try:
        before = path.read_text() if path.exists() else None
        if before == text or (keep and before is not None):
            return Step(f"file {path}", False)
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f"{path.name}.{os.getpid()}.new")
        draft.write_text(text)
        draft.chmod(0o644)
        draft.replace(path)
    except OSError as error:
        raise _unusable(path, error) from error
    return Step(f"file {path} {'written' if before is None else 'brought up to date'}")


def _unusable(path: Path, error: OSError) -> StateError:
    return StateError(f"it cannot be made: {error.strerror}", field="host", value=str(path))


def _is_active() -> bool:
    done = subprocess.run(["systemctl", "is-active", "--quiet", UNIT], check=False)
    return done.returncode == 0


def await_answer(machine: Machine) -> None:
    """Until the service answers; raises with where to look if it does not."""
    import time

    until = time.monotonic() + _STARTING
    while time.monotonic() < until:
        if version_of(machine):
            return
        time.sleep(0.1)
    raise BackendUnavailable(
        "the service was started, and does not answer", field="host", value=str(machine.socket), code="HOST_NOT_READY",
        remedy=f"see why: journalctl -u {UNIT} -n 50",
    )  # fmt: skip


def version_of(machine: Machine) -> str:
    """The version of the service that listens; empty if none does, or if we may not ask."""
    from dibs.http import Connection

    try:
        with Connection(f"unix://{machine.socket}", timeout=5.0) as line:
            answer = line.request("GET", "/version").json()
    except OSError:
        return ""
    return str(answer.get("version", "")) if isinstance(answer, dict) else ""


# --- status


class HostStatus(msgspec.Struct, frozen=True):
    """How the service is. `running`: something answers at the socket; `usable`: for the caller.

    What is served is known only if it is both. `pid`, `user` and `since` (seconds since the epoch) are those of the
    process that listens, as the kernel says.
    """

    installed: bool
    running: bool
    usable: bool
    version: str
    socket: str
    state: str
    unit: str  # what systemd says; empty where it does not run
    members: list[str]
    pid: int = 0
    user: str = ""
    since: float | None = None
    gpus: int = 0
    free: int = 0
    simulated: bool = False
    sandboxes: int = 0
    waiting: int = 0


def _served(machine: Machine) -> dict[str, Any]:
    """Who listens since when, and what is served. Asked with the rights of the caller."""
    import socket
    import struct

    from dibs.gateway.auth import name_of
    from dibs.http import Connection
    from dibs.wire.devices import Devices, Queue
    from dibs.wire.sandboxes import SandboxPage

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        line.connect(str(machine.socket))
        pid, uid, _ = struct.unpack("3i", line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    with Connection(f"unix://{machine.socket}", timeout=30.0) as asking:

        def ask(path: str, kind: type[T]) -> T:
            answer = asking.request("GET", f"/api/v1{path}")
            text = answer.read()
            if answer.status != 200:
                raise BackendUnavailable(
                    f"the service answered with HTTP status {answer.status}", field="host", value=path,
                    code="HOST_NOT_READY", remedy=f"see why: journalctl -u {UNIT} -n 50",
                )  # fmt: skip
            return msgspec.json.decode(text, type=kind)

        devices = ask("/devices", Devices)
        sandboxes = ask("/sandboxes?page_size=1", SandboxPage).total
        waiting = ask("/queue", Queue).length
    whole = [device for device in devices.devices if device.parent is None]
    return {
        "pid": pid, "user": name_of(uid), "since": _started(pid), "gpus": len(whole),
        "free": sum(device.state == "free" for device in whole), "simulated": devices.simulated,
        "sandboxes": sandboxes, "waiting": waiting,
    }  # fmt: skip


def _started(pid: int) -> float | None:
    """When a process was started, in seconds since the epoch; None if it is in a pid namespace that we do not see."""
    import time

    from dibs.process import boottime, start_time

    ticks = start_time(pid)
    if ticks is None:
        return None
    return time.time() - (boottime() - ticks / os.sysconf("SC_CLK_TCK"))


def status(machine: Machine) -> HostStatus:
    import grp

    try:
        members = sorted(grp.getgrnam(GROUP).gr_mem)
    except KeyError:
        members = []
    unit = ""
    if machine.has_systemd and not machine.root:
        done = subprocess.run(["systemctl", "is-active", UNIT], check=False, capture_output=True, text=True)
        unit = done.stdout.strip()
    version = version_of(machine)
    usable = machine.socket.exists() and os.access(machine.socket, os.W_OK)
    return HostStatus(
        installed=machine.unit.exists() or machine.config.exists(),
        running=bool(version),
        usable=usable,
        version=version,
        socket=str(machine.socket),
        state=str(machine.state),
        unit=unit,
        members=members,
        **(_served(machine) if version and usable else {}),
    )


# --- uninstall


def uninstall(machine: Machine, *, force: bool, purge: bool) -> Iterator[Step]:
    """Take it away. Running sandboxes forbid it, unless they are to end; the ledger stays, unless it is to go."""
    need_root(machine)
    yield from _end_sandboxes(machine, force=force)
    if machine.unit.exists():
        machine.run("systemctl", "disable", "--now", UNIT)
        machine.unit.unlink()
        machine.run("systemctl", "daemon-reload")
        yield Step(f"{UNIT} stopped and removed")
    elif version_of(machine):
        raise Conflict(
            "it still runs, and systemd knows nothing of it", field="host", value=str(machine.socket),
            code="HOST_RUNNING", remedy="stop it with whatever started it, then run this again",
        )  # fmt: skip
    if machine.socket.exists():
        machine.socket.unlink()
        yield Step(f"socket {machine.socket} removed")
    if machine.sockets.is_dir() and not any(machine.sockets.iterdir()):
        machine.sockets.rmdir()
    if not purge:
        if machine.state.exists():
            yield Step(f"{machine.state} and {machine.config} are kept", False, "--purge removes them")
        return
    import shutil

    for path in (machine.state, machine.config.parent):
        if path.exists():
            shutil.rmtree(path)
            yield Step(f"{path} removed")
    if not machine.root:
        import grp

        try:
            grp.getgrnam(GROUP)
        except KeyError:
            return
        machine.run("groupdel", GROUP)
        yield Step(f"group {GROUP} removed")


def _end_sandboxes(machine: Machine, *, force: bool) -> Iterator[Step]:
    """Whatever runs, by the ledger; opened here, as the service may be gone already."""
    if not machine.home.ledger.exists():
        return
    from dibs.backends.per_user.backend import acting_for
    from dibs.workloads.registry import Registry
    from dibs.workloads.service import Workloads

    home = machine.home
    with Workloads(home, registry=Registry(home, as_user=acting_for(home))) as service:
        live = service.sandboxes()
        if live and not force:
            names = ", ".join(row.name for row in live[:8]) + (" …" if len(live) > 8 else "")
            raise Conflict(
                f"{len(live)} sandbox{'es run' if len(live) > 1 else ' runs'}: {names}", field="host",
                code="SANDBOXES_RUNNING", remedy="remove them first (dibs sandbox rm), or end them with --force",
            )  # fmt: skip
        for row in live:
            service.remove(row.id)
            yield Step(f"sandbox {row.name} of {row.username} ended")
