"""Which devices a request gets, and what it is told when it gets none."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dibs.cdi.spec import ContainerEdits
from dibs.claims import whole_devices
from dibs.claims.failures import GaveUp
from dibs.claims.whole_devices import choose
from dibs.devices.model import CdiAttachment, Device, ExternalUse, Health, Inventory, SourceError, UnitId
from dibs.devices.names import ALL_OF_HOST
from dibs.errors import Busy, DibsError, InvalidRequest, NoMatch, NotFound, Unhealthy, Unsupported
from dibs.ledger.rows import Holder, LeaseId
from dibs.plan.decision import DevicePlan, Refusal, World
from dibs.plan.devices import assign, plan_devices
from dibs.plan.explanation import Fate
from dibs.request import parse_request
from dibs.sandbox import SandboxId

GIB = 1 << 30


def gpu(index: int, model: str = "NVIDIA H100 80GB HBM3", memory: int = 81559 << 20, **more: object) -> Device:
    device = Device(
        driver="gpu.nvidia.com",
        pool="host",
        name=f"gpu-{index}",
        vendor="nvidia",
        model=model,
        uuid=f"GPU-{index}",
        index=index,
        attributes={"type": "gpu", "productName": model},
        capacity={"memory": memory},
        aliases=(f"nvidia.com/gpu={index}",),
        attachment=CdiAttachment(f"nvidia.com/gpu={index}", ContainerEdits()),
    )
    return msgspec.structs.replace(device, **more)


def world(*devices: Device, held: tuple[int, ...] = (), ahead: tuple[str, ...] = (), now: float = 100.0) -> World:
    holder = Holder(LeaseId("ls-1"), SandboxId("sb-1"), "train", "anna", 40.0, "attached")
    holders: dict[str, Holder] = {unit: holder for index in held for unit in devices[index].booked_units}
    return World(Inventory(devices), holders, tuple(parse_request({"gpu": text}) for text in ahead), now)


def chosen(gpu_text: object, where: World) -> list[str]:
    decision = plan_devices(parse_request({"gpu": gpu_text}), where)
    assert isinstance(decision, DevicePlan), decision
    return [device.name for device in decision.devices]


def refused(gpu_text: object, where: World) -> Refusal:
    decision = plan_devices(parse_request({"gpu": gpu_text}), where)
    assert isinstance(decision, Refusal), decision
    return decision


@pytest.mark.parametrize(
    ("errors", "told"),
    [
        ((), "no GPU was found on this host"),
        (
            (SourceError("nvml", "no permission"), SourceError("cdi", "a.json is damaged")),
            "no GPU was found on this host (nvml: no permission; cdi: a.json is damaged)",
        ),
    ],
)
def test_without_any_gpu_the_sources_that_could_not_be_read_are_reported(
    errors: tuple[SourceError, ...], told: str
) -> None:
    decision = refused(1, World(Inventory((), errors), {}, (), 100.0))
    assert [problem.reason for problem in decision.problems] == [told]


def test_the_first_free_devices_are_chosen_in_order() -> None:
    assert chosen(2, world(*map(gpu, range(4)), held=(0,))) == ["gpu-1", "gpu-2"]


def test_all_is_resolved_to_the_list_of_free_ones() -> None:
    assert chosen("all", world(*map(gpu, range(4)), held=(2,))) == ["gpu-0", "gpu-1", "gpu-3"]


def test_two_selectors_are_served_in_either_order() -> None:
    where = world(gpu(0), gpu(1, "NVIDIA L4", 24 * GIB))
    assert chosen(["1", "H100"], where) == ["gpu-0", "gpu-1"]
    assert chosen(["H100", "1"], where) == ["gpu-0", "gpu-1"]


def test_a_held_device_is_refused_naming_holder_and_time() -> None:
    refusal = refused(2, world(gpu(0), gpu(1), held=(1,)))
    assert refusal.waitable
    assert refusal.error == "Busy"
    assert "gpu-1 held by train (anna) for 1m00s" in refusal.problems[0].reason
    assert "--wait" in refusal.problems[0].remedy


def test_the_nearest_miss_is_reported() -> None:
    refusal = refused("H100:80Gi..", world(gpu(0), gpu(1, "NVIDIA L4", 24 * GIB)))
    assert not refusal.waitable
    assert "nearest miss: gpu-0, 79.65Gi < 80Gi" in refusal.problems[0].reason


def test_of_two_that_are_too_small_the_larger_is_the_nearer_miss() -> None:
    where = world(gpu(0, "NVIDIA L4", 24 * GIB), gpu(1), gpu(2, "NVIDIA L4", 24 * GIB))
    assert "nearest miss: gpu-1, 79.65Gi < 80Gi" in refused("80Gi..90Gi", where).problems[0].reason


def test_of_two_that_are_too_large_the_smaller_is_the_nearer_miss() -> None:
    where = world(gpu(0), gpu(1, "NVIDIA L4", 24 * GIB))
    assert "nearest miss: gpu-1, 24Gi > 20Gi" in refused("10Gi..20Gi", where).problems[0].reason


def test_a_part_that_was_not_asked_for_says_how_to_ask_for_it() -> None:
    verdicts = refused("3", world(*parts(0, 2))).selectors[0].verdicts
    assert [verdict.reason for verdict in verdicts][1:] == ["a part; to get parts, ask by memory: ..10GB"] * 2


@pytest.mark.parametrize(
    ("asked", "kind"),
    [
        ({"gpu": 2}, Busy),
        ({"gpu": 3}, Unhealthy),
        ({"gpu": 4}, Unsupported),
        ({"gpu": 5}, NoMatch),
        ({"device": "gpu-9"}, NotFound),
    ],
)
def test_a_refusal_is_raised_as_what_the_caller_can_do_about_it(
    asked: dict[str, object], kind: type[DibsError]
) -> None:
    where = world(gpu(0), gpu(1), gpu(2, health=Health(ok=False, reason="Xid 79")), gpu(3, attachment=None), held=(1,))
    decision = plan_devices(parse_request(asked), where)
    assert isinstance(decision, Refusal)
    error = decision.to_error()
    assert type(error) is kind
    assert error.problems == decision.problems
    assert decision.waitable is (kind is Busy)


def test_many_reasons_are_listed_up_to_four_and_the_rest_is_counted() -> None:
    where = world(*(gpu(n, health=Health(ok=False, reason=f"Xid {n}")) for n in range(6)))
    assert refused(1, where).problems[0].reason.endswith("gpu-2 Xid 2; gpu-3 Xid 3; and 2 more")
    alike = world(*(gpu(n, health=Health(ok=False, reason="Xid 1")) for n in range(6)))
    assert refused(1, alike).problems[0].reason.endswith("gpu-0, gpu-1, gpu-2, gpu-3 and 2 more Xid 1")


def test_an_unhealthy_device_is_passed_over_and_named_when_it_is_needed() -> None:
    where = world(gpu(0, health=Health(ok=False, reason="Xid 79")), gpu(1))
    assert chosen(1, where) == ["gpu-1"]
    refusal = refused(2, where)
    assert refusal.error == "Unhealthy"
    assert "Xid 79" in refusal.problems[0].reason


def test_a_card_used_outside_dibs_is_not_given_away_unless_asked() -> None:
    where = world(gpu(0, used_by=(ExternalUse(4711, "bob", "python"),)))
    refusal = refused(1, where)
    assert "python (pid 4711, bob)" in refusal.problems[0].reason
    assert "--allow-busy" in refusal.problems[0].remedy
    decision = plan_devices(parse_request({"gpu": 1, "allow_busy": True}), where)
    assert isinstance(decision, DevicePlan)


def test_a_device_that_cannot_be_attached_says_why() -> None:
    refusal = refused(1, world(gpu(0, attachment=None, unattachable="its node is gone")))
    assert refusal.error == "Unsupported"
    assert "its node is gone" in refusal.problems[0].reason


def test_no_gpu_at_all_points_to_the_doctor() -> None:
    refusal = refused(1, world())
    assert refusal.error == "NoMatch"
    assert "dibs doctor" in refusal.problems[0].remedy


def test_an_exact_device_is_found_by_every_name() -> None:
    where = world(gpu(0), gpu(1))
    for name in ("nvidia.com/gpu=1", "GPU-1", "gpu-1", "gpu.nvidia.com/host/gpu-1"):
        decision = plan_devices(parse_request({"device": name}), where)
        assert isinstance(decision, DevicePlan)
        assert [device.name for device in decision.devices] == ["gpu-1"]


def test_an_unknown_exact_device_is_refused_with_what_there_is() -> None:
    decision = plan_devices(parse_request({"device": "nvidia.com/gpu=9"}), world(gpu(0)))
    assert isinstance(decision, Refusal)
    assert decision.problems[0].code == "DEVICE_NOT_FOUND"
    assert "nvidia.com/gpu=0" in decision.problems[0].remedy


def test_first_come_first_served() -> None:
    where = world(gpu(0), gpu(1), ahead=("1",))
    assert chosen(1, where) == ["gpu-1"]
    refusal = refused(2, where)
    assert "number 1 in the queue waits for it" in refusal.problems[0].reason


def test_a_large_request_in_front_is_not_starved_by_small_ones_behind() -> None:
    where = world(gpu(0), gpu(1), held=(0,), ahead=("2",))
    assert refused(1, where).waitable


def test_a_request_for_other_devices_may_pass() -> None:
    where = world(gpu(0), gpu(1, "NVIDIA L4", 24 * GIB), held=(0,), ahead=("H100",))
    assert chosen("L4", where) == ["gpu-1"]


def parts(index: int, count: int) -> list[Device]:
    card = gpu(index, units=tuple(UnitId(f"gpu-{index}/{n}") for n in range(count)))
    return [card] + [
        gpu(
            100 * index + n,
            memory=10 * GIB,
            name=f"gpu-{index}-part-{n}",
            units=(UnitId(f"gpu-{index}/{n}"),),
            parent=card.id,
            attributes={"type": "mig", "productName": "NVIDIA H100 80GB HBM3"},
        )
        for n in range(count)
    ]


def test_a_part_is_given_only_to_who_asks_for_less_than_a_card() -> None:
    where = world(*parts(0, 2), *parts(1, 2))
    assert chosen(1, where) == ["gpu-0"]
    assert chosen("10GB:1", where) == ["gpu-0-part-0"]
    assert chosen("..20GB:3", where) == ["gpu-0-part-0", "gpu-0-part-1", "gpu-1-part-0"]


def test_a_part_excludes_its_card_and_a_card_its_parts() -> None:
    devices = [*parts(0, 2), *parts(1, 2)]
    assert chosen(1, world(*devices, held=(1,))) == ["gpu-1"]
    assert chosen("10GB:2", world(*devices, held=(0,))) == ["gpu-1-part-0", "gpu-1-part-1"]
    assert refused(2, world(*devices, held=(1,))).waitable


def test_a_card_that_was_joined_while_a_part_of_it_is_held_is_not_given_away() -> None:
    card, other = gpu(0), gpu(1)
    holder = Holder(LeaseId("ls-1"), SandboxId("sb-1"), "train", "anna", 40.0, "attached")
    where = World(Inventory((card, other)), {f"{card.id}#0": holder}, now=100.0)
    assert chosen(1, where) == ["gpu-1"]
    assert "gpu-0 held by train (anna)" in refused(2, where).problems[0].reason


def test_a_card_that_was_cut_while_it_is_held_is_not_given_away_in_parts() -> None:
    devices = parts(0, 2)
    holder = Holder(LeaseId("ls-1"), SandboxId("sb-1"), "train", "anna", 40.0, "attached")
    where = World(Inventory(tuple(devices)), {devices[0].id: holder}, now=100.0)
    assert refused("10GB", where).error == "Busy"
    assert refused(1, where).error == "Busy"


def test_two_parts_give_way_to_the_only_card_that_fits() -> None:
    """Moving one device at a time does not find it: both parts of the card are in the way."""
    one, two = parts(0, 2), parts(1, 2)
    found = assign([(2, [*one[1:], *two[1:]]), (1, [one[0]])])
    assert found is not None
    assert [[device.name for device in group] for group in found] == [["gpu-1-part-0", "gpu-1-part-1"], ["gpu-0"]]


def overlapping() -> st.SearchStrategy[list[list[Device]]]:
    devices = [*parts(0, 2), *parts(1, 3), gpu(7)]
    some = st.sets(st.integers(0, len(devices) - 1)).map(lambda found: [devices[n] for n in sorted(found)])
    return st.lists(some, min_size=3, max_size=3)


@given(st.lists(st.integers(1, 3), min_size=1, max_size=3), overlapping(), st.integers(0, 30))
def test_a_choice_is_complete_and_takes_no_unit_twice_however_short_the_patience(
    wants: list[int], candidates: list[list[Device]], patience: int
) -> None:
    devices = {device.id: device for fitting in candidates for device in fitting}
    places = {name: place for place, name in enumerate(devices)}
    asked = [(want, sorted(places[d.id] for d in fitting)) for want, fitting in zip(wants, candidates, strict=False)]
    try:
        result = choose([device.booked_units for device in devices.values()], asked, budget=patience)
    except GaveUp:
        return
    if result is not None:
        assert [len(group) for group in result] == wants
        units = [unit for group in result for at in group for unit in list(devices.values())[at].booked_units]
        assert len(units) == len(set(units))
        for selector, group in enumerate(result):
            assert all(at in asked[selector][1] for at in group)


def test_a_search_that_gives_up_is_reported_and_does_not_count_as_a_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole_devices.choose, "__kwdefaults__", {"budget": 3})
    refusal = refused(["1", "..20GB:2"], world(*parts(0, 2), gpu(5)))
    assert [problem.code for problem in refusal.problems] == ["CLAIM_GAVE_UP"]
    assert "gave up after 3 steps" in refusal.problems[0].reason
    assert not refusal.waitable
    assert isinstance(refusal.to_error(), InvalidRequest)


def test_devices_that_an_earlier_part_did_not_see_keep_their_order_in_the_search() -> None:
    cards = [gpu(index) for index in range(5)]
    found = assign([(1, [cards[1]]), (1, cards[2:]), (2, [cards[0], cards[2]])])
    assert found is not None
    assert [[device.index for device in group] for group in found] == [[1], [3], [0, 2]]


def test_a_whole_card_gives_way_to_its_own_parts() -> None:
    card, *both = parts(0, 2)
    assert assign([(2, [card, *both])]) == [both]


def test_more_devices_than_a_stored_claim_can_have_are_given() -> None:
    where = world(*(gpu(n, "NVIDIA L4", 24 * GIB) for n in range(40)), *map(gpu, range(40, 44)))
    assert len(chosen(["41", "3"], where)) == 44
    assert len(chosen(["..24GB:1", "40", "H100:3"], where)) == 44


def test_each_part_of_a_request_is_said_to_have_the_devices_that_it_gets() -> None:
    decision = plan_devices(parse_request({"gpu": ["1", "H100"]}), world(gpu(0), gpu(1, "NVIDIA L4", 24 * GIB)))
    fates = [[verdict.fate for verdict in selector.verdicts] for selector in decision.selectors]
    assert fates == [[Fate.TAKEN, Fate.CHOSEN], [Fate.CHOSEN, Fate.NO_MATCH]]


def test_all_that_may_be_parts_takes_a_card_or_its_parts_and_not_both() -> None:
    assert chosen("..100GB:all", world(*parts(0, 2), gpu(5))) == ["gpu-0", "gpu-5"]
    assert chosen("..100GB:all", world(*parts(0, 2), held=(1,))) == ["gpu-0-part-1"]


def test_a_whole_card_gives_way_to_a_part_in_whatever_order_they_are_asked() -> None:
    where = world(*parts(0, 2), gpu(5))
    assert chosen(["1", "..20GB"], where) == ["gpu-0-part-0", "gpu-5"]
    assert chosen(["..20GB", "1"], where) == ["gpu-0-part-0", "gpu-5"]


def test_the_explanation_has_a_verdict_for_every_device() -> None:
    where = world(gpu(0), gpu(1), gpu(2, "NVIDIA L4", 24 * GIB), held=(1,))
    decision = plan_devices(parse_request({"gpu": "H100"}), where)
    assert isinstance(decision, DevicePlan)
    fates = {v.device.rpartition("/")[2]: v.fate for v in decision.selectors[0].verdicts}
    assert fates == {"gpu-0": Fate.CHOSEN, "gpu-1": Fate.BUSY, "gpu-2": Fate.NO_MATCH}


@given(
    st.lists(st.integers(1, 3), min_size=1, max_size=3),
    st.lists(st.sets(st.integers(0, 5)), min_size=3, max_size=3),
)
def test_assignment_succeeds_exactly_when_one_exists(wants: list[int], fitting: list[set[int]]) -> None:
    devices = [gpu(index) for index in range(6)]
    candidates = [[devices[i] for i in sorted(fitting[selector])] for selector in range(len(wants))]

    def possible(selector: int, used: frozenset[int]) -> bool:
        if selector == len(wants):
            return True
        import itertools

        free = sorted(fitting[selector] - used)
        return any(possible(selector + 1, used | set(c)) for c in itertools.combinations(free, wants[selector]))

    result = assign(list(zip(wants, candidates, strict=True)))
    assert (result is not None) == possible(0, frozenset())
    if result is not None:
        flat = [device.id for group in result for device in group]
        assert len(flat) == len(set(flat)) == sum(wants)
        for selector, group in enumerate(result):
            assert all(device in candidates[selector] for device in group)


@pytest.mark.parametrize("text", ["1", "2", "all", "H100:2", "10GB:2"])
def test_planning_twice_gives_the_same(text: str) -> None:
    where = world(*parts(0, 2), *parts(1, 2), gpu(7, "NVIDIA L4", 24 * GIB))
    assert plan_devices(parse_request({"gpu": text}), where) == plan_devices(parse_request({"gpu": text}), where)


def test_a_card_that_is_just_too_small_in_exact_units_is_offered_by_the_size_on_its_box() -> None:
    (problem,) = refused("80Gi..", world(gpu(0))).problems
    assert "--gpu 80GB..:1" in problem.remedy
    (problem,) = refused("160Gi..", world(gpu(0))).problems
    assert "GB.." not in problem.remedy


def test_the_beginning_of_a_uuid_names_a_device_if_only_one_begins_so() -> None:
    there = world(gpu(0, uuid="GPU-aaaa1111"), gpu(1, uuid="GPU-aaaa2222"))
    decision = plan_devices(parse_request({"device": "gpu-AAAA2"}), there)
    assert isinstance(decision, DevicePlan)
    assert [device.name for device in decision.devices] == ["gpu-1"]
    for name, code in (
        ("GPU-aaaa", "DEVICE_AMBIGUOUS"),
        ("GPU-aaa", "DEVICE_NOT_FOUND"),
        ("GPU-b", "DEVICE_NOT_FOUND"),
    ):
        decision = plan_devices(parse_request({"device": name}), there)
        assert isinstance(decision, Refusal)
        assert [problem.code for problem in decision.problems] == [code]


def test_a_mig_profile_takes_parts_of_that_profile_only() -> None:
    whole = gpu(0, units=(UnitId("u0"), UnitId("u1")))
    parts = [
        gpu(0, name=f"part-{n}", parent=whole.id, units=(UnitId(f"u{n}"),), memory=10 << 30,
            attributes={"type": "mig", "productName": "NVIDIA H100 80GB HBM3", "profile": profile})
        for n, profile in enumerate(("1g.10gb", "2g.20gb"))
    ]  # fmt: skip
    there = world(whole, *parts)
    assert chosen("1g.10gb", there) == ["part-0"]
    assert chosen("H100:2G.20GB", there) == ["part-1"]
    assert chosen("1", there) == ["gpu-0"]
    assert "is not 3g.40gb" in refused("3g.40gb", there).problems[0].reason


def test_a_refusal_names_what_each_waiting_selector_needs() -> None:
    where = world(gpu(0), gpu(1, "NVIDIA L4", 24 * GIB), held=(0, 1))
    refusal = refused(["H100", "L4"], where)
    assert refusal.waitable
    assert len(refusal.problems) == 2
    assert refusal.waits_for == "; ".join(problem.reason for problem in refusal.problems)


@pytest.mark.parametrize(
    ("selectors", "cards", "held", "error", "reason"),
    [
        (["2", "1"], 2, (), "NoMatch", "3 wanted in all, 2 free GPUs fit"),
        (["2", "1"], 3, (2,), "Busy", "3 wanted in all, 2 free GPUs fit"),
        (["2", "1"], 4, (2, 3), "Busy", "3 wanted in all, 2 free GPUs fit"),
        (["all", "1"], 1, (), "NoMatch", "2 wanted in all, 1 free GPUs fit"),
    ],
)
def test_selectors_that_fit_alone_but_not_together_are_counted_together(
    selectors: list[str], cards: int, held: tuple[int, ...], error: str, reason: str
) -> None:
    refusal = refused(selectors, world(*map(gpu, range(cards)), held=held))
    assert (refusal.error, refusal.waitable) == (error, error == "Busy")
    (problem,) = refusal.problems
    assert problem.reason == refusal.waits_for == reason
    assert problem.code == ("DEVICES_BUSY" if error == "Busy" else "NO_MATCHING_DEVICE")


def test_a_refusal_counts_cards_and_their_parts() -> None:
    assert refused("2", world(*parts(0, 2))).problems[0].reason.startswith("1 of 1 GPU and 2 parts fits, 2 wanted")
    assert refused("3", world(gpu(0), gpu(1))).problems[0].reason == "2 of 2 GPUs fit, 3 wanted"


def test_the_nearest_miss_is_the_one_with_the_least_in_its_way() -> None:
    """Farthest first: another vendor, unknown memory, another model, a part, another size."""
    far_to_near = [
        gpu(0, vendor="amd"),
        gpu(1, capacity={}),
        gpu(2, "NVIDIA L4", 24 * GIB),
        gpu(3, memory=90 * GIB, parent=gpu(9).id),
        gpu(4, memory=70 * GIB),
    ]
    for number, nearest in enumerate(far_to_near):
        reason = refused("nvidia:H100:80GB..", world(*far_to_near[: number + 1])).problems[0].reason
        assert f"nearest miss: {nearest.name}, " in reason


def test_cards_that_a_platform_gives_only_together_are_said_to_be_one() -> None:
    refusal = refused(2, world(gpu(0, ALL_OF_HOST)))
    (problem,) = refusal.problems
    assert problem.code == "NO_MATCHING_DEVICE"
    assert "gives only together" in problem.reason
    assert problem.remedy == "ask for 1 to get all of them"
