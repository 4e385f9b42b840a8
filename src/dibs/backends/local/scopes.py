"""Scopes of the user's own systemd: where an ordinary user's sandbox gets its control groups.

`cgroups` asks what can be limited this way and starts a scope for the shim of a sandbox that has limits; `enter_client`
moves further processes into it. A scope is a unit without a configuration file: systemd makes a delegated group for
it, puts the shim there, and removes the group when the last process in it has ended, however that came about.

Calls are made only for ordinary users on a host that runs systemd with cgroup version 2. Nothing is written outside of
the scope: the rest of the tree belongs to systemd.
"""

from __future__ import annotations

import os
import time
from functools import lru_cache
from typing import Any

import msgspec

from dibs.errors import BackendUnavailable

BOOTED = "/run/systemd/system"  # sd_booted(3)
KEEPER = "keeper"  # the shim's group in the scope: a group that hands controllers on may hold no processes itself
TIMEOUT = 10.0  # systemd answers within milliseconds
END_TIMEOUT = 10  # seconds between SIGTERM and SIGKILL when systemd itself ends the scope, at a logout say
NO_TASKS_LIMIT = (1 << 64) - 1


class Offer(msgspec.Struct, frozen=True):
    """The controllers that the user's systemd can hand on, or why there are none."""

    controllers: frozenset[str] = frozenset()
    reason: str = ""
    remedy: str = ""


def foreign(group: str) -> bool:
    """Whether a group belongs to the user's systemd itself, which alone may make groups there."""
    manager = f"user@{os.getuid()}.service"
    if f"/{manager}" not in group:
        return False
    try:
        return os.getxattr(group, "user.delegate") != b"1" or group.endswith(f"/{manager}")
    except OSError:
        return True


@lru_cache(maxsize=1)
def offer(point: str) -> Offer:
    """What can be limited in a scope; `point` is where cgroup version 2 is mounted."""
    if not os.path.isdir(BOOTED):
        return Offer(reason="this host does not run systemd")
    import pwd

    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        user = str(os.getuid())
    try:
        with _Bus() as bus:
            group = bus.property("ControlGroup")
        with open(f"{point}{group}/cgroup.controllers") as file:
            return Offer(frozenset(file.read().split()))
    except FileNotFoundError:
        return _no_bus(user)
    except (OSError, BackendUnavailable) as error:
        return Offer(
            reason=f"the systemd user manager of {user} cannot be asked: {error}",
            remedy="see: systemctl --user status",
        )


def _no_bus(user: str) -> Offer:
    if os.path.isdir(f"/run/user/{os.getuid()}/systemd"):
        reason = f"the systemd user manager of {user} has no message bus"
        return Offer(reason=reason, remedy="install dbus-user-session, and log in again")
    remedy = f"log in over SSH or on a console, or have root run: loginctl enable-linger {user}"
    return Offer(reason=f"no systemd user manager runs for {user}", remedy=remedy)


def without(controller: str) -> tuple[str, str]:
    """Reason and remedy where the user manager lacks a controller, as older distributions configure it."""
    reason = f"systemd does not delegate the {controller} controller to you"
    file = "/etc/systemd/system/user@.service.d/delegate.conf"
    words = r"[Service]\nDelegate=cpu memory pids\n"
    remedy = f"have root run: mkdir -p {os.path.dirname(file)} && printf '{words}' > {file}, and restart the host"
    return reason, remedy


def unit_of(sandbox_id: str) -> str:
    return f"dibs-{sandbox_id}.scope"


def start(sandbox_id: str, pid: int, point: str, controllers: list[str]) -> str:
    """A scope with the shim in it. Its folder, in which groups with these controllers can be made."""
    unit = unit_of(sandbox_id)
    properties = [
        ("Description", ("s", f"dibs sandbox {sandbox_id}")),
        ("PIDs", ("au", [pid])),
        ("Delegate", ("b", True)),
        ("TasksMax", ("t", NO_TASKS_LIMIT)),  # the sandbox has a limit of its own, or none
        ("CollectMode", ("s", "inactive-or-failed")),
        ("TimeoutStopUSec", ("t", END_TIMEOUT * 1_000_000)),
    ]
    with _Bus() as bus:
        bus.call("StartTransientUnit", "ssa(sv)a(sa(sv))", (unit, "fail", properties, []))
    folder = _entered(pid, unit, point)
    os.mkdir(f"{folder}/{KEEPER}")
    _write(f"{folder}/{KEEPER}/cgroup.procs", str(pid))
    _write(f"{folder}/cgroup.subtree_control", " ".join(f"+{name}" for name in controllers))
    return folder


def attach(unit: str, group: str, pid: int) -> None:
    """Move a process of ours into a group of the scope. The kernel would let only systemd do it."""
    with _Bus() as bus:
        bus.call("AttachProcessesToUnit", "ssau", (unit, f"/{group}", [pid]))


def _entered(pid: int, unit: str, point: str) -> str:
    """The call is answered when the job is queued: wait until the process is in the unit's group."""
    until = time.monotonic() + TIMEOUT
    while True:
        try:
            with open(f"/proc/{pid}/cgroup") as file:
                group = next((line[3:].rstrip("\n") for line in file if line.startswith("0::")), "")
        except FileNotFoundError:
            raise BackendUnavailable("the sandbox's shim ended before systemd had a scope for it") from None
        if group.endswith(f"/{unit}"):
            return f"{point}{group}"
        if time.monotonic() > until:
            raise BackendUnavailable(
                f"systemd did not start {unit} within {TIMEOUT:g} seconds", field="limits",
                remedy=f"see: systemctl --user status {unit}",
            )  # fmt: skip
        time.sleep(0.002)


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


class _Bus:
    """The user's message bus, for calls of systemd's manager."""

    def __enter__(self) -> _Bus:
        from jeepney.io.blocking import open_dbus_connection

        runtime = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
        address = os.environ.get("DBUS_SESSION_BUS_ADDRESS") or f"unix:path={runtime}/bus"
        self._connection = open_dbus_connection(address, auth_timeout=TIMEOUT)
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def call(self, method: str, signature: str, body: tuple[Any, ...], interface: str = "Manager") -> tuple[Any, ...]:
        from jeepney import DBusAddress, DBusErrorResponse, new_method_call
        from jeepney.wrappers import unwrap_msg

        name = "org.freedesktop.systemd1"
        where = interface if "." in interface else f"{name}.{interface}"
        manager = DBusAddress("/org/freedesktop/systemd1", bus_name=name, interface=where)
        message = new_method_call(manager, method, signature, body)
        try:
            found: tuple[Any, ...] = unwrap_msg(self._connection.send_and_get_reply(message, timeout=TIMEOUT))
        except DBusErrorResponse as error:
            words = error.data[0] if error.data else error.name
            raise BackendUnavailable(f"systemd refused {method}: {words}", field="limits") from error
        except OSError as error:  # also TimeoutError
            raise BackendUnavailable(f"systemd did not answer {method}: {error}", field="limits") from error
        return found

    def property(self, name: str) -> str:
        asked = ("org.freedesktop.systemd1.Manager", name)
        (kind, value), *_ = self.call("Get", "ss", asked, "org.freedesktop.DBus.Properties")
        assert kind == "s"
        return str(value)
