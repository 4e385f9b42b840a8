"""The public face of the package cannot drift by accident."""

import doctest
import subprocess
import sys
import types

import pytest

from dibs import cel


def test_everything_public_is_listed_once_and_can_be_had() -> None:
    listed = cel.__all__
    assert len(set(listed)) == len(listed)
    assert set(listed) == {*cel._HOME, "libraries"}
    for name in listed:
        assert getattr(cel, name).__class__ is not None
    assert isinstance(cel.libraries, types.ModuleType)
    with pytest.raises(AttributeError, match="has no attribute 'Magic'"):
        _ = cel.Magic  # type: ignore[attr-defined]


def test_errors_and_quantities_are_loaded_without_the_compiler() -> None:
    code = (
        "import sys; import dibs.cel.errors, dibs.cel.quantity; "
        "print(sorted(m for m in sys.modules if m.startswith('dibs.cel.')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['dibs.cel.errors', 'dibs.cel.quantity']"


def test_the_examples_of_the_package_docstring_hold() -> None:
    result = doctest.testmod(cel)
    assert result.attempted >= 5
    assert result.failed == 0


def test_the_package_stands_alone() -> None:
    code = (
        "import sys; before = set(sys.modules); import dibs.cel.dra; "
        "print(sorted(m for m in set(sys.modules) - before if m.split('.')[0] == 'dibs' or "
        "m.split('.')[0] not in sys.stdlib_module_names))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = eval(done.stdout)
    assert loaded
    neighbours = ("dibs", "dibs.quantity")  # the one module that it shares, which imports nothing itself
    assert [name for name in loaded if name not in neighbours and not name.startswith("dibs.cel")] == []


def test_importing_the_package_does_not_load_heavy_modules() -> None:
    heavy = ("asyncio", "subprocess", "zoneinfo", "decimal", "json", "msgspec")
    code = f"import sys; import dibs.cel.dra; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
