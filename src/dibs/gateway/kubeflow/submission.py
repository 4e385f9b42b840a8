"""From the object that was sent to what a job is made of: judged, with its runtime, its claims and dibs' own options.

What the Kubeflow SDK has no word for is said in annotations: `train.dibs/backend` and `train.dibs/wait` here,
`train.dibs/claims` in `train.job_annotations`. One that is not known is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dibs.train import job_annotations
from dibs.train.facts import Facts
from dibs.train.refusals import Refusals
from dibs.train.review import Review, review_job
from dibs.workloads import claims
from dibs.workloads.identity import Identity
from dibs.workloads.jobs.model import Job, Objects, Options
from dibs.workloads.runtimes import Runtimes
from dibs.workloads.service import Workloads

Json = dict[str, Any]
Claims = dict[str, dict[str, Json]]


def claims_of(workloads: Workloads) -> Claims:
    """The claims that are kept here (`dibs claims keep`), as templates of the same names."""
    found: dict[str, Json] = {}
    for name in claims.kept(workloads.home):
        claim = claims.load(workloads.home, name)
        found[name] = {
            "apiVersion": claim.get("apiVersion", "resource.k8s.io/v1"),
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": name},
            "spec": {"spec": claim["spec"]},
        }
    return {"ResourceClaimTemplate": found}


def reviewed(
    workloads: Workloads, tenant: str, value: Json, known: Claims, *, job: Job | None = None, old: Json | None = None,
    active: Sequence[str] = (),
) -> tuple[Review, Json]:  # fmt: skip
    """The judged job, and the runtime that it runs with: of a job that is there its own copy. Raises every problem."""
    used: list[Json] = []

    def lookup(kind: str, name: str) -> Json | None:
        found = job.spec.objects.runtime if job else Runtimes(workloads.ledger).runtime(kind, tenant, name)
        used.extend([found] if found else [])
        return found

    facts: Facts = Objects({}, {}, known).facts()
    review = review_job(value, lookup, facts, old=old, active=active)
    Refusals(review.refusals).check()
    return review, used[-1]


def options_of(job: Json, who: Identity) -> Options:
    """What dibs is told beside the objects."""
    return Options(
        backend=job_annotations.backend(job) or "auto", wait_seconds=job_annotations.wait_seconds(job), gateway=True,
        remote=who.remote,
    )  # fmt: skip
