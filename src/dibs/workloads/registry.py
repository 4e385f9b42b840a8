"""The backends of one installation, constructed on first use, and their configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import cast

from dibs.backends import installed
from dibs.backends.declaration import Place
from dibs.backends.port import Backend, SeesForeignHolders, SharedEngine
from dibs.errors import Problem
from dibs.home import Home
from dibs.settings import Settings, load_settings

UserBackend = Callable[[Backend, int], Backend]


class Registry:
    """The backends of one installation.

    `long_lived`: for a process that makes many sandboxes, such as a gateway. `as_user` wraps a backend for another
    user of the host: the host service runs each sandbox as the user who asked for it.
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
        return self.settings.backends or installed.automatic()

    def delegates(self, name: str) -> bool:
        """Whether a scheduler chooses the devices of a backend."""
        return installed.declared(name).scheduled

    @cached_property
    def clusters(self) -> tuple[str, ...]:
        """The domains that are served from here beside this host."""
        kinds = (*installed.built_in(), *map(installed.declared, self.settings.backends))
        found = [domain for one in kinds if one.domains is not None for domain in one.domains(self.settings)]
        return tuple(dict.fromkeys(found))

    @cached_property
    def images(self) -> Mapping[str, str]:
        """The images of backends that run on this host's files: what a name stands for."""
        return {"host": "host", **self.settings.images}

    def permit(self, name: str, uid: int | None) -> None:
        """Raise where a user may not have a backend, whether or not it is there. Here every user may have all."""

    def get(self, name: str, uid: int | None = None) -> Backend:
        """A backend; for the sandboxes of a user, if the host service runs them as their users."""
        self.permit(name, uid)
        user = uid if self._as_user is not None and uid is not None and installed.declared(name).per_user else None
        if (name, user) not in self._made:
            made = self._make(name)
            if user is not None and self._as_user is not None:
                made = self._as_user(made, user)
            self._made[name, user] = made
        return self._made[name, user]

    def _make(self, name: str) -> Backend:
        kind = installed.find(name)
        if kind is None or name not in (kind.name, *kind.names(self.settings)):
            served = (more for one in installed.built_in() for more in one.names(self.settings))
            raise installed.unknown(name, tuple(served))
        return kind.make(Place(name, self.home, self.settings, self._long_lived))

    def shared_engines(self) -> list[SharedEngine]:
        """The engines on this host, which others use too, whether or not `auto` would take them."""
        here = [one.name for one in installed.built_in() if one.absent is not None and not one.absent(self.settings)]
        return [cast("SharedEngine", one) for one in map(self.get, here) if isinstance(one, SeesForeignHolders)]

    def absent(self, name: str) -> Problem | None:
        """Why a backend has nothing to talk to on this host, as far as that is known before it is loaded."""
        declared = installed.find(name)
        return declared.absent(self.settings) if declared is not None and declared.absent is not None else None

    def candidates(self, wanted: str, uid: int | None = None) -> Iterator[Backend]:
        """The backends to try for a request, in order; each is made when it is its turn."""
        for name in self.order if wanted == "auto" else (wanted,):
            yield self.get(name, uid)
