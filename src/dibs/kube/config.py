"""Which cluster, and as whom: kubeconfig files, or the service account of the pod that dibs runs in.

A cluster is named by its context. `client` turns the answer into a connection. Files are read with kubectl's rules
(`KUBECONFIG` may list several; the first that defines a name wins). Nothing is connected here, and a field that cannot
be honoured is refused: a connection with fewer checks than asked for would be worse than none.
"""

from __future__ import annotations

import base64
import binascii
import os
from pathlib import Path
from typing import Any

import msgspec

from dibs.errors import InvalidRequest, NotFound, Problem, StateError, quoted

IN_CLUSTER = "in-cluster"
_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_LARGEST_FILE = 16 << 20


class ExecPlugin(msgspec.Struct, frozen=True, kw_only=True):
    """A program that prints a credential, as cloud providers ship them."""

    command: str
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    api_version: str = "client.authentication.k8s.io/v1"
    hint: str = ""


class ClusterConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One cluster and one user of it. Certificates and keys are PEM text."""

    name: str
    server: str
    source: str  # the file, or where else it comes from
    namespace: str = "default"
    user: str = ""
    ca: str = ""
    insecure: bool = False
    server_name: str = ""
    certificate: str = ""
    key: str = ""
    token: str = ""
    token_file: str = ""
    exec: ExecPlugin | None = None


def find_cluster(name: str | None = None, kubeconfig: str = "") -> ClusterConfig:
    """The cluster of a context; without a name the current context, or the cluster that dibs itself runs in.

    `kubeconfig`: the file to read, in place of what the environment names.
    """
    if name == IN_CLUSTER:
        return _in_cluster()
    files = [Path(kubeconfig)] if kubeconfig else [file for file in kubeconfig_files() if file.exists()]
    if not files:
        if name is None and in_cluster():
            return _in_cluster()
        asked = ", ".join(str(file) for file in kubeconfig_files())
        raise NotFound(
            "there is no kubeconfig, and dibs does not run in a cluster",
            field="cluster",
            value=name or "",
            code="KUBECONFIG_MISSING",
            remedy=f"put one at {asked}, or set KUBECONFIG",
        )
    return _from_files(files, name)


def cluster_names() -> tuple[str, ...]:
    """The contexts of the kubeconfig files; none where there is no file."""
    files = [file for file in kubeconfig_files() if file.exists()]
    return tuple(_merged(files)["contexts"]) if files else ()


def kubeconfig_files() -> tuple[Path, ...]:
    listed = [Path(item) for item in os.environ.get("KUBECONFIG", "").split(os.pathsep) if item]
    return tuple(listed) or (Path.home() / ".kube" / "config",)


def in_cluster() -> bool:
    return bool(os.environ.get("KUBERNETES_SERVICE_HOST")) and (_ACCOUNT / "token").exists()


def _in_cluster() -> ClusterConfig:
    host = os.environ.get("KUBERNETES_SERVICE_HOST", "")
    if not host:
        raise NotFound(
            "dibs does not run in a pod",
            field="cluster",
            value=IN_CLUSTER,
            code="KUBECONFIG_MISSING",
            remedy="name a context of your kubeconfig",
        )
    port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    namespace = _ACCOUNT / "namespace"
    return ClusterConfig(
        name=IN_CLUSTER,
        server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        source=str(_ACCOUNT),
        namespace=_text(namespace).strip() if namespace.exists() else "default",
        user="the pod's service account",
        ca=_text(_ACCOUNT / "ca.crt"),
        token_file=str(_ACCOUNT / "token"),
    )


# -- kubeconfig


def _from_files(files: list[Path], name: str | None) -> ClusterConfig:
    merged = _merged(files)
    contexts = merged["contexts"]
    chosen = name or merged["current"]
    listed = ", ".join(contexts) or "none"
    if not chosen:
        if name is None and in_cluster():
            return _in_cluster()
        raise InvalidRequest(
            "the kubeconfig has no current context",
            field="cluster",
            code="CLUSTER_UNKNOWN",
            remedy=f"name one: {listed}",
        )
    if chosen not in contexts:
        raise NotFound(
            "there is no such context in the kubeconfig",
            field="cluster",
            value=chosen,
            code="CLUSTER_UNKNOWN",
            remedy=f"the contexts are {listed}",
        )
    file, context = contexts[chosen]
    where = f"{file}: context {chosen}"
    cluster_file, cluster = _named(merged["clusters"], context.get("cluster"), "cluster", where)
    user_file, user = _named(merged["users"], context["user"], "user", where) if context.get("user") else (file, {})
    return _read(chosen, context, cluster_file, cluster, user_file, user)


def _read(
    name: str,
    context: dict[str, Any],
    cluster_file: Path,
    cluster: dict[str, Any],
    user_file: Path,
    user: dict[str, Any],
) -> ClusterConfig:
    problems: list[Problem] = []

    def refuse(field: str, value: object, reason: str, remedy: str) -> None:
        problems.append(Problem("KUBECONFIG_UNSUPPORTED", field, str(value), reason, remedy))

    server = str(cluster.get("server") or "")
    if not server.startswith(("https://", "http://")):
        refuse("server", server, "not an address of an API server", "write https://HOST:PORT")
    if cluster.get("proxy-url"):
        refuse("proxy-url", cluster["proxy-url"], "proxies are not supported", "connect directly, or through a tunnel")
    for key in ("auth-provider", "username", "password"):
        if user.get(key):
            # A password never stands in a message.
            value = user[key].get("name", "") if isinstance(user[key], dict) else ""
            refuse(key, value, "Kubernetes no longer has this", "use a token, a certificate or an exec plugin")
    for key in ("as", "as-uid", "as-groups", "as-user-extra"):
        if user.get(key):
            refuse(key, user[key], "impersonation in a kubeconfig is not supported", "use a context without it")
    plugin = _exec(user.get("exec"), problems)
    if problems:
        raise InvalidRequest(problems)
    insecure = bool(cluster.get("insecure-skip-tls-verify"))
    token_file = str(user.get("tokenFile") or "")
    return ClusterConfig(
        name=name,
        server=server.rstrip("/"),
        source=str(cluster_file),
        namespace=str(context.get("namespace") or "default"),
        user=str(context.get("user") or ""),
        ca=_pem(cluster, "certificate-authority", cluster_file),
        insecure=insecure,
        server_name=str(cluster.get("tls-server-name") or ""),
        certificate=_pem(user, "client-certificate", user_file),
        key=_pem(user, "client-key", user_file),
        token="" if token_file else str(user.get("token") or ""),
        token_file=str(user_file.parent / token_file) if token_file else "",
        exec=plugin,
    )


def _exec(found: Any, problems: list[Problem]) -> ExecPlugin | None:
    if not found:
        return None
    if not isinstance(found, dict) or not found.get("command"):
        problems.append(Problem("KUBECONFIG_UNSUPPORTED", "exec", "", "it names no command", "write exec.command"))
        return None
    if found.get("interactiveMode") == "Always":
        problems.append(
            Problem(
                "KUBECONFIG_UNSUPPORTED",
                "exec.interactiveMode",
                "Always",
                "dibs does not talk to a credential plugin",
                "log in with the plugin first, and set IfAvailable",
            )
        )
    return ExecPlugin(
        command=str(found["command"]),
        args=tuple(str(word) for word in found.get("args") or ()),
        env={str(item["name"]): str(item["value"]) for item in found.get("env") or () if isinstance(item, dict)},
        api_version=str(found.get("apiVersion") or "client.authentication.k8s.io/v1"),
        hint=str(found.get("installHint") or ""),
    )


def _pem(part: dict[str, Any], key: str, file: Path) -> str:
    """A certificate or key: its data, or the file that is named, relative to the kubeconfig."""
    data = part.get(f"{key}-data")
    if data:
        try:
            return base64.b64decode(str(data), validate=True).decode("ascii")
        except (binascii.Error, UnicodeDecodeError) as error:
            raise InvalidRequest(
                f"not base64 of a PEM text: {error}", field=f"{key}-data", code="KUBECONFIG_UNREADABLE"
            ) from error
    path = part.get(key)
    return _text(file.parent / str(path)) if path else ""


def _named(
    entries: dict[str, tuple[Path, dict[str, Any]]], name: Any, kind: str, where: str
) -> tuple[Path, dict[str, Any]]:
    found = entries.get(str(name))
    if found is None:
        listed = ", ".join(entries) or "none"
        raise InvalidRequest(
            f"it names {kind} {quoted(name or '')}, which is not there",
            field=where,
            code="KUBECONFIG_UNREADABLE",
            remedy=f"the {kind}s are {listed}",
        )
    return found


def _merged(files: list[Path]) -> dict[str, Any]:
    """All files together, each entry with the file that it is from; the first that defines a name wins."""
    import yaml

    merged: dict[str, Any] = {"current": "", "contexts": {}, "clusters": {}, "users": {}}
    for file in files:
        try:
            found = yaml.load(_text(file), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - safe
        except yaml.YAMLError as error:
            raise InvalidRequest(
                f"not YAML: {' '.join(str(error).split())}", field=str(file), code="KUBECONFIG_UNREADABLE"
            ) from error
        if found is None:
            continue
        if not isinstance(found, dict):
            raise InvalidRequest("not a kubeconfig", field=str(file), code="KUBECONFIG_UNREADABLE")
        merged["current"] = merged["current"] or str(found.get("current-context") or "")
        for plural, singular in (("contexts", "context"), ("clusters", "cluster"), ("users", "user")):
            for entry in found.get(plural) or ():
                if not isinstance(entry, dict) or not isinstance(entry.get(singular) or {}, dict):
                    raise InvalidRequest(
                        f"an entry of {plural} is no mapping", field=str(file), code="KUBECONFIG_UNREADABLE"
                    )
                merged[plural].setdefault(str(entry.get("name")), (file.absolute(), entry.get(singular) or {}))
    return merged


def _text(file: Path) -> str:
    try:
        if file.stat().st_size > _LARGEST_FILE:
            raise InvalidRequest("too large for a kubeconfig", field=str(file), code="KUBECONFIG_UNREADABLE")
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequest("not text", field=str(file), code="KUBECONFIG_UNREADABLE") from error
    except OSError as error:
        raise StateError(
            f"cannot be read: {error.strerror}",
            field=str(file),
            code="KUBECONFIG_UNREADABLE",
            remedy="check that the file is there and may be read by you",
        ) from error
