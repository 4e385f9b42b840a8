"""Which backends there are, made when they are first asked for. `auto` tries them in this order."""

from __future__ import annotations

from dibs.backends.port import Backend
from dibs.errors import InvalidRequest
from dibs.home import Home

AUTO = ("local",)  # `fake` runs nothing, so it is only ever taken by name
NAMES = ("local", "fake")


class Registry:
    """The backends of one installation."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._made: dict[str, Backend] = {}

    def get(self, name: str) -> Backend:
        if name not in self._made:
            self._made[name] = self._make(name)
        return self._made[name]

    def _make(self, name: str) -> Backend:
        if name == "local":
            from dibs.backends.local.backend import LocalBackend

            return LocalBackend(self._home)
        if name == "fake":
            from dibs.backends.fake import FakeBackend

            return FakeBackend()
        raise InvalidRequest(
            "there is no such backend",
            field="backend",
            value=name,
            code="BACKEND_UNKNOWN",
            remedy=f"the backends are {', '.join(NAMES)}; auto takes the first that can deliver",
        )

    def candidates(self, wanted: str) -> list[Backend]:
        """The backends to try for a request, in order."""
        return [self.get(name) for name in (AUTO if wanted == "auto" else (wanted,))]
