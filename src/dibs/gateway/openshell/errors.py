"""Errors as gRPC answers: a status, and `google.rpc` details that OpenShell's SDK shows as typed attributes.

    BadRequest    a field violation for every problem that has a field
    ErrorInfo     our public code, and what was asked for, what there is, who holds it
    RetryInfo     where waiting helps

`server` turns every DibsError into one of these; which code it gets is in `gateway.problems`, beside the HTTP status.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2

from dibs.errors import DibsError, Problem
from dibs.gateway.problems import Refused, grpc_of, kind_of, outward, readable

DETAILS = "grpc-status-details-bin"
DOMAIN = "dibs"
_RETRY_AFTER = 5  # seconds; a guess at when a look is worth it again, since the end of a holder is not known
# Clients take 8 KiB of trailers by default. Both the words and the details are in there.
_MOST_WORDS = 1000
_MOST_DETAILS = 2000


class Answer(NamedTuple):
    """What is sent for an error."""

    code: grpc.StatusCode
    words: str
    details: bytes


def answer_of(error: DibsError, facts: Mapping[str, str] | None = None) -> Answer:
    """`facts`: what more a client should be able to read from ErrorInfo's metadata."""
    words, problems = outward(error)
    words = _cut(readable(words), _MOST_WORDS)
    code = grpc.StatusCode[grpc_of(error)]
    status = status_pb2.Status(code=code.value[0], message=words)
    status.details.append(_packed(_info(error, problems, facts or {})))
    violations = _violations(problems)
    if violations.field_violations:
        status.details.append(_packed(violations))
    if _waiting_helps(error):
        delay = duration_pb2.Duration(seconds=_RETRY_AFTER)
        status.details.append(_packed(error_details_pb2.RetryInfo(retry_delay=delay)))
    return Answer(code, words, status.SerializeToString())


def _info(error: DibsError, problems: tuple[Problem, ...], facts: Mapping[str, str]) -> error_details_pb2.ErrorInfo:
    first = problems[0]
    said = {"error": kind_of(error), "field": first.field, "requested": first.value, "remedy": first.remedy, **facts}
    metadata = {key: _cut(readable(value), 300) for key, value in said.items() if value}
    return error_details_pb2.ErrorInfo(reason=error.code, domain=DOMAIN, metadata=metadata)


def _violations(problems: tuple[Problem, ...]) -> error_details_pb2.BadRequest:
    found = error_details_pb2.BadRequest()
    room = _MOST_DETAILS
    for number, problem in enumerate(problems):
        if not problem.field:
            continue
        words = _cut(readable(str(problem)), 500)
        field = _cut(readable(problem.field), 200)
        room -= len(words.encode()) + len(field.encode()) + 16
        if room < 0:
            left = len(problems) - number
            found.field_violations.add(field="…", description=f"and {left} more; correct these first")
            break
        found.field_violations.add(field=field, description=words, reason=problem.code)
    return found


def _waiting_helps(error: DibsError) -> bool:
    return error.retryable or (isinstance(error, Refused) and "Retry-After" in error.headers)


def _packed(message: Any) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(message)
    return packed


def _cut(text: str, most: int) -> str:
    """At most so many bytes."""
    data = text.encode()
    return text if len(data) <= most else data[: most - 3].decode(errors="ignore") + "…"
