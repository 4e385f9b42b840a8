"""Whether the ledger can keep its promise: readable, sound, on a disk of this host, and shared by all who share GPUs.

The file is opened read-only and asked for SQLite's own check. It must not create or upgrade anything.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import urlsplit

from dibs.devices.host import Roots, read_text
from dibs.doctor.finding import Finding, Scene
from dibs.home import HOST_WIDE, Home
from dibs.ledger import ballast
from dibs.ledger.kernels import NETWORK, file_system_of
from dibs.quantity import human_bytes
from dibs.settings import load_settings

LITTLE, SCARCE = 64 << 20, 1 << 30  # arbitrary: a ledger of a year of sandboxes is some 50 MiB
OTHER_HOME = "export DIBS_HOME=/var/tmp/dibs-$USER"
_NO_SHELL = ("nologin", "false", "sync", "shutdown", "halt")


def check(scene: Scene) -> Iterable[Finding]:
    url = load_settings(scene.home).ledger or os.environ.get("DIBS_LEDGER", "")
    if url:
        yield folder(scene.home)
        yield private(scene.home)
        yield server(url)
        return
    yield folder(scene.home)
    yield private(scene.home)
    yield file_system(scene.home, scene.roots)
    yield space(scene.home)
    yield soundness(scene.home)
    yield sharing(scene)


def server(url: str) -> Finding:
    """A ledger on PostgreSQL: it answers, and it can be written to."""
    name = "ledger.server"
    try:
        import psycopg
    except ImportError:
        why = "the ledger is on PostgreSQL, and its driver is not installed"
        return Finding(name, "fail", "the driver of PostgreSQL is missing", why, "pip install 'dibs[postgres]'")
    where = urlsplit(url).hostname or "its socket"
    try:
        with psycopg.connect(url, connect_timeout=5) as connection:
            row = connection.execute("SELECT pg_is_in_recovery(), current_setting('server_version')").fetchone()
    except psycopg.Error as error:
        words = " ".join(str(error).split())
        why = f"nothing can be leased while it is away: {words}"
        return Finding(name, "fail", f"PostgreSQL at {where} does not answer", why, f"pg_isready -h {where}")
    assert row is not None  # the statement gives one
    if row[0]:
        why = "leases cannot be written to a copy"
        return Finding(name, "fail", f"PostgreSQL at {where} is a read-only copy", why, "name the primary in `ledger`")
    return Finding(name, "ok", f"PostgreSQL {row[1]} at {where} answers")


def folder(home: Home) -> Finding:
    """The state folder, or the nearest one that exists above it, must be ours to write."""
    place = _existing(home.state)
    if not os.access(place, os.W_OK | os.X_OK):
        why = f"leases cannot be written: {place} belongs to another user"
        return Finding("ledger.folder", "fail", f"{home.state} cannot be written", why, OTHER_HOME)
    if home.ledger.exists() and not os.access(home.ledger, os.R_OK | os.W_OK):
        why = "leases cannot be written: the file belongs to another user"
        fix = f"sudo chown $USER {home.ledger}"
        return Finding("ledger.folder", "fail", f"{home.ledger} cannot be written", why, fix)
    later = "" if place == home.state else ", made when it is first needed"
    return Finding("ledger.folder", "ok", f"{home.state} can be written{later}")


def private(home: Home) -> Finding:
    """Tokens are derived from what the ledger holds, and values of variables pass through it."""
    import stat

    name = "ledger.private"
    if not home.state.exists():
        return Finding(name, "ok", f"{home.state} is made for you alone")
    if home.shared:
        return Finding(name, "ok", f"{home.state} is for the group that an administrator made it for")
    files = [home.ledger.with_name(home.ledger.name + end) for end in ("", "-wal", "-shm", "-journal")]
    for path in (home.state, home.sandboxes, *files):
        try:
            found = path.stat() if path == home.state else path.lstat()
        except FileNotFoundError:
            continue
        is_folder = stat.S_ISDIR(found.st_mode)
        if found.st_uid != os.geteuid():
            why = f"user {found.st_uid} can change who holds which device; dibs refuses to work with it"
            return Finding(name, "fail", f"{path} belongs to user {found.st_uid}", why, OTHER_HOME)
        open_to = stat.S_IMODE(found.st_mode) & (0o022 if is_folder else 0o077)
        if open_to:
            can = "write to it" if open_to & 0o022 else "read it"
            why = f"others can {can} (mode {stat.S_IMODE(found.st_mode):04o})"
            fix = f"chmod {'go-w' if is_folder else 'go-rwx'} {path}"
            return Finding(name, "fail", f"{path} is not private", why, fix)
    return Finding(name, "ok", f"{home.state} is private")


def file_system(home: Home, roots: Roots) -> Finding:
    kind = file_system_of(_existing(home.state), read_text(f"{roots.proc}/self/mountinfo", 1 << 20) or "")
    if kind in NETWORK:
        why = f"it is on {kind}, where locks are not to be trusted, and which other kernels may see: dibs refuses it"
        return Finding("ledger.disk", "fail", f"{home.state} is on a network file system", why, OTHER_HOME)
    if not kind:
        return Finding("ledger.disk", "skip", "the file system of the ledger is not known", "there is no mountinfo")
    return Finding("ledger.disk", "ok", f"{home.state} is on a local file system ({kind})")


def space(home: Home) -> Finding:
    state = os.statvfs(_existing(home.state))
    free = state.f_bavail * state.f_frsize
    title = f"{human_bytes(free)} free at {home.state}"
    why = "a ledger that cannot grow refuses new leases"
    if free < LITTLE:
        return Finding("ledger.space", "fail", title, why, f"du -xh {_existing(home.state)} | sort -h | tail")
    if free < SCARCE:
        return Finding("ledger.space", "warn", title, why, f"du -xh {_existing(home.state)} | sort -h | tail")
    return Finding("ledger.space", "ok", title)


def soundness(home: Home) -> Finding:
    import sqlite3
    from contextlib import closing

    if not home.ledger.exists():
        return Finding("ledger.sound", "ok", "there is no ledger yet; it is made when it is first needed")
    try:
        with closing(sqlite3.connect(f"{home.ledger.absolute().as_uri()}?mode=ro", uri=True, timeout=2)) as ledger:
            answers = [str(row[0]) for row in ledger.execute("PRAGMA quick_check(5)")]
    except sqlite3.Error as error:
        if ballast.is_full(home.state):
            why = f"SQLite needs a little room beside it, and says: {error}"
            return Finding("ledger.sound", "warn", f"{home.ledger} was not checked: its disk is full", why)
        answers = [str(error)]
    if answers == ["ok"]:
        return Finding("ledger.sound", "ok", f"{home.ledger} is sound")
    why = f"a new one is made, and what lives is entered in it; SQLite says: {'; '.join(answers)}"
    fix = f"mkdir {home.state}/broken && mv {home.ledger}* {home.state}/broken"
    return Finding("ledger.sound", "fail", f"{home.ledger} is damaged or cannot be read", why, fix)


def sharing(scene: Scene) -> Finding:
    """Two people with a ledger each can hold the same card; one host-wide ledger prevents it."""
    name = "ledger.shared"
    if scene.home.state == HOST_WIDE:
        return Finding(name, "ok", f"the ledger is host-wide ({HOST_WIDE}): no device is booked twice")
    cards = [device for device in scene.inventory.devices if device.attributes.get("type") in ("gpu", "mig")]
    people = humans(scene.roots)
    if not cards or len(people) < 2:
        return Finding(name, "ok", "this host has no GPUs that several people could share")
    why = (
        f"{len(people)} people can log in here and each has a ledger of their own, so two can hold the same GPU: "
        f"{', '.join(people[:5])}{', …' if len(people) > 5 else ''}"
    )
    if HOST_WIDE.is_dir() and "DIBS_HOME" not in os.environ:
        title = f"{HOST_WIDE} exists, but you may not write to it"
        return Finding(name, "warn", title, why, "sudo usermod -aG dibs $USER && newgrp dibs")
    members = " && ".join(f"sudo usermod -aG dibs {person}" for person in people[:5])
    fix = f"sudo dibs host install && {members}"
    return Finding(name, "warn", "the GPUs are shared, the ledger is not", why, fix)


def humans(roots: Roots) -> list[str]:
    """The people of a host: ordinary user ids with a shell."""
    people = []
    for line in (read_text(f"{roots.etc}/passwd", 1 << 20) or "").splitlines():
        fields = line.split(":")
        if len(fields) == 7 and fields[2].isdigit() and 1000 <= int(fields[2]) < 60000:
            shell = fields[6].rpartition("/")[2]
            if shell and shell not in _NO_SHELL:
                people.append(fields[0])
    return people


def _existing(path: Path) -> Path:
    while not path.exists() and path != path.parent:
        path = path.parent
    return path
