"""The pytest plugin of the conformance suite: it runs every test for each of a module's `FACTORIES`."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.register_assert_rewrite("dibs.testing.conformance", "dibs.testing.subject")

from dibs.testing.subject import Collect, Subject, to_the_end  # noqa: E402 - after its assertions are made to speak

__all__ = ["collect", "pytest_generate_tests", "subject"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "subject" in metafunc.fixturenames:
        factories = getattr(metafunc.module, "FACTORIES", ())
        chosen = [factory for factory in factories if factory.runs(metafunc.function.__name__)]
        metafunc.parametrize("subject", chosen, indirect=True, ids=[factory.name for factory in chosen])


@pytest.fixture
def subject(request: pytest.FixtureRequest) -> Iterator[Subject]:
    missing = request.param.missing()
    if missing:
        pytest.skip(f"{request.param.name} is not here: {missing}")
    with tempfile.TemporaryDirectory(prefix="dibs-conformance-") as folder:
        one = Subject(request.param, Path(folder))
        capability = one.backend.available()
        if not capability.ok:
            pytest.skip(f"{one.factory.name} is not available here: {capability.reason}")
        yield one
        one.close()


@pytest.fixture
def collect() -> Collect:
    return to_the_end
