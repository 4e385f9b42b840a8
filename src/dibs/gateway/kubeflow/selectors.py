"""Label and field selectors of a list, and what else a list can be asked for. Pure."""

from __future__ import annotations

import re
from typing import Any

from dibs.errors import InvalidRequest
from dibs.gateway.kubeflow.requests import ListQuery
from dibs.gateway.problems import Refused
from dibs.gateway.selectors import selector

Json = dict[str, Any]

_FIELD = re.compile(r"(?P<path>[A-Za-z.]+)\s*(?P<op>==|=|!=)\s*(?P<value>[^=!,]*)", re.ASCII)
# What can be selected by, besides the labels. An API server has a list of its own for each kind.
FIELDS = (
    "metadata.name", "metadata.namespace", "status.phase", "involvedObject.name", "involvedObject.kind",
    "involvedObject.namespace", "involvedObject.uid", "reason", "type",
)  # fmt: skip


def check_list(asked: ListQuery, *, watchable: bool = True) -> None:
    """Refuse what cannot be honoured, before anything is read."""
    if asked.watch and not watchable:
        raise Refused(
            405, code="METHOD_NOT_ALLOWED", reason="this kind cannot be watched", field="watch",
            remedy="ask for the list again",
        )  # fmt: skip
    if asked.continue_:
        reason = "this is not the continuation of a list: lists are always whole"
        raise Refused(410, code="WATCH_EXPIRED", reason=reason, field="continue", remedy="ask for the list again")
    if asked.sendInitialEvents:
        reason = "a watch does not begin with a list here"
        remedy = "ask for the list, and watch from its resourceVersion"
        raise Refused(422, code="WATCH_UNSUPPORTED", reason=reason, field="sendInitialEvents", remedy=remedy)
    selector(asked.labelSelector, "labelSelector")
    _fields(asked.fieldSelector)


def matches(asked: ListQuery, value: Json) -> bool:
    """Whether an object is one of those that were asked for."""
    labels = value["metadata"].get("labels", {})
    if not selector(asked.labelSelector, "labelSelector")(labels):
        return False
    return all((_at(value, path) == wanted) is equal for path, wanted, equal in _fields(asked.fieldSelector))


def _fields(text: str) -> list[tuple[str, str, bool]]:
    found = []
    for term in filter(None, (part.strip() for part in text.split(","))):
        match = _FIELD.fullmatch(term)
        if match is None or match["path"] not in FIELDS:
            raise InvalidRequest(
                "this is not a field selector that is known here", field="fieldSelector", value=term[:120],
                code="SELECTOR_INVALID", remedy=f"PATH=VALUE or PATH!=VALUE; the paths are {', '.join(FIELDS)}",
            )  # fmt: skip
        found.append((match["path"], match["value"].strip(), match["op"] != "!="))
    return found


def _at(value: Json, path: str) -> str:
    found: Any = value
    for key in path.split("."):
        found = found.get(key, "") if isinstance(found, dict) else ""
    return str(found)
