"""How a request of the Kubernetes API is read, and its answer written. The nouns of this package use it.

Strict: a query parameter that is not known is refused, and so is a body that is not the JSON that it says it is.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from litestar import Response
from msgspec import Meta

from dibs.errors import Conflict, InvalidRequest, NotFound
from dibs.gateway.kubeflow import tables
from dibs.gateway.kubeflow.resources import Resource
from dibs.gateway.native.common import Ask
from dibs.gateway.problems import Refused
from dibs.wire.reading import read_object, read_query

Json = dict[str, Any]

JSON = "application/json"
_ENCODER = msgspec.json.Encoder()
_SERVER_FIELDS = frozenset(
    {"namespace", "uid", "resourceVersion", "creationTimestamp", "deletionTimestamp", "generation", "managedFields",
     "selfLink", "deletionGracePeriodSeconds"}
)  # fmt: skip
_YAML = ("application/yaml", "application/x-yaml", "text/yaml")


class GetQuery(msgspec.Struct, frozen=True):
    """Of a single object. `pretty` is for people; the answer is the same."""

    resourceVersion: str = ""  # noqa: N815 - the API's own word
    pretty: str = ""


class ListQuery(msgspec.Struct, frozen=True, rename={"continue_": "continue"}):
    """Of a list. Lists are always whole: `limit` is a permission to answer in parts, and is not needed."""

    labelSelector: str = ""  # noqa: N815
    fieldSelector: str = ""  # noqa: N815
    limit: Annotated[int, Meta(ge=0)] = 0
    continue_: str = ""
    resourceVersion: str = ""  # noqa: N815
    resourceVersionMatch: str = ""  # noqa: N815
    watch: bool = False
    allowWatchBookmarks: bool = False  # noqa: N815
    sendInitialEvents: bool = False  # noqa: N815
    timeoutSeconds: Annotated[int, Meta(ge=0)] = 0  # noqa: N815
    pretty: str = ""


class WriteQuery(msgspec.Struct, frozen=True):
    """Of a change. Unknown fields are always refused, so `fieldValidation` can only ask for what it gets."""

    dryRun: Literal["", "All"] = ""  # noqa: N815
    fieldManager: str = ""  # noqa: N815
    fieldValidation: Literal["", "Strict", "Warn", "Ignore"] = ""  # noqa: N815
    pretty: str = ""
    force: bool = False


class DeleteQuery(msgspec.Struct, frozen=True):
    dryRun: Literal["", "All"] = ""  # noqa: N815
    gracePeriodSeconds: Annotated[int, Meta(ge=0)] | None = None  # noqa: N815
    propagationPolicy: Literal["", "Foreground", "Background"] = ""  # noqa: N815
    pretty: str = ""


class DeleteOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a deletion, as far as it can be honoured. Orphans are refused: a rank never outlives its job."""

    kind: Literal["DeleteOptions"] = "DeleteOptions"
    apiVersion: str = "v1"  # noqa: N815
    gracePeriodSeconds: Annotated[int, Meta(ge=0)] | None = None  # noqa: N815
    propagationPolicy: Literal["Foreground", "Background"] = "Background"  # noqa: N815
    preconditions: dict[str, str] = {}
    dryRun: list[Literal["All"]] = []  # noqa: N815


def query(request: Ask, kind: type[Any]) -> Any:
    return read_query(kind, request.scope["query_string"])


def media_type(request: Ask) -> str:
    return request.headers.get("content-type", JSON).partition(";")[0].strip().lower()


async def body(request: Ask) -> Json:
    """The object that was sent, as JSON or YAML."""
    kind = media_type(request)
    data = await request.body()
    if kind == JSON:
        return read_object(data)
    if kind in _YAML:
        return _yaml(data)
    raise unsupported_media(kind, f"{JSON}, {_YAML[0]}")


def _yaml(data: bytes) -> Json:
    from dibs.devices.yaml_documents import Unreadable, documents

    try:
        [value] = documents(data)
    except (Unreadable, ValueError) as error:
        raise InvalidRequest(f"not one YAML document: {error}", field="body", code="BODY_INVALID") from error
    if not isinstance(value, dict):
        raise InvalidRequest("not an object", field="body", code="BODY_INVALID", remedy="send one object")
    return value


def unsupported_media(kind: str, known: str) -> Refused:
    reason = "the body cannot be read in this form"
    return Refused(
        415, code="MEDIA_TYPE_UNKNOWN", reason=reason, field="Content-Type", value=kind, remedy=f"send {known}"
    )


async def delete_options(request: Ask) -> DeleteOptions:
    """From the query and the body; the body may be left out."""
    asked = query(request, DeleteQuery)
    data = await request.body()
    options = DeleteOptions()
    if data:
        try:
            options = msgspec.convert(read_object(data), DeleteOptions)
        except msgspec.ValidationError as error:
            raise InvalidRequest(str(error), field="DeleteOptions", code="BODY_INVALID") from error
    said: Json = {}
    if asked.dryRun:
        said["dryRun"] = ["All"]
    if asked.gracePeriodSeconds is not None:
        said["gracePeriodSeconds"] = asked.gracePeriodSeconds
    return msgspec.structs.replace(options, **said)


def check_preconditions(options: DeleteOptions, uid: str, version: str) -> None:
    for key, is_now in (("uid", uid), ("resourceVersion", version)):
        wanted = options.preconditions.get(key, is_now)
        if wanted != is_now:
            reason = f"it is {is_now} now"
            raise Conflict(reason, field=f"preconditions.{key}", value=wanted, code="PRECONDITION_FAILED")
    unknown = set(options.preconditions) - {"uid", "resourceVersion"}
    if unknown:
        field = f"preconditions.{min(unknown)}"
        raise InvalidRequest("no such field", field=field, code="UNKNOWN_FIELD", remedy="uid or resourceVersion")


def check_version(said: Any, version: str) -> None:
    """Optimistic locking: who names the version that a change is based on is told if it is another one now."""
    if said not in (None, "", version):
        reason = "the object has been modified; please apply your changes to the latest version and try again"
        raise Conflict(reason, field="metadata.resourceVersion", value=str(said), code="MODIFIED")


def without_server_fields(value: Json, namespace: str) -> Json:
    """The object without what an API server fills in itself. A namespace that is not the path's is refused."""
    metadata = value.get("metadata")
    if not isinstance(metadata, dict):
        return value
    said = metadata.get("namespace")
    if said not in (None, "", namespace):
        reason = "the namespace of the object is not the one of the path"
        raise InvalidRequest(reason, field="metadata.namespace", value=str(said), code="NAMESPACE_MISMATCH")
    kept = {key: item for key, item in metadata.items() if key not in _SERVER_FIELDS}
    return {key: item for key, item in {**value, "metadata": kept}.items() if key != "status"}


def name_in(request: Ask) -> str:
    return str(request.path_params["name"])


def missing(resource: Resource, name: str) -> NotFound:
    """In the words of an API server."""
    full = f"{resource.plural}.{resource.group}" if resource.group else resource.plural
    remedy = f"`kubectl get {resource.plural}` shows what there is"
    return NotFound(f'{full} "{name[:253]}" not found', field="", code="NOT_FOUND", remedy=remedy)


def reply(value: Any, status: int = 200, warnings: tuple[str, ...] = ()) -> Response[bytes]:
    return Response(_ENCODER.encode(value), status_code=status, media_type=JSON, headers=_warned(warnings))


def show(
    request: Ask, resource: Resource, value: Json, status: int = 200, warnings: tuple[str, ...] = ()
) -> Response[bytes]:
    """One object, or a table of it if the client prefers that."""
    if tables.wanted(request.headers.get("accept", "")):
        return reply(tables.table(resource, [value], value["metadata"].get("resourceVersion", "")), status, warnings)
    return reply(value, status, warnings)


def show_list(request: Ask, resource: Resource, items: list[Json], version: str) -> Response[bytes]:
    if tables.wanted(request.headers.get("accept", "")):
        return reply(tables.table(resource, items, version))
    metadata = {"resourceVersion": version}
    made = {"apiVersion": resource.api_version, "kind": f"{resource.kind}List", "metadata": metadata, "items": items}
    return reply(made)


def _warned(warnings: tuple[str, ...]) -> Any:
    """`Warning` headers, as `kubectl` prints them. One header, because a second one of that name would replace it."""
    parts = []
    for text in warnings:
        plain = "".join(c if c.isascii() and c.isprintable() else "?" for c in text)
        escaped = plain.replace("\\", "\\\\").replace('"', '\\"')
        parts.append(f'299 - "{escaped}"')
    return {"Warning": ", ".join(parts)} if parts else {}
