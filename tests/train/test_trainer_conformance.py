"""What the released Kubeflow Trainer made of a TrainJob, and what is made of it here.

The cases were recorded from the controllers on a real API server. They are not part of the project: the folder is named
by DIBS_CONFORMANCE_DATA. Every case agrees, or the difference is named below: what is different, exactly, and why it is
better. The list is complete: a difference that is not in it fails, and so does one that has gone.
"""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.train.comparing import differences
from tests.train.improvements import IMPROVEMENTS

Json = dict[str, Any]


def _cases() -> list[Any]:
    folder = os.environ.get("DIBS_CONFORMANCE_DATA")
    if not folder:
        return [pytest.param({}, marks=pytest.mark.skip(reason="DIBS_CONFORMANCE_DATA is not set"), id="none")]
    data = json.loads((Path(folder) / "trainer-cases.json").read_text())
    return [pytest.param(case, id=case["name"]) for case in data["cases"]]


CASES = _cases()


@pytest.mark.parametrize("case", CASES)
def test_a_case_agrees_or_differs_as_named(case: Json) -> None:
    before = copy.deepcopy(case)
    outcomes = [case["expect"], *(one["expect"] for one in case.get("alternatives", []))]
    expected = IMPROVEMENTS.get(case["name"])
    found = min((differences(case, outcome) for outcome in outcomes), key=len)
    assert found == ([] if expected is None else list(expected.differences))
    assert case == before


def test_every_named_improvement_is_a_case() -> None:
    names = {param.id for param in CASES}
    if names == {"none"}:
        pytest.skip("DIBS_CONFORMANCE_DATA is not set")
    assert set(IMPROVEMENTS) <= names
    assert all(one.reason and one.differences for one in IMPROVEMENTS.values())
