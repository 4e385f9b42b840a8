"""The public face of the package does not drift by accident."""

from __future__ import annotations

import types

import dibs.claims


def test_everything_public_is_listed_and_sorted() -> None:
    public = {
        name
        for name, value in vars(dibs.claims).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    assert public == set(dibs.claims.__all__)
    assert len(set(dibs.claims.__all__)) == len(dibs.claims.__all__)


def test_the_objects_module_lists_what_it_offers() -> None:
    from dibs.claims import objects

    for name in objects.__all__:
        assert hasattr(objects, name)
