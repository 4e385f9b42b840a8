"""A process that has loaded the gateway and forks one whenever a line on its stdin asks for it. See `serving`.

{"state": …, "config": …, "socket": …, "log": …, "environ": {…}}  →  the pid, once it answers; 0 if it died
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from dibs.gateway import server
from dibs.gateway.logs import set_up
from dibs.gateway.native import route_handlers
from dibs.home import Home
from dibs.settings import load_settings, with_flags

assert route_handlers()  # loaded before the first fork


def serve(asked: dict[str, Any], ready: int) -> None:
    os.environ.clear()
    os.environ.update(asked["environ"])
    log = os.open(asked["log"], os.O_WRONLY | os.O_CREAT, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.chdir("/")
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    home = Home(state=Path(asked["state"]), config=Path(asked["config"])).make()
    settings = with_flags(load_settings(home), {"listen": [], "socket": asked["socket"]})
    set_up("text", "info")

    def tell(_: object) -> None:
        os.write(ready, b"1")

    server.serve(settings, home, ready=tell)


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel waits for them
    for line in sys.stdin:
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reading)
            code = 1
            try:
                serve(json.loads(line), writing)
                code = 0
            except BaseException as error:  # noqa: BLE001 - the end of a forked process; the log says why
                os.write(2, f"{type(error).__name__}: {error}\n".encode())
            finally:
                os._exit(code)
        os.close(writing)
        alive = os.read(reading, 1)
        os.close(reading)
        print(pid if alive else 0, flush=True)


if __name__ == "__main__":
    main()
