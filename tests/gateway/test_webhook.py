"""`dibs webhook` over HTTPS, with AdmissionReviews as an API server sends them."""

from __future__ import annotations

import base64
import http.client
import json
import shutil
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from tests.train.jobs import exactly, job, patch, replicated, runtime, template

from dibs.cli.webhook import webhook
from dibs.errors import BackendUnavailable, InvalidRequest
from dibs.gateway.webhook import reviews
from dibs.gateway.webhook.files import Files
from dibs.train.facts import Facts
from dibs.train.objects import read_job, read_runtime

Json = dict[str, Any]
Post = Callable[[str, Any], tuple[int, Json]]

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make a certificate with")


def review(value: Json, old: Json | None = None, operation: str = "", **request: Any) -> Json:
    kind = {"group": "trainer.kubeflow.org", "version": "v1alpha1", "kind": value["kind"]}
    body: Json = {
        "uid": "7",
        "kind": kind,
        "namespace": "default",
        "operation": operation or ("UPDATE" if old else "CREATE"),
    }
    body |= {"object": value, "oldObject": old, **request}
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": body}


def source(training_runtime: Json | None = None, facts: Facts | None = None) -> Files:
    return Files({("ClusterTrainingRuntime", "rt"): read_runtime(training_runtime or runtime())}, facts or Facts())


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "tls.crt", folder / "tls.key"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(command, check=True, capture_output=True)
    return cert, key


@pytest.fixture
def post(certificate: tuple[Path, Path], tmp_path: Path) -> Iterator[Post]:
    cert, key = certificate
    (tmp_path / "rt.yaml").write_text(yaml.safe_dump(runtime(replicated(resources={"limits": {"nvidia.com/gpu": 4}}))))
    command = [
        sys.executable,
        "-m",
        "dibs",
        "webhook",
        "--listen",
        "127.0.0.1:0",
        "--cert",
        str(cert),
        "--key",
        str(key),
    ]
    process = subprocess.Popen([*command, "-f", str(tmp_path / "rt.yaml")], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    port = int(process.stderr.readline().rpartition(":")[2])
    context = ssl.create_default_context(cafile=str(cert))

    def send(path: str, body: Any) -> tuple[int, Json]:
        line = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=30)
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        line.request("POST", path, data, {"Content-Type": "application/json"})
        answer = line.getresponse()
        found = answer.status, json.loads(answer.read())
        line.close()
        return found

    yield send
    process.terminate()
    assert process.wait(20) in (0, -15)
    process.stderr.close()


@needs_openssl
def test_over_https_a_job_is_judged_and_its_processes_are_filled_in(post: Post) -> None:
    status, answer = post("/validate", review(job(trainer={"numNodes": 0})))
    assert status == 200
    response = answer["response"]
    assert (response["uid"], response["allowed"], response["status"]["code"]) == ("7", False, 422)
    assert "spec.trainer.numNodes: Invalid value: 0" in response["status"]["message"]
    assert post("/validate", review(job()))[1]["response"]["allowed"] is True
    filled = post("/mutate", review(job()))[1]["response"]
    assert json.loads(base64.b64decode(filled["patch"])) == [
        {"op": "add", "path": "/spec/trainer", "value": {"numProcPerNode": 4}}
    ]


@needs_openssl
@pytest.mark.parametrize(
    ("path", "body", "status"),
    [("/validate", b"{", 400), ("/validate", b"[]", 400), ("/mutate", {"request": 1}, 400), ("/", {}, 404),
     ("/validate", {"apiVersion": "admission.k8s.io/v1beta1", "request": {"uid": "1"}}, 400),
     ("/validate", b" " * ((8 << 20) + 1), 413)],
    ids=["cut off", "a list", "no request", "no such path", "another version", "too large"],
)  # fmt: skip
def test_over_https_garbage_is_answered_with_an_error(post: Post, path: str, body: Any, status: int) -> None:
    assert post(path, body)[0] == status
    assert post("/validate", review(job()))[1]["response"]["allowed"] is True


@pytest.mark.parametrize(
    ("wanted", "own", "text"),
    [
        (job(trainer={"resourcesPerNode": {"claims": [{"name": "x"}]}}), None, "use resourceClaimsPerNode"),  # SD-27
        (job(patches=[patch({"containers": [{"name": "gone"}]})]), None, "its containers are node"),  # SD-49
        (job(patches=[patch({"resourceClaims": [{"name": "g"}]})]), None, "must set either"),  # SD-28
        (job(trainer={"resourcesPerNode": {"limits": {"gpu": 1}}}), None, "nvidia.com/gpu"),  # SD-02
        (job(runtime="other"), None, "must be created before the TrainJob"),
        ({"kind": "TrainJob"}, None, "apiVersion"),
        (runtime(replicated(step="nobody")), None, "unknown step"),
    ],
)
def test_what_upstream_accepts_and_loses_is_refused_with_a_remedy(wanted: Json, own: Json | None, text: str) -> None:
    response = reviews.validate(review(wanted), source(own))["response"]
    assert response["allowed"] is False
    assert text in response["status"]["message"]
    assert response["status"]["details"]["causes"]


@pytest.mark.parametrize("name", ["claims", "backend", "wait", "compute-domain"])
def test_what_only_dibs_reads_is_refused_for_kubeflow_trainer(name: str) -> None:
    value = {"claims": "gpu=four", "backend": "local", "wait": "10m", "compute-domain": "imex"}[name]
    asking = read_job(job(trainer={"numProcPerNode": 1}))
    asking["metadata"]["annotations"] = {f"train.dibs/{name}": value}
    facts = Facts(templates={"four": template(exactly(4))}, claims={})
    answer = reviews.validate(review(asking), source(facts=facts))["response"]
    assert not answer["allowed"]
    assert "Kubeflow Trainer does not read this" in answer["status"]["message"]


def test_what_looks_wrong_is_a_warning_of_a_length_that_is_passed_on() -> None:
    name = "c" * 60
    claims = [{"name": f"{name}{index}", "resourceClaimTemplateName": "t"} for index in range(3)]
    own = runtime(replicated(pod={"resourceClaims": claims}))
    response = reviews.validate(review(job()), source(own, Facts(templates={"t": template(exactly(1))})))["response"]
    assert response["allowed"] is True
    assert len(response["warnings"]) == 3
    assert all(len(text.encode()) <= 256 for text in response["warnings"])


def test_a_change_is_held_to_what_is_there() -> None:
    old = read_job(job(trainer={"numNodes": 1}))
    response = reviews.validate(review(job(trainer={"numNodes": 2}), old), source())["response"]
    assert "field is immutable" in response["status"]["message"]
    assert reviews.validate(review(old, old), source())["response"]["allowed"] is True


def test_deletion_status_and_what_is_said_already_are_left_alone() -> None:
    assert reviews.validate(review(job(), operation="DELETE"), source())["response"]["allowed"] is True
    assert reviews.validate(review(job(trainer={"numNodes": 0}), subResource="status"), source())["response"]["allowed"]
    for untouched in (job(trainer={"numProcPerNode": 2}), job(trainer={"numNodes": 0})):
        response = reviews.mutate(review(untouched), source())["response"]
        assert response["allowed"] is True
        assert "patch" not in response


def test_an_answer_that_cannot_be_given_is_never_a_yes() -> None:
    class Away(Files):
        def facts(self, namespace: str) -> Facts:
            raise BackendUnavailable("the API server does not answer")

    for handler in (reviews.validate, reviews.mutate):
        with pytest.raises(BackendUnavailable):
            handler(review(job()), Away({("ClusterTrainingRuntime", "rt"): read_runtime(runtime())}, Facts()))


def test_the_registration_fails_closed_and_names_the_paths(tmp_path: Path) -> None:
    (tmp_path / "ca").write_text("CA")
    words = ["--manifest", "https://dibs.trainer.svc:8443/", "--ca", str(tmp_path / "ca")]
    made = list(yaml.safe_load_all(CliRunner().invoke(webhook, words, standalone_mode=False).output))
    assert [one["webhooks"][0]["clientConfig"]["url"].rpartition("/")[2] for one in made] == ["mutate", "validate"]
    assert {one["webhooks"][0]["failurePolicy"] for one in made} == {"Fail"}


@pytest.mark.parametrize(
    "words",
    [[], ["--cert", "/nonexistent", "--key", "/nonexistent", "-f", "/nonexistent"], ["--manifest", "http://x"],
     ["--manifest", "https://x"], ["--cert", "a", "--key", "b", "--listen", "nowhere"]],
)  # fmt: skip
def test_a_webhook_that_cannot_serve_says_why(words: list[str]) -> None:
    result = CliRunner().invoke(webhook, words, standalone_mode=False)
    assert isinstance(result.exception, InvalidRequest)
