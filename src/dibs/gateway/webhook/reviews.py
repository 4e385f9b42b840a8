"""AdmissionReview v1: a TrainJob or a runtime is judged as `train.review` judges it, and the process count filled in.

`server` calls `validate` and `mutate` with the decoded body. What a review needs of the cluster comes from a `Source`;
where that cannot be read the error goes on to the caller, so that the cluster's failurePolicy decides. Never answers
yes to what it could not look at.
"""

from __future__ import annotations

import base64
from typing import Any, Protocol

import msgspec

from dibs.errors import InvalidRequest
from dibs.train.facts import Facts
from dibs.train.job_annotations import check_for_trainer
from dibs.train.objects import RUNTIMES, TRAIN_JOB
from dibs.train.refusals import Refusal
from dibs.train.review import Review, review_job, review_runtime

Json = dict[str, Any]

API_VERSION = "admission.k8s.io/v1"
_LONGEST_WARNING = 256  # bytes that an API server passes on of one
_FILLED = ("torch", "mpi")  # policies whose number of processes is a field of the job


class Source(Protocol):
    """What must be known of the place of a job. Raises DibsError where it cannot be read."""

    def runtime(self, namespace: str, job: str, kind: str, name: str) -> Json | None:
        """The job's snapshot if it has one, else the live runtime; None if there is none."""

    def facts(self, namespace: str) -> Facts: ...

    def active(self, namespace: str, job: str) -> list[str]:
        """Replicated jobs of the job's JobSet that have running pods."""


def validate(body: object, source: Source) -> Json:
    """The answer of a validating webhook."""
    request = _request(body)
    if request.get("operation") not in ("CREATE", "UPDATE") or request.get("subResource"):
        return _answer(request, allowed=True)
    review = _review(request, source)
    response: Json = {"warnings": [_cut(text) for text in review.warnings]} if review.warnings else {}
    if review.allowed:
        return _answer(request, allowed=True, **response)
    lines = [f"{refusal}; {refusal.remedy}" if refusal.remedy else str(refusal) for refusal in review.refusals]
    causes = [_cause(refusal) for refusal in review.refusals]  # what kubectl prints
    message = lines[0] if len(lines) == 1 else f"[{', '.join(lines)}]"
    status = {"code": 422, "reason": "Invalid", "message": message, "details": {"causes": causes}}
    return _answer(request, allowed=False, status=status, **response)


def mutate(body: object, source: Source) -> Json:
    """The answer of a mutating webhook: numProcPerNode of a new TrainJob, as a number. What is wrong, others refuse."""
    request = _request(body)
    if request.get("operation") != "CREATE" or request.get("subResource") or _kind(request) != TRAIN_JOB:
        return _answer(request, allowed=True)
    review = _review(request, source)
    job, made = request["object"], review.rendered
    trainer = job.get("spec", {}).get("trainer") if isinstance(job.get("spec"), dict) else None
    if (
        not review.allowed
        or made is None
        or made.processes is None
        or (trainer or {}).get("numProcPerNode") is not None
    ):
        return _answer(request, allowed=True)
    runtime = source.runtime(_namespace(request), "", *_reference(review.job)) or {}
    if not any(name in runtime.get("spec", {}).get("mlPolicy", {}) for name in _FILLED):
        return _answer(request, allowed=True)
    number = made.processes.per_node
    operation: Json = {"op": "add", "path": "/spec/trainer/numProcPerNode", "value": number}
    if trainer is None:
        operation = {"op": "add", "path": "/spec/trainer", "value": {"numProcPerNode": number}}
    patch = base64.b64encode(msgspec.json.encode([operation])).decode()
    warning = _cut(f"spec.trainer.numProcPerNode is {number}: {made.processes.reason}")
    return _answer(request, allowed=True, patch=patch, patchType="JSONPatch", warnings=[warning])


def _review(request: Json, source: Source) -> Review:
    kind, namespace, value, old = _kind(request), _namespace(request), request.get("object"), request.get("oldObject")
    if kind in RUNTIMES:
        return review_runtime(value, old=_settled(old, None) if old else None)
    name = _name(value)

    def lookup(runtime_kind: str, runtime: str) -> Json | None:
        return source.runtime(namespace, name if old else "", runtime_kind, runtime)

    before = _settled(old, lookup) if old else None
    active = source.active(namespace, name) if old else []
    review = review_job(value, lookup, source.facts(namespace), old=before, active=active)
    if not review.by_schema:
        check_for_trainer(review.job, review.refusals)
    return review


def _cause(refusal: Refusal) -> Json:
    message = f"{refusal.message}; {refusal.remedy}" if refusal.remedy else refusal.message
    return {"field": refusal.path, "message": message, "reason": "FieldValueInvalid"}


def _settled(old: Any, lookup: Any) -> Json:
    """The object that is there, in the form that changes are compared in."""
    from dibs.train.objects import examined_job, examined_runtime
    from dibs.train.refusals import Refusals

    return examined_job(old, None, Refusals()) if lookup else examined_runtime(old, None, Refusals())


def _request(body: object) -> Json:
    request = body.get("request") if isinstance(body, dict) else None
    if not isinstance(request, dict) or not isinstance(request.get("uid"), str):
        raise InvalidRequest("not an AdmissionReview with a request", field="body", code="BODY_INVALID")
    assert isinstance(body, dict)
    if body.get("apiVersion") != API_VERSION:
        raise InvalidRequest(
            f"must be {API_VERSION}", field="apiVersion", value=str(body.get("apiVersion")), code="BODY_INVALID"
        )
    known = (TRAIN_JOB, *RUNTIMES)
    if request.get("operation") in ("CREATE", "UPDATE") and _kind(request) not in known:
        remedy = f"register the webhook for {', '.join(known)} only"
        raise InvalidRequest(
            "not a kind that is judged here",
            field="request.kind",
            value=_kind(request),
            code="BODY_INVALID",
            remedy=remedy,
        )
    return request


def _kind(request: Json) -> str:
    kind = request.get("kind")
    return str(kind.get("kind", "")) if isinstance(kind, dict) else ""


def _namespace(request: Json) -> str:
    return str(request.get("namespace") or "")


def _name(value: Any) -> str:
    metadata = value.get("metadata") if isinstance(value, dict) else None
    return str(metadata.get("name") or "") if isinstance(metadata, dict) else ""


def _reference(job: Json) -> tuple[str, str]:
    reference = job["spec"]["runtimeRef"]
    return reference["kind"], reference["name"]


def _cut(text: str) -> str:
    data = text.encode()
    return text if len(data) <= _LONGEST_WARNING else data[: _LONGEST_WARNING - 3].decode(errors="ignore") + "…"


def _answer(request: Json, *, allowed: bool, **response: Any) -> Json:
    answer = {"uid": request["uid"], "allowed": allowed, **response}
    return {"apiVersion": API_VERSION, "kind": "AdmissionReview", "response": answer}
