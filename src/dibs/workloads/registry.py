"""Which backends there are, made when they are first asked for, and what the configuration says of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, cast

from dibs.backends.port import Backend
from dibs.errors import InvalidRequest
from dibs.home import Home
from dibs.request.spec import family
from dibs.settings import ClusterSettings, Settings, load_settings

if TYPE_CHECKING:
    from dibs.backends.engines.backend import EngineBackend

NAMES = ("local", "docker", "podman", "kubernetes", "fake", "fake-cluster")
ENGINES = ("docker", "podman")
CLUSTERS = ("kubernetes", "fake-cluster")  # a scheduler of their own chooses the devices
AUTO = ("local", *ENGINES)  # the fakes run nothing, so they are only ever taken by name


def _has_kubeconfig() -> bool:
    """Without reading anything: every `dibs` comes by here."""
    home = os.path.expanduser("~/.kube/config")
    return bool(os.environ.get("KUBECONFIG") or os.environ.get("KUBERNETES_SERVICE_HOST")) or os.path.exists(home)


UserBackend = Callable[[Backend, int], Backend]


class Registry:
    """The backends of one installation.

    `long_lived`: for a process that makes many sandboxes, such as a gateway. `as_user` wraps a backend for another
    user of the host: the host service gives everybody sandboxes that run as whoever asked.
    """

    def __init__(
        self,
        home: Home,
        settings: Settings | None = None,
        *,
        long_lived: bool = False,
        as_user: UserBackend | None = None,
    ) -> None:
        self.home = home
        self._given = settings
        self._long_lived = long_lived
        self._as_user = as_user
        self._made: dict[tuple[str, int | None], Backend] = {}

    @cached_property
    def settings(self) -> Settings:
        return self._given or load_settings(self.home)

    @property
    def order(self) -> tuple[str, ...]:
        """Which backends `auto` tries, first come first."""
        return self.settings.backends or AUTO

    def delegates(self, name: str) -> bool:
        """Whether a scheduler chooses the devices of a backend."""
        return family(name) in CLUSTERS

    @property
    def clusters(self) -> tuple[str, ...]:
        """The domains that are served from here beside this host."""
        fake = (f"cluster:{self.settings.fake_cluster}",) if self.settings.fake_cluster else ()
        return (*(f"cluster:{name}" for name in self.kubernetes), *fake)

    @cached_property
    def kubernetes(self) -> tuple[str, ...]:
        """The backends that are Kubernetes clusters: those of the configuration, and whatever a kubeconfig names."""
        named = self.settings.clusters
        return tuple(named) if "kubernetes" in named or not _has_kubeconfig() else ("kubernetes", *named)

    @cached_property
    def images(self) -> Mapping[str, str]:
        """The images of the `local` backend: what a name stands for."""
        return {"host": "host", **self.settings.images}

    def get(self, name: str, uid: int | None = None) -> Backend:
        """A backend; for the sandboxes of a user, if the host service runs them as their users."""
        key = (name, uid if name == "local" and self._as_user is not None else None)
        if key not in self._made:
            made = self._make(name)
            if key[1] is not None and self._as_user is not None:
                made = self._as_user(made, key[1])
            self._made[key] = made
        return self._made[key]

    def _make(self, name: str) -> Backend:
        if name == "local":
            from dibs.backends.local.backend import LocalBackend

            return LocalBackend(self.home, long_lived=True) if self._long_lived else LocalBackend(self.home)
        if name == "docker":
            from dibs.backends.engines.docker import DockerBackend

            return DockerBackend(self.home, self.settings.docker_socket)
        if name == "podman":
            from dibs.backends.engines.podman import PodmanBackend

            return PodmanBackend(self.home, self.settings.podman_socket)
        if name in self.kubernetes or name == "kubernetes":
            from dibs.backends.kubernetes.backend import KubernetesBackend

            settings = self.settings.clusters.get(name, ClusterSettings())
            return KubernetesBackend(name, settings, long_lived=self._long_lived)
        if name == "fake":
            from dibs.backends.fake import FakeBackend

            return FakeBackend()
        if name == "fake-cluster":
            from dibs.backends.fake.scheduled import FakeClusterBackend

            return FakeClusterBackend(self.settings.fake_cluster)
        known = ", ".join(dict.fromkeys((*NAMES, *self.kubernetes)))
        raise InvalidRequest(
            "there is no such backend",
            field="backend",
            value=name,
            code="BACKEND_UNKNOWN",
            remedy=f"the backends are {known}; auto takes the first that can deliver",
        )

    def engines(self) -> list[EngineBackend]:
        """The container engines that are on this host, whether or not `auto` would take them."""
        from dibs.backends.engines.finding import find

        named = {"docker": self.settings.docker_socket, "podman": self.settings.podman_socket}
        found = [name for name in ENGINES if find(name, named[name]).target]
        return [cast("EngineBackend", self.get(name)) for name in found]

    def candidates(self, wanted: str, uid: int | None = None) -> Iterator[Backend]:
        """The backends to try for a request, in order; each is made when it is its turn."""
        for name in self.order if wanted == "auto" else (wanted,):
            yield self.get(name, uid)
