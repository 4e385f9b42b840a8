"""Merges that `kubectl patch --local --type=strategic` made, made here.

The data is not part of the project: the folder is named by DIBS_CONFORMANCE_DATA.
"""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import Any

import pytest

from dibs.kube import merge as merging
from dibs.kube.merge import MergeRefused, merge
from dibs.kube.merge_keys import KINDS

# The words of the reference, and the reason that is given here.
REASONS = {
    "does not contain declared merge key": merging.NO_KEY,
    "unknown patch type": merging.BAD_DIRECTIVE,
    "merging lists cannot yet be specified": merging.NO_LIST_MERGE,
    "invalid patch format of retainKeys": merging.BAD_RETAIN_KEYS,
    "doesn't match $setElementOrder list": merging.OTHER_ORDER,
    "invalid JSON document": "a patch must be an object",
}


def _cases() -> list[Any]:
    folder = os.environ.get("DIBS_CONFORMANCE_DATA")
    if not folder:
        return [pytest.param({}, marks=pytest.mark.skip(reason="DIBS_CONFORMANCE_DATA is not set"), id="none")]
    data = json.loads((Path(folder) / "strategic-merge-cases.json").read_text())
    return [pytest.param(case, id=case["name"]) for case in data["cases"]]


@pytest.mark.parametrize("case", _cases())
def test_a_merge_is_that_of_kubectl(case: dict[str, Any]) -> None:
    before = copy.deepcopy((case["original"], case["patch"]))
    if "result" in case:
        assert merge(case["original"], case["patch"], KINDS[case["kind"]]) == case["result"]
    elif "Object 'Kind' is missing" in case["error"]:  # said when printing: the merge itself left nothing
        assert merge(case["original"], case["patch"], KINDS[case["kind"]]) == {}
    else:
        reason = next(ours for theirs, ours in REASONS.items() if theirs in case["error"])
        with pytest.raises(MergeRefused) as refused:
            merge(case["original"], case["patch"], KINDS[case["kind"]])
        assert reason in refused.value.problems[0].reason
    assert (case["original"], case["patch"]) == before
