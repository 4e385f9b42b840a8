"""runtimePatches: what each manager changes in the runtime's template, in their order, by strategic merge.

`rendering` calls it on the runtime's snapshot. Two things are better than the merge alone, because a patch in a
TrainJob cannot carry directives: an entry that is patched with another source (a volume, a claim, a variable) gets that
source *instead of* its own, and a claim that a patch takes from a container is reported. Pure.
"""

from __future__ import annotations

from typing import Any, Final

from dibs.kube.merge import RETAIN_KEYS, MergeRefused, merge
from dibs.kube.merge_keys import JOBSET_TEMPLATE
from dibs.train.names import copied, pod_spec
from dibs.train.refusals import Refusals

Json = dict[str, Any]

# Lists whose items hold exactly one source beside their name.
_ONE_SOURCE: Final = {"volumes": "name", "resourceClaims": "name"}
_CONTAINERS: Final = ("containers", "initContainers")


def applied(template: Json, patches: list[Json], warnings: list[str], found: Refusals) -> Json:
    """The template with all patches in it; the order of the replicated jobs stays that of the runtime."""
    result: Json = copied(template)
    for index, patch in enumerate(patches):
        change = patch.get("trainingRuntimeSpec", {}).get("template")
        if not change:
            continue
        path = f"spec.runtimePatches[{index}].trainingRuntimeSpec.template"
        for empty in _empty_lists(change, path):
            found.invalid(empty, [], "an empty list changes nothing", "leave it out; a patch cannot remove entries")
        before = result
        try:
            result = merge(before, _replacing_sources(change, before), JOBSET_TEMPLATE)
        except MergeRefused as refused:
            for problem in refused.problems:
                found.invalid(f"{path}.{problem.field}", problem.value, problem.reason)
            return before
        order = [job["name"] for job in before.get("spec", {}).get("replicatedJobs", [])]
        jobs = result.get("spec", {}).get("replicatedJobs", [])
        result["spec"]["replicatedJobs"] = sorted(jobs, key=lambda job: _rank(order, job["name"]))
        warnings += _lost_claims(before, result, patch["manager"])
    return result


def _rank(order: list[str], name: str) -> int:
    return order.index(name) if name in order else len(order)


def _replacing_sources(change: Json, template: Json) -> Json:
    """The change, with directives that make a source replace another. What the runtime does not have is left out: it
    is refused elsewhere (`admission`), and would only be refused again for what it lacks."""
    change = copied(change)
    present = {job["name"]: pod_spec(copied(job)) for job in template.get("spec", {}).get("replicatedJobs", [])}
    jobs = [job for job in change.get("spec", {}).get("replicatedJobs", []) if job["name"] in present]
    if "replicatedJobs" in change.get("spec", {}):
        change["spec"]["replicatedJobs"] = jobs
    for job in jobs:
        patched = job.get("template", {}).get("spec", {}).get("template", {}).get("spec", {})
        pod = present.get(job["name"], {})
        for field, key in _ONE_SOURCE.items():
            _retain(patched.get(field, []), pod.get(field, []), key)
        for field in _CONTAINERS:
            own = {one.get("name"): one for one in pod.get(field, [])}
            if field in patched:
                patched[field] = [one for one in patched[field] if one["name"] in own]
            for container in patched.get(field, []):
                _retain(container.get("env", []), own.get(container.get("name"), {}).get("env", []), "name")
    return change


def _retain(patched: list[Json], present: list[Json], key: str) -> None:
    known = {item.get(key) for item in present}
    for item in patched:
        if item.get(key) in known:
            item[RETAIN_KEYS] = list(item)


def _empty_lists(value: Any, path: str) -> list[str]:
    if isinstance(value, dict):
        return [found for key, item in value.items() for found in _empty_lists(item, f"{path}.{key}")]
    if isinstance(value, list):
        below = [found for i, item in enumerate(value) for found in _empty_lists(item, f"{path}[{i}]")]
        return below if value else [path]
    return []


def _lost_claims(before: Json, after: Json, manager: str) -> list[str]:
    """A patched list of container claims replaces the runtime's: Kubernetes' rule, and easily overlooked."""
    lost: list[str] = []
    for old, new in zip(before["spec"]["replicatedJobs"], after["spec"]["replicatedJobs"], strict=False):
        for field in _CONTAINERS:
            kept = {one["name"]: _claims(one) for one in pod_spec(new).get(field, [])}
            for container in pod_spec(old).get(field, []):
                gone = [name for name in _claims(container) if name not in kept.get(container["name"], [])]
                if gone:
                    lost.append(
                        f'the patch of "{manager}" replaces the claims of container "{container["name"]}" in job '
                        f'"{old["name"]}": it loses {", ".join(gone)}'
                    )
    return lost


def _claims(container: Json) -> list[str]:
    return [one["name"] for one in container.get("resources", {}).get("claims", [])]
