"""How far a reader has to walk: the modules of dibs that one command goes through, and how often it comes back to one.

`python -m bench trace` prints it for `dibs run --gpu H100:2 -- true` and for a create at a gateway. To compare with
another checkout: `PYTHONPATH=OTHER/src python bench/trace.py run` (or `create`).

How it counts. A profiler sees every call of a function that is defined in dibs, in every thread of the process, while
nothing is being imported. A call from one function to another counts the first time it is made: a loop is read once. In
that order, calls that stay within one module are one stop. *Modules* are the different stops; a *return* is a stop at a
module that was a stop before and was left since. *All calls* is the same with every repetition counted. Helper
processes (the shim) are programs of their own and not counted.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

COMMANDS = {
    "run": "dibs run --gpu H100:2 -- true",
    "create": "a create at a gateway, until it runs",
}


class Walk:
    """The stops of all threads. Switched on and off with `active`."""

    def __init__(self, source: str) -> None:
        self.active = False
        self._source = source
        self._local = threading.local()
        self.read: list[list[str]] = []  # by thread: each call the first time
        self.all: list[list[str]] = []  # by thread: each call
        self._known: set[tuple[CodeType | None, CodeType]] = set()
        self._modules: dict[str, str] = {}

    def profile(self, frame: FrameType, event: str, _argument: Any) -> None:
        code = frame.f_code
        mine = self._local
        if code.co_name == "<module>":
            step = 1 if event == "call" else -1 if event == "return" else 0
            mine.importing = getattr(mine, "importing", 0) + step
            return
        if event != "call" or not self.active or getattr(mine, "importing", 0) > 0:
            return
        module = self._modules.get(code.co_filename)
        if module is None:
            path = code.co_filename
            inside = path.startswith(self._source)
            module = self._modules[path] = path[len(self._source) :] if inside else ""
        if not module:
            return
        if not hasattr(mine, "read"):
            mine.read, mine.all = [], []
            self.read.append(mine.read)
            self.all.append(mine.all)
        _stop(mine.all, module)
        caller = frame.f_back
        while caller is not None and not self._modules.get(caller.f_code.co_filename):
            caller = caller.f_back
        pair = (None if caller is None else caller.f_code, code)
        if pair not in self._known:
            self._known.add(pair)
            _stop(mine.read, module)

    def counted(self) -> dict[str, Any]:
        modules = {module for stops in self.read for module in stops}
        returns: dict[str, int] = {}
        for stops in self.read:
            seen: set[str] = set()
            for module in stops:
                if module in seen:
                    returns[module] = returns.get(module, 0) + 1
                seen.add(module)
        every = sum(len(stops) - len(set(stops)) for stops in self.all)
        most = sorted(returns.items(), key=lambda entry: -entry[1])
        return {"modules": len(modules), "returns": sum(returns.values()), "all calls": every, "most": most}


def _stop(stops: list[str], module: str) -> None:
    if not stops or stops[-1] != module:
        stops.append(module)


def _trace(what: str) -> dict[str, Any]:
    import dibs

    walk = Walk(str(Path(dibs.__file__).parent) + os.sep)
    threading.setprofile(walk.profile)
    sys.setprofile(walk.profile)
    (_trace_run if what == "run" else _trace_create)(walk)
    sys.setprofile(None)
    return walk.counted()


def _trace_run(walk: Walk) -> None:
    from dibs.cli.main import run

    walk.active = True
    if run(["run", "--gpu", "H100:2", "--", "true"]):
        raise SystemExit("bench: the traced command failed")
    walk.active = False


def _trace_create(walk: Walk) -> None:
    """The gateway serves in the main thread, as it does in `dibs serve`; another one is its client."""
    from dibs.cli.main import run

    socket = os.path.join(os.environ["DIBS_HOME"], "gateway.sock")

    def client() -> None:
        sys.setprofile(None)
        try:
            _ask_until_served(socket)
            for number in range(2):  # the first one loads what a gateway loads once
                walk.active = number == 1
                made = _ask(socket, "POST", "/api/v1/sandboxes", {"gpu": "H100:2", "command": ["sleep", "60"]})
                while _ask(socket, "GET", f"/api/v1/sandboxes/{made['id']}")["state"] != "running":
                    pass
                walk.active = False
                _ask(socket, "DELETE", f"/api/v1/sandboxes/{made['id']}")
            print(json.dumps(walk.counted()), flush=True)
        finally:
            os._exit(0)

    threading.Thread(target=client).start()
    run(["serve", "--socket", socket, "--listen", "127.0.0.1:0"])


def _ask(socket: str, method: str, path: str, body: object = None) -> dict[str, Any]:
    import http.client
    from socket import AF_UNIX
    from socket import socket as new_socket

    connection = http.client.HTTPConnection("localhost")
    connection.sock = new_socket(AF_UNIX)
    connection.sock.connect(socket)
    data = None if body is None else json.dumps(body).encode()
    connection.request(method, path, data, {"content-type": "application/json"} if data else {})
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    if answer.status >= 400:
        raise SystemExit(f"bench: {method} {path}: {answer.status} {text.decode(errors='replace')}")
    return dict(json.loads(text)) if text else {}


def _ask_until_served(socket: str) -> None:
    import time

    until = time.monotonic() + 60
    while True:
        try:
            _ask(socket, "GET", "/api/v1/sandboxes")
            return
        except OSError:
            if time.monotonic() > until:
                raise SystemExit("bench: the gateway does not answer") from None
            time.sleep(0.05)


def trace() -> None:
    from bench.measure import row, title

    title("modules that a reader goes through, and returns to one already left")
    for what, name in COMMANDS.items():
        done = subprocess.run([sys.executable, __file__, what], capture_output=True, text=True, check=True)
        found = json.loads(done.stdout.splitlines()[-1])
        row(name, f"{found['modules']} modules", f"{found['returns']}", f"returns; {found['all calls']} with loops")
        for module, count in found["most"][:8]:
            row(f"  {module}", "", str(count))


def main() -> None:
    """In a process of its own: a small world of simulated cards, the command, one line with the figures."""
    what = sys.argv[1] if len(sys.argv) > 1 else ""
    if what not in COMMANDS:
        sys.exit(f"bench: say which: {', '.join(COMMANDS)}")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["DIBS_HOME"] = folder
        from dibs.devices.simulated import parse_world, simulate
        from dibs.home import Home

        home = Home(state=Path(folder), config=Path(folder)).make()
        simulate(home, parse_world("8", model="H100"))
        subprocess.run([sys.executable, "-m", "dibs", "run", "--", "true"], check=True)  # the ledger is there
        print(json.dumps(_trace(what)), flush=True)


if __name__ == "__main__":
    main()
