"""The pod template that an administrator puts under every sandbox: sidecars, tolerations, annotations, node selectors.

`render` merges what it has made of a request into it, by the rules of a strategic merge patch. What both say
differently is refused with both values: neither the administrator nor the user is overruled silently. A template says
nothing about devices; those come from requests alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from dibs.errors import InvalidRequest, Problem, StateError, as_written
from dibs.kube.merge import merge
from dibs.kube.merge_keys import POD_TEMPLATE, Fields

_LARGEST = 1 << 20
_PLAIN = ("cpu", "memory", "ephemeral-storage")  # and hugepages-*: everything else is a device


class BaseTemplate(msgspec.Struct, frozen=True):
    """A checked template and the file that it is from."""

    source: str
    body: dict[str, Any]

    def merged(self, pod: Mapping[str, Any], container: str) -> dict[str, Any]:
        """The template with a pod's metadata and spec in it. Raises InvalidRequest with every conflict."""
        problems = [
            Problem(
                "TEMPLATE_CONFLICT", path, as_written(ours),
                f"the base template ({self.source}) says {as_written(theirs)}", "leave it out of one of them",
            )
            for path, theirs, ours in _conflicts(self.body, pod, POD_TEMPLATE, "")
        ]  # fmt: skip
        problems += self._devices(container)
        if problems:
            raise InvalidRequest(problems)
        return merge(self.body, pod, POD_TEMPLATE)

    def _devices(self, container: str) -> Iterator[Problem]:
        """A template that hands out devices would give them to sandboxes that asked for none, or twice."""
        spec = self.body.get("spec", {})
        remedy = "take it out of the template; a request says which devices a sandbox gets"
        for one in spec.get("containers", ()):
            if one.get("name") != container:
                continue
            resources = one.get("resources") or {}
            for part in ("limits", "requests"):
                for name, amount in (resources.get(part) or {}).items():
                    if name not in _PLAIN and not name.startswith("hugepages-"):
                        yield Problem(
                            "TEMPLATE_DEVICES", f"{self.source}: resources.{part}.{name}", str(amount),
                            "a base template says nothing about devices", remedy,
                        )  # fmt: skip
            if resources.get("claims"):
                reason = "a base template says nothing about devices"
                yield Problem("TEMPLATE_DEVICES", f"{self.source}: resources.claims", "", reason, remedy)


def read_template(path: str) -> BaseTemplate:
    """A template from a YAML or JSON file. Raises InvalidRequest or StateError."""
    import yaml

    try:
        file = Path(path)
        if file.stat().st_size > _LARGEST:
            raise InvalidRequest("larger than 1 MiB", field="kubernetes.template", value=path, code="TEMPLATE_INVALID")
        found = yaml.load(file.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - safe
    except OSError as error:
        raise StateError(
            f"cannot be read: {error.strerror}", field="kubernetes.template", value=path, code="TEMPLATE_UNREADABLE"
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InvalidRequest(
            f"not YAML: {' '.join(str(error).split())}", field="kubernetes.template", value=path,
            code="TEMPLATE_INVALID",
        ) from error  # fmt: skip
    if not isinstance(found, dict) or not isinstance(found.get("spec", {}), dict):
        raise InvalidRequest(
            "not a pod template", field="kubernetes.template", value=path, code="TEMPLATE_INVALID",
            remedy="write metadata (labels, annotations) and spec, as in the template of a Deployment",
        )  # fmt: skip
    problems = [
        Problem("TEMPLATE_INVALID", f"{path}: {key}", "", "a pod template has metadata and spec")
        for key in found
        if key not in ("metadata", "spec", "apiVersion", "kind", "template")
    ]
    for key in found.get("metadata") or {}:
        if key not in ("labels", "annotations"):
            problems.append(
                Problem("TEMPLATE_INVALID", f"{path}: metadata.{key}", "", "only labels and annotations are merged")
            )
    if problems:
        raise InvalidRequest(problems)
    return BaseTemplate(path, {key: found[key] for key in ("metadata", "spec") if found.get(key)})


def _conflicts(theirs: Any, ours: Any, fields: Fields, path: str) -> Iterator[tuple[str, Any, Any]]:
    """Where both say something, and not the same."""
    for key in theirs.keys() & ours.keys():
        one, other, where = theirs[key], ours[key], f"{path}.{key}" if path else key
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            yield from _conflicts(one, other, fields.below(key), where)
        elif isinstance(one, list) and isinstance(other, list) and fields.merged.get(key):
            name = fields.merged[key]
            items = {item.get(name): item for item in other if isinstance(item, Mapping)}
            for item in one:
                if isinstance(item, Mapping) and item.get(name) in items:
                    inner = f"{where}[{item.get(name)}]"
                    yield from _conflicts(item, items[item.get(name)], fields.below(key), inner)
        elif isinstance(one, list) and isinstance(other, list) and key in fields.merged:
            continue  # a set of plain values: both are kept
        elif one != other:
            yield where, one, other
