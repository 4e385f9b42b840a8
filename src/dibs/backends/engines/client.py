"""One engine on the other end of a socket.

`backend` and its parts speak through a `Client`: it keeps connections open between requests, is safe to use from
several threads, and turns every failure into one of two exceptions. `EngineError`: the engine answered, in its own
words. `Unreachable`: it did not. `errors` says what they mean for a user; nothing here does.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from dibs.http import Body, Connection, Declined, Response, query
from dibs.process import ProcessName, name_of

MOST_IDLE = 16  # connections that are kept; arbitrary
TIMEOUT = 120.0  # of one wait for an answer; an engine that starts a container on a loaded machine takes its time
QUESTION = 30.0  # the same, where nothing but an answer is asked for
PING = 10.0  # the same, for a question that any live engine answers at once
LISTINGS = 10  # how often a list is asked for while containers go; arbitrary


class EngineError(Exception):
    """The engine refused, or failed."""

    def __init__(self, status: int, message: str, doing: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.doing = doing  # method and path


class Unreachable(Exception):
    """No answer: the socket is missing, closed or not ours, or the line broke."""

    def __init__(self, target: str, error: OSError) -> None:
        super().__init__(f"{target}: {error.strerror or error}")
        self.target = target
        self.error = error


class Client:
    """Requests to one engine. `prefix` is the version part of its paths."""

    def __init__(self, target: str, prefix: str, patience: float = QUESTION) -> None:
        """`patience`: seconds that a question may take."""
        self.target = target
        self.prefix = prefix
        self.patience = patience
        self._idle: list[Connection] = []
        self._lock = threading.Lock()

    def _take(self) -> Connection:
        with self._lock:
            while self._idle:
                connection = self._idle.pop()
                if connection.idle:
                    return connection
                connection.close()
        return Connection(self.target, timeout=TIMEOUT)

    def _give_back(self, connection: Connection) -> None:
        with self._lock:
            if connection.idle and len(self._idle) < MOST_IDLE:
                self._idle.append(connection)
                return
        connection.close()

    def close(self) -> None:
        with self._lock:
            for connection in self._idle:
                connection.close()
            self._idle.clear()

    __del__ = close  # a backend has no end of its own: its connections go with it

    def call(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        body: Body = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
        accept: Iterable[int] = (),
    ) -> Any:
        """The decoded answer. A status from 300 on that is not accepted is an EngineError."""
        return self.answer(method, path, json=json, body=body, headers=headers, timeout=timeout, accept=accept)[1]

    def answer(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        body: Body = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
        accept: Iterable[int] = (),
    ) -> tuple[int, Any]:
        """As `call`, with the status."""
        if timeout is None and method == "GET":
            timeout = self.patience
        connection = self._take()
        try:
            response = connection.request(method, self.prefix + path, body, json=json, headers=headers, timeout=timeout)
            data = response.read()
        except TimeoutError:
            connection.close()
            raise
        except OSError as error:
            connection.close()
            raise Unreachable(self.target, error) from error
        self._give_back(connection)
        if response.status >= 300 and response.status not in accept:
            raise EngineError(response.status, message_of(data), f"{method} {path}")
        return response.status, _decoded(data)

    def containers(self, filters: str | None = None, *, timeout: float | None = None) -> list[Any]:
        """All containers, or those that `filters` let through. Podman fails to list any when one goes meanwhile."""
        path = "/containers/json" + query(all=True, filters=filters)
        for _ in range(LISTINGS):
            try:
                return self.call("GET", path, timeout=timeout) or []
            except EngineError as error:
                if "no such container" not in error.message.lower():
                    raise
        raise EngineError(500, f"a container went each of the {LISTINGS} times that all were listed", f"GET {path}")

    def ping(self) -> dict[str, str]:
        """What the engine says of itself, in headers, without having to look at anything."""
        connection = self._take()
        try:
            response = connection.request("GET", "/_ping", timeout=min(PING, self.patience))
            response.read()
        except TimeoutError:
            connection.close()
            raise
        except OSError as error:
            connection.close()
            raise Unreachable(self.target, error) from error
        self._give_back(connection)
        return response.headers

    def stream(
        self, method: str, path: str, *, body: Body = None, headers: Mapping[str, str] | None = None
    ) -> tuple[Connection, Response]:
        """An answer that is read as it comes, without a time limit. The caller closes the connection."""
        connection = Connection(self.target, timeout=TIMEOUT)
        try:
            response = connection.request(method, self.prefix + path, body, headers=headers)
            if response.status >= 300:
                raise EngineError(response.status, message_of(response.read()), f"{method} {path}")
        except OSError as error:
            connection.close()
            raise Unreachable(self.target, error) from error
        except EngineError:
            connection.close()
            raise
        response.set_timeout(None)
        return connection, response

    def hijack(self, path: str, *, json: Any = None) -> socket.socket:
        """A raw stream to a process of a container."""
        connection = Connection(self.target, timeout=TIMEOUT)
        try:
            return connection.hijack("POST", self.prefix + path, json=json)
        except Declined as declined:
            data = declined.response.read()
            raise EngineError(declined.response.status, message_of(data), f"POST {path}") from declined
        except OSError as error:
            raise Unreachable(self.target, error) from error

    def peer(self) -> ProcessName | None:
        """The process that made the socket, if it is one of this host that we can see: the engine, or its init system.

        Its namespaces and its root are those that the engine calls the host's.
        """
        try:
            probe = Connection(self.target, timeout=TIMEOUT)
            if not probe.socket_path:
                return None
            with contextlib.closing(probe.connect()) as sock:
                packed = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        except OSError as error:
            raise Unreachable(self.target, error) from error
        pid = struct.unpack("3i", packed)[0]
        return name_of(pid) if pid > 0 else None


def message_of(data: bytes) -> str:
    """An engine's own words."""
    try:
        decoded = msgspec.json.decode(data)
    except msgspec.DecodeError:
        return data.decode(errors="replace").strip() or "no reason was given"
    if isinstance(decoded, dict):
        found = decoded.get("message") or decoded.get("error") or decoded.get("cause")
        if isinstance(found, str) and found:
            return found.strip()
    return data.decode(errors="replace").strip()


def _decoded(data: bytes) -> Any:
    if not data.strip():
        return None
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError:
        return data  # a stream of several documents, or a plain text
