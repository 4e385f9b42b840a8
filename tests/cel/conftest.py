"""What the tests of CEL share: an environment with every general library."""

from collections.abc import Callable
from typing import Any

import pytest

from dibs import cel

Evaluate = Callable[..., Any]


@pytest.fixture(scope="session")
def every_library() -> list[cel.Library]:
    parts = cel.libraries
    return [
        parts.strings(),
        parts.lists(),
        parts.sets(),
        parts.regex(),
        parts.math(),
        parts.optionals(),
        parts.encoders(),
        parts.times(),
        parts.network(),
        parts.bindings(),
        parts.blocks(),
        parts.two_variables(),
    ]


@pytest.fixture(scope="session")
def evaluate(every_library: list[cel.Library]) -> Evaluate:
    """Compile with every library, the variables being dyn, and evaluate."""
    plain = cel.Environment({}, every_library)

    def run(expression: str, **variables: Any) -> Any:
        environment = plain
        if variables:
            environment = cel.Environment(dict.fromkeys(variables, cel.DYN), every_library)
        return environment.compile(expression).evaluate(variables)

    return run
