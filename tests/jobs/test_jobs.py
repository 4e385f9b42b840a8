"""A job from its submission to its end: all ranks or none, stages, policies, what its user wants of it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests import needs
from tests.jobs.submitting import Json, driven, objects, options, removed, replicated, row_of, runtime, submitted

from dibs.backends.local.backend import LocalBackend
from dibs.backends.port import Handle
from dibs.errors import BackendUnavailable, Conflict, InvalidRequest, NoMatch, NotFound
from dibs.home import Home
from dibs.request import parse_spec
from dibs.settings import Quota, Settings
from dibs.workloads.identity import Identity
from dibs.workloads.jobs.model import Job
from dibs.workloads.jobs.service import Jobs
from dibs.workloads.reconcile import handle_of
from dibs.workloads.registry import Registry
from dibs.workloads.service import Workloads


@pytest.fixture
def jobs(service: Workloads) -> Iterator[Jobs]:
    found = Jobs(service)
    yield found
    for job in found.list():
        removed(service, job)


def devices(job: Job) -> list[list[str]]:
    return [[name.rpartition("/")[2] for name in rank.devices] for rank in job.ranks]


def said(jobs: Jobs, job: Job) -> dict[str, str]:
    found: dict[str, str] = {}
    for one in jobs.logs(job.id):
        found[one.rank] = found.get(one.rank, "") + one.record.data.decode()
    return found


def test_every_rank_has_its_own_devices_and_knows_its_place(service: Workloads, jobs: Jobs) -> None:
    script = "echo $DIBS_JOB $DIBS_RANK of $DIBS_NODES: $DIBS_GPU_COUNT"
    job = driven(service, submitted(service, objects(["sh", "-c", script], nodes=3, gpus=2)))
    assert (job.state, [rank.phase for rank in job.ranks]) == ("complete", ["Succeeded"] * 3)
    assert devices(job) == [["gpu-0", "gpu-1"], ["gpu-2", "gpu-3"], ["gpu-4", "gpu-5"]]
    assert said(jobs, job) == {f"demo-node-0-{rank}": f"demo {rank} of 3: 2\n" for rank in range(3)}
    assert [(one.type, one.status, one.reason) for one in job.status.conditions] == [
        ("Complete", "True", "AllJobsCompleted")
    ]
    assert service.leases() == []


def test_a_job_that_can_never_be_had_is_refused_and_nothing_is_written(service: Workloads, jobs: Jobs) -> None:
    with pytest.raises(NoMatch):
        submitted(service, objects(nodes=3, gpus=3))
    assert jobs.list() == ()


def test_what_each_backend_would_say_to_a_job_is_explained_and_nothing_is_written(
    service: Workloads, jobs: Jobs
) -> None:
    [now] = jobs.explain(objects(nodes=2, gpus=4), options())
    assert (now.backend, now.verdict, now.waits_for, now.problems) == ("local", "can", "", ())
    driven(service, submitted(service, objects(name="first", nodes=3, gpus=2)), "running")
    [later] = jobs.explain(objects(nodes=2, gpus=2), options())
    assert later.verdict == "waits"
    assert "2 free, 4 wanted" in later.waits_for
    [never] = jobs.explain(objects(nodes=3, gpus=3), options())
    assert (never.verdict, [one.code for one in never.problems]) == ("cannot", ["NO_MATCHING_DEVICE"])
    assert [one.backend for one in jobs.explain(objects(), options(backend="auto"))] == list(service.registry.order)
    assert [job.name for job in jobs.list()] == ["first"]
    assert service.queue() == []


def test_a_job_that_cannot_be_had_now_waits_as_a_whole(service: Workloads, jobs: Jobs) -> None:
    first = driven(service, submitted(service, objects(name="first", nodes=3, gpus=2)), "running")
    second = submitted(service, objects(["true"], name="second", nodes=2, gpus=2))
    looks = iter(range(3))
    second = _looked(service, second, looks)
    assert second.state == "queued"
    assert "2 free, 4 wanted" in second.status.waits_for
    assert [ticket.sandbox_id for ticket in service.queue()] == [second.id]
    assert len(service.sandboxes()) == 3
    removed(service, first)
    assert driven(service, second).state == "complete"
    assert service.queue() == []


def test_a_large_job_in_front_is_not_starved_by_small_ones_that_came_later(service: Workloads, jobs: Jobs) -> None:
    """Two cards are free, and a job of one fits; they are kept for the one that came first and needs all."""
    holder = driven(service, submitted(service, objects(name="holder", nodes=3, gpus=2)), "running")
    large = _looked(service, submitted(service, objects(["true"], name="large", nodes=4, gpus=2)), iter(range(3)))
    small = _looked(service, submitted(service, objects(["true"], name="small", nodes=1, gpus=1)), iter(range(3)))
    assert (large.state, small.state) == ("queued", "queued")
    assert [ticket.sandbox_id for ticket in service.queue()] == [large.id, small.id]
    removed(service, holder)
    small = _looked(service, small, iter(range(3)))
    assert small.state == "queued"  # all eight are free, and it is not its turn
    large = driven(service, large, "running")
    assert sum(len(rank.devices) for rank in large.ranks) == 8
    assert driven(service, large).state == "complete"
    assert driven(service, small).state == "complete"


def test_two_jobs_that_each_need_more_than_half_never_hold_a_part_of_it(service: Workloads, jobs: Jobs) -> None:
    """Both wait for the same cards; whichever is served has all of its own, and the other none."""
    holder = driven(service, submitted(service, objects(name="holder", nodes=1, gpus=4)), "running")
    until_told = ["sh", "-c", "until [ -e go ]; do sleep 0.05; done"]
    one = _looked(service, submitted(service, objects(until_told, name="one", nodes=3, gpus=2)), iter(range(3)))
    two = _looked(service, submitted(service, objects(["true"], name="two", nodes=3, gpus=2)), iter(range(3)))
    assert len(service.leases()) == 1
    removed(service, holder)
    one = driven(service, one, "running")
    two = _looked(service, two, iter(range(3)))
    assert (one.state, two.state) == ("running", "queued")
    assert not any(rank.devices for rank in two.ranks)
    Path("go").touch()
    assert [driven(service, job).state for job in (one, two)] == ["complete", "complete"]


def _looked(service: Workloads, job: Job, looks: Iterator[int]) -> Job:
    from dibs.workloads.jobs.driver import Driver

    Driver(service, row_of(service, job), idle=lambda _: None).run(lambda: next(looks, None) is None)
    return Jobs(service).get(job.id)


def test_initialisers_come_before_the_trainer_and_share_a_volume_with_it(service: Workloads, jobs: Jobs) -> None:
    volume: Json = {"volumes": [{"name": "initializer", "persistentVolumeClaim": {"claimName": "data"}}]}
    mount: Json = {"volumeMounts": [{"name": "initializer", "mountPath": "/tmp/data"}]}
    made = runtime(
        replicated("dataset-initializer", "dataset-initializer", pod=volume,
                   command=["sh", "-c", "echo $STORAGE_URI > /tmp/data/set; echo fetched"], **mount),
        replicated(pod=volume, depends={"name": "dataset-initializer", "status": "Complete"}, **mount),
    )  # fmt: skip
    what = objects(
        ["sh", "-c", "cat /tmp/data/set"], runtime=made, initializer={"dataset": {"storageUri": "hf://team/set"}}
    )
    job = driven(service, submitted(service, what))
    assert job.state == "complete", job.status.conditions
    assert [(rank.step, rank.phase, len(rank.devices)) for rank in job.ranks] == [
        ("dataset-initializer", "Succeeded", 0), ("trainer", "Succeeded", 1), ("trainer", "Succeeded", 1),
    ]  # fmt: skip
    assert job.ranks[0].ended_at is not None
    assert job.ranks[1].started_at is not None
    assert job.ranks[0].ended_at <= job.ranks[1].started_at
    assert said(jobs, job)["demo-node-0-1"] == "hf://team/set\n"


def test_when_a_rank_fails_the_others_are_ended_and_the_job_says_which(service: Workloads, jobs: Jobs) -> None:
    script = "test $DIBS_RANK = 1 && exit 3; sleep 1000"
    job = driven(service, submitted(service, objects(["sh", "-c", script], trainer={})))
    assert job.state == "failed"
    assert [rank.phase for rank in job.ranks] == ["Stopped", "Failed"]
    failed = job.condition("Failed")
    assert failed is not None
    assert (failed.reason, failed.message) == (
        "FailedJobs",
        "rank demo-node-0-1 failed: exit code 3",
    )
    assert service.leases() == []


# One rank listens, and the other is to join it there.
MEET = """
import os, socket, sys
server = socket.create_server(("127.0.0.1", int(os.environ["PET_MASTER_PORT"])))
server.settimeout(1)
try:
    server.accept()
except TimeoutError:
    sys.exit("rank 1 has not joined")
"""


def test_a_rank_that_never_joins_ends_the_job_when_the_others_give_up(service: Workloads, jobs: Jobs) -> None:
    script = f"test $PET_NODE_RANK = 1 && exec sleep 1000; exec python3 -c '{MEET}'"
    made = runtime(policy={"torch": {}, "numNodes": 1})
    job = driven(service, submitted(service, objects(["sh", "-c", script], runtime=made)))
    assert (job.state, [rank.phase for rank in job.ranks]) == ("failed", ["Failed", "Stopped"])
    failed = job.condition("Failed")
    assert failed is not None
    assert failed.message == "rank demo-node-0-0 failed: exit code 1"
    assert said(jobs, job)["demo-node-0-0"] == "rank 1 has not joined\n"
    assert (service.leases(), service.sandboxes()) == ([], [])


@pytest.mark.parametrize("restarts", [0, 1])
def test_a_node_that_is_killed_takes_the_others_with_it_or_all_begin_again(
    service: Workloads, jobs: Jobs, restarts: int
) -> None:
    script = "test -e again && exit 0; sleep 1000"
    made = runtime(failurePolicy={"maxRestarts": restarts})
    job = driven(service, submitted(service, objects(["sh", "-c", script], nodes=3, runtime=made)), "running")
    row = service.sandbox(job.ranks[1].sandbox_id)
    init = handle_of(row).init
    assert init is not None
    Path("again").touch()
    os.kill(init.pid, signal.SIGKILL)
    job = driven(service, job)
    assert (service.leases(), service.sandboxes()) == ([], [])
    if restarts:
        assert (job.state, job.status.attempt, job.status.restarts) == ("complete", 2, 1)
        return
    assert (job.state, [rank.phase for rank in job.ranks]) == ("failed", ["Stopped", "Failed", "Stopped"])
    failed = job.condition("Failed")
    assert failed is not None
    assert failed.message == "rank demo-node-0-1 failed: killed by signal 9"


def test_a_failure_policy_restarts_the_whole_group(service: Workloads, jobs: Jobs, tmp_path: Path) -> None:
    made = runtime(failurePolicy={"maxRestarts": 2})
    script = f"echo $DIBS_RANK >> {Path.cwd()}/ran; test $DIBS_RANK = 0 && sleep 1000; exit 1"
    job = driven(service, submitted(service, objects(["sh", "-c", script], runtime=made)))
    assert (job.state, job.status.restarts, job.status.attempt) == ("failed", 2, 3)
    assert sorted((Path.cwd() / "ran").read_text().split()) == ["0"] * 3 + ["1"] * 3
    assert len(list(service.sandboxes())) == 0


def test_a_job_succeeds_when_its_target_does(service: Workloads, jobs: Jobs) -> None:
    made = runtime(
        replicated("side", "", command=["sleep", "1000"]), replicated(),
        successPolicy={"operator": "All", "targetReplicatedJobs": ["node"]},
    )  # fmt: skip
    job = driven(service, submitted(service, objects(["true"], nodes=1, runtime=made)))
    assert (job.state, {rank.job: rank.phase for rank in job.ranks}) == (
        "complete", {"side": "Stopped", "node": "Succeeded"},
    )  # fmt: skip


def test_suspend_gives_the_devices_back_and_resume_runs_it_again(service: Workloads, jobs: Jobs) -> None:
    what = objects(["sh", "-c", f"echo x >> {Path.cwd()}/ran; sleep 1000"], nodes=2)
    job = driven(service, submitted(service, what), "running")
    jobs.suspend(job.id)
    job = driven(service, job)
    assert (job.state, service.leases(), [rank.phase for rank in job.ranks]) == ("suspended", [], ["Pending"] * 2)
    jobs.resume(job.id)
    job = driven(service, job, "running")
    assert [rank.phase for rank in job.ranks] == ["Running"] * 2
    resumed = job.condition("Suspended")
    assert resumed is not None
    assert (resumed.status, resumed.reason) == ("False", "Resumed")


def test_a_job_submitted_suspended_holds_nothing_until_it_is_resumed(service: Workloads, jobs: Jobs) -> None:
    job = driven(service, submitted(service, objects(["true"], suspend=True)))
    assert (job.state, service.sandboxes(all=True)) == ("suspended", [])
    jobs.resume(job.id)
    assert driven(service, job).state == "complete"


def test_a_deadline_ends_the_job(service: Workloads, jobs: Jobs) -> None:
    job = driven(service, submitted(service, objects(activeDeadlineSeconds=1)))
    failed = job.condition("Failed")
    assert failed is not None
    assert (job.state, failed.reason, failed.message) == (
        "failed", "DeadlineExceeded", "TrainJob exceeded its active deadline",
    )  # fmt: skip
    assert service.leases() == []


def test_a_removed_job_leaves_nothing(service: Workloads, jobs: Jobs, eight_gpus: Home) -> None:
    job = driven(service, submitted(service, objects()), "running")
    removed(service, job)
    assert (jobs.list(), service.leases(), service.sandboxes()) == ((), [], [])


def test_claims_per_rank_are_allocated_together(service: Workloads, jobs: Jobs) -> None:
    template = {
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": "two"},
        "spec": {"spec": {"devices": {"requests": [
            {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": 2}}]}}},
    }  # fmt: skip
    claims = {"ResourceClaimTemplate": {"two": template}}
    trainer = {"resourceClaimsPerNode": [{"name": "gpu", "resourceClaimTemplateName": "two"}]}
    what = objects(["sh", "-c", "echo $DIBS_GPU_COUNT"], nodes=4, gpus=0, trainer=trainer, claims=claims)
    job = driven(service, submitted(service, what))
    assert job.state == "complete", job.status.conditions
    used = [name for rank in devices(job) for name in rank]
    assert len(used) == len(set(used)) == 8
    with pytest.raises(NoMatch):
        submitted(service, objects(name="more", nodes=5, gpus=0, trainer=trainer, claims=claims))


@pytest.mark.parametrize(
    ("pod", "container", "path"),
    [
        ({"nodeSelector": {"zone": "a"}}, {}, "nodeSelector"),
        ({}, {"lifecycle": {"preStop": {"exec": {"command": ["true"]}}}}, "containers[node].lifecycle"),
        ({}, {"envFrom": [{"secretRef": {"name": "s"}}]}, "containers[node].envFrom"),
        ({}, {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]}, "env[A]"),
        ({"volumes": [{"name": "v", "configMap": {"name": "other"}}]},
         {"volumeMounts": [{"name": "v", "mountPath": "/v"}]}, "volumes[v]"),
        ({}, {"securityContext": {"privileged": True}}, "securityContext.privileged"),
        ({}, {"resources": {"limits": {"example.com/fpga": 1}}}, "limits[example.com/fpga]"),
        ({"initContainers": [{"name": "i", "image": "img:1"}]}, {}, "initContainers"),
        ({}, {"resources": {"requests": {"cpu": "2"}}}, "requests[cpu]"),
        ({}, {"resources": {"requests": {"memory": "1Gi"}, "limits": {"cpu": 1}}}, "requests[memory]"),
        ({}, {"resources": {"requests": {"memory": "1Gi"}, "limits": {"memory": "2Gi"}}}, "requests[memory]"),
        ({}, {"resources": {"requests": {"ephemeral-storage": "1Gi"}}}, "requests[ephemeral-storage]"),
        ({"activeDeadlineSeconds": 60}, {}, "activeDeadlineSeconds"),
        ({}, {"ports": [{"containerPort": 80, "hostPort": 8080}]}, "ports[80].hostPort"),
        ({"volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1Gi"}}]},
         {"volumeMounts": [{"name": "v", "mountPath": "/v"}]}, "volumes[v].emptyDir.sizeLimit"),
    ],
)  # fmt: skip
def test_what_only_a_cluster_can_do_is_refused_by_name(
    service: Workloads, jobs: Jobs, pod: Json, container: Json, path: str
) -> None:
    made = runtime(replicated(pod=pod, **container))
    with pytest.raises(InvalidRequest) as caught:
        submitted(service, objects(runtime=made, gpus=0))
    assert any(path in problem.field for problem in caught.value.problems), caught.value.problems
    assert jobs.list() == ()


@pytest.mark.parametrize(
    ("jobset", "own", "path"),
    [
        ({"coordinator": {"replicatedJob": "node"}}, {}, "spec.coordinator"),
        ({"volumeClaimPolicies": [{"templates": []}]}, {}, "spec.volumeClaimPolicies"),
        ({"managedBy": "acme.io/c"}, {}, "spec.managedBy"),
        ({"failurePolicy": {"rules": [{"name": "r", "action": "RestartJob"}]}}, {}, "rules[0].action"),
        ({"failurePolicy": {"rules": [
            {"name": "r", "action": "FailJobSet", "onJobFailureMessagePatterns": ["disk.*"]}]}}, {},
         "rules[0].onJobFailureMessagePatterns"),
        ({}, {"activeDeadlineSeconds": 60}, "replicatedJobs[0].template.spec.activeDeadlineSeconds"),
        ({}, {"ttlSecondsAfterFinished": 60}, "replicatedJobs[0].template.spec.ttlSecondsAfterFinished"),
        ({}, {"backoffLimitPerIndex": 1}, "replicatedJobs[0].template.spec.backoffLimitPerIndex"),
        ({}, {"podFailurePolicy": {"rules": [{"action": "Ignore", "onPodConditions": [
            {"type": "DisruptionTarget", "status": "True"}]}]}}, "replicatedJobs[0].template.spec.podFailurePolicy"),
        ({}, {"completionMode": "NonIndexed"}, "replicatedJobs[0].template.spec.completionMode"),
    ],
)  # fmt: skip
def test_what_only_the_jobs_of_a_cluster_do_is_refused_by_name(
    service: Workloads, jobs: Jobs, jobset: Json, own: Json, path: str
) -> None:
    one = replicated()
    one["template"]["spec"] |= own
    with pytest.raises(InvalidRequest) as caught:
        submitted(service, objects(runtime=runtime(one, **jobset), gpus=0))
    assert [problem.field.endswith(path) for problem in caught.value.problems] == [True], caught.value.problems
    assert jobs.list() == ()


def test_another_manager_of_the_job_is_refused_by_name(service: Workloads, jobs: Jobs) -> None:
    with pytest.raises(InvalidRequest) as caught:
        submitted(service, objects(managedBy="kueue.x-k8s.io/multikueue"))
    assert [problem.field for problem in caught.value.problems] == ["spec.managedBy"]


def test_two_live_jobs_cannot_have_one_name(service: Workloads, jobs: Jobs) -> None:
    job = submitted(service, objects(["true"]))
    with pytest.raises(Conflict) as caught:
        submitted(service, objects(["true"]))
    assert caught.value.code == "NAME_TAKEN"
    driven(service, job)
    again = submitted(service, objects(["true"]))
    assert jobs.get("demo").id == again.id
    driven(service, again)
    with pytest.raises(Conflict):
        Jobs(service).submit(objects(["true"]), options(), alone=True)


def test_a_watcher_is_told_of_every_change_and_of_the_end(service: Workloads, jobs: Jobs) -> None:
    changes = jobs.watch(timeout=30)
    job = submitted(service, objects(["true"]))
    assert (first := next(changes)).kind == "ADDED"
    assert first.job.id == job.id
    driven(service, job)
    assert (second := next(changes)).kind == "MODIFIED"
    assert second.job.state == "complete"
    jobs.delete(job.id)
    assert (third := next(changes)).kind == "DELETED"
    assert third.job.id == job.id


def test_a_receipt_for_every_rank_and_one_for_the_job(service: Workloads, jobs: Jobs) -> None:
    job = submitted(service, objects(["true"]))
    with pytest.raises(NotFound):
        jobs.receipt(job.id)
    job = driven(service, job)
    receipt = jobs.receipt(job.id)
    assert (list(receipt.ranks), receipt.missing, receipt.simulated) == (
        ["demo-node-0-0", "demo-node-0-1"], (), True,
    )  # fmt: skip


def test_a_request_that_says_what_its_limit_says_is_delivered(service: Workloads, jobs: Jobs) -> None:
    needs.limits()
    resources = {"limits": {"memory": "1Gi"}, "requests": {"memory": 1 << 30}}
    backend, plan = jobs.check(objects(trainer={"resourcesPerNode": resources}, gpus=0), options())
    assert (backend.name, plan.ranks[0].spec.resources.memory_bytes) == ("local", 1 << 30)


def test_an_ended_job_does_not_keep_the_environment_of_its_submitter(service: Workloads, jobs: Jobs) -> None:
    secret = {"PATH": "/usr/bin:/bin", "TOKEN": "s3cret"}
    what = objects(["sh", "-c", "test ${#TOKEN} = 6"], nodes=1)
    job = jobs.submit(what, msgspec.structs.replace(options(), base_env=secret))
    assert b"s3cret" in row_of(service, job).spec  # any process may have to go on with it
    job = driven(service, job)
    assert job.state == "complete", job.status.conditions
    assert b"s3cret" not in row_of(service, job).spec
    assert job.spec.options.base_env == {}
    assert job.spec.objects == what


def test_a_queued_job_that_its_quota_holds_back_holds_up_no_other_tenant(eight_gpus: Home) -> None:
    settings = Settings(tenants={"acme": Quota(sandboxes=2)})
    with Workloads(eight_gpus, registry=Registry(eight_gpus, settings)) as whole:
        acme, other = (whole.seen_by(Identity(name="t", uid=os.getuid(), tenant=name)) for name in ("acme", "other"))
        mine = acme.create(parse_spec({"gpu": 1, "command": ["sleep", "1000"]}))
        job = Jobs(acme).submit(objects(nodes=2, gpus=3), options())
        job = _looked(acme, job, iter(range(3)))
        assert (job.state, job.status.waits_for) == ("queued", 'the tenant "acme" holds 1 of 2 (sandboxes)')
        theirs = other.create(parse_spec({"gpu": 4, "command": ["sleep", "1000"]}))
        assert theirs.state == "running"
        for service, row in ((acme, mine), (other, theirs)):
            service.remove(row.id, 0.0)
        removed(acme, job)


def test_what_an_unreachable_engine_keeps_of_an_old_attempt_is_reported_and_removed_later(
    service: Workloads, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = runtime(failurePolicy={"maxRestarts": 2})
    delete = LocalBackend.delete
    failed: list[str] = []

    def away(self: LocalBackend, handle: Handle) -> None:
        if not failed:
            failed.append(handle.sandbox_id)
            raise BackendUnavailable("it went for a walk", code="ENGINE_UNREACHABLE")
        delete(self, handle)

    monkeypatch.setattr(LocalBackend, "delete", away)
    job = driven(service, submitted(service, objects(["false"], nodes=1, runtime=made)))
    told = [event.detail for event in jobs.events(job.id) if event.kind == "job.leftover"]
    assert told == [f"sandbox {failed[0]}: it went for a walk"]
    assert (service.home.state / f"late-{os.getuid()}" / failed[0]).exists()
