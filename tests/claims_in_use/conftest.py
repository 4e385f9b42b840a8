"""The command line in this process: what it prints, and its exit code."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from dibs.cli.main import run


class Result(msgspec.Struct, frozen=True):
    code: int
    out: str
    err: str


Dibs = Callable[..., Result]


@pytest.fixture
def dibs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Dibs:
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)

    def call(*words: str) -> Result:
        capsys.readouterr()
        code = run(list(words))
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return call
