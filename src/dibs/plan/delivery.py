"""The delivery table: each field of a request, on each backend, is delivered, delegated or refused.

The check of a request, the docs page and the capability listing all use this table. Each backend declares its own
column (`backends/*/declaration.py`); the rows are those of the table of fields (`request.fields`). A field that a
backend does not name is refused there: the backend may be older than the field.
"""

from __future__ import annotations

from dibs.backends import installed
from dibs.backends.declaration import Cell, Outcome, refused
from dibs.request.fields import ROWS

__all__ = ["Cell", "Outcome", "cell", "table"]

_BLANK = refused("it does not know this field")


def cell(field: str, backend: str) -> Cell:
    """What a backend does with a field. Loads no other backend's column."""
    return installed.declared(backend).column.get(field, _BLANK)


def table() -> dict[str, dict[str, Cell]]:
    """All of it: field → backend → cell."""
    names = installed.names()
    return {field: {name: cell(field, name) for name in names} for field in ROWS}
