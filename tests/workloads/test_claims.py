"""Claims on a plain host: alternatives, topology, partitions, shares, taints; each with its receipt."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dibs.devices.simulated import parse_world, simulate
from dibs.errors import Busy, InvalidRequest, NoMatch
from dibs.home import Home
from dibs.ledger.rows import Taint
from dibs.request import parse_spec
from dibs.workloads.service import Workloads

NVIDIA = 'device.attributes["gpu.nvidia.com"]'


@pytest.fixture
def host(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workloads]:
    monkeypatch.chdir(tmp_path)
    with Workloads(home) as service:
        yield service
        for row in service.sandboxes():
            service.remove(row.id, 0.0)


def is_model(name: str) -> list[dict[str, Any]]:
    return [{"cel": {"expression": f'{NVIDIA}.productName.contains("{name}")'}}]


def claim(*requests: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"devices": {"requests": list(requests), **more}}


def exactly(count: int = 1, name: str = "gpu", **more: Any) -> dict[str, Any]:
    return {"name": name, "exactly": {"deviceClassName": "gpu", "count": count, **more}}


def names(service: Workloads, reference: str) -> list[str]:
    receipt = service.receipt(reference)
    assert receipt.verdict == "delivered"
    leased = {path for device in receipt.devices for path in device.nodes}
    assert {node.path for node in receipt.observed.nodes} == leased, "exactly the leased nodes were seen"
    return [device.id.rpartition("/")[2] for device in receipt.devices]


def test_alternatives_are_taken_in_their_order_of_preference(host: Workloads) -> None:
    simulate(host.home, parse_world("H100:1,A100-80GB:4"))
    wanted = claim(
        {
            "name": "gpu",
            "firstAvailable": [
                {"name": "h100", "deviceClassName": "gpu", "selectors": is_model("H100")},
                {"name": "a100", "deviceClassName": "gpu", "count": 2, "selectors": is_model("A100")},
            ],
        }
    )
    assert names(host, host.create(parse_spec({"claim": wanted})).id) == ["gpu-0"]
    assert names(host, host.create(parse_spec({"claim": wanted})).id) == ["gpu-1", "gpu-2"]
    assert names(host, host.create(parse_spec({"claim": wanted})).id) == ["gpu-3", "gpu-4"]
    with pytest.raises(Busy) as caught:
        host.create(parse_spec({"claim": wanted}))
    assert "held by" in str(caught.value)


def test_a_pair_on_one_pcie_root(host: Workloads) -> None:
    simulate(host.home, parse_world("8", model="H100"))
    together = claim(exactly(2), constraints=[{"matchAttribute": "resource.kubernetes.io/pcieRoot"}])
    host.create(parse_spec({"device": "sim.dibs/gpu=0"}))
    row = host.create(parse_spec({"claim": together}))
    assert names(host, row.id) == ["gpu-2", "gpu-3"], "0 and 1 are on one root, and 0 is taken"
    roots = [
        device.attributes["resource.kubernetes.io/pcieRoot"]
        for device in host.inventory().devices
        if device.name in ("gpu-2", "gpu-3")
    ]
    assert len(set(roots)) == 1
    never = claim(exactly(3), constraints=[{"matchAttribute": "resource.kubernetes.io/pcieRoot"}])
    with pytest.raises(NoMatch):
        host.create(parse_spec({"claim": never}))


def test_a_partition_blocks_its_card_and_a_card_its_partitions(host: Workloads) -> None:
    simulate(host.home, parse_world("1", model="A100-80GB", partitions=2))
    part = claim({"name": "part", "exactly": {"deviceClassName": "part", "count": 1}})
    row = host.create(parse_spec({"claim": part}))
    assert names(host, row.id) == ["gpu-0-part-0"]
    for whole in ({"claim": claim(exactly())}, {"gpu": 1}):
        with pytest.raises(Busy):
            host.create(parse_spec(whole))
    other = host.create(parse_spec({"gpu": "..40GB"}))
    assert names(host, other.id) == ["gpu-0-part-1"]
    host.remove(row.id, 0.0)
    host.remove(other.id, 0.0)
    host.create(parse_spec({"claim": claim(exactly())}))
    with pytest.raises(Busy):
        host.create(parse_spec({"claim": part}))


def by_memory(amount: str) -> dict[str, Any]:
    return {"claim": claim(exactly(capacity={"requests": {"memory": amount}}))}


def test_a_card_is_shared_by_memory_only_by_claims_that_say_so(host: Workloads) -> None:
    simulate(host.home, parse_world("1", model="H100", shared=True))
    first = host.create(parse_spec(by_memory("40Gi")))
    second = host.create(parse_spec(by_memory("20Gi")))
    assert host.receipt(first.id).devices[0].share == {"memory": "40Gi"}
    assert host.receipt(second.id).observed.env["DIBS_GPU_MEMORY"] == str(20 << 30)
    assert any("does not enforce it" in note for note in host.receipt(first.id).notes)
    with pytest.raises(Busy, match="too little of it is left"):
        host.create(parse_spec(by_memory("20Gi")))
    with pytest.raises(Busy, match="shares of it are held"):
        host.create(parse_spec({"gpu": 1}))
    host.remove(first.id, 0.0)
    host.remove(second.id, 0.0)
    host.create(parse_spec({"gpu": 1}))
    with pytest.raises(Busy):
        host.create(parse_spec(by_memory("1Gi")))


def test_shares_never_add_up_to_more_than_the_card(host: Workloads) -> None:
    simulate(host.home, parse_world("1", model="H100", shared=True))
    made = 0
    for _ in range(10):
        try:
            host.create(parse_spec(by_memory("20Gi")))
            made += 1
        except Busy:
            break
    assert made == 3, "79.65Gi hold three shares of 20Gi"


def test_a_card_that_is_not_shareable_is_given_whole_to_a_claim_by_memory(host: Workloads) -> None:
    simulate(host.home, parse_world("1", model="H100"))
    host.create(parse_spec(by_memory("1Gi")))
    with pytest.raises(Busy):
        host.create(parse_spec(by_memory("1Gi")))
    with pytest.raises(NoMatch):
        host.create(parse_spec(by_memory("100Gi")))


def test_a_tainted_card_is_passed_over_unless_the_claim_tolerates_it(host: Workloads) -> None:
    simulate(host.home, parse_world("2", model="H100"))
    host.taint("gpu-0", Taint("maintenance", "fan"))
    row = host.create(parse_spec({"gpu": 1}))
    assert names(host, row.id) == ["gpu-1"]
    tolerant = claim(exactly(tolerations=[{"key": "maintenance", "operator": "Exists"}]))
    assert names(host, host.create(parse_spec({"claim": tolerant})).id) == ["gpu-0"]
    host.remove(row.id, 0.0)
    other = host.create(parse_spec({"claim": claim(exactly())}))
    assert names(host, other.id) == ["gpu-1"]
    explained = host.explain(parse_spec({"gpu": 1}))
    [selector] = explained.backends[0].selectors
    reasons = {verdict.device: verdict.reason for verdict in selector.verdicts}
    assert ["maintenance=fan:NoSchedule" in reason for reason in reasons.values()] == [True, False], reasons
    assert host.untaint("gpu-0", "maintenance") == 1
    assert host.untaint("gpu-0", "") == 0


def test_those_who_hold_a_device_are_told_of_its_taint(host: Workloads) -> None:
    simulate(host.home, parse_world("1", model="H100"))
    row = host.create(parse_spec({"gpu": 1}))
    host.taint("gpu-0", Taint("maintenance", effect="NoExecute"))
    assert [event.kind for event in host.events(row.id)][-1] == "lease.tainted"
    assert host.sandbox(row.id).state == "running"


def test_an_unhealthy_card_is_tainted_by_itself(host: Workloads) -> None:
    simulate(host.home, parse_world("2", model="H100", unhealthy="0=Xid 79"))
    assert names(host, host.create(parse_spec({"claim": claim(exactly())})).id) == ["gpu-1"]
    with pytest.raises(Busy) as caught:
        host.create(parse_spec({"claim": claim(exactly())}))
    assert "Xid 79" in str(caught.value)


def test_those_who_hold_a_device_that_breaks_are_told_once(host: Workloads) -> None:
    simulate(host.home, parse_world("2", model="H100"))
    row = host.create(parse_spec({"device": "sim.dibs/gpu=0"}))
    simulate(host.home, parse_world("2", model="H100", unhealthy="0=Xid 79"))
    for _ in range(2):
        host.devices()
    told = [event.detail for event in host.events(row.id) if event.kind == "lease.unhealthy"]
    assert len(told) == 1
    assert "Xid 79" in told[0]
    assert [event.kind for event in host.events() if event.kind == "lease.unhealthy"] == ["lease.unhealthy"]


def test_where_narrows_a_short_form(host: Workloads) -> None:
    simulate(host.home, parse_world("H100:4,L4:4"))
    numa = 'device.attributes["resource.kubernetes.io"].numaNode == 1'
    assert names(host, host.create(parse_spec({"gpu": "2", "where": numa})).id) == ["gpu-4", "gpu-5"]
    assert names(host, host.create(parse_spec({"where": f"{NVIDIA}.index == 3"})).id) == ["gpu-3"]
    with pytest.raises(NoMatch):
        host.create(parse_spec({"gpu": "H100:1", "where": numa}))


@pytest.mark.parametrize(
    ("mapping", "words"),
    [
        ({"where": "device.driver =="}, "1:17"),
        ({"where": "nonsense == 1"}, "undeclared"),
        ({"where": "device.driver"}, "bool"),
        ({"where": ""}, "not an expression"),
        ({"where": "x" * 20000}, "10"),
        ({"claim": {"devices": {"requests": []}}}, "asks for no device"),
        ({"claim": {"devices": {"requests": [{"name": "A"}]}}}, "claim.spec.devices.requests[0].name"),
        ({"claim": {"devicez": {}}}, "devicez"),
        ({"claim": "text"}, "not a claim"),
        ({"claim": claim(exactly(adminAccess=True))}, "adminAccess"),
        ({"claim": claim(exactly(), config=[{"opaque": {"driver": "gpu.nvidia.com", "parameters": {}}}])}, "config"),
        ({"claim": claim(exactly()), "gpu": 1}, "stands alone"),
        ({"where": "true", "device": "sim.dibs/gpu=0"}, "exact already"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_its_place(mapping: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_spec(mapping)
    assert words in str(caught.value)


def test_an_expression_that_fails_names_the_device(host: Workloads) -> None:
    simulate(host.home, parse_world("2", model="H100"))
    with pytest.raises(InvalidRequest) as caught:
        host.create(parse_spec({"where": f"{NVIDIA}.nosuch == 1"}))
    assert "gpu-0" in str(caught.value)
    assert "no such key: nosuch" in str(caught.value)
    assert host.sandboxes() == []


def test_claims_wait_in_the_same_queue(host: Workloads) -> None:
    simulate(host.home, parse_world("1", model="H100"))
    held = host.create(parse_spec({"gpu": 1, "ttl": "1s", "grace": "0s"}))
    row = host.create(parse_spec({"claim": claim(exactly()), "wait": "60s"}))
    assert names(host, row.id) == ["gpu-0"]
    assert host.sandbox(held.id).state == "exited"


def test_a_claim_is_printed_back_and_read_again(host: Workloads) -> None:
    request = parse_spec({"claim": claim(exactly(2))}).resources
    assert parse_spec(request.short()).resources == request
    narrowed = parse_spec({"gpu": 2, "where": ["true", "1 == 1"]}).resources
    assert parse_spec(narrowed.short()).resources == narrowed


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".", "A", "x" * 80])
def test_a_kept_claim_cannot_lead_out_of_its_folder(home: Home, name: str) -> None:
    from dibs.workloads import claims as kept_claims

    outside = home.config / "x.yaml"
    outside.parent.mkdir(parents=True, exist_ok=True)
    outside.write_text("precious")
    with pytest.raises(InvalidRequest):
        kept_claims.forget(home, name)
    with pytest.raises(InvalidRequest):
        kept_claims.keep(home, name, claim(exactly()))
    assert outside.read_text() == "precious"


def test_a_claim_is_kept_used_and_forgotten(host: Workloads) -> None:
    from dibs.errors import NotFound
    from dibs.workloads import claims as kept_claims

    whole = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "p"}}
    kept_claims.keep(host.home, "pair", {**whole, "spec": claim(exactly(2))})
    assert kept_claims.kept(host.home) == ["pair"]
    assert parse_spec({"claim": kept_claims.load(host.home, "pair")}).resources.claim == claim(
        {"name": "gpu", "exactly": {"deviceClassName": "gpu", "count": 2}}
    )
    with pytest.raises(InvalidRequest):
        kept_claims.keep(host.home, "wrong", {**whole, "spec": {"devices": {"requests": [{"name": "x"}]}}})
    kept_claims.forget(host.home, "pair")
    with pytest.raises(NotFound):
        kept_claims.load(host.home, "pair")


def test_only_the_owner_or_root_touches_a_sandbox(host: Workloads) -> None:
    from dibs.backends.port import Exec
    from dibs.errors import Conflict
    from dibs.workloads.identity import Identity

    row = host.create(parse_spec({}))
    owner = host
    host = host.seen_by(Identity(name="somebody", uid=row.uid + 1, sees_all=True))
    for touch in (
        lambda: host.stop(row.id),
        lambda: host.pause(row.id),
        lambda: host.exec(row.id, Exec(command=("true",))),
        lambda: host.copy_out(row.id, "/etc"),
        lambda: host.logs(row.id),
    ):
        with pytest.raises(Conflict) as caught:
            touch()
        assert caught.value.code == "NOT_YOURS"
    assert host.sandbox(row.id).state == "running"
    root = owner.seen_by(Identity(name="root", uid=0, sees_all=True, owns_all=True))
    assert root.stop(row.id, 0.0).state == "exited"
