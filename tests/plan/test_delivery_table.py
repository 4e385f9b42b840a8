"""Every field of a request has a row, every row a cell for every backend. What is not named is refused."""

from __future__ import annotations

import msgspec

from dibs.backends import installed
from dibs.backends.declaration import Outcome
from dibs.plan.delivery import cell, table
from dibs.request.fields import ROWS
from dibs.request.model import GpuSelector


def test_every_field_has_a_row_and_every_row_a_field() -> None:
    assert list(table()) == list(ROWS)


def test_every_part_of_a_gpu_request_has_a_row() -> None:
    parts = {f"gpu.{field.name}" for field in msgspec.structs.fields(GpuSelector)}
    assert {row for row in ROWS if row.startswith("gpu.")} == parts | {"gpu.all"}


def test_every_cell_says_how_or_why_not() -> None:
    assert all(cell.how for row in table().values() for cell in row.values())


def test_what_a_backend_says_nothing_of_is_refused_in_the_table_too() -> None:
    blank = [(row, one.name) for row in ROWS for one in installed.built_in() if row not in one.column]
    assert all(table()[row][name].outcome is Outcome.REFUSED for row, name in blank)


def test_no_backend_declares_a_cell_for_a_field_that_is_not_there() -> None:
    assert [(one.name, field) for one in installed.built_in() for field in one.column if field not in ROWS] == []


def test_every_backend_is_declared_by_its_own_name() -> None:
    assert [one.name for one in installed.built_in()] == list(installed.names())
    assert all(set(row) == set(installed.names()) for row in table().values())


def test_a_field_of_which_a_backend_says_nothing_is_refused() -> None:
    assert cell("a-field-to-come", "local").outcome is Outcome.REFUSED
