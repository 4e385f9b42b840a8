"""Every field of a request has a row, every row a cell for every backend. A blank is a broken promise."""

from __future__ import annotations

import msgspec

from dibs.plan.delivery import BACKENDS, TABLE
from dibs.request.model import GpuSelector, Request
from dibs.request.spec import SandboxSpec
from dibs.workloads.registry import NAMES


def fields_of_a_request() -> set[str]:
    names = {field.name for field in msgspec.structs.fields(SandboxSpec)} - {"resources"}
    spec = {name.removesuffix("_seconds").removesuffix("_bytes") for name in names}
    # Neither can be asked for: `parts` is the sum of what the members of a group ask for, `members` their number.
    request = {field.name for field in msgspec.structs.fields(Request)} - {"gpus", "parts", "members"}
    request = {name.removesuffix("_millis").removesuffix("_bytes") for name in request}
    wish = {f"gpu.{field.name}" for field in msgspec.structs.fields(GpuSelector)}
    return spec | request | wish | {"gpu.all"}


def test_every_field_has_a_row_and_every_row_a_field() -> None:
    assert set(TABLE) == fields_of_a_request()


def test_no_cell_is_blank() -> None:
    blank = [(field, backend) for field, row in TABLE.items() for backend in BACKENDS if not row.get(backend)]
    assert blank == []
    assert all(cell.how for row in TABLE.values() for cell in row.values())


def test_the_table_knows_exactly_the_backends_that_exist() -> None:
    assert set(BACKENDS) == set(NAMES)
    assert all(set(row) == set(BACKENDS) for row in TABLE.values())
