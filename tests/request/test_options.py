"""Options of one backend: only with a device request, in the same number, and nothing unknown."""

from __future__ import annotations

from typing import Any

import pytest

from dibs.request.model import GpuSelector, Request
from dibs.request.options import check_options

TWO = Request(gpus=(GpuSelector(count=2),))
NAMES = ["nvidia.com/gpu=0", "nvidia.com/gpu=1"]


@pytest.mark.parametrize("backend", ["docker", "podman"])
def test_names_that_agree_with_the_request_are_fine(backend: str) -> None:
    assert check_options(backend, {backend: {"cdi_devices": NAMES}}, TWO) == []
    assert check_options(backend, {backend: {"cdi_devices": NAMES}}, Request(devices=("a", "b"))) == []
    assert check_options(backend, {backend: {"cdi_devices": NAMES}}, Request(gpus=(GpuSelector(count="all"),))) == []


@pytest.mark.parametrize(
    ("block", "request_", "code", "word"),
    [
        ({"cdi_devices": NAMES}, Request(), "BACKEND_OPTION_INVALID", "no device is asked for"),
        (
            {"cdi_devices": NAMES},
            Request(gpus=(GpuSelector(),)),
            "BACKEND_OPTION_INVALID",
            "2 devices are named, and 1 is asked for",
        ),
        ({"cdi_devices": NAMES[:1]}, TWO, "BACKEND_OPTION_INVALID", "1 devices are named, and 2 are asked for"),
        ({"cdi_devices": []}, TWO, "BACKEND_OPTION_INVALID", "at least one CDI name"),
        ({"cdi_devices": "nvidia.com/gpu=0"}, TWO, "BACKEND_OPTION_INVALID", "must be a list"),
        ({"cdi_devices": [NAMES[0], NAMES[0]]}, TWO, "BACKEND_OPTION_INVALID", "named twice"),
        ({"cdi_devices": ["0", "1"]}, TWO, "BACKEND_OPTION_INVALID", "not a CDI name"),
        ({"cdi_devices": [1, None]}, TWO, "BACKEND_OPTION_INVALID", "not a CDI name"),
        ({"cdi_device": NAMES}, TWO, "UNKNOWN_FIELD", "the known ones are cdi_devices"),
        (["x"], TWO, "BACKEND_OPTION_INVALID", "must be a mapping"),
        (None, TWO, "BACKEND_OPTION_INVALID", "must be a mapping"),
    ],
)
def test_a_conflicting_option_is_refused(block: Any, request_: Request, code: str, word: str) -> None:
    problems = check_options("docker", {"docker": block}, request_)
    assert code in [problem.code for problem in problems]
    assert any(word in str(problem) for problem in problems)
    assert all(problem.field.startswith("docker") for problem in problems)


def test_sd_17_options_for_a_backend_that_has_none_are_refused() -> None:
    problems = check_options("dokcer", {"dokcer": {"cdi_devices": NAMES}}, TWO)
    assert [problem.code for problem in problems] == ["UNKNOWN_FIELD"]
    assert "docker, podman" in problems[0].remedy
