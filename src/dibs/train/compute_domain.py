"""NVIDIA ComputeDomains: nodes of a job whose GPUs share memory over NVLink get one domain, made for that job.

A TrainJob asks with the annotation `train.dibs/compute-domain: NAME`. The domain is created before the pods and goes
with the job; NVIDIA's DRA driver makes the claim template that it names, of which each node's container has a claim
NAME. A place without the driver refuses by the name of its CRD. `rendering` calls it. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from dibs.train import jobset as jobsets
from dibs.train.facts import COMPUTE_DOMAIN_CRD, Facts
from dibs.train.job_annotations import COMPUTE_DOMAIN
from dibs.train.names import NODE, container, pod_spec
from dibs.train.refusals import Refusals

Json = dict[str, Any]

API_VERSION: Final = "resource.nvidia.com/v1beta1"
KIND: Final = "ComputeDomain"
_CHANNEL: Final = "compute-domain-default-channel.nvidia.com"  # the class of the driver's template
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)
_PATH: Final = f"metadata.annotations[{COMPUTE_DOMAIN}]"


def name_of(job: Json) -> str:
    """Of the claim; empty where the job wants no domain."""
    return str(job["metadata"].get("annotations", {}).get(COMPUTE_DOMAIN, ""))


def known(job: Json, facts: Facts) -> Facts:
    """The facts, with the template that the driver will have made when the pods are scheduled."""
    if not name_of(job):
        return facts
    request = {"name": "channel", "exactly": {"deviceClassName": _CHANNEL}}
    template = {"spec": {"spec": {"devices": {"requests": [request]}}}}
    return msgspec.structs.replace(facts, templates={**(facts.templates or {}), _object(job): template})


def enforce(job: Json, targets: Sequence[Json], nodes: int, facts: Facts, found: Refusals) -> list[Json]:
    """Give the nodes their claim, and return the domain. `targets`: the replicated jobs that train."""
    name = name_of(job)
    if not name:
        return []
    if _NAME.fullmatch(name) is None:
        found.invalid(_PATH, name, "must be a DNS label: the name of the claim", "as in imex")
        return []
    if facts.crds is not None and COMPUTE_DOMAIN_CRD not in facts.crds:
        text = f"there is no CustomResourceDefinition {COMPUTE_DOMAIN_CRD} here: it comes with NVIDIA's DRA driver"
        found.invalid(_PATH, name, text, "run the job on a cluster that has it, or leave the annotation out")
        return []
    for replicated in targets:
        claims = pod_spec(replicated).setdefault("resourceClaims", [])
        if any(one["name"] == name for one in claims):
            found.invalid(_PATH, name, "a claim of that name is there already", "take another name")
            return []
        claims.append({"name": name, "resourceClaimTemplateName": _object(job)})
        target = container(replicated, NODE)
        if target is not None:
            target.setdefault("resources", {}).setdefault("claims", []).append({"name": name})
    spec = {"numNodes": nodes, "channel": {"resourceClaimTemplate": {"name": _object(job)}}}
    return [{"apiVersion": API_VERSION, "kind": KIND, "metadata": jobsets.owned(job, _object(job)), "spec": spec}]


def _object(job: Json) -> str:
    """The domain and its template."""
    return f"{job['metadata']['name']}-{name_of(job)}"
