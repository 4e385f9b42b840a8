"""What the released Kubeflow Trainer made of a TrainJob against what is made of it here, as lines of differences.

The recorded cases and the differential test on a live control plane are compared in the same way. A case has a runtime,
a TrainJob and perhaps an update of it; an outcome has an error, or a JobSet with what goes with it.
"""

from __future__ import annotations

import copy
import json
import re
from typing import Any

import yaml

from dibs.train.facts import COSCHEDULING_CRD, VOLCANO_CRD, Facts, SshKey
from dibs.train.policies import XGBOOST_ENV
from dibs.train.refusals import Refusal
from dibs.train.review import Review, conditions, review_job, review_runtime

Json = dict[str, Any]

# What the cases refer to, but do not hold.
TWO_GPUS = {"name": "r0", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": 2}}
TEMPLATES = {name: {"spec": {"spec": {"devices": {"requests": [TWO_GPUS]}}}} for name in ("h100", "t")}
CLAIMS = {
    "shared-nic": {"spec": {"devices": {"requests": [{"name": "nic", "exactly": {"deviceClassName": "nic"}}]}}},
}
FACTS = Facts(
    templates=TEMPLATES,
    claims=CLAIMS,
    crds=frozenset((COSCHEDULING_CRD, VOLCANO_CRD)),
    ssh_key=SshKey("private", "public"),
    now="<time>",
)
UNCHECKED = "some validation rules were not checked"  # said by the API server beside errors that keep CEL from running
BYPASS = "trainer.kubeflow.org/webhook-validation"


def differences(case: Json, expected: Json, facts: Facts = FACTS) -> list[str]:
    """Each as a line: where, what they say, what is said here."""
    if "xgboost" in (case["runtime"] or {}).get("spec", {}).get("mlPolicy", {}) and expected.get("jobset"):
        expected = {**expected, "jobset": _env_last(expected["jobset"])}
    stage, review, earlier = _review(case, facts)
    error = expected.get("error")
    if error is not None:
        if not review.refusals:
            return [f"accepted, not refused: {error['message'][:80]}"]
        if error["on"] != stage:
            return [f"refused as {stage}, not as {error['on']}"]
        return _other_words(error, review)
    if review.refusals:
        return [f"refused: {refusal}"[:230] for refusal in review.refusals]
    if stage == "runtimeUpdate":
        return _unlike(_plain(expected["runtimeStored"]), _plain(review.job), "runtime")
    assert review.rendered is not None
    found = _unlike(_plain(expected["jobset"]), _plain(review.rendered.jobset), "jobset")
    others = [_companion(one) for one in review.rendered.objects if one["kind"] != "JobSet"]
    found += _unlike([_companion(one) for one in expected["others"]], others, "others")
    found += _unlike(_plain(expected["stored"]), _plain(review.job), "stored")
    own = [one for one in expected["conditions"] if one["type"] == "Suspended"]
    return found + _unlike(own, conditions(review.job, earlier), "conditions")


def _review(case: Json, facts: Facts) -> tuple[str, Review, Json | None]:
    runtime: Json | None = None
    if case["runtime"] is not None:
        review = review_runtime(case["runtime"])
        bypassed = case["runtime"]["metadata"].get("labels", {}).get(BYPASS) == "disabled"
        if review.refusals and (review.by_schema or not bypassed):
            return "runtime", review, None
        runtime = review.job
    if case["trainjob"] is None:
        return "runtimeUpdate", review_runtime(case["runtimeUpdate"], old=runtime), None

    def lookup(kind: str, name: str) -> Json | None:
        here = runtime is not None and (runtime["kind"], runtime["metadata"]["name"]) == (kind, name)
        return runtime if here else None

    created = review_job(_posted(case["trainjob"]), lookup, facts)
    if created.refusals or case["update"] is None:
        return "trainjob", created, None
    assert created.rendered is not None
    jobs = created.rendered.jobset["spec"]["replicatedJobs"]
    active = [] if created.job["spec"]["suspend"] else [job["name"] for job in jobs]
    return "update", review_job(_posted(case["update"]), lookup, facts, old=created.job, active=active), created.job


def _posted(job: Json) -> Json:
    return {**job, "metadata": {**job["metadata"], "namespace": "team-a", "uid": "u"}}


def _other_words(error: Json, review: Review) -> list[str]:
    if "causes" in error:
        theirs = sorted(
            f"{one['field']}: {one['message']}" for one in error["causes"] if UNCHECKED not in one["message"]
        )
        ours = sorted(f"{one.path or '<nil>'}: {one.message}" for one in review.refusals)
        return [] if theirs == ours else [f"other words: {line}"[:230] for line in ours]
    said = error["message"].partition("denied the request: ")[2]
    lines = [str(refusal) for refusal in review.refusals]
    if said == (f"[{', '.join(lines)}]" if len(lines) > 1 else lines[0]):
        return []
    both = zip(lines, review.refusals, strict=True)
    return [f"other words: {line}"[:230] for line, one in both if line not in said and not _same_value(one, said)]


def _same_value(one: Refusal, said: str) -> bool:
    """Whether they say the same of the same value, with its keys in another order."""
    head, tail = f"{one.path}: {one.error.kind}: ", f": {one.error.detail}"
    _, found, after = said.partition(head)
    try:
        return bool(found) and json.loads(after.partition(tail)[0]) == json.loads(one.error.value)
    except ValueError:
        return False


def _env_last(jobset: Json) -> Json:
    """With XGBoost's own variables behind those of the job, as dibs has them: upstream's order is random."""
    made = copy.deepcopy(jobset)
    for replicated in made["spec"]["replicatedJobs"]:
        for container in replicated["template"]["spec"]["template"]["spec"]["containers"]:
            if "env" in container:
                container["env"].sort(key=lambda one: one["name"] in XGBOOST_ENV)
    return made


def _companion(one: Json) -> Json:
    one = copy.deepcopy(one)
    if one["kind"] == "Secret":
        one["data"] = sorted(one.pop("stringData", None) or one["data"])
    elif isinstance(one.get("data", {}).get("runtime"), str):
        one["data"]["runtime"] = yaml.safe_load(one["data"]["runtime"])
    found: Json = _plain(one)
    return found


_EMPTY = ("status", "resources", "metadata", "annotations", "labels", "namespace", "hostNetwork")


def _plain(value: Any, *, amounts: bool = False) -> Any:
    """Without what Go's JSON adds or leaves out of itself; amounts as text."""
    if isinstance(value, dict):
        pairs = {key: _plain(item, amounts=amounts or key in ("limits", "requests")) for key, item in value.items()}
        return {key: item for key, item in pairs.items() if key != "uid" and (item or key not in _EMPTY)}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return str(value) if amounts and isinstance(value, int) else value


def _unlike(theirs: Any, ours: Any, path: str) -> list[str]:
    if isinstance(theirs, dict) and isinstance(ours, dict):
        keys = sorted({*theirs, *ours})
        return [line for key in keys for line in _unlike(theirs.get(key), ours.get(key), f"{path}.{key}")]
    if isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        pairs = enumerate(zip(theirs, ours, strict=True))
        return [line for index, (one, two) in pairs for line in _unlike(one, two, f"{path}[{index}]")]
    if theirs == ours:
        return []
    short = re.sub(r"\.spec\.replicatedJobs(\[\d+\])\.template\.spec\.template\.spec", r".pod\1", path)
    return [f"{short}: {_brief(theirs)} -> {_brief(ours)}"]


def _brief(value: Any) -> str:
    if isinstance(value, list) and value and all(isinstance(one, dict) and "name" in one for one in value):
        return " ".join(one["name"] for one in value)
    text = "none" if value is None else json.dumps(value, sort_keys=True)
    return text if len(text) < 90 else text[:89] + "…"
