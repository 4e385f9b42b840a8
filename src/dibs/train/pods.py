"""What must hold for the pods of a job after everything was merged, so that no cluster finds it out later.

`rendering` calls it for every replicated job. It looks at what a merge can break: claims, volumes, variables, images,
amounts. Paths are those of the JobSet that is made. Pure; the API server still has the last word on the rest.
"""

from __future__ import annotations

import re
from typing import Any, Final

from dibs.claims.fielderrors import DUPLICATE, REQUIRED
from dibs.quantity import Quantity
from dibs.train.accelerators import is_extended, of_container, spec_of
from dibs.train.facts import Facts
from dibs.train.names import DOUBLE_ALLOCATION, pod_spec
from dibs.train.refusals import Refusals

Json = dict[str, Any]

_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_SOURCES: Final = ("resourceClaimName", "resourceClaimTemplateName")
_CONTAINERS: Final = ("initContainers", "containers")
_PLAIN: Final = ("cpu", "memory", "ephemeral-storage")


def check(job: Json, jobset: Json, facts: Facts, warnings: list[str], found: Refusals) -> None:
    """All replicated jobs of a JobSet. Refusals are added to `found`, what may be but looks wrong to `warnings`."""
    provided = [
        template["metadata"]["name"]
        for policy in jobset["spec"].get("volumeClaimPolicies", [])
        for template in policy.get("templates", [])
    ]
    allowed = job["metadata"].get("annotations", {}).get(DOUBLE_ALLOCATION) == "allowed"
    for index, replicated in enumerate(jobset["spec"]["replicatedJobs"]):
        pod = pod_spec(replicated)
        path = f"spec.replicatedJobs[{index}].template.spec.template.spec"
        _claims(replicated["name"], pod, path, facts, warnings, found)
        volumes = _volumes(pod, path, found) | set(provided)
        for field in _CONTAINERS:
            for number, container in enumerate(pod.get(field, [])):
                where = f"{path}.{field}[{number}]"
                _container(container, where, volumes, found)
                if not allowed:
                    _double(container, pod, where, facts, found)
        if not pod.get("containers"):
            found.add(f"{path}.containers", REQUIRED)


def _claims(name: str, pod: Json, path: str, facts: Facts, warnings: list[str], found: Refusals) -> None:
    seen: set[str] = set()
    for index, claim in enumerate(pod.get("resourceClaims", [])):
        where = f"{path}.resourceClaims[{index}]"
        if claim["name"] in seen:
            found.add(where, DUPLICATE, claim["name"])
        seen.add(claim["name"])
        given = [field for field in _SOURCES if claim.get(field)]
        if len(given) != 1:
            rule = "must set exactly one of resourceClaimName or resourceClaimTemplateName"
            found.invalid(where, claim, rule)
            continue
        source = claim[given[0]]
        if not _SUBDOMAIN.fullmatch(source):
            remedy = "a claim is always of the job's own namespace: name it without one"
            found.invalid(f"{where}.{given[0]}", source, "must be the name of an object", remedy)
        known = facts.templates if given[0] == _SOURCES[1] else facts.claims
        if known is not None and spec_of(claim, facts)[0] is None:
            kind = "ResourceClaimTemplate" if given[0] == _SOURCES[1] else "ResourceClaim"
            listed = ", ".join(sorted(known)) or "none"
            found.add(f"{where}.{given[0]}", "Not found", source, f"there is no such {kind}", f"there is: {listed}")
    used: set[str] = set()
    for field in _CONTAINERS:
        for number, container in enumerate(pod.get(field, [])):
            for place, reference in enumerate(container.get("resources", {}).get("claims", [])):
                used.add(reference["name"])
                if reference["name"] not in seen:
                    text = (
                        f'container "{container["name"]}" in job "{name}" references resourceClaim '
                        f'"{reference["name"]}" which is not defined in the Pod\'s resourceClaims'
                    )
                    found.invalid(f"{path}.{field}[{number}].resources.claims[{place}]", reference["name"], text)
    for idle in sorted(seen - used):
        warnings.append(f'claim "{idle}" of job "{name}" is used by no container: its devices would be held and idle')


def _volumes(pod: Json, path: str, found: Refusals) -> set[str]:
    names: set[str] = set()
    for index, volume in enumerate(pod.get("volumes", [])):
        names.add(volume["name"])
        sources = sorted(key for key in volume if key != "name")
        if len(sources) > 1:
            listed = ", ".join(sources)
            found.invalid(f"{path}.volumes[{index}]", volume["name"], f"must have one source, but has {listed}")
    return names


def _container(container: Json, path: str, volumes: set[str], found: Refusals) -> None:
    if not container.get("image"):
        found.add(f"{path}.image", REQUIRED, None, f'container "{container["name"]}" has no image')
    for index, mount in enumerate(container.get("volumeMounts", [])):
        if mount["name"] not in volumes:
            remedy = f"the volumes are {', '.join(sorted(volumes)) or 'none'}"
            found.add(f"{path}.volumeMounts[{index}].name", "Not found", mount["name"], "no such volume", remedy)
    for index, variable in enumerate(container.get("env", [])):
        if variable.get("value") and "valueFrom" in variable:
            where = f"{path}.env[{index}]"
            found.invalid(where, variable["name"], "may not be specified when `value` is not empty: valueFrom")
    _amounts(container.get("resources", {}), f"{path}.resources", found)


def _amounts(resources: Json, path: str, found: Refusals) -> None:
    limits, requests = resources.get("limits", {}), resources.get("requests", {})
    for field, amounts in (("limits", limits), ("requests", requests)):
        for name, text in amounts.items():
            where = f"{path}.{field}[{name}]"
            amount = Quantity.parse(text)
            if amount.sign < 0:
                found.invalid(where, text, "must be greater than or equal to 0")
            if "/" not in name and name not in _PLAIN and not name.startswith("hugepages-"):
                remedy = 'write "nvidia.com/gpu" for NVIDIA\'s GPUs' if name.lower() == "gpu" else ""
                found.invalid(where, name, "must be a standard resource, or a name with a domain", remedy)
            elif is_extended(name) and not amount.is_integer():
                found.invalid(where, text, "must be an integer")
    for name, text in requests.items():
        limit = limits.get(name)
        if limit is not None and Quantity.parse(text) > Quantity.parse(limit):
            remedy = "set the limit as well: what the job says is merged with the runtime's amounts, key by key"
            found.invalid(
                f"{path}.requests[{name}]", text, f"must be less than or equal to {name} limit of {limit}", remedy
            )
        elif is_extended(name) and limit is not None and Quantity.parse(text) != Quantity.parse(limit):
            found.invalid(f"{path}.requests[{name}]", text, f"must be equal to {name} limit of {limit}")
        elif is_extended(name) and limit is None:
            found.add(
                f"{path}.limits[{name}]", REQUIRED, None, f"Limit must be set for non overcommitable resource {name}"
            )


def _double(container: Json, pod: Json, path: str, facts: Facts, found: Refusals) -> None:
    devices = of_container(container, pod, facts)
    if devices.resources and devices.by_claim:
        found.invalid(
            f"{path}.resources", devices.sources,
            "devices are asked for twice, as an extended resource and by a claim: both would be allocated",
            f'ask once; or annotate the TrainJob with {DOUBLE_ALLOCATION}: "allowed"',
        )  # fmt: skip
