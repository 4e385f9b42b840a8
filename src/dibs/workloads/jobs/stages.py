"""In which order the replicated jobs of a JobSet run, and what its policies say of their ends. Pure.

`check` refuses by name what a JobSet, or a Job, asks for that only a cluster can do.

A **stage** is what runs at the same time. Its ranks are booked in one transaction, and the next one begins when all of
the stage has succeeded: initialisers, then the trainer. A replicated job that no other waits for belongs to the last
stage. So a job never holds devices while it waits for more, and two jobs cannot stand in each other's way.

Within a stage, ranks are started in **waves**: what `dependsOn: Ready` or `startupPolicy: InOrder` puts later is
started after what comes before it runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from dibs.train.names import DEFAULT_MANAGER
from dibs.train.refusals import Refusals

Json = dict[str, Any]
Verdict = Literal["restart", "fail"]

# Of a JobSet and its Jobs: what is used here, and what every job without a cluster has anyway.
_JOBSET: Final = frozenset(
    ("replicatedJobs", "suspend", "network", "startupPolicy", "successPolicy", "failurePolicy",
     "ttlSecondsAfterFinished")
)  # fmt: skip
_REPLICATED: Final = frozenset(("name", "groupName", "replicas", "template", "dependsOn"))
_JOB: Final = frozenset(
    ("template", "parallelism", "completions", "completionMode", "backoffLimit", "suspend", "podReplacementPolicy")
)
_RESTARTS_OF_ONE: Final = ("RestartJob", "RestartJobAndIgnoreMaxRestarts")


def check(job: Json, jobset: Json, found: Refusals) -> None:
    """Refuse what a TrainJob, its JobSet and its Jobs ask for, beside their pods, and only a cluster can do."""
    if (manager := job["spec"].get("managedBy", DEFAULT_MANAGER)) != DEFAULT_MANAGER:
        found.invalid("spec.managedBy", manager, "there is no such controller without a cluster", "leave it out")
    spec = jobset["spec"]
    _refuse_others(spec, _JOBSET, "spec", found)
    for number, rule in enumerate(spec.get("failurePolicy", {}).get("rules", [])):
        path = f"spec.failurePolicy.rules[{number}]"
        if rule["action"] in _RESTARTS_OF_ONE:
            text = "the ranks of a job are started again together, never some of them"
            found.invalid(f"{path}.action", rule["action"], text, "use RestartJobSet or FailJobSet")
        if patterns := rule.get("onJobFailureMessagePatterns"):
            text = "without a cluster there are no messages of Jobs to compare"
            found.invalid(f"{path}.onJobFailureMessagePatterns", patterns, text, "leave it out")
    for number, replicated in enumerate(spec["replicatedJobs"]):
        path = f"spec.replicatedJobs[{number}]"
        _refuse_others(replicated, _REPLICATED, path, found)
        own = replicated["template"]["spec"]
        _refuse_others(own, _JOB, f"{path}.template.spec", found)
        if (mode := own.get("completionMode", "Indexed")) != "Indexed":
            found.invalid(f"{path}.template.spec.completionMode", mode, "every rank has an index", "leave it out")


def _refuse_others(value: Json, known: frozenset[str], path: str, found: Refusals) -> None:
    for field in sorted(set(value) - known):
        if value[field] not in (None, [], {}, "", False):
            remedy = "leave it out, or run the job on a cluster"
            found.invalid(f"{path}.{field}", value[field], "a job without a cluster cannot give this", remedy)


def stage_of(jobset: Json) -> dict[str, int]:
    """The stage of each replicated job, from 0."""
    jobs: list[Json] = jobset["spec"]["replicatedJobs"]
    known = {job["name"] for job in jobs}
    after: dict[str, list[str]] = {name: [] for name in known}  # the stages that wait for its completion
    for job in jobs:
        for one in job.get("dependsOn", []):
            if one.get("status") == "Complete" and one["name"] in known:
                after[one["name"]].append(job["name"])
    below: dict[str, int] = {}

    def height(name: str, seen: tuple[str, ...] = ()) -> int:
        if name not in below:
            later = [one for one in after[name] if one not in (*seen, name)]
            below[name] = max((1 + height(one, (*seen, name)) for one in later), default=0)
        return below[name]

    last = max((height(name) for name in known), default=0)
    return {name: last - height(name) for name in known}


def wave_of(jobset: Json) -> dict[str, int]:
    """When each replicated job is started within its stage, from 0."""
    jobs: list[Json] = jobset["spec"]["replicatedJobs"]
    if jobset["spec"].get("startupPolicy", {}).get("startupPolicyOrder") == "InOrder":
        return {job["name"]: number for number, job in enumerate(jobs)}
    ready = {
        job["name"]: [one["name"] for one in job.get("dependsOn", []) if one.get("status") == "Ready"] for job in jobs
    }
    found: dict[str, int] = {}

    def wave(name: str, seen: tuple[str, ...] = ()) -> int:
        if name not in found:
            before = [one for one in ready.get(name, []) if one in ready and one not in (*seen, name)]
            found[name] = max((1 + wave(one, (*seen, name)) for one in before), default=0)
        return found[name]

    return {name: wave(name) for name in ready}


def max_restarts(jobset: Json) -> int:
    """How often the whole group may be started again. A rank is never started again alone, so `backoffLimit`, where a
    runtime sets one, counts for the group."""
    said = jobset["spec"].get("failurePolicy", {}).get("maxRestarts")
    if said is not None:
        return int(said)
    limits = [job["template"]["spec"].get("backoffLimit") for job in jobset["spec"]["replicatedJobs"]]
    return max((int(one) for one in limits if one is not None), default=0)


def on_failure(jobset: Json, failed: str, restarts: int) -> tuple[Verdict, bool]:
    """What follows when a rank of the replicated job `failed` has failed, and whether it counts as a restart."""
    policy: Json = jobset["spec"].get("failurePolicy", {})
    for rule in policy.get("rules", []):
        targets = rule.get("targetReplicatedJobs") or [failed]
        reasons = rule.get("onJobFailureReasons") or ["BackoffLimitExceeded"]
        if failed not in targets or "BackoffLimitExceeded" not in reasons:
            continue
        if rule["action"] == "FailJobSet":
            return "fail", False
        if rule["action"] == "RestartJobSetAndIgnoreMaxRestarts":
            return "restart", False
        break
    return ("restart", True) if restarts < max_restarts(jobset) else ("fail", False)


def succeeded(jobset: Json, stage: int, ended_well: Mapping[str, Sequence[bool]]) -> bool:
    """Whether a stage is over. `ended_well`: for each of its replicated jobs, whether each rank has succeeded."""
    stages = stage_of(jobset)
    if stage < max(stages.values()):
        return all(all(done) for done in ended_well.values())
    policy: Json = jobset["spec"].get("successPolicy", {})
    targets = policy.get("targetReplicatedJobs") or list(ended_well)
    done = [all(ended_well[name]) for name in targets if name in ended_well]
    if not done:
        return all(all(one) for one in ended_well.values())
    return any(done) if policy.get("operator") == "Any" else all(done)
