"""Everything from Python is tried twice: in this process, and over a gateway."""

from __future__ import annotations

import pytest
from tests.remote.ways import way

__all__ = ["way"]


@pytest.fixture(autouse=True)
def both_ways(way: str) -> None:
    """Every test here takes both."""
