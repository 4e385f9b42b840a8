"""The objects of one kind as they are now: listed once, then watched, in a thread.

The `kubernetes` backend follows its pods with it; hundreds of waiting callers then cost the API server one watch. A
watch that ends is resumed from the last bookmark; one whose version has expired, or that dies, is started again with a
list. Everything is listed anew now and then in any case. While the server is away `current` is false: callers must ask
the server themselves, or say that they do not know.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from dibs.errors import DibsError
from dibs.kube import errors
from dibs.kube.client import Cluster, Resource
from dibs.kube.objects import Meta

RESYNC = 600.0  # seconds after which everything is listed anew
_WATCH = 290  # seconds of one watch
_CLOSING = 5.0  # seconds in which its thread ends, once it is asked to
_PAUSES = 0.1, 10.0  # seconds before another try: at first, and in the end


class _Object(Protocol):
    @property
    def metadata(self) -> Meta: ...


T = TypeVar("T", bound=_Object)


class Follower(Generic[T]):
    """`start`, then `get` and `wait`; `close` ends its thread."""

    def __init__(
        self,
        connect: Callable[[], Cluster],
        resource: Resource,
        kind: type[T],
        namespace: str,
        labels: str,
        key: Callable[[T], str],
    ) -> None:
        """`key`: what an object is kept under."""
        self._connect = connect
        self._resource, self._kind, self._namespace, self._labels = resource, kind, namespace, labels
        self._key = key
        self._objects: dict[str, T] = {}
        self._names: dict[str, str] = {}  # of the objects, to their keys
        self._changed = threading.Condition()
        self._listeners: list[Callable[[str], None]] = []
        self._over = threading.Event()
        self._cluster: Cluster | None = None
        self._current = False
        self.lists = 0  # how often everything was listed
        self.trouble = ""  # what the server said when it was last away
        self._thread = threading.Thread(target=self._run, name=f"dibs-follow-{resource.plural}", daemon=True)

    def start(self) -> Follower[T]:
        self._thread.start()
        # A thread inside TLS while the interpreter shuts down would crash the process.
        atexit.register(self.close)
        return self

    @property
    def current(self) -> bool:
        """Whether what is here is what the server has, but for the time that a message takes."""
        return self._current

    def get(self, key: str) -> T | None:
        return self._objects.get(key)

    def snapshot(self) -> dict[str, T]:
        with self._changed:
            return dict(self._objects)

    def listen(self, told: Callable[[str], None]) -> Callable[[], None]:
        """Call `told` with the key of each object that changes, and with "" after each list. Returns how to stop it."""
        self._listeners.append(told)
        return lambda: self._listeners.remove(told)

    def wait(self, done: Callable[[], bool], timeout: float | None) -> bool:
        """Until `done`, which is asked after each change; False if that takes too long or the server goes away."""
        with self._changed:
            return self._changed.wait_for(lambda: done() or not self._current, timeout) and done()

    def wait_current(self, timeout: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._current, timeout)

    def close(self) -> None:
        atexit.unregister(self.close)
        self._over.set()
        with self._changed:
            self._current = False
            self._changed.notify_all()
        if self._thread is threading.current_thread():
            return
        end = time.monotonic() + _CLOSING
        while self._thread.is_alive() and time.monotonic() < end:
            cluster = self._cluster
            if cluster is not None:
                cluster.interrupt()  # again: it may have been about to ask
            self._thread.join(0.05)

    # -- its thread

    def _run(self) -> None:
        pause = _PAUSES[0]
        while not self._over.is_set():
            try:
                with self._connect() as cluster:
                    self._cluster = cluster
                    since = self._list(cluster)
                    pause = _PAUSES[0]
                    until = time.monotonic() + RESYNC
                    while not self._over.is_set() and time.monotonic() < until:
                        since = self._watch(cluster, since)
            except errors.Expired:
                continue  # its version is too old: list again at once
            except DibsError as error:
                self._lost(str(error))
            except OSError as error:  # the line was cut by `close`
                self._lost(str(error))
            finally:
                self._cluster = None
            if not self._over.wait(pause):
                pause = min(pause * 2, _PAUSES[1])

    def _lost(self, reason: str) -> None:
        with self._changed:
            self._current = False
            self.trouble = reason
            self._changed.notify_all()

    def _list(self, cluster: Cluster) -> str:
        items, version = cluster.listing(self._resource, self._kind, self._namespace, labels=self._labels)
        with self._changed:
            self._objects = {self._key(item): item for item in items}
            self._names = {item.metadata.name: self._key(item) for item in items}
            self._current = True
            self.lists += 1
            self.trouble = ""
            self._changed.notify_all()
        self._tell("")
        return version

    def _watch(self, cluster: Cluster, since: str) -> str:
        events = cluster.watch(
            self._resource, self._kind, self._namespace, since=since, labels=self._labels, seconds=_WATCH
        )
        for what, item in events:
            since = item.metadata.resource_version or since
            if what == "BOOKMARK":
                continue
            key = self._names.get(item.metadata.name) or self._key(item)
            with self._changed:
                if what == "DELETED":
                    self._names.pop(item.metadata.name, None)
                    known = self._objects.get(key)
                    if known is not None and known.metadata.name == item.metadata.name:  # or it was made anew
                        del self._objects[key]
                else:
                    self._objects[key] = item
                    self._names[item.metadata.name] = key
                self._changed.notify_all()
            self._tell(key)
        return since

    def _tell(self, key: str) -> None:
        for told in list(self._listeners):
            told(key)
