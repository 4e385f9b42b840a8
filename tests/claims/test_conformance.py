"""Kubernetes' own table of allocations, decided here.

The data is not part of the project: the folder is named by DIBS_CONFORMANCE_DATA. Every case is run as it stands and
with its slices and classes in other orders; the inputs must come out as they went in.
"""

from __future__ import annotations

import copy
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from dibs.cel.kubernetes import Quantity
from dibs.claims import objects
from dibs.claims.allocator import Allocator
from dibs.claims.features import GATES, Features
from dibs.claims.identity import Allocated, DeviceId
from dibs.claims.inventory import Inventory
from dibs.claims.nodes import Node
from dibs.errors import DibsError

Case = dict[str, Any]

# Written down with a loss: 10^21 stands in the data as "1", because the reference prints that quantity without a
# suffix for its last three zeros. The lost numbers are put back, and the case is then run like all others.
LOST = "1000000000000000000000"
REPAIRED = {"consumable-capacity-requests-are-not-modified"}
ORDERS = (None, 1, 2, 3)


def _cases() -> list[Any]:
    folder = os.environ.get("DIBS_CONFORMANCE_DATA")
    if not folder:
        return [pytest.param({}, marks=pytest.mark.skip(reason="DIBS_CONFORMANCE_DATA is not set"), id="none")]
    data = json.loads((Path(folder) / "allocator-cases.json").read_text())
    return [pytest.param(case, id=case["name"]) for case in data["cases"]]


CASES = _cases()


@pytest.mark.parametrize("case", CASES)
def test_the_answer_is_that_of_the_reference(case: Case) -> None:
    if case["name"] in REPAIRED:
        case = _repaired(case)
    expected = case["expect"]
    for order in ORDERS:
        results, error = _decide(case, order)
        if expected.get("errorContains"):
            assert error is not None, f"decided instead of: {expected['errorContains']}"
            assert expected["errorContains"] in error
        else:
            assert error is None
            assert results == [_comparable(result) for result in expected["results"] or ()]


def test_all_cases_were_run(capsys: pytest.CaptureFixture[str]) -> None:
    cases = [param.values[0] for param in CASES if param.values[0]]
    gates = {name for case in cases for gate in case["features"] for name in gate.split("+")}
    with capsys.disabled():
        if not cases:
            print("\nallocator conformance: skipped, DIBS_CONFORMANCE_DATA is not set")
            return
        print(
            f"\nallocator conformance: {len(cases)} cases of the reference, {len(ORDERS)} orders each; "
            f"0 excluded; repaired: {', '.join(REPAIRED)} (10^21 was written as 1)"
        )
    assert gates <= set(GATES) | {"DRAResourceClaimDeviceStatus"}
    assert len(cases) == 152


def _decide(case: Case, order: int | None) -> tuple[list[Any] | None, str | None]:
    slices = [objects.from_builtins(one, objects.ResourceSlice) for one in case["slices"] or ()]
    classes = [objects.from_builtins(one, objects.DeviceClass) for one in case["classes"] or ()]
    claims = [objects.from_builtins(one, objects.ResourceClaim) for one in case["claims"] or ()]
    if order is not None:
        random.Random(order).shuffle(slices)
        random.Random(order).shuffle(classes)
    before = copy.deepcopy((slices, classes, claims))
    allocated = Allocated(
        [DeviceId(*parts) for parts in case["allocatedDevices"] or ()],
        [DeviceId(*parts[:3]) for parts in case["allocatedSharedDeviceIDs"] or ()],
        {DeviceId(*used["device"]): used["consumed"] for used in case["aggregatedCapacity"] or ()},
    )
    described = case["node"]
    node = Node(
        described["metadata"]["name"],
        described["metadata"].get("labels", {}),
        frozenset(described["status"].get("declaredFeatures", ())),
    )
    try:
        allocator = Allocator(Inventory(slices), classes, allocated, Features.of(case["features"]))
        outcome = allocator.allocate(node, claims)
    except DibsError as error:
        return None, str(error)
    finally:
        assert (slices, classes, claims) == before
    assert outcome.explanation.outcome == ("unsatisfiable" if outcome.results is None else "allocated")
    return [_comparable(objects.to_builtins(result)) for result in outcome.results or ()], None


def _comparable(result: Case) -> tuple[list[str], list[Any], list[Any] | None]:
    """Results as a multiset, configuration as it stands, node selector terms and their parts unordered."""
    devices = []
    for one in result.get("devices", {}).get("results", ()):
        entry = dict(one)
        if "shareID" in entry:
            entry["shareID"] = "any"
        if "consumedCapacity" in entry:
            entry["consumedCapacity"] = {
                name: Quantity.parse(amount).nanos for name, amount in entry["consumedCapacity"].items()
            }
        devices.append(json.dumps(entry, sort_keys=True))
    selector = result.get("nodeSelector")
    terms = None
    if selector is not None:
        terms = sorted(
            [
                sorted(
                    (key, part["key"], part["operator"], sorted(part.get("values", ())))
                    for key in ("matchExpressions", "matchFields")
                    for part in term.get(key, ())
                )
                for term in selector["nodeSelectorTerms"]
            ]
        )
    return sorted(devices), result.get("devices", {}).get("config", []), terms


def _repaired(case: Case) -> Case:
    case = copy.deepcopy(case)
    policy = case["slices"][0]["spec"]["devices"][0]["capacity"]["capacity-0"]["requestPolicy"]
    second = case["claims"][0]["spec"]["devices"]["requests"][1]["exactly"]["capacity"]["requests"]
    result = case["expect"]["results"][0]["devices"]["results"][1]["consumedCapacity"]
    assert policy["default"] == second["capacity-0"] == result["capacity-0"] == "1"
    policy["default"] = second["capacity-0"] = result["capacity-0"] = LOST
    return case
