"""Which backends there are: those of this package, and those that other packages register.

`workloads.registry` makes backends from here, `plan.delivery` takes their columns. Another package registers a backend
with an entry point in the group `dibs.backends`, named like the backend, that leads to its `Declaration`. Installed
packages are searched only for names that are not built in, because the search takes longer than the rest of a command.
"""

from __future__ import annotations

import functools
from importlib import import_module
from typing import TYPE_CHECKING

from dibs.backends.declaration import Declaration
from dibs.errors import InvalidRequest, StateError
from dibs.request.model import family

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "dibs.backends"

# In the order in which `auto` tries them.
_BUILT_IN = {
    "local": ("dibs.backends.local.declaration", "LOCAL"),
    "docker": ("dibs.backends.engines.declaration", "DOCKER"),
    "podman": ("dibs.backends.engines.declaration", "PODMAN"),
    "kubernetes": ("dibs.backends.kubernetes.declaration", "KUBERNETES"),
    "fake": ("dibs.backends.fake.declaration", "FAKE"),
    "fake-cluster": ("dibs.backends.fake.declaration", "FAKE_CLUSTER"),
}

ON_HOST = "local"  # the backend whose sandboxes run on this host's own files; images of the configuration are its roots


def names() -> tuple[str, ...]:
    """All kinds of backends, the built-in ones first."""
    return (*_BUILT_IN, *sorted(_registered()))


@functools.lru_cache(64)  # each line of a receipt asks
def find(name: str) -> Declaration | None:
    """The declaration of a backend; None where there is no such backend."""
    kind = family(name)
    if kind in _BUILT_IN:
        return _built_in(kind)
    return _load(kind) if kind in _registered() else None


def declared(name: str) -> Declaration:
    """The same, or InvalidRequest."""
    found = find(name)
    if found is None:
        raise unknown(name)
    return found


def made_from_image(name: object) -> bool:
    """Whether sandboxes of a backend are made from images. False for a name that is none: it is refused later."""
    found = find(name) if isinstance(name, str) else None
    return found is not None and found.root == "image"


def unknown(name: str, further: tuple[str, ...] = ()) -> InvalidRequest:
    """`further`: names that a configuration serves beside the kinds."""
    known = ", ".join(dict.fromkeys((*names(), *further)))
    return InvalidRequest(
        "there is no such backend",
        field="backend",
        value=name,
        code="BACKEND_UNKNOWN",
        remedy=f"the backends are {known}; auto takes the first that can deliver",
    )


def built_in() -> tuple[Declaration, ...]:
    return tuple(map(_built_in, _BUILT_IN))


def automatic() -> tuple[str, ...]:
    """What `auto` tries where the configuration has no order."""
    return tuple(one.name for one in built_in() if one.auto)


@functools.cache
def _built_in(name: str) -> Declaration:
    module, attribute = _BUILT_IN[name]
    found = getattr(import_module(module), attribute)
    assert isinstance(found, Declaration)
    return found


@functools.cache
def _registered() -> dict[str, EntryPoint]:
    """The entry points of other packages. A built-in name stays with the built-in backend, and saying otherwise is an
    error: a request for it must not go somewhere else because a package was installed."""
    from importlib.metadata import entry_points

    found: dict[str, EntryPoint] = {}
    for one in entry_points(group=GROUP):
        package = one.dist.name if one.dist is not None else one.value
        if one.name in _BUILT_IN or one.name == "auto" or (one.name in found and found[one.name].value != one.value):
            raise StateError(
                f"the package {package} registers a backend by a name that is taken",
                field=GROUP, value=one.name, remedy=f"uninstall {package}, or give its backend another name",
            )  # fmt: skip
        found[one.name] = one
    return found


@functools.cache
def _load(name: str) -> Declaration:
    point = _registered()[name]
    remedy = "fix or uninstall the package that registers it"
    try:
        found = point.load()
    except (ImportError, AttributeError) as error:
        raise StateError(
            f"the backend cannot be loaded: {error}", field=GROUP, value=point.value, remedy=remedy
        ) from error
    if not isinstance(found, Declaration) or found.name != name:
        raise StateError(
            f"the entry point {name} leads to no declaration of a backend of that name",
            field=GROUP, value=point.value, remedy=remedy,
        )  # fmt: skip
    return found
