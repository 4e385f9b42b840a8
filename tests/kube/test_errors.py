"""Every answer of an API server has one meaning here; none is left to chance."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from dibs.errors import DibsError
from dibs.kube import errors
from dibs.kube.errors import REASONS, from_status

_CONSTANT = re.compile(r"StatusReason\w+\s+StatusReason = \"(\w*)\"")


def test_every_reason_of_kubernetes_is_mapped() -> None:
    """Against the list in Kubernetes' own source, where Go has it."""
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if go is None:
        pytest.skip("there is no Go here, and with it no source of Kubernetes")
    modules = Path(subprocess.run([go, "env", "GOMODCACHE"], capture_output=True, text=True, check=True).stdout.strip())
    sources = sorted(modules.glob("k8s.io/apimachinery@*/pkg/apis/meta/v1/types.go"))
    if not sources:
        pytest.skip("k8s.io/apimachinery is not in Go's module cache; `make test` puts it there with Kubernetes")
    known = set(_CONSTANT.findall(sources[-1].read_text())) - {""}
    assert len(known) > 15
    assert known - set(REASONS) == set()


@pytest.mark.parametrize(
    ("code", "reason", "kind", "retryable"),
    [
        (401, "Unauthorized", errors.Unauthorized, False),
        (409, "Conflict", errors.Changed, False),
        (409, "AlreadyExists", errors.Exists, False),
        (410, "Expired", errors.Expired, False),
        (429, "TooManyRequests", errors.Overloaded, True),
        (422, "Invalid", errors.Rejected, False),
        (503, "", errors.Overloaded, True),
        (502, "", errors.Unreachable, True),
        (418, "", errors.Rejected, False),
        (599, "", errors.Unreachable, True),
        (500, "SomethingNew", errors.Unreachable, True),
    ],
)
def test_a_status_is_what_a_caller_can_do_about_it(
    code: int, reason: str, kind: type[DibsError], retryable: bool
) -> None:
    found = from_status({"reason": reason, "message": "words"}, code, "prod", "list pods")
    assert type(found) is kind
    assert found.retryable is retryable
    assert "words" in str(found)


def test_a_forbidden_verb_is_named_with_the_commands_that_grant_it() -> None:
    message = (
        'resourceslices.resource.k8s.io is forbidden: User "system:serviceaccount:team:bot" cannot list resource '
        '"resourceslices" in API group "resource.k8s.io" at the cluster scope'
    )
    found = from_status({"reason": "Forbidden", "message": message}, 403, "prod", "list resourceslices")
    assert type(found) is errors.Forbidden
    remedy = found.problems[0].remedy
    assert "--verb=get,list,watch --resource=resourceslices.resource.k8s.io" in remedy
    assert "--serviceaccount=team:bot" in remedy


@pytest.mark.parametrize(
    ("status", "code"),
    [
        ({"message": 'pods "x" is forbidden: exceeded quota: few, requested: pods=1'}, "CLUSTER_QUOTA_EXCEEDED"),
        (
            {"message": "unable to create new content", "details": {"causes": [{"reason": "NamespaceTerminating"}]}},
            "NAMESPACE_TERMINATING",
        ),
        ({"message": 'pods "x" is forbidden: pod rejected: RuntimeClass "nvidia" not found'}, "ADMISSION_DENIED"),
    ],
)
def test_a_403_is_not_always_a_matter_of_roles(status: dict[str, object], code: str) -> None:
    assert from_status({"reason": "Forbidden", **status}, 403, "prod", "create pods/x").code == code


def test_a_webhook_is_named() -> None:
    message = 'admission webhook "deny.example.com" denied the request: no'
    found = from_status({"message": message}, 400, "prod", "create pods/x")
    assert (found.code, found.problems[0].value) == ("ADMISSION_DENIED", "deny.example.com")


@pytest.mark.parametrize("status", [None, [], "text", {"details": {}}, {"message": None}])
def test_an_answer_without_a_status_is_still_an_error(status: object) -> None:
    assert from_status(status, 500, "prod", "list pods").code == "CLUSTER_UNREACHABLE"
