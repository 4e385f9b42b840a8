"""Groups: all or none, created together, proved together, started together; and what happens when one fails."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from dibs.backends.fake import FakeBackend
from dibs.backends.fake.cluster import FakeCluster
from dibs.backends.port import Exit, Output
from dibs.devices.model import Device
from dibs.errors import BackendUnavailable, Busy, Conflict, InvalidRequest, NoMatch, Problem
from dibs.home import Home
from dibs.ledger.rows import Share
from dibs.plan.decision import DevicePlan
from dibs.request import parse_request
from dibs.request.spec import SandboxSpec, parse_spec
from dibs.workloads.booking import divide
from dibs.workloads.groups import launch_group
from dibs.workloads.identity import Identity
from dibs.workloads.reconcile import reconcile
from dibs.workloads.service import Workloads

SLEEP = {"command": ["sleep", "1000"], "grace": "0s"}


def on_fake(gpus: int = 1, **more: object) -> SandboxSpec:
    return parse_spec({"gpu": gpus, "backend": "fake", **SLEEP, **more})


def fake(service: Workloads) -> FakeBackend:
    backend = service.registry.get("fake")
    assert isinstance(backend, FakeBackend)
    return backend


def test_each_member_has_devices_of_its_own_and_knows_its_rank(service: Workloads) -> None:
    group = launch_group(service, on_fake(2, name="job"), 3, foreground=False)
    rows = [member.row for member in group.members]
    assert [(row.name, row.state, row.group, row.rank) for row in rows] == [
        (f"job-{rank}", "running", group.id, rank) for rank in range(3)
    ]
    cards = [device.id for lease in service.leases() for device in lease.devices]
    assert len(cards) == len(set(cards)) == 6
    for rank, row in enumerate(rows):
        env = fake(service)._find(row.id).workload.env
        assert (env["DIBS_GROUP"], env["DIBS_RANK"], env["DIBS_NODES"]) == (group.id, str(rank), "3")
        service.remove(row.id, 0.0)


def test_they_are_created_before_any_is_proved_and_proved_before_any_is_started(service: Workloads) -> None:
    group = launch_group(service, on_fake(), 3, foreground=False)
    steps = [verb for verb, _ in fake(service).calls if verb in ("create", "observe", "start")]
    assert steps == ["create"] * 3 + ["observe"] * 3 + ["start"] * 3
    for member in group.members:
        service.remove(member.row.id, 0.0)


@pytest.mark.parametrize("verb", ["create", "observe", "start"])
def test_a_backend_works_on_all_of_them_at_once(service: Workloads, monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    all_here = threading.Barrier(3, timeout=60)
    real = getattr(FakeBackend, verb)

    def waits_for_the_others(*args: object) -> object:
        all_here.wait()
        return real(*args)

    monkeypatch.setattr(FakeBackend, verb, waits_for_the_others)
    group = launch_group(service, on_fake(), 3, foreground=False)
    assert [member.row.state for member in group.members] == ["running"] * 3
    for member in group.members:
        service.remove(member.row.id, 0.0)


@pytest.mark.parametrize(("size", "gpus"), [(3, 3), (9, 1)])
def test_a_group_that_does_not_fit_changes_nothing(service: Workloads, size: int, gpus: int) -> None:
    with pytest.raises(NoMatch):
        launch_group(service, on_fake(gpus), size)
    assert service.sandboxes(all=True) == []


def test_a_group_for_which_some_are_missing_gets_none(service: Workloads) -> None:
    held = service.create(on_fake(3))
    with pytest.raises(Busy) as caught:
        launch_group(service, on_fake(2), 3)
    assert "5 free, 6 wanted" in caught.value.problems[0].reason
    assert [row.id for row in service.sandboxes(all=True)] == [held.id]
    service.remove(held.id, 0.0)


def test_members_of_several_selectors_each_get_all_of_them(home: Home) -> None:
    from dibs.devices.simulated import parse_world, simulate

    simulate(home, parse_world("H100:4,A100-80GB:4"))
    with Workloads(home) as service:
        spec = parse_spec({"gpu": ["A100:1", "H100:2"], "backend": "fake", **SLEEP})
        group = launch_group(service, spec, 2, foreground=False)
        for lease in service.leases():
            assert sorted("A100" in device.model for device in lease.devices) == [False, False, True]
        for member in group.members:
            service.remove(member.row.id, 0.0)


@pytest.mark.parametrize("verb", ["create", "observe", "start"])
@pytest.mark.parametrize("before", [0, 1, 2])
def test_if_one_cannot_be_made_none_is(service: Workloads, verb: str, before: int) -> None:
    backend = fake(service)
    real, done = getattr(backend, verb), []

    def sometimes(*args: object) -> object:
        done.append(1)
        if len(done) == before + 1:
            raise BackendUnavailable("no", field="backend", value="fake")
        return real(*args)

    setattr(backend, verb, sometimes)
    with pytest.raises(BackendUnavailable):
        launch_group(service, on_fake(2), 3, foreground=False)
    assert service.sandboxes() == []
    assert service.leases() == []
    assert backend._sandboxes == {}
    assert {row.state for row in service.sandboxes(all=True)} == {"failed"}


@pytest.mark.parametrize(
    ("words", "size", "field"),
    [
        ({"gpu": "all"}, 2, "gpu"),
        ({"device": "nvidia.com/gpu=0"}, 2, "device"),
        ({"tty": True}, 2, "tty"),
        ({"interactive": True}, 2, "interactive"),
        ({"gpu": 1}, 0, "nodes"),
        ({"gpu": 1}, 65, "nodes"),
        ({"publish": ["8080:80"]}, 2, "publish"),
        ({"gpu": 1, "name": "n" * 61}, 11, "name"),
    ],
)
def test_what_cannot_be_said_of_a_group_is_refused(
    service: Workloads, words: dict[str, object], size: int, field: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        launch_group(service, parse_spec({**SLEEP, **words}), size)
    assert [(problem.code, problem.field) for problem in caught.value.problems] == [("GROUP_INVALID", field)]


def test_a_cluster_is_refused_because_it_places_one_by_one(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIBS_FAKE_CLUSTER", FakeCluster.make(str(tmp_path / "cluster.db")).path)
    with Workloads(home) as service:
        with pytest.raises(InvalidRequest) as caught:
            launch_group(service, on_fake(backend="fake-cluster"), 2)
        assert [(one.code, one.field) for one in caught.value.problems] == [("GROUP_INVALID", "backend")]
        assert service.sandboxes(all=True) == []


def test_a_name_that_is_taken_refuses_the_whole_group(service: Workloads) -> None:
    held = service.create(on_fake(name="job-1"))
    with pytest.raises(Conflict):
        launch_group(service, on_fake(name="job"), 2)
    assert [row.id for row in service.sandboxes(all=True)] == [held.id]
    service.remove(held.id, 0.0)


def test_a_device_that_is_taken_before_the_start_ends_all_of_them(
    service: Workloads, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []

    def taken(*_: object, **__: object) -> list[Problem]:
        looks.append(1)
        return [Problem("DEVICES_BUSY", "gpu", "1", "a container has taken it")] if len(looks) == 2 else []

    monkeypatch.setattr("dibs.workloads.delivery.taken_meanwhile", taken)
    with pytest.raises(Busy):
        launch_group(service, on_fake(), 3, foreground=False)
    assert [verb for verb, _ in fake(service).calls if verb == "start"] == []
    assert (service.sandboxes(), service.leases()) == ([], [])


def test_a_group_waits_as_one_and_is_served_as_one(service: Workloads) -> None:
    held = service.create(on_fake(4))
    seen: list[str] = []

    def waiting(news: object) -> None:
        [ticket] = service.ledger.tickets()
        seen.append(ticket.request.decode())
        if service.sandbox(held.id).live:
            service.remove(held.id, 0.0)

    group = launch_group(service, on_fake(2, wait="60s"), 3, foreground=False, on_wait=waiting)
    assert '"count":6' in seen[0]
    assert len(group.members) == 3
    for member in group.members:
        service.remove(member.row.id, 0.0)


def test_groups_that_each_need_most_of_the_cards_take_turns(eight_gpus: Home, tmp_path: Path) -> None:
    """Six of eight each: two of them never hold half of what they need and wait for the other half."""
    words = [sys.executable, "-m", "dibs", "run", "-q", "--nodes", "3", "--gpu", "2", "--wait", "10m", "--", "true"]
    env = {**os.environ, "DIBS_HOME": str(eight_gpus.state)}
    running = [subprocess.Popen(words, env=env, cwd=tmp_path, stderr=subprocess.PIPE) for _ in range(4)]
    ended = [(one.communicate()[1], one.returncode) for one in running]
    assert ended == [(b"", 0)] * 4
    with Workloads(eight_gpus) as service:
        assert service.leases() == []
        assert service.queue() == []


# -- when one fails ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["end", "continue"])
def test_when_one_fails_and_its_maker_is_gone_the_policy_decides(
    service: Workloads, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = launch_group(service, on_fake(2), 3, foreground=False, policy=policy)  # type: ignore[arg-type]
    first, *others = [member.row for member in group.members]
    fake(service).finish(first.id, 1)
    reconcile(service.ledger, service.registry)
    assert [service.sandbox(row.id).state for row in others] == ["running", "running"], "its maker is there"
    monkeypatch.setattr("dibs.sandbox.absent", lambda _: True)
    reconcile(service.ledger, service.registry)
    assert {service.sandbox(row.id).live for row in others} == {policy == "continue"}
    for row in others:
        service.remove(row.id, 0.0)
    assert service.leases() == []


def test_members_that_are_ended_get_their_grace(service: Workloads, monkeypatch: pytest.MonkeyPatch) -> None:
    group = launch_group(service, on_fake(grace="5s"), 2, foreground=False)
    monkeypatch.setattr("dibs.sandbox.absent", lambda _: True)
    fake(service).finish(group.members[0].row.id, 1)
    reconcile(service.ledger, service.registry)
    ended = service.sandbox(group.members[1].row.id).exit
    assert ended is not None
    assert ended.signal == 15


def test_the_groups_of_other_users_are_left_to_them(service: Workloads, monkeypatch: pytest.MonkeyPatch) -> None:
    group = launch_group(service, on_fake(), 2, foreground=False)
    monkeypatch.setattr("dibs.sandbox.absent", lambda _: True)
    another = Identity(name="eve", uid=os.getuid() + 1, sees_all=True)
    monkeypatch.setattr("dibs.workloads.group_policy.this_process", lambda: another)
    fake(service).finish(group.members[0].row.id, 1)
    reconcile(service.ledger, service.registry)
    assert service.sandbox(group.members[1].row.id).state == "running"
    service.remove(group.members[1].row.id, 0.0)


def test_members_that_end_well_end_no_other(service: Workloads, monkeypatch: pytest.MonkeyPatch) -> None:
    group = launch_group(service, on_fake(1), 2, foreground=False)
    monkeypatch.setattr("dibs.sandbox.absent", lambda _: True)
    fake(service).finish(group.members[0].row.id, 0)
    reconcile(service.ledger, service.registry)
    assert service.sandbox(group.members[1].row.id).state == "running"
    service.remove(group.members[1].row.id, 0.0)


def test_a_session_of_each_hears_its_own_member(service: Workloads) -> None:
    spec = parse_spec({"gpu": 1, "backend": "local", "command": ["sh", "-c", "echo $DIBS_RANK"]})
    group = launch_group(service, spec, 2)
    for rank, member in enumerate(group.members):
        assert member.session is not None
        said, ended = b"", None
        while ended is None:
            for item in member.session.receive():
                said += item.data if isinstance(item, Output) else b""
                ended = item if isinstance(item, Exit) else ended
        member.session.close()
        assert (said, ended.code) == (f"{rank}\n".encode(), 0)
        service.settle(member.row.id)


# -- kill -9 ----------------------------------------------------------------------------------------------------------

POINTS = [
    ("after", "ledger", "reserve", 1),
    ("after", "ledger", "reserve", 2),
    ("before", "backend", "create", 1),
    ("after", "backend", "create", 1),
    ("after", "backend", "create", 2),
    ("after", "backend", "observe", 1),
    ("after", "backend", "observe", 2),
    ("before", "ledger", "attach", 1),
    ("after", "ledger", "attach", 1),
    ("after", "ledger", "attach", 2),
    ("before", "backend", "start", 1),
    ("after", "backend", "start", 1),
    ("after", "backend", "start", 2),
]

SCRIPT = """
import itertools, os, signal, sys, threading
from dibs.backends.local.backend import LocalBackend
from dibs.ledger.store import Ledger
from dibs.request import parse_spec
from dibs.workloads.groups import launch_group
from dibs.workloads.service import Workloads
when, where, verb, count = sys.argv[1:5]
kind = LocalBackend if where == "backend" else Ledger
real, calls = getattr(kind, verb), itertools.count(1)
done = threading.Semaphore(0)
def deadly(*args, **kwargs):
    mine = next(calls)  # members are made at the same time
    if mine < int(count):
        found = real(*args, **kwargs)
        done.release()
        return found
    if when == "after":
        real(*args, **kwargs)
        for _ in range(1, int(count)):
            done.acquire()
    os.kill(os.getpid(), signal.SIGKILL)
setattr(kind, verb, deadly)
spec = parse_spec({"gpu": 4, "grace": "0s", "backend": "local", "name": "job", "command": ["sleep", "1000"]})
launch_group(Workloads(), spec, 2, foreground=False)
"""


@pytest.mark.parametrize(("when", "where", "verb", "count"), POINTS)
def test_a_maker_that_dies_leaves_all_or_nothing(
    eight_gpus: Home, tmp_path: Path, when: str, where: str, verb: str, count: int
) -> None:
    """In the background, so that what runs already would run on."""
    words = [sys.executable, "-c", SCRIPT, when, where, verb, str(count)]
    env = {**os.environ, "DIBS_HOME": str(eight_gpus.state)}
    result = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert result.returncode == -9, result.stderr
    with Workloads(eight_gpus) as service:
        if (when, verb) == ("after", "start"):
            # They are started at once: by then both may run, and with the second they do. One never runs alone.
            reconcile(service.ledger, service.registry)
            running = [row for row in service.sandboxes() if row.state == "running"]
            assert len(running) == 2 or count == 1
            for row in running if len(running) == 2 else ():
                service.remove(row.id, 0.0)
        # All eight at once: they can only be had when nothing of the group is left.
        row = service.create(parse_spec({"gpu": 8, "wait": "60s", "backend": "local", **SLEEP}))
        assert [other.id for other in service.sandboxes()] == [row.id]
        service.remove(row.id, 0.0)
        assert service.leases() == []


def test_a_member_of_a_divided_plan_has_its_own_shares_only() -> None:
    first, second = (Device(driver="d", pool="p", name=name, vendor="", model="") for name in ("one", "two"))
    shares: dict[str, Share] = {
        device.id: Share(f"share-{number}", {"memory": number}) for number, device in enumerate((first, second))
    }
    plan = DevicePlan((first, second), (), shares, ((first.id,), (second.id,)))
    asked = parse_request({"gpu": 1})
    one, two = divide(plan, (asked, asked))
    assert (one.devices, dict(one.shares)) == ((first,), {first.id: shares[first.id]})
    assert (two.devices, dict(two.shares)) == ((second,), {second.id: shares[second.id]})
