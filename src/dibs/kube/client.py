"""A client of the Kubernetes API: get, list, create, patch, delete, watch, over `dibs.http`.

`inventory`, `pending` and the checks of the doctor use it; so does `dibs node`. Answers are decoded into the types that
the caller names, so nothing is read that is not needed. Reads are tried again where that helps (429, 503, a connection
that died); a write is tried again only where the server says that it did nothing. Every failure is one of `errors`.
One thread at a time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import msgspec

from dibs.errors import DibsError, Unsupported
from dibs.http import Connection, ProtocolError, Response, query, segment
from dibs.kube import errors
from dibs.kube.config import ClusterConfig
from dibs.kube.credentials import Credentials

if TYPE_CHECKING:
    from dibs.kube.channels import Channels

T = TypeVar("T")

STDIN, STDOUT, STDERR, ERROR, RESIZE = range(5)  # the channels of exec and attach
OLDEST_DRA = (1, 34)  # the first minor version with resource.k8s.io/v1
_PAGE = 500
_TRIES = 4
_LONGEST_PAUSE = 10.0  # s; a server may ask for more with Retry-After, but someone waits here


class Resource(msgspec.Struct, frozen=True):
    """A kind of object, as it stands in a path."""

    api: str  # v1, or group/version
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def group(self) -> str:
        return self.api.rpartition("/")[0]

    def path(self, namespace: str | None = None, name: str | None = None, part: str = "") -> str:
        root = f"/apis/{self.api}" if "/" in self.api else f"/api/{self.api}"
        place = f"/namespaces/{segment(namespace)}" if self.namespaced and namespace else ""
        one = f"/{segment(name)}" if name is not None else ""
        return f"{root}{place}/{self.plural}{one}{f'/{part}' if part else ''}"


NODES = Resource("v1", "nodes", "Node", namespaced=False)
NAMESPACES = Resource("v1", "namespaces", "Namespace", namespaced=False)
PODS = Resource("v1", "pods", "Pod")
EVENTS = Resource("v1", "events", "Event")
QUOTAS = Resource("v1", "resourcequotas", "ResourceQuota")
SERVICE_ACCOUNTS = Resource("v1", "serviceaccounts", "ServiceAccount")
VOLUME_CLAIMS = Resource("v1", "persistentvolumeclaims", "PersistentVolumeClaim")
SLICES = Resource("resource.k8s.io/v1", "resourceslices", "ResourceSlice", namespaced=False)
CLASSES = Resource("resource.k8s.io/v1", "deviceclasses", "DeviceClass", namespaced=False)
TAINT_RULES = Resource("resource.k8s.io/v1", "devicetaintrules", "DeviceTaintRule", namespaced=False)
CLAIMS = Resource("resource.k8s.io/v1", "resourceclaims", "ResourceClaim")
TEMPLATES = Resource("resource.k8s.io/v1", "resourceclaimtemplates", "ResourceClaimTemplate")
POD_GROUPS = Resource("scheduling.k8s.io/v1beta1", "podgroups", "PodGroup")
CUSTOM_RESOURCES = Resource("apiextensions.k8s.io/v1", "customresourcedefinitions", "CustomResourceDefinition", False)
REVIEWS = Resource("authorization.k8s.io/v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", False)
SELVES = Resource("authentication.k8s.io/v1", "selfsubjectreviews", "SelfSubjectReview", False)


class Version(msgspec.Struct, frozen=True):
    major: int
    minor: int
    text: str  # v1.37.1

    @property
    def has_dra(self) -> bool:
        return (self.major, self.minor) >= OLDEST_DRA


class ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class _Page(msgspec.Struct, Generic[T]):
    metadata: ListMeta = msgspec.field(default_factory=ListMeta)
    items: list[T] | None = None


class Cluster:
    """A connection to the API server of one cluster, as one user."""

    def __init__(self, config: ClusterConfig, *, timeout: float = 30.0) -> None:
        self.config = config
        self.timeout = timeout
        self.requests = 0  # sent so far: what it costs the API server is part of what we promise
        self._credentials = Credentials(config)
        self._connection: Connection | None = None
        self._watches: list[Connection] = []

    @property
    def name(self) -> str:
        return self.config.name

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for connection in (self._connection, *self._watches):
            if connection is not None:
                connection.close()
        self._connection, self._watches = None, []

    # -- reading

    def get(self, resource: Resource, name: str, kind: type[T], namespace: str | None = None, part: str = "") -> T:
        path = resource.path(namespace, name, part)
        found: T = self._decoded(self._read(path, f"get {_said(resource, namespace, name)}"), kind)
        return found

    def raw(self, path: str) -> Any:
        """Any path that answers JSON, as dicts and lists."""
        return self._decoded(self._read(path, f"get {path}"), Any)

    def items(
        self,
        resource: Resource,
        kind: type[T],
        namespace: str | None = None,
        *,
        fields: str | None = None,
        labels: str | None = None,
    ) -> list[T]:
        """All objects of a kind, in a namespace or everywhere. A list that expires half way is started again."""
        return self.listing(resource, kind, namespace, fields=fields, labels=labels)[0]

    def listing(
        self,
        resource: Resource,
        kind: type[T],
        namespace: str | None = None,
        *,
        fields: str | None = None,
        labels: str | None = None,
    ) -> tuple[list[T], str]:
        """`items`, and the resource version from which a watch continues."""
        subject = f"list {_said(resource, namespace)}"
        page_type: Any = _Page[kind]  # type: ignore[valid-type]
        for last in (False, True):
            found: list[T] = []
            token: str | None = None
            try:
                while True:
                    asked = query(
                        limit=_PAGE,
                        fieldSelector=fields,
                        labelSelector=labels,
                        **({"continue": token} if token else {}),
                    )
                    body = self._read(resource.path(namespace) + asked, subject)
                    page = self._decoded(body, page_type)
                    found += page.items or ()
                    token = page.metadata.continue_
                    if not token:
                        return found, page.metadata.resource_version
            except errors.Expired:
                if last:
                    raise
        raise AssertionError("unreachable")

    def version(self) -> Version:
        found = self._decoded(self._read("/version", "get /version"), dict[str, Any])
        text = str(found.get("gitVersion", ""))
        try:
            minor = int("".join(c for c in str(found["minor"]) if c.isdigit()))  # some clouds write 34+
            return Version(int(found["major"]), minor, text)
        except (KeyError, ValueError) as error:
            raise errors.Unreachable(
                f"it does not say its version: {text or found}", field="cluster", value=self.name
            ) from error

    def require_dra(self) -> Version:
        """Refuse a cluster without resource.k8s.io/v1, with its version."""
        version = self.version()
        if not version.has_dra:
            oldest = ".".join(map(str, OLDEST_DRA))
            raise Unsupported(
                f"it is Kubernetes {version.text}, which has no resource.k8s.io/v1",
                field="cluster",
                value=self.name,
                code="CLUSTER_TOO_OLD",
                remedy=f"upgrade it to {oldest} or newer; extended resources (nvidia.com/gpu) work on older ones",
            )
        return version

    def may(self, verb: str, resource: Resource, namespace: str | None = None) -> bool:
        """Whether this user may do it: what RBAC answers, without trying. `pods/exec` is a part of pods."""
        plural, _, part = resource.plural.partition("/")
        attributes = {"verb": verb, "resource": plural, "group": resource.group, "subresource": part}
        if namespace:
            attributes["namespace"] = namespace
        review = {"apiVersion": REVIEWS.api, "kind": REVIEWS.kind, "spec": {"resourceAttributes": attributes}}
        answer = self._write("POST", REVIEWS.path(), review, "ask what is allowed")
        return bool(answer.get("status", {}).get("allowed"))

    def user(self) -> str:
        """As whom the API server knows this user; empty where it does not tell."""
        body = {"apiVersion": SELVES.api, "kind": SELVES.kind}
        try:
            found = self._write("POST", SELVES.path(), body, "ask who this is")
        except (errors.Missing, errors.Forbidden):
            return ""
        return str(found.get("status", {}).get("userInfo", {}).get("username", ""))

    # -- writing

    def create(
        self, resource: Resource, body: Mapping[str, Any], namespace: str | None = None, *, dry_run: bool = False
    ) -> Any:
        """Create an object. An unknown or doubled field is refused by the server, never dropped."""
        asked = query(fieldValidation="Strict", dryRun="All" if dry_run else None)
        subject = f"create {_said(resource, namespace, str(body.get('metadata', {}).get('name') or ''))}"
        return self._write("POST", resource.path(namespace) + asked, body, subject)

    def replace(self, resource: Resource, body: Mapping[str, Any], namespace: str | None = None, part: str = "") -> Any:
        name = str(body["metadata"]["name"])
        path = resource.path(namespace, name, part) + query(fieldValidation="Strict")
        return self._write("PUT", path, body, f"update {_said(resource, namespace, name)}")

    def patch(
        self,
        resource: Resource,
        name: str,
        body: Any,
        namespace: str | None = None,
        part: str = "",
        kind: str = "merge",
    ) -> Any:
        """`kind`: merge, strategic-merge or json."""
        path = resource.path(namespace, name, part) + query(fieldValidation="Strict")
        subject = f"patch {_said(resource, namespace, name)}"
        return self._write("PATCH", path, body, subject, f"application/{kind}-patch+json")

    def delete(self, resource: Resource, name: str, namespace: str | None = None, *, grace: int | None = None) -> Any:
        path = resource.path(namespace, name) + query(gracePeriodSeconds=grace)
        return self._write("DELETE", path, None, f"delete {_said(resource, namespace, name)}")

    def delete_all(
        self, resource: Resource, namespace: str | None = None, *, labels: str | None = None, grace: int | None = None
    ) -> None:
        path = resource.path(namespace) + query(labelSelector=labels, gracePeriodSeconds=grace)
        self._write("DELETE", path, None, f"delete {_said(resource, namespace)}")

    # -- following

    def watch(
        self,
        resource: Resource,
        kind: type[T],
        namespace: str | None = None,
        *,
        since: str,
        fields: str | None = None,
        labels: str | None = None,
        seconds: int = 300,
    ) -> Iterator[tuple[str, T]]:
        """Events after a resource version: type and object, bookmarks among them, until the server ends it.

        Raises `errors.Expired` where the version is too old: list again, then watch from there.
        """
        asked = query(
            watch=True, allowWatchBookmarks=True, resourceVersion=since, fieldSelector=fields, labelSelector=labels,
            timeoutSeconds=seconds,
        )  # fmt: skip
        subject = f"watch {_said(resource, namespace)}"
        connection = self._open()
        self._watches.append(connection)
        try:
            response = self._request(connection, "GET", resource.path(namespace) + asked, None, {}, seconds + 30.0)
            if response.status >= 400:
                raise self._failure(response, subject)
            for line in response.lines():
                event = self._decoded(line, _Event)
                if event.type == "ERROR":
                    status = self._decoded(bytes(event.object), Any)
                    raise errors.from_status(status, int(status.get("code", 500)), self.name, subject)
                yield event.type, self._decoded(bytes(event.object), kind)
        except OSError as error:
            raise errors.from_line(error, self.name, self.config.server) from error
        finally:
            self._watches.remove(connection)
            connection.close()

    def interrupt(self) -> None:
        """From another thread: end what this one waits for."""
        for connection in (self._connection, *self._watches):
            if connection is not None:
                connection.interrupt()

    # -- streams

    def stream(self, path: str, subject: str, *, silence: float = 3600.0) -> tuple[Connection, Response]:
        """An answer that is read as it comes, on a connection of its own that the caller closes.

        `silence`: how long it may say nothing, in seconds.
        """
        connection = self._open()
        try:
            response = self._request(connection, "GET", path, None, {}, silence)
            if response.status >= 400:
                raise self._failure(response, subject)
        except OSError as error:
            connection.close()
            raise errors.from_line(error, self.name, self.config.server) from error
        except BaseException:
            connection.close()
            raise
        return connection, response

    def channels(self, path: str, protocol: str, subject: str) -> Channels:
        """Several streams over one WebSocket, for exec, attach and port-forward; the caller closes it."""
        from dibs.kube.channels import Channels, Declined

        for last in (False, True):
            self.requests += 1
            connection = self._open()
            try:
                return Channels(connection.connect(), connection.authority, path, protocol, self._credentials.headers())
            except Declined as declined:
                failure = errors.from_status(_status_of(declined.body), declined.status, self.name, subject)
                if last or not (isinstance(failure, errors.Unauthorized) and self._credentials.renew()):
                    raise failure from None
            except OSError as error:
                raise errors.from_line(error, self.name, self.config.server) from error
        raise AssertionError("unreachable")

    # -- the line

    def _read(self, path: str, subject: str) -> bytes:
        for attempt in range(_TRIES):
            last = attempt == _TRIES - 1
            try:
                response = self._request(self._line(), "GET", path, None, {})
                if response.status < 400:
                    return response.read()
                failure = self._failure(response, subject)
            except OSError as error:
                self._drop()
                failure = errors.from_line(error, self.name, self.config.server)
                # A line that died may be made anew; a server that is not there is not asked four times.
                if last or not isinstance(error, ConnectionResetError | BrokenPipeError | ProtocolError) or attempt:
                    raise failure from error
                continue
            if isinstance(failure, errors.Unauthorized) and self._credentials.renew() and not last:
                self._drop()
                continue
            if last or not isinstance(failure, errors.Overloaded):
                raise failure
            time.sleep(_pause(response, attempt))
        raise AssertionError("unreachable")

    def _write(self, method: str, path: str, body: Any, subject: str, form: str = "application/json") -> Any:
        for attempt in range(_TRIES):
            last = attempt == _TRIES - 1
            try:
                encoded = None if body is None else msgspec.json.encode(body)
                response = self._request(self._line(), method, path, encoded, {"Content-Type": form})
                if response.status < 400:
                    return self._decoded(response.read(), Any)
                failure = self._failure(response, subject)
            except OSError as error:
                self._drop()
                raise errors.from_line(error, self.name, self.config.server) from error
            if isinstance(failure, errors.Unauthorized) and self._credentials.renew() and not last:
                self._drop()
                continue
            if last or response.status != 429:  # only 429 says that nothing was done
                raise failure
            time.sleep(_pause(response, attempt))
        raise AssertionError("unreachable")

    def _request(
        self,
        connection: Connection,
        method: str,
        path: str,
        body: bytes | None,
        headers: Mapping[str, str],
        timeout: float | None = None,
    ) -> Response:
        self.requests += 1
        wanted = {"Accept": "application/json", "User-Agent": "dibs", **self._credentials.headers(), **headers}
        return connection.request(method, path, body, headers=wanted, timeout=timeout)

    def _failure(self, response: Response, subject: str) -> DibsError:
        return errors.from_status(_status_of(response.read(1 << 22)), response.status, self.name, subject)

    def _decoded(self, body: bytes, kind: Any) -> Any:
        try:
            return msgspec.json.decode(body, type=kind)
        except msgspec.DecodeError as error:
            raise errors.Unreachable(
                f"an answer of {self.config.server} is not understood: {error}", field="cluster", value=self.name
            ) from error

    def _line(self) -> Connection:
        if self._connection is None:
            self._connection = self._open()
        return self._connection

    def _open(self) -> Connection:
        return Connection(
            self.config.server,
            timeout=self.timeout,
            context=self._credentials.context(),
            server_name=self.config.server_name or None,
        )

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


def _status_of(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError:
        return {"message": body[:300].decode("utf-8", "replace").strip()} if body.strip() else {}


def _said(resource: Resource, namespace: str | None, name: str = "") -> str:
    what = f"{resource.plural}/{name}" if name else resource.plural
    return f"{what} in {namespace}" if namespace and resource.namespaced else what


def _pause(response: Response, attempt: int) -> float:
    """What the server asks for, else a growing pause."""
    asked = response.headers.get("retry-after", "")
    return min(float(asked) if asked.isdigit() else 0.2 * 2**attempt, _LONGEST_PAUSE)
