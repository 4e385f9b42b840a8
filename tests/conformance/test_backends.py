"""One suite, every backend of this package. The tests are in `dibs.testing.conformance`."""

from __future__ import annotations

from tests.conformance.factories import FACTORIES, SMALLER

import dibs.testing.conformance as suite
from dibs.testing import DIFFERENCES
from dibs.testing.conformance import *  # noqa: F403

__all__ = ["FACTORIES"]


def test_every_difference_is_named_and_has_a_reason() -> None:
    for factory in FACTORIES:
        assert set(factory.differences) <= set(DIFFERENCES)
        assert all(factory.differences.values())


def test_the_smaller_selection_names_tests_that_are_there() -> None:
    assert {name for name in SMALLER if not hasattr(suite, name)} == set()
