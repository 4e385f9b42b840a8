"""What annotations of a TrainJob say, because a client has no field for it: the Kubeflow SDK has none for claims.

`rendering` adds the claims to those of `spec.trainer.resourceClaimsPerNode`, `compute_domain` makes a domain;
`train.dibs/backend` and `train.dibs/wait` are for jobs without a cluster. An annotation below `train.dibs/` that
is not known is refused: a misspelt one would be a request that is dropped. Pure.
"""

from __future__ import annotations

import re
from typing import Any, Final

from dibs.errors import InvalidRequest, Unsupported
from dibs.request.durations import parse_duration
from dibs.train.names import DOUBLE_ALLOCATION
from dibs.train.refusals import Refusals

Json = dict[str, Any]

PREFIX: Final = "train.dibs/"
CLAIMS: Final = "train.dibs/claims"  # "NAME=TEMPLATE,…": one claim per node each
BACKEND: Final = "train.dibs/backend"
WAIT: Final = "train.dibs/wait"
COMPUTE_DOMAIN: Final = "train.dibs/compute-domain"  # "NAME": a ComputeDomain for the job, and a claim of that name
KNOWN: Final = (CLAIMS, BACKEND, WAIT, COMPUTE_DOMAIN, DOUBLE_ALLOCATION)
_ONE: Final = re.compile(r"([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)=([a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?)", re.ASCII)


def check(job: Json, found: Refusals) -> None:
    """Refuse what is not known below our prefix."""
    for name, value in job["metadata"].get("annotations", {}).items():
        if name.startswith(PREFIX) and name not in KNOWN:
            remedy = f"the known ones are {', '.join(KNOWN)}"
            found.invalid(f"metadata.annotations[{name}]", value, "no such annotation", remedy)


def check_for_trainer(job: Json, found: Refusals) -> None:
    """Refuse what Kubeflow Trainer would leave undone: only dibs reads these."""
    for name in (CLAIMS, BACKEND, WAIT, COMPUTE_DOMAIN):
        if (value := job["metadata"].get("annotations", {}).get(name)) is not None:
            remedy = "submit the job with `dibs train cluster submit` or to a gateway, or leave it out"
            found.invalid(f"metadata.annotations[{name}]", value, "Kubeflow Trainer does not read this", remedy)


def backend(job: Json) -> str:
    """Where it is to run; "" if it does not say."""
    said: str = job["metadata"].get("annotations", {}).get(BACKEND, "")
    return said


def wait_seconds(job: Json) -> float | None:
    """How long it may be queued; None if it does not say."""
    said = job["metadata"].get("annotations", {}).get(WAIT)
    if said is None:
        return None
    try:
        return parse_duration(said)
    except ValueError as error:
        field = f"metadata.annotations[{WAIT}]"
        raise InvalidRequest(
            str(error), field=field, value=said, code="DURATION_INVALID", remedy="as in 10m"
        ) from error  # fmt: skip


def check_for_cluster(job: Json) -> None:
    """Refuse what no cluster does."""
    said = job["metadata"].get("annotations", {}).get(WAIT)
    if said is not None:
        reason = "a cluster's scheduler decides how long a job waits"
        field = f"metadata.annotations[{WAIT}]"
        raise Unsupported(reason, field=field, value=str(said), code="WAIT_UNSUPPORTED",
                          remedy="use spec.activeDeadlineSeconds")  # fmt: skip


def claims(job: Json, found: Refusals) -> list[Json]:
    """Claims per node: those of the field, then those of the annotation. A name is said once."""
    said: list[Json] = list(job["spec"].get("trainer", {}).get("resourceClaimsPerNode", []))
    text = job["metadata"].get("annotations", {}).get(CLAIMS)
    if text is None:
        return said
    path = f"metadata.annotations[{CLAIMS}]"
    for part in (one.strip() for one in text.split(",")):
        match = _ONE.fullmatch(part)
        if match is None:
            found.invalid(path, text, "must be NAME=TEMPLATE, with a comma between several", "as in gpu=two-h100")
            return said
        if any(one["name"] == match[1] for one in said):
            found.invalid(path, text, f"the claim {match[1]} is said twice", "say it in one place")
            continue
        said.append({"name": match[1], "resourceClaimTemplateName": match[3]})
    return said
