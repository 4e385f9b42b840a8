"""The public face of the package does not drift by accident."""

from __future__ import annotations

import subprocess
import sys

import pytest

import dibs.claims


def test_everything_public_is_listed_once_and_can_be_had() -> None:
    listed = dibs.claims.__all__
    assert len(set(listed)) == len(listed)
    assert set(listed) == set(dibs.claims._HOME)
    for name in listed:
        assert getattr(dibs.claims, name).__class__ is not None
    with pytest.raises(AttributeError, match="has no attribute 'Magic'"):
        _ = dibs.claims.Magic  # type: ignore[attr-defined]


def test_the_objects_module_lists_what_it_offers() -> None:
    from dibs.claims import objects

    for name in objects.__all__:
        assert hasattr(objects, name)


def test_the_objects_are_loaded_without_the_allocator() -> None:
    code = (
        "import sys; import dibs.claims.objects; "
        "print([m for m in ('dibs.claims.allocator', 'dibs.cel') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
