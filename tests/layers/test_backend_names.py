"""Above the backends nothing is decided by the name of one: a backend declares what it can, by traits and protocols."""

from __future__ import annotations

import ast
from pathlib import Path

import dibs
from dibs.backends import installed

SOURCE = Path(dibs.__file__).parent
# Below or beside the backends: the language of requests and settings has words for some of them.
BENEATH = ("backends", "request", "settings.py", "testing")
ALLOWED = {
    "gateway/openshell/drivers.py": "OpenShell's API has a block for each of its own drivers, by these names",
}


def literals(path: Path) -> set[str]:
    """The names of backends that stand as strings in a module, comments and documentation apart."""
    tree = ast.parse(path.read_text())
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return texts & {one.name for one in installed.built_in()}


def test_no_layer_above_the_backends_names_one() -> None:
    found: dict[str, set[str]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        relative = path.relative_to(SOURCE)
        if relative.parts[0] not in BENEATH and (names := literals(path)):
            found[str(relative)] = names
    assert {file: names for file, names in found.items() if file not in ALLOWED} == {}
    assert set(ALLOWED) == set(found), "a file that names no backend any more needs no permission"
