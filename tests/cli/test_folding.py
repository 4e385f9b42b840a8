"""Long messages on a narrow terminal."""

from __future__ import annotations

import pytest

from dibs.cli.output import fold, table


def test_a_path_that_does_not_fit_stands_whole_on_its_own_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    path = "/opt/" + "x" * 65
    lines = fold(f"bubblewrap 0.11.0 at {path} (a package)", " " * 30)
    assert path in [line.strip() for line in lines]
    assert max(map(len, lines)) <= 80
    assert lines[0] == " " * 30 + "bubblewrap 0.11.0 at"


ROW = (
    "sb-0123456789ab",
    "exited",
    "gpu-0, gpu-1",
    "anna",
    "the terminal or client that ran it went away",
    "gr-0123 rank 1",
)


@pytest.mark.parametrize("columns", [30, 40, 60, 80])
def test_a_table_fits_its_terminal_and_never_cuts_the_name_of_a_row(
    monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = table(("NAME", "STATE", "GPUS", "USER", "END", "GROUP"), [ROW])
    assert max(map(len, lines)) <= columns
    assert [line.split()[0] for line in lines if not line.startswith(" ")] == ["NAME", ROW[0]]
    assert all(part in "\n".join(lines) for part in ROW[:4])
    assert all(lines)


def test_a_name_without_end_gives_way_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    lines = table(("NAME", "STATE"), [("x" * 100, "exited")])
    assert max(map(len, lines)) <= 60
