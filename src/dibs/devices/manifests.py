"""Files with Kubernetes objects, as kubectl takes and prints them: read, decoded strictly, and judged.

`dibs claims` reads what it checks and solves with this, `classes` the files of device classes. Everything that is wrong
is collected, in every file, each with file, document, object and field in Kubernetes' own words; nothing is raised. It
must not decide what the objects are for.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from dibs.claims.claim import DeviceDerivedAttribute, ResourceClaim, ResourceClaimTemplate
from dibs.claims.fielderrors import FieldError
from dibs.claims.meta import Part
from dibs.claims.nodes import Node
from dibs.claims.objects import API_VERSION, KINDS, from_builtins
from dibs.claims.selectors import derived_expression
from dibs.claims.validation import validate
from dibs.devices.yaml_documents import MAX_BYTES, Unreadable, documents
from dibs.errors import InvalidRequest, Problem

_KNOWN = (*KINDS, "Node", "List")


class ManifestProblem(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that is wrong in a file. `type` is Kubernetes' (Invalid value, Required value …)."""

    file: str
    document: int = 0  # from 1; 0: the file as a whole
    object: str = ""  # kind and name
    field: str = ""
    type: str = ""
    value: str = ""  # as it is printed: text in quotes
    detail: str = ""
    remedy: str = ""

    def __str__(self) -> str:
        """The line that Kubernetes prints, without file and object."""
        parts = [self.field, self.type, self.value.replace("\n", "\\n"), self.detail]
        return ": ".join(part for part in parts if part)

    def problem(self, code: str) -> Problem:
        place = ": ".join(part for part in (self.file, self.object, self.field) if part)
        reason = ": ".join(part for part in (self.type, self.detail) if part)
        return Problem(code, place, self.value.strip('"'), reason, self.remedy)


class Manifest(msgspec.Struct, frozen=True):
    """One object, and where it stands."""

    file: str
    document: int
    kind: str
    name: str
    namespace: str
    object: Part | Node

    @property
    def title(self) -> str:
        return f"{self.kind} {f'{self.namespace}/' if self.namespace else ''}{self.name}".rstrip()


class Manifests(msgspec.Struct, frozen=True):
    """What was found in some files. An object with problems is not among the manifests."""

    manifests: tuple[Manifest, ...]
    problems: tuple[ManifestProblem, ...]


def read_manifests(paths: Iterable[str]) -> Manifests:
    """All objects of the files, in order; `-` is the standard input."""
    reader = _Reader()
    for path in paths:
        reader.read(path)
    return Manifests(tuple(reader.manifests), tuple(reader.problems))


def parse_manifests(data: bytes, name: str = "-") -> Manifests:
    """The same from text in hand."""
    reader = _Reader()
    reader.parse(data, name)
    return Manifests(tuple(reader.manifests), tuple(reader.problems))


class _Reader:
    def __init__(self) -> None:
        self.manifests: list[Manifest] = []
        self.problems: list[ManifestProblem] = []
        self.places: dict[tuple[str, str, str], str] = {}

    def read(self, path: str) -> None:
        try:
            data = _bytes(path)
        except (OSError, ValueError) as error:  # ValueError: a name with a zero byte in it
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            self.problems.append(ManifestProblem(file=path, detail=f"cannot be read: {reason}"))
            return
        self.parse(data, path)

    def parse(self, data: bytes, file: str) -> None:
        try:
            values = documents(data)
        except Unreadable as error:
            self.problems.append(ManifestProblem(file=file, detail=str(error)))
            return
        for number, value in enumerate(values, start=1):
            if value is not None:
                self._document(value, file, number)

    def _document(self, value: Any, file: str, number: int) -> None:
        if not isinstance(value, dict):
            detail = "not an object of Kubernetes, which has apiVersion, kind and metadata"
            self.problems.append(ManifestProblem(file=file, document=number, detail=detail))
            return
        kind = value.get("kind")
        if isinstance(kind, str) and kind.endswith("List"):
            self._list(value, kind, file, number)
        else:
            self._object(value, file, number)

    def _list(self, value: dict[str, Any], kind: str, file: str, number: int) -> None:
        """`kubectl get -o yaml` prints a List; the API server a ResourceSliceList, whose items do not name a kind."""

        def wrong(field: str, detail: str, shown: object = None, remedy: str = "") -> None:
            text = "" if shown is None else _printed(shown)
            self.problems.append(ManifestProblem(file, number, kind, field, "Invalid value", text, detail, remedy))

        of = kind.removesuffix("List")
        if of and of not in KINDS and of != "Node":
            wrong("kind", "not a kind that is read here", kind, f"the kinds are {', '.join(_KNOWN)}")
            return
        expected = API_VERSION if of in KINDS else "v1"
        if value.get("apiVersion") != expected:
            wrong("apiVersion", f"must be {expected}", value.get("apiVersion"))
            return
        for key in value:
            if key not in ("apiVersion", "kind", "metadata", "items"):
                wrong(str(key), "unknown field")
        items = value.get("items")
        if not isinstance(items, list):
            wrong("items", "must be a list", items)
            return
        for index, item in enumerate(items):
            if not isinstance(item, dict) or str(item.get("kind", "")).endswith("List"):
                wrong(f"items[{index}]", "must be an object that is not a list itself")
            elif of:
                self._object({"apiVersion": expected, "kind": of, **item}, file, number)
            else:
                self._object(item, file, number)

    def _object(self, value: dict[str, Any], file: str, number: int) -> None:
        kind, version = value.get("kind"), value.get("apiVersion")
        metadata = value.get("metadata")
        name, namespace = "", ""
        if isinstance(metadata, dict):
            name = str(metadata.get("name") or metadata.get("generateName") or "")
            namespace = str(metadata.get("namespace") or "")
        title = f"{kind if isinstance(kind, str) else '?'} {f'{namespace}/' if namespace else ''}{name}".rstrip()
        before = len(self.problems)

        def wrong(field: str, type_: str, detail: str, shown: object = None, remedy: str = "") -> None:
            text = "" if shown is None else _printed(shown)
            self.problems.append(ManifestProblem(file, number, title, field, type_, text, detail, remedy))

        if not isinstance(kind, str) or (kind not in KINDS and kind != "Node"):
            type_ = "Required value" if kind is None else "Unsupported value"
            wrong("kind", type_, "not a kind that is read here", kind, f"the kinds are {', '.join(_KNOWN)}")
            return
        expected = "v1" if kind == "Node" else API_VERSION
        if version != expected:
            type_ = "Required value" if version is None else "Unsupported value"
            wrong("apiVersion", type_, f"must be {expected}", version, f"write it as {expected}")
            return
        found = self._node(value, wrong) if kind == "Node" else self._part(value, kind, wrong)
        if found is None or len(self.problems) > before:
            return
        key = (kind, namespace, name)
        if isinstance(metadata, dict) and metadata.get("name"):
            if key in self.places:
                wrong("metadata.name", "Duplicate value", f"it stands in {self.places[key]} already", name)
                return
            self.places[key] = f"{file}, document {number}"
        self.manifests.append(Manifest(file, number, kind, name, namespace, found))

    def _part(self, value: dict[str, Any], kind: str, wrong: Any) -> Part | None:
        try:
            found = from_builtins(value, KINDS[kind])
        except InvalidRequest as error:
            for problem in error.problems:
                shown = problem.value or None
                wrong(problem.field, "Invalid value" if shown else "", problem.reason, shown, problem.remedy)
            return None
        for mistake in (*validate(found), *_derived_mistakes(found)):
            wrong(mistake.path, mistake.kind, mistake.detail, _Printed(mistake.value) if mistake.value else None)
        return found

    def _node(self, value: dict[str, Any], wrong: Any) -> Node | None:
        """Only the name, the labels and the declared features of a node matter; what else it has is not read."""
        for key in value:
            if key not in ("apiVersion", "kind", "metadata", "spec", "status"):
                wrong(str(key), "", "unknown field")
        metadata = value.get("metadata")
        name = metadata.get("name") if isinstance(metadata, dict) else None
        if not isinstance(metadata, dict) or not isinstance(name, str) or not name:
            wrong("metadata.name", "Required value", "")
            return None
        labels = metadata.get("labels") or {}
        if not isinstance(labels, dict) or not all(isinstance(text, str) for text in labels.values()):
            wrong("metadata.labels", "Invalid value", "must be texts by name", labels)
            return None
        status = value.get("status")
        declared = (status.get("declaredFeatures") if isinstance(status, dict) else None) or []
        if not isinstance(declared, list) or not all(isinstance(one, str) for one in declared):
            wrong("status.declaredFeatures", "Invalid value", "must be a list of texts", declared)
            return None
        return Node(name, labels, frozenset(declared))


class _Printed(str):
    """A value that is in its printed form already."""

    __slots__ = ()


def _printed(value: object) -> str:
    if isinstance(value, _Printed):
        return str(value)
    if isinstance(value, str):
        return f'"{value}"'
    return msgspec.json.encode(value).decode(errors="replace")[:200]


def _derived_mistakes(part: Part) -> Iterator[FieldError]:
    """Expressions of derived attributes that do not compile; Kubernetes' API server would say it too."""
    if isinstance(part, ResourceClaim):
        start, devices = "spec.devices", part.spec.devices
    elif isinstance(part, ResourceClaimTemplate):
        start, devices = "spec.spec.devices", part.spec.spec.devices
    else:
        return
    for index, request in enumerate(devices.requests):
        path = f"{start}.requests[{index}]"
        if request.exactly is not None:
            yield from _not_compiling(f"{path}.exactly", request.exactly.derived_attributes)
        for number, alternative in enumerate(request.first_available):
            yield from _not_compiling(f"{path}.firstAvailable[{number}]", alternative.derived_attributes)


def _not_compiling(path: str, attributes: Iterable[DeviceDerivedAttribute]) -> Iterator[FieldError]:
    for index, attribute in enumerate(attributes):
        if attribute.expression:
            compiled = derived_expression(attribute.expression, consumable_capacity=True, list_attributes=True)
            if compiled.error is not None:
                below = f"{path}.derivedAttributes[{index}].expression"
                yield FieldError(below, "Invalid value", f'"{attribute.expression}"', str(compiled.error))


def _bytes(path: str) -> bytes:
    """At most one byte more than is allowed: the decoder reports that. A pipe is read (`-f <(kubectl get …)`)."""
    if path == "-":
        return sys.stdin.buffer.read(MAX_BYTES + 1)
    with open(path, "rb") as file:
        return file.read(MAX_BYTES + 1)
