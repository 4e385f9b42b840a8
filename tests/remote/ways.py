"""The two ways to use dibs: in this process, and over a gateway. A test that takes `way` is run on both."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.remote.serving import gateway_on

from dibs.home import Home

IN_PROCESS, GATEWAY = "in process", "gateway"
HERE = ("doctor", "cdi", "completion", "table")  # verbs that are about this machine, whatever is used


@pytest.fixture(params=[IN_PROCESS, GATEWAY])
def way(request: pytest.FixtureRequest, home: Home, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The environment says which way; whatever is started in the test inherits it."""
    if request.param == IN_PROCESS:
        yield IN_PROCESS
        return
    with gateway_on(home) as served:
        monkeypatch.setenv("DIBS_URL", served.url)
        yield GATEWAY


def about_this_machine(words: tuple[str, ...]) -> bool:
    return words[:1] in {(one,) for one in HERE} or words[:2] == ("gpus", "simulate")
