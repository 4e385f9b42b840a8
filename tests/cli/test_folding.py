"""Long messages on a narrow terminal."""

from __future__ import annotations

import pytest

from dibs.cli.output import fold


def test_a_path_that_does_not_fit_stands_whole_on_its_own_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    path = "/opt/" + "x" * 65
    lines = fold(f"bubblewrap 0.11.0 at {path} (a package)", " " * 30)
    assert path in [line.strip() for line in lines]
    assert max(map(len, lines)) <= 80
    assert lines[0] == " " * 30 + "bubblewrap 0.11.0 at"
