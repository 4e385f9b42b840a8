"""What `dibs train` is given: files with TrainJobs, runtimes, claims and classes, or the short form of a job.

Every file is read to its end, and every problem of every object is told at once. It looks at no cluster.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from dibs.errors import InvalidRequest, NotFound, Problem
from dibs.train.facts import Facts, SshKey
from dibs.train.objects import API_VERSION, RUNTIMES, TRAIN_JOB, read_job, read_runtime

Json = dict[str, Any]

_CLAIM_KINDS = ("ResourceClaimTemplate", "ResourceClaim", "DeviceClass")
_KNOWN = (TRAIN_JOB, *RUNTIMES, *_CLAIM_KINDS)


class Bundle(msgspec.Struct):
    """The objects of some files, by kind and name."""

    jobs: dict[str, Json] = {}
    runtimes: dict[tuple[str, str], Json] = {}
    claims: dict[str, dict[str, Json]] = {}

    def lookup(self, kind: str, name: str) -> Json | None:
        """A runtime: of the files, else one that comes with dibs."""
        from dibs.train import shipped

        return self.runtimes.get((kind, name)) or (shipped.runtime(name) if kind == RUNTIMES[1] else None)

    def facts(self, ssh_key: SshKey | None = None) -> Facts:
        """Claims that no file holds are not known, rather than absent, unless files hold some."""
        return Facts(
            templates=self.claims.get("ResourceClaimTemplate"),
            claims=self.claims.get("ResourceClaim"),
            classes=self.claims.get("DeviceClass", {}),
            ssh_key=ssh_key,
        )


def read_files(paths: Iterable[str]) -> Bundle:
    """All objects of the files. Raises InvalidRequest with every problem, each with its file and object."""
    bundle, problems = Bundle(), list[Problem]()
    for path in paths:
        for number, value in enumerate(_documents(path, problems), start=1):
            if value is not None:
                _place(value, bundle, f"{path}, document {number}" if number > 1 else path, problems)
    if problems:
        raise InvalidRequest(problems)
    return bundle


def _documents(path: str, problems: list[Problem]) -> list[Any]:
    from dibs.devices.yaml_documents import Unreadable, documents

    try:
        data = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
        found = documents(data)
    except OSError as error:
        problems.append(Problem("FILE_INVALID", path, "", f"cannot be read: {error.strerror}"))
        return []
    except (Unreadable, ValueError) as error:
        problems.append(Problem("FILE_INVALID", path, "", str(error)))
        return []
    listed: list[Any] = []
    for value in found:
        is_list = isinstance(value, dict) and value.get("kind") == "List"
        listed += value.get("items") or [] if is_list else [value]
    return listed


def _place(value: Any, bundle: Bundle, where: str, problems: list[Problem]) -> None:
    kind = value.get("kind") if isinstance(value, dict) else None
    if kind not in _KNOWN:
        remedy = f"the kinds are {', '.join(_KNOWN)}"
        problems.append(Problem("TRAINJOB_INVALID", f"{where}: kind", str(kind or ""), "not a kind of a job", remedy))
        return
    try:
        if kind == TRAIN_JOB:
            made = read_job(value)
            _unique(bundle.jobs, made["metadata"]["name"], made, where, problems)
        elif kind in RUNTIMES:
            made = read_runtime(value)
            _unique(bundle.runtimes, (kind, made["metadata"]["name"]), made, where, problems)
        else:
            from dibs.claims import objects

            objects.any_from_builtins(value)
            name = value.get("metadata", {}).get("name", "")
            _unique(bundle.claims.setdefault(kind, {}), name, value, where, problems)
    except InvalidRequest as error:
        name = value.get("metadata", {}).get("name", "") if isinstance(value.get("metadata"), dict) else ""
        for one in error.problems:
            problems.append(msgspec.structs.replace(one, field=f"{where}: {kind} {name}: {one.field}"))


def _unique(into: dict[Any, Json], key: Any, value: Json, where: str, problems: list[Problem]) -> None:
    if key in into:
        problems.append(Problem("CONFLICT", where, str(value["metadata"]["name"]), "this object is given twice"))
    into[key] = value


def only_job(bundle: Bundle, name: str | None) -> Json:
    """The job that is meant: the named one, or the only one."""
    if name is not None and name in bundle.jobs:
        return bundle.jobs[name]
    if name is not None or not bundle.jobs:
        known = ", ".join(bundle.jobs) or "none"
        raise NotFound(
            "there is no such TrainJob in the files", field="name", value=name or "", remedy=f"there is: {known}"
        )
    if len(bundle.jobs) > 1:
        remedy = f"choose one with --name: {', '.join(bundle.jobs)}"
        raise InvalidRequest("the files hold several TrainJobs", field="-f", code="CONFLICT", remedy=remedy)
    return next(iter(bundle.jobs.values()))


def short_form(
    bundle: Bundle, *, name: str, runtime: str, nodes: int | None, gpu: str | None, image: str | None,
    processes: int | None, command: tuple[str, ...],
) -> Json:  # fmt: skip
    """A TrainJob from the command line. What is more than a count of GPUs becomes a claim per node."""
    trainer: Json = {}
    if command:
        trainer["command"] = list(command)
    for field, value in (("numNodes", nodes), ("image", image), ("numProcPerNode", processes)):
        if value is not None:
            trainer[field] = value
    if gpu is not None:
        trainer |= _devices(bundle, name, gpu)
    body = {"runtimeRef": {"name": runtime}, "trainer": trainer}
    return read_job({"apiVersion": API_VERSION, "kind": TRAIN_JOB, "metadata": {"name": name}, "spec": body})


def _devices(bundle: Bundle, name: str, gpu: str) -> Json:
    from dibs.request.claim import claim_of
    from dibs.request.model import ALL
    from dibs.request.parse import parse_request

    request = parse_request({"gpu": gpu})
    selector = request.gpus[0] if len(request.gpus) == 1 else None
    if selector is not None and selector.count != ALL and not (selector.models or selector.memory or selector.profile):
        resource = f"{selector.vendor or 'nvidia'}.com/gpu"
        return {"resourcesPerNode": {"limits": {resource: selector.count}}}
    claim = claim_of(request, f"{name}-gpu")
    assert claim is not None
    made = {
        "apiVersion": claim["apiVersion"],
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": f"{name}-gpu"},
        "spec": {"spec": claim["spec"]},
    }
    bundle.claims.setdefault("ResourceClaimTemplate", {})[f"{name}-gpu"] = made
    return {"resourceClaimsPerNode": [{"name": "gpu", "resourceClaimTemplateName": f"{name}-gpu"}]}


def read_ssh_key(path: str | None) -> SshKey | None:
    """A private key, and the public one beside it (FILE.pub)."""
    if path is None:
        return None
    try:
        return SshKey(Path(path).read_text(), Path(f"{path}.pub").read_text())
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "not text"
        raise InvalidRequest(
            f"the key pair cannot be read: {reason}", field="--ssh-key", value=path, code="FILE_INVALID"
        ) from error
