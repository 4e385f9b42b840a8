"""The public names of the library, and that it stands alone and loads little."""

from __future__ import annotations

import subprocess
import sys

import pytest

import dibs.cdi


def test_every_public_name_is_exported_once_and_exists() -> None:
    assert len(set(dibs.cdi.__all__)) == len(dibs.cdi.__all__)
    for name in dibs.cdi.__all__:
        assert hasattr(dibs.cdi, name)


def test_nothing_public_is_left_out() -> None:
    assert sorted(dibs.cdi._HOME) == sorted(dibs.cdi.__all__)
    with pytest.raises(AttributeError):
        _ = dibs.cdi.nonsense  # type: ignore[attr-defined]


def test_library_loads_nothing_else_of_dibs_and_no_heavy_module() -> None:
    code = "import sys, dibs.cdi; [getattr(dibs.cdi, name) for name in dibs.cdi.__all__]; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    ours = {name for name in loaded if name.startswith("dibs")}
    assert all(name == "dibs" or name.startswith(("dibs.cdi", "dibs._version")) for name in ours)
    assert not {"yaml", "json", "click", "rich", "subprocess", "asyncio", "tempfile"} & set(loaded)
