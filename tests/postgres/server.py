"""A real PostgreSQL for tests: started when the first test asks for it, gone with the test run, however that ends.

    url = server.shared().new_database()        # skips the test, with the reason, where there is no PostgreSQL

The server refuses to run as root; then it runs as `postgres`, or as `nobody`, in a folder of its own. Nothing is
synced to the disk.
"""

from __future__ import annotations

import atexit
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from functools import lru_cache
from pathlib import Path

import pytest

_SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "shared_buffers": "32MB",
    "max_connections": "120",
    "listen_addresses": "127.0.0.1",
    "autovacuum": "off",
    "log_min_messages": "fatal",
}


def binaries() -> Path | None:
    """The folder of the newest PostgreSQL server of this machine."""
    folders = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    if folders:
        return max(folders, key=lambda folder: float(folder.parent.name))
    found = shutil.which("initdb")
    return Path(found).resolve().parent if found else None


def _as_user() -> list[str]:
    """The words before a command that make it run as an ordinary user, and end with us."""
    words = ["setpriv", "--pdeathsig", "INT"]
    if os.getuid() != 0:
        return words
    user = pwd.getpwnam(_user())
    return [*words, f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]


def _user() -> str:
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name).pw_name
        except KeyError:
            continue
    pytest.skip("PostgreSQL does not run as root, and there is neither a user `postgres` nor `nobody`")


class Server:
    """One running server. Its databases are thrown away with it."""

    def __init__(self, programs: Path) -> None:
        self._programs = programs
        self.folder = Path(tempfile.mkdtemp(prefix="dibs-postgres-", dir="/tmp"))
        self._process: subprocess.Popen[bytes] | None = None
        self._count = 0
        if os.getuid() == 0:
            shutil.chown(self.folder, _user())
        atexit.register(self.remove)
        self._run(
            "initdb", "--no-sync", "--auth=trust", "--username=dibs", "--encoding=UTF8", "--locale=C",
            "--pgdata", str(self.folder / "data"),
        )  # fmt: skip
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self.start()

    def _run(self, program: str, *words: str) -> None:
        command = [*_as_user(), str(self._programs / program), *words]
        result = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
        assert result.returncode == 0, result.stderr

    def start(self) -> None:
        """Run it, until it answers."""
        settings = [word for name, value in _SETTINGS.items() for word in ("-c", f"{name}={value}")]
        with (self.folder.parent / f"{self.folder.name}.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*_as_user(), str(self._programs / "postgres"), "-D", str(self.folder / "data"), "-k", str(self.folder),
                 "-p", str(self.port), *settings],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/",
            )  # fmt: skip
        limit = time.monotonic() + 60
        ready = [str(self._programs / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        while subprocess.run(ready, check=False).returncode:
            assert self._process.poll() is None, "PostgreSQL did not start: " + self._log().read_text()
            assert time.monotonic() < limit, "PostgreSQL does not answer: " + self._log().read_text()
            time.sleep(0.05)

    def _log(self) -> Path:
        return self.folder.parent / f"{self.folder.name}.log"

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """End it: SIGINT in order, SIGQUIT at once, as a crash would."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait()
            self._process = None

    def remove(self) -> None:
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self.folder, ignore_errors=True)
        self._log().unlink(missing_ok=True)

    def url(self, database: str) -> str:
        return f"postgresql://dibs@127.0.0.1:{self.port}/{database}"

    def sql(self, statement: str, database: str = "postgres") -> None:
        import psycopg

        with psycopg.connect(self.url(database), autocommit=True) as connection:
            connection.execute(statement)

    def new_database(self) -> str:
        """The URL of an empty database of its own."""
        self._count += 1
        name = f"ledger_{os.getpid()}_{self._count}"
        self.sql(f"CREATE DATABASE {name}")
        return self.url(name)


def start() -> Server:
    """A server of its own, for a test that stops it. The caller removes it."""
    programs = binaries()
    if programs is None:
        remedy = "apt-get install postgresql" if os.getuid() == 0 else "ask for the package `postgresql`"
        pytest.skip(f"there is no PostgreSQL server on this machine: {remedy}")
    pytest.importorskip("psycopg", reason="the driver for PostgreSQL is missing: pip install 'dibs[postgres]'")
    if shutil.which("setpriv") is None:
        pytest.skip("there is no setpriv (util-linux) on this machine, with which PostgreSQL would be started")
    return Server(programs)


@lru_cache(maxsize=1)
def shared() -> Server:
    """The server of this test run."""
    return start()
