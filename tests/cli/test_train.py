"""`dibs train` on the command line: files and the short form, what is printed, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml
from click.testing import CliRunner, Result
from tests.train.jobs import exactly, job, replicated, runtime, template

from dibs.cli.schema import schema_of
from dibs.cli.train import train
from dibs.cli.train_input import only_job, read_files
from dibs.cli.train_run import options_of
from dibs.errors import DibsError

Json = dict[str, Any]


def run(*words: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(train, list(words), input=stdin, standalone_mode=False)


def refusal(*words: str, stdin: str | None = None) -> DibsError:
    result = run(*words, stdin=stdin)
    assert isinstance(result.exception, DibsError), (result.output, result.exception)
    return result.exception


def write(path: Path, *objects: Json) -> str:
    path.write_text(yaml.safe_dump_all(objects))
    return str(path)


def named_template(name: str, count: int) -> Json:
    kind = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": name}}
    return {**kind, **template(exactly(count))}


def test_what_is_rendered_is_read_again_and_is_the_same_every_time(tmp_path: Path) -> None:
    file = write(tmp_path / "all.yaml", job(trainer={"numNodes": 2}), runtime(replicated(image="img:7")))
    first, second = run("render", "-f", file), run("render", "-f", file)
    assert first.output == second.output
    documents = list(yaml.safe_load_all(first.output))
    assert [one["kind"] for one in documents] == ["JobSet", "ConfigMap"]
    assert yaml.safe_load(documents[1]["data"]["runtime"])["metadata"]["name"] == "rt"
    listed = json.loads(run("render", "-f", file, "-o", "json").output)
    assert listed["items"] == documents


def test_the_short_form_is_a_job_with_an_extended_resource_or_a_claim() -> None:
    count = list(yaml.safe_load_all(run("render", "--nodes", "2", "--gpu", "3", "--", "python", "a.py").output))
    container = count[0]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "3"}
    assert container["command"] == ["python", "a.py"]
    claimed = list(yaml.safe_load_all(run("render", "--name", "big", "--gpu", "nvidia:H100:2", "--", "x").output))
    assert [one["kind"] for one in claimed] == ["ResourceClaimTemplate", "JobSet", "ConfigMap"]
    assert claimed[0]["metadata"]["name"] == "big-gpu"
    pod = claimed[1]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    assert pod["resourceClaims"] == [{"name": "gpu", "resourceClaimTemplateName": "big-gpu"}]


def test_explain_says_the_number_of_processes_and_why(tmp_path: Path) -> None:
    claims = [{"name": "gpu", "resourceClaimTemplateName": "four"}]
    wanted = job(runtime="torch-distributed", trainer={"numNodes": 2, "resourceClaimsPerNode": claims})
    file = write(tmp_path / "all.yaml", wanted, named_template("four", 4))
    data = json.loads(run("explain", "-f", file, "-o", "json").output)
    assert data["processes"]["per_node"] == 4
    assert [rank["host"] for rank in data["ranks"]] == ["demo-node-0-0.demo", "demo-node-0-1.demo"]
    assert [rank["env"]["PET_NODE_RANK"] for rank in data["ranks"]] == ["0", "1"]
    assert "one process per device" in run("explain", "-f", file).output
    jsonschema_rs.validator_for(schema_of("train explain")).validate(data)


def test_validate_tells_everything_and_exits_with_80(tmp_path: Path) -> None:
    good = write(tmp_path / "good.yaml", job(), runtime())
    assert run("validate", "-f", good).output == "ClusterTrainingRuntime rt: ok\nTrainJob demo: ok\n"
    bad = write(tmp_path / "bad.yaml", job(trainer={"numNodes": 0, "numProcPerNode": 0}), runtime())
    result = run("validate", "-f", bad, "-o", "json")
    assert result.return_value == 80
    jsonschema_rs.validator_for(schema_of("train validate")).validate(json.loads(result.output))
    problems = json.loads(result.output)["objects"][1]["problems"]
    assert [one["field"] for one in problems] == ["spec.trainer.numNodes", "spec.trainer.numProcPerNode"]


def test_validate_holds_a_change_to_what_is_there(tmp_path: Path) -> None:
    old = write(tmp_path / "old.yaml", job(trainer={"numNodes": 1}))
    new = write(tmp_path / "new.yaml", job(trainer={"numNodes": 2}), runtime())
    result = run("validate", "-f", new, "--old", old)
    assert result.return_value == 80
    assert "field is immutable" in result.output


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["render"], "there is no such TrainJob"),
        (["render", "--runtime", "nope", "--", "x"], "must be created before the TrainJob"),
        (["render", "-f", "/nonexistent.yaml"], "cannot be read"),
        (["render", "--gpu", "none", "--", "x"], "gpu"),
        (["render", "--runtime", "mpi-distributed", "--ssh-key", "/nonexistent", "--", "x"], "key pair cannot be read"),
        (["explain", "--name", "Not_A_Label", "--", "x"], "RFC 1035"),
        (["validate", "-f", "-"], "neither JSON nor YAML"),
    ],
)
def test_bad_input_is_refused_with_a_reason(words: list[str], text: str) -> None:
    assert text in str(refusal(*words, stdin="{[" if "-" in words else None))


def test_every_bad_object_of_every_file_is_reported_at_once(tmp_path: Path) -> None:
    one = write(tmp_path / "one.yaml", job(trainer={"nodes": 1}), {"kind": "Pod"})
    two = write(tmp_path / "two.yaml", runtime(policy={"torch": {}, "jax": {}}), runtime(policy={"torch": 1}))
    fields = [problem.field for problem in refusal("validate", "-f", one, "-f", two).problems]
    assert [field.rpartition(": ")[2] for field in fields] == [
        "spec.trainer.nodes", "kind", "spec.mlPolicy", "spec.mlPolicy.torch"
    ]  # fmt: skip
    assert all(field.startswith(str(tmp_path)) for field in fields)


def test_a_job_is_said_in_one_place_and_one_of_several_is_chosen(tmp_path: Path) -> None:
    file = write(tmp_path / "all.yaml", job("one"), job("two"), runtime())
    assert "say it in one place" in str(refusal("render", "-f", file, "--nodes", "2"))
    assert "choose one with --name: one, two" in str(refusal("render", "-f", file))
    assert next(yaml.safe_load_all(run("render", "-f", file, "--name", "two").output))["metadata"]["name"] == "two"


def test_the_key_of_mpi_is_in_the_secret_and_nowhere_else(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("PRIVATE")
    (tmp_path / "key.pub").write_text("PUBLIC")
    words = (
        "render",
        "--runtime",
        "mpi-distributed",
        "--nodes",
        "3",
        "--ssh-key",
        str(tmp_path / "key"),
        "--",
        "mpirun",
    )
    documents = list(yaml.safe_load_all(run(*words).output))
    secret = next(one for one in documents if one["kind"] == "Secret")
    assert secret["stringData"] == {"ssh-privatekey": "PRIVATE", "ssh-publickey": "PUBLIC"}
    assert "PRIVATE" not in json.dumps([one for one in documents if one is not secret])


def test_the_shipped_runtimes_are_usable_as_they_are() -> None:
    items = json.loads(run("runtimes", "-o", "json").output)["items"]
    assert [one["metadata"]["name"] for one in items] == [
        "torch-distributed", "jax-distributed", "mpi-distributed", "plain"
    ]  # fmt: skip
    for one in items:
        made = run("render", "--runtime", one["metadata"]["name"], "--nodes", "2", "--", "python", "-c", "1")
        assert made.exception is None
        assert "JobSet" in made.output


def test_the_example_of_the_project_works() -> None:
    example = Path(__file__).parents[2] / "examples" / "trainjob.yaml"
    assert json.loads(run("explain", "-f", str(example), "-o", "json").output)["processes"]["per_node"] == 2


def annotated(tmp_path: Path, **annotations: str) -> str:
    wanted = job(trainer={"numNodes": 1, "command": ["true"]})
    wanted["metadata"]["annotations"] = {f"train.dibs/{name}": value for name, value in annotations.items()}
    return write(tmp_path / "job.yaml", wanted, runtime(replicated()))


def test_annotations_choose_the_backend_and_the_wait_as_options_do(tmp_path: Path) -> None:
    found = only_job(read_files([annotated(tmp_path, backend="docker", wait="10m")]), None)
    nothing: Json = {"backend": None, "wait": None, "network": None}
    assert (made := options_of(nothing, found)).backend == "docker"
    assert made.wait_seconds == 600.0
    same = options_of({**nothing, "backend": "docker", "wait": "600s"}, found)
    assert (same.backend, same.wait_seconds) == ("docker", 600.0)
    plain = only_job(read_files([annotated(tmp_path)]), None)
    assert (options_of(nothing, plain).backend, options_of(nothing, plain).wait_seconds) == ("auto", None)


@pytest.mark.parametrize(
    ("option", "value", "annotations", "text"),
    [
        ("--backend", "podman", {"backend": "docker"}, "the annotation train.dibs/backend says docker"),
        ("--wait", "5m", {"wait": "10m"}, "the annotation train.dibs/wait says 10m"),
        ("--backend", "local", {"wait": "soon"}, "metadata.annotations[train.dibs/wait]"),
    ],
)
def test_an_option_and_an_annotation_that_differ_are_refused_with_both(
    tmp_path: Path, option: str, value: str, annotations: dict[str, str], text: str
) -> None:
    words = ("-f", annotated(tmp_path, **annotations), option, value)
    assert text in str(refusal("run", *words))


def test_a_job_that_names_another_backend_is_not_submitted_to_a_cluster(tmp_path: Path) -> None:
    error = refusal("cluster", "submit", "-f", annotated(tmp_path, backend="docker"))
    assert error.problems[0].field == "metadata.annotations[train.dibs/backend]"
