"""What an API server, or the way to it, can say, as dibs' own errors. One mapping, used by `client` alone.

Kubernetes answers with a `Status`: code, reason, message, details. The reason decides; where it is missing, the HTTP
code does. A test holds the table against Kubernetes' own list of reasons.

    BackendUnavailable ─┬─ Unreachable      no connection, or an answer that is no API server's (retry)
                        ├─ Overloaded       429, 503, 504 and the like, after retries (retry)
                        ├─ Unauthorized     401: expired or wrong credentials
                        └─ Forbidden        403: RBAC; names verb, resource and the role to add
    Conflict ─┬─ Changed                    409 on an update: read it again
              ├─ Exists                     409 on a create
              └─ Expired                    410: the list or watch must start again
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from dibs.errors import BackendUnavailable, Conflict, DibsError, InvalidRequest, NotFound, Problem, QuotaExceeded
from dibs.http import ProtocolError
from dibs.patterns import lazy_pattern


class Unreachable(BackendUnavailable):
    default_code = "CLUSTER_UNREACHABLE"


class Overloaded(BackendUnavailable):
    default_code = "CLUSTER_OVERLOADED"


class Unauthorized(BackendUnavailable):
    default_code = "CLUSTER_UNAUTHORIZED"
    retryable: ClassVar[bool] = False


class Forbidden(BackendUnavailable):
    default_code = "CLUSTER_FORBIDDEN"
    retryable: ClassVar[bool] = False
    user = ""  # who may not; empty where the API server does not say it
    resource = ""  # as roles name it: pods, resourceslices.resource.k8s.io


class Rejected(InvalidRequest):
    """The object itself is wrong, in the words of the API server or of an admission webhook."""

    default_code = "CLUSTER_REJECTED"


class Missing(NotFound):
    default_code = "CLUSTER_NOT_FOUND"


class Changed(Conflict):
    default_code = "CLUSTER_CONFLICT"


class Exists(Conflict):
    default_code = "CLUSTER_EXISTS"


class Expired(Conflict):
    default_code = "CLUSTER_EXPIRED"


class Terminating(Conflict):
    default_code = "NAMESPACE_TERMINATING"


class OverQuota(QuotaExceeded):
    default_code = "CLUSTER_QUOTA_EXCEEDED"


# Every metav1.StatusReason, with what it is to a caller.
REASONS: Mapping[str, type[DibsError]] = {
    "Unauthorized": Unauthorized,
    "Forbidden": Forbidden,
    "NotFound": Missing,
    "AlreadyExists": Exists,
    "Conflict": Changed,
    "Gone": Expired,
    "Expired": Expired,
    "Invalid": Rejected,
    "BadRequest": Rejected,
    "MethodNotAllowed": Rejected,
    "NotAcceptable": Rejected,
    "RequestEntityTooLarge": Rejected,
    "UnsupportedMediaType": Rejected,
    "ServerTimeout": Overloaded,
    "Timeout": Overloaded,
    "TooManyRequests": Overloaded,
    "ServiceUnavailable": Overloaded,
    "InternalError": Unreachable,
    "StorageReadError": Unreachable,
}
_CODES: Mapping[int, type[DibsError]] = {
    400: Rejected, 401: Unauthorized, 403: Forbidden, 404: Missing, 405: Rejected, 406: Rejected, 409: Changed,
    410: Expired, 413: Rejected, 415: Rejected, 422: Rejected, 429: Overloaded, 500: Unreachable, 502: Unreachable,
    503: Overloaded, 504: Overloaded,
}  # fmt: skip
_CANNOT = lazy_pattern(
    r'User "(?P<user>[^"]*)" cannot (?P<verb>\w+) resource "(?P<resource>[^"]+)" in API group "(?P<group>[^"]*)"'
    r'(?: in the namespace "(?P<namespace>[^"]*)")?'
)
_WEBHOOK = lazy_pattern(r'admission webhook "([^"]+)" denied the request')


def from_status(status: Any, code: int, cluster: str, subject: str) -> DibsError:
    """The error for a failed request. `subject`: what was asked, as `list pods in default`."""
    if not isinstance(status, dict):
        status = {}
    message = str(status.get("message") or f"the API server answered {code} without a reason")
    reason = str(status.get("reason") or "")
    if reason in ("", "Unknown") or reason not in REASONS:
        kind = _CODES.get(code, Rejected if 400 <= code < 500 else Unreachable)
    else:
        kind = REASONS[reason]
    details = status.get("details") or {}
    causes = details.get("causes") or ()
    if kind is Forbidden:
        return _forbidden(message, causes, cluster, subject)
    if webhook := _WEBHOOK.search(message):
        return Rejected(
            message,
            field="admission webhook",
            value=webhook[1],
            code="ADMISSION_DENIED",
            remedy="change the object as it says, or ask the administrator of the webhook",
        )
    if kind is Rejected and causes:
        return Rejected(
            [
                Problem(
                    Rejected.default_code, str(cause.get("field") or subject), "", str(cause.get("message") or message)
                )
                for cause in causes
            ]
        )
    return kind(message, field=subject, value=cluster, remedy=_REMEDIES.get(kind, ""))


_REMEDIES: Mapping[type[DibsError], str] = {
    Unauthorized: "the credentials are expired or wrong: log in again, or renew the context's token or certificate",
    Overloaded: "try again later; the cluster asks for fewer requests",
    Changed: "it was changed meanwhile: read it again",
    Exists: "take another name, or delete the one that is there",
    Expired: "start the list or watch again",
    Unreachable: "see the API server's log",
}


def _forbidden(message: str, causes: Any, cluster: str, subject: str) -> DibsError:
    if any(isinstance(cause, dict) and cause.get("reason") == "NamespaceTerminating" for cause in causes):
        return Terminating(message, field=subject, value=cluster, remedy="wait until it is gone, or use another one")
    if "exceeded quota" in message or "failed quota" in message:
        return OverQuota(
            message, field=subject, value=cluster, remedy="ask for less, delete something, or have the quota raised"
        )
    if (cannot := _CANNOT.search(message)) is None:
        # Admission plugins answer 403 too: an unknown RuntimeClass, pod security, a priority class that is not allowed.
        return Rejected(message, field=subject, value=cluster, code="ADMISSION_DENIED")
    found = Forbidden(
        f"{cannot['user']} may not {cannot['verb']} {cannot['resource']}"
        + (f" in namespace {cannot['namespace']}" if cannot["namespace"] else " in the whole cluster"),
        field=subject,
        value=cluster,
        remedy=role_to_add(
            cannot["user"], cannot["verb"], cannot["resource"], cannot["group"], cannot["namespace"] or ""
        ),
    )
    found.user, found.resource = cannot["user"], _of_role(cannot["resource"], cannot["group"])
    return found


def role_to_add(user: str, verb: str, resource: str, group: str, namespace: str) -> str:
    """The commands that grant a verb; what reads also lists and watches."""
    verbs = "get,list,watch" if verb in ("get", "list", "watch") else verb
    name = f"dibs-{verb}-{resource.replace('/', '-')}"
    return f"grant it: {_granting(name, user, verbs, _of_role(resource, group), namespace)}"


def role_to_read(user: str, resources: Sequence[str]) -> str:
    """The commands that let a user read all of these in the whole cluster. Resources as roles name them."""
    return f"grant it: {_granting('dibs-read', user, 'get,list,watch', ','.join(resources), '')}"


def _of_role(resource: str, group: str) -> str:
    return f"{resource}.{group}" if group else resource


def _granting(name: str, user: str, verbs: str, resources: str, namespace: str) -> str:
    if user.startswith("system:serviceaccount:"):
        subject = f"--serviceaccount={user.removeprefix('system:serviceaccount:')}"
    else:
        subject = f"--user={user}"
    kind, where = ("role", f" -n {namespace}") if namespace else ("clusterrole", "")
    return (
        f"kubectl create {kind} {name} --verb={verbs} --resource={resources}{where} && "
        f"kubectl create {kind}binding {name} --{kind}={name} {subject}{where}"
    )


def from_line(error: OSError, cluster: str, server: str) -> DibsError:
    """The error for trouble with the connection."""
    remedy = "check the address in the kubeconfig and the way to it"
    if isinstance(error, ssl.SSLCertVerificationError):
        reason = f"its certificate is not trusted: {error.verify_message or error}"
        remedy = "check certificate-authority and tls-server-name of the cluster in the kubeconfig"
    elif isinstance(error, ssl.SSLError):
        reason = f"TLS failed: {error.reason or error}"
        remedy = "check the client certificate and key of the user in the kubeconfig"
    elif isinstance(error, TimeoutError):
        reason = "it does not answer in time"
    elif isinstance(error, socket.gaierror):
        reason = f"its name cannot be resolved: {error.strerror}"
    elif isinstance(error, ProtocolError):
        reason = f"what answers there is no API server: {error}"
    else:
        reason = error.strerror or str(error) or type(error).__name__
        reason = reason[:1].lower() + reason[1:]
    return Unreachable(f"cannot reach {server}: {reason}", field="cluster", value=cluster, remedy=remedy)
