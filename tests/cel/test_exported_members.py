"""The public face of the package cannot drift by accident."""

import doctest
import subprocess
import sys
import types

from dibs import cel


def test_all_lists_every_public_name_and_nothing_else() -> None:
    public = {
        name
        for name, value in vars(cel).items()
        if not name.startswith("_") and (not isinstance(value, types.ModuleType) or name == "libraries")
    }
    assert public == set(cel.__all__)


def test_all_is_free_of_duplicates() -> None:
    assert len(cel.__all__) == len(set(cel.__all__))


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
