"""A whole answer to "may this TrainJob, or this change of one, be?": read, defaulted, merged, judged.

The webhook and `dibs train validate` call it. It is what an API server, Kubeflow Trainer's webhooks and its controller
say together, at once: what upstream accepts first and reports later in an Event is refused here. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from dibs.train import admission, jobset
from dibs.train.facts import Facts
from dibs.train.objects import examined_job, examined_runtime
from dibs.train.refusals import Refusals
from dibs.train.rendering import Rendered, examined

Json = dict[str, Any]
Lookup = Callable[[str, str], Json | None]  # kind and name of a runtime; None: there is none

_PATCHES = "spec.runtimePatches"


class Review(msgspec.Struct, frozen=True):
    """`job`: as it would be stored. `by_schema`: whether the API server itself would refuse it."""

    job: Json
    refusals: Refusals
    warnings: tuple[str, ...] = ()
    rendered: Rendered | None = None
    by_schema: bool = False

    @property
    def allowed(self) -> bool:
        return not self.refusals


def review_job(
    value: object, lookup: Lookup, facts: Facts, *, old: Json | None = None, active: Sequence[str] = ()
) -> Review:
    """Judge a TrainJob. `old`: as stored, for a change. `active`: jobs of its JobSet that have running pods.

    `lookup` gives the snapshot where the job has one, so that a deleted or edited runtime changes nothing.
    """
    found = Refusals()
    job = examined_job(value, old, found)
    if found:
        return Review(job, found, by_schema=True)
    job = stamped(job, old, facts.now)
    reference = job["spec"]["runtimeRef"]
    runtime = lookup(reference["kind"], reference["name"])
    if not admission.check_reference(job, runtime, found) or runtime is None:
        return Review(job, found)
    rendered = examined(job, runtime, facts, found)
    if old is not None:
        _check_change(old, job, runtime, rendered, facts, active, found)
    return Review(job, found, rendered.warnings, rendered)


def review_runtime(value: object, *, old: Json | None = None) -> Review:
    """Judge a runtime of either kind."""
    found = Refusals()
    runtime = examined_runtime(value, old, found)
    if found:
        return Review(runtime, found, by_schema=True)
    admission.check_runtime(runtime, found)
    return Review(runtime, found, tuple(admission.runtime_warnings(runtime, referenced=False)))


def stamped(job: Json, old: Json | None, now: str) -> Json:
    """The job with a time on every patch: that of its last change."""
    before = {one["manager"]: one for one in (old or {}).get("spec", {}).get("runtimePatches", [])}
    if not job["spec"].get("runtimePatches"):
        return job
    patches = []
    for patch in job["spec"]["runtimePatches"]:
        earlier = before.get(patch["manager"])
        if earlier is not None and _untimed(earlier) == _untimed(patch):
            time = earlier.get("time", now)
        elif earlier is not None:
            time = now
        else:
            time = patch.get("time", now)
        patches.append({**patch, "time": time} if time else patch)
    return {**job, "spec": {**job["spec"], "runtimePatches": patches}}


def _untimed(patch: Json) -> Json:
    return {key: value for key, value in patch.items() if key != "time"}


def _check_change(
    old: Json, job: Json, runtime: Json, rendered: Rendered, facts: Facts, active: Sequence[str], found: Refusals
) -> None:
    before, after = old["spec"], job["spec"]
    patched = before.get("runtimePatches", []) != after.get("runtimePatches", [])
    if patched and not before["suspend"] and not after["suspend"]:
        text = "RuntimePatches can only be modified when the TrainJob is suspended before or after the update"
        found.forbidden(_PATCHES, text)
        return
    if patched and active:
        for name in active:
            text = f"RuntimePatches cannot be modified when the JobSet's ReplicatedJob {name} is still active"
            found.forbidden(_PATCHES, text)
        return
    earlier = examined(old, runtime, facts, Refusals())
    if not found and jobset.fixed_part(earlier.jobset) != jobset.fixed_part(rendered.jobset):
        changed = [key for key in sorted({*before, *after}) if before.get(key) != after.get(key) and key != "suspend"]
        for key in changed or ["runtimeRef"]:
            text = "the JobSet of this job exists, and does not let this be changed, suspended or not"
            found.forbidden(f"spec.{key}", text, "delete the TrainJob and create it again")


def conditions(job: Json, old: Json | None, jobset_conditions: Sequence[Json] = ()) -> list[Json]:
    """The conditions of a TrainJob's status, in upstream's words: suspended or resumed, then how the JobSet ended."""
    made: list[Json] = []
    if job["spec"]["suspend"]:
        made.append(_condition("Suspended", "True", "Suspended", "TrainJob is suspended"))
    elif old is not None and old["spec"]["suspend"]:
        made.append(_condition("Suspended", "False", "Resumed", "TrainJob is resumed"))
    renamed = {"Completed": "Complete", "Failed": "Failed"}
    for one in jobset_conditions:
        if one.get("type") in renamed and one.get("status") == "True":
            made.append(_condition(renamed[one["type"]], "True", one.get("reason", ""), one.get("message", "")))
    return made


def _condition(kind: str, status: str, reason: str, message: str) -> Json:
    return {"message": message, "reason": reason, "status": status, "type": kind}
