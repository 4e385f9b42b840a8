"""A proxy on an engine's socket that changes the request by which a container is made, and nothing else."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

Change = Callable[[dict[str, Any]], None]


class Proxy:
    """`change` is what happens to the next bodies of `containers/create`."""

    def __init__(self, path: Path, engine: Path) -> None:
        self.path = path
        self.engine = engine
        self.change: Change = lambda body: None
        self.changed = 0
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(64)
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._talk, args=(client,), daemon=True).start()

    def _talk(self, client: socket.socket) -> None:
        engine = socket.socket(socket.AF_UNIX)
        try:
            engine.connect(str(self.engine))
        except OSError:
            engine.close()
            client.close()
            return
        back = threading.Thread(target=_pump, args=(engine, client), daemon=True)
        back.start()
        try:
            self._requests(client, engine)
        except OSError:
            pass  # one of the two is gone, and so is the other then
        finally:
            with suppress(OSError):
                engine.shutdown(socket.SHUT_WR)
            back.join()
            engine.close()
            client.close()

    def _requests(self, client: socket.socket, engine: socket.socket) -> None:
        box = b""
        while True:
            while b"\r\n\r\n" not in box:
                data = client.recv(65536)
                if not data:
                    return
                box += data
            head, _, box = box.partition(b"\r\n\r\n")
            lines = head.split(b"\r\n")
            fields = {
                name.strip().lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines[1:])
            }
            if b"upgrade" in fields or b"transfer-encoding" in fields:
                engine.sendall(head + b"\r\n\r\n" + box)
                _pump(client, engine)
                return
            size = int(fields.get(b"content-length", b"0"))
            while len(box) < size:
                data = client.recv(65536)
                if not data:
                    return
                box += data
            body, box = box[:size], box[size:]
            if lines[0].startswith(b"POST ") and b"/containers/create" in lines[0]:
                document = json.loads(body)
                self.change(document)
                self.changed += 1
                body = json.dumps(document).encode()
                kept = [line for line in lines if not line.lower().startswith(b"content-length")]
                head = b"\r\n".join([*kept, b"Content-Length: %d" % len(body)])
            engine.sendall(head + b"\r\n\r\n" + body)


def _pump(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)
