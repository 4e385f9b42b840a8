"""The processes that act for users of the host, and what root prepares for them.

`backend` asks for one with a uid and tells it what to do; the program itself is `actor`. A process is kept for a while
for the next call of the same user, and one that holds a created sandbox is kept for that until the start. Nothing that
a process answers is trusted: it is decoded strictly, waited for with a limit, and dropped when it does not make sense.
"""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from dibs.backends.per_user.actor import Answer, Call, Line, close_all, error_of
from dibs.errors import BackendUnavailable, DibsError, StateError
from dibs.home import Home

REUSE = 30.0  # seconds after which an idle process is not used again; it ends by itself a while later
IDLE_AT_MOST = 2  # processes of one user that are kept for the next call
AT_MOST = 48  # processes of one user at once: each waiting client has one
PATIENCE = 60.0  # seconds for a verb that does not wait for the sandbox itself
_KEPT = ("LD_LIBRARY_PATH", "DIBS_HOST_ID", "DIBS_BOOT_ID")


class Worker:
    """One process that is a user's, and the line to it."""

    def __init__(self, uid: int, home: Home) -> None:
        gid, groups, env = account(uid)
        state = user_state(home, uid, gid)
        parent = delegate(uid, gid)
        ours, theirs = socket.socketpair()
        with theirs:
            words = [str(theirs.fileno()), str(state), str(home.config), parent]
            try:
                self.process = subprocess.Popen(
                    [sys.executable, "-I", "-m", "dibs.backends.per_user.actor", *words],
                    user=uid, group=gid, extra_groups=groups, env=env, cwd="/", umask=0o077, start_new_session=True,
                    pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )  # fmt: skip
            except OSError as error:
                ours.close()
                raise no_worker(uid, error.strerror or str(error)) from error
        self.uid = uid
        self.line = Line(ours)
        self.used = time.monotonic()
        self.lock = threading.Lock()
        settle_in(parent, self.process.pid)

    def call(self, call: Call, given: tuple[int, ...] = (), *, patience: float | None = PATIENCE) -> msgspec.Raw:
        """Send a call and take its answer; the JSON of it."""
        value, descriptors = self.ask(call, given, patience=patience)
        close_all(descriptors)
        return value

    def ask(
        self, call: Call, given: tuple[int, ...] = (), *, patience: float | None = PATIENCE
    ) -> tuple[msgspec.Raw, list[int]]:
        self.line.sock.settimeout(patience)
        try:
            self.line.send(call, given)
        except OSError as error:
            raise no_worker(self.uid, f"it is gone ({error.strerror})") from error
        return self.answer(patience)

    def answer(self, patience: float | None = PATIENCE) -> tuple[msgspec.Raw, list[int]]:
        self.line.sock.settimeout(patience)
        try:
            text, descriptors = self.line.receive()
        except TimeoutError as error:
            raise no_worker(self.uid, "it does not answer") from error
        except (EOFError, ConnectionError, ValueError) as error:
            raise no_worker(self.uid, f"it ended without an answer {error}".strip()) from error
        try:
            answer = msgspec.json.decode(text, type=Answer)
        except msgspec.DecodeError as error:
            close_all(descriptors)
            raise no_worker(self.uid, f"its answer cannot be read: {error}") from error
        if answer.failure is not None:
            close_all(descriptors)
            raise error_of(answer.failure)
        return answer.value, descriptors

    @property
    def usable(self) -> bool:
        return self.process.poll() is None and time.monotonic() - self.used < REUSE

    def end(self) -> None:
        """Close the line; whatever it held and had not started ends with it."""
        self.line.close()
        try:
            self.process.wait(2.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Workers:
    """The processes of all users. One for the whole gateway; safe for threads."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._lock = threading.Lock()
        self._idle: dict[int, list[Worker]] = {}
        self._count: dict[int, int] = {}
        self._holding: dict[str, Worker] = {}  # by the folder of the sandbox that they have created and not started

    def take(self, uid: int) -> Worker:
        stale: list[Worker] = []
        try:
            with self._lock:
                idle = self._idle.setdefault(uid, [])
                while idle:
                    found = idle.pop()
                    if found.usable:
                        return found
                    self._count[uid] -= 1
                    stale.append(found)
                if self._count.get(uid, 0) >= AT_MOST:
                    raise BackendUnavailable(
                        f"user {uid} has {AT_MOST} calls under way", field="host", code="TOO_MANY_CALLS",
                        remedy="wait for one of them to end",
                    )  # fmt: skip
                self._count[uid] = self._count.get(uid, 0) + 1
        finally:
            for one in stale:
                one.end()
        try:
            return Worker(uid, self._home)
        except BaseException:
            self._forget(uid)
            raise

    def _forget(self, uid: int) -> None:
        with self._lock:
            self._count[uid] -= 1

    def put_back(self, worker: Worker) -> None:
        worker.used = time.monotonic()
        with self._lock:
            idle = self._idle.setdefault(worker.uid, [])
            if len(idle) < IDLE_AT_MOST and worker.process.poll() is None:
                idle.append(worker)
                return
        self.drop(worker)

    def drop(self, worker: Worker) -> None:
        self._forget(worker.uid)
        worker.end()

    @contextmanager
    def worker(self, uid: int, *, holding: str = "") -> Iterator[Worker]:
        """A process of that user for one call: the one that holds a sandbox, if it is about that one."""
        held = self._holding.get(holding)
        if held is not None:
            with held.lock:
                yield held
            return
        worker = self.take(uid)
        try:
            yield worker
        except BackendUnavailable as error:
            if error.code == "HELPER_LOST":
                self.drop(worker)
            else:
                self.put_back(worker)
            raise
        except DibsError:
            self.put_back(worker)
            raise
        except BaseException:
            self.drop(worker)
            raise
        self.put_back(worker)

    def hold(self, folder: str, worker: Worker) -> None:
        with self._lock:
            self._holding[folder] = worker

    def release(self, folder: str) -> None:
        with self._lock:
            worker = self._holding.pop(folder, None)
        if worker is not None:
            self.put_back(worker)

    def close(self) -> None:
        with self._lock:
            every = [*(one for many in self._idle.values() for one in many), *self._holding.values()]
            self._idle.clear()
            self._holding.clear()
            self._count.clear()
        for worker in every:
            worker.end()


_all_workers: dict[Path, Workers] = {}
_all_lock = threading.Lock()


def workers_of(home: Home) -> Workers:
    """The processes that all threads of this gateway share."""
    with _all_lock:
        return _all_workers.setdefault(home.state, Workers(home))


def no_worker(uid: int, reason: str) -> BackendUnavailable:
    return BackendUnavailable(
        f"the process that acts for user {uid} failed: {reason}", field="host", value=str(uid), code="HELPER_LOST",
        remedy="see the service's log; every user must be able to read and run this installation",
    )  # fmt: skip


def account(uid: int) -> tuple[int, list[int], dict[str, str]]:
    """A user's group, further groups and a small environment. A number without an account has only itself."""
    import pwd

    env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
    env |= {
        name: os.environ[name] for name in ("LD_LIBRARY_PATH", "DIBS_HOST_ID", "DIBS_BOOT_ID") if name in os.environ
    }
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return uid, [], {**env, "HOME": "/nonexistent"}
    env |= {"HOME": entry.pw_dir, "USER": entry.pw_name, "LOGNAME": entry.pw_name}
    return entry.pw_gid, os.getgrouplist(entry.pw_name, entry.pw_gid), env


# --- what only root can prepare


def user_state(home: Home, uid: int, gid: int) -> Path:
    state = home.state / "users" / str(uid)
    try:
        for folder in (home.state, home.state / "users", state, state / "sandboxes"):
            folder.mkdir(exist_ok=True, mode=0o711)
            os.chmod(folder, 0o711)  # noqa: S103 - owners of sandboxes must get to them, and can list nothing
        give(state / "roots", uid, gid)
    except OSError as error:
        raise StateError(
            f"the user's state folder cannot be made: {error.strerror}", field="host", value=str(state),
        ) from error  # fmt: skip
    return state


def give(folder: Path, uid: int, gid: int) -> None:
    """A folder of the user's own, in one of root's. Only root can have made it."""
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    if os.lstat(folder).st_uid == 0:
        os.chown(folder, uid, gid, follow_symlinks=False)
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != uid:
        raise FileExistsError(17, "it is there, and not the user's folder", str(folder))


def delegate(uid: int, gid: int) -> str:
    """Give the user a control group in which further ones can be made. Returns its name below the mounts.

    Where none can be made, nothing is said here: a limit is refused, with the reason, when one is asked for.
    """
    from dibs.backends.local import cgroups

    name = f"user-{uid}"
    for controller in (*cgroups.CONTROLLERS, "freezer"):
        tree = cgroups.tree(controller)
        if not tree.folder:
            continue
        folder = f"{tree.folder}/{name}"
        try:
            os.makedirs(folder, exist_ok=True)
            os.chown(folder, uid, gid)
            if tree.version == 2:
                for file in ("cgroup.procs", "cgroup.subtree_control", "cgroup.threads"):
                    with suppress(FileNotFoundError):
                        os.chown(f"{folder}/{file}", uid, gid)
                os.makedirs(f"{folder}/helpers", exist_ok=True)
        except OSError:
            continue
    return f"{cgroups.PARENT}/{name}"


def settle_in(parent: str, pid: int) -> None:
    """Version 2 lets a process change its group only below one that is its user's: bring it there."""
    from dibs.backends.local import cgroups

    for controller in (*cgroups.CONTROLLERS, "freezer"):
        tree = cgroups.tree(controller)
        if tree.version == 2 and tree.folder:
            with suppress(OSError):
                cgroups.write(f"{tree.folder}/{os.path.basename(parent)}/helpers/cgroup.procs", str(pid))
