"""The kubeconfig that makes a gateway the Kubernetes of the Kubeflow SDK: `dibs context export kubeflow` writes it.

It has one cluster, one user with a token, and one context, in a file of its own: the kubeconfigs that are there stay as
they are. The namespace is the caller's tenant; the gateway is asked for it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from dibs.errors import Conflict, InvalidRequest, NotFound
from dibs.home import Home
from dibs.remote import files
from dibs.wire.service import WhoAmI

ADDRESS = "gateway.address"  # in the state folder: where the gateway of this user listens
_ROOT = "/kubeflow"


class Exported(msgspec.Struct, frozen=True):
    """`tokenless`: the clients of Go send no token to this address, because it is not https."""

    path: str
    server: str
    namespace: str
    tokenless: bool


def export(
    home: Home,
    *,
    name: str = "dibs",
    url: str = "",
    token_file: str = "",
    ca_file: str = "",
    namespace: str = "",
    file: str = "",
) -> Exported:
    """Write it. Without a URL, for the gateway that this user has started last, with its own token."""
    base = (url or _running(home)).rstrip("/")
    _check(base, ca_file)
    token = files.read(token_file or str(home.state / "gateway.token"), "token")
    place = namespace or _namespace(base, token, ca_file)
    path = Path(file).expanduser() if file else home.state / "kubeconfig"
    _only_ours(path, name)
    cluster: dict[str, Any] = {"server": f"{base}{_ROOT}"}
    if ca_file:
        cluster["certificate-authority"] = os.path.abspath(os.path.expanduser(ca_file))
    made = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": cluster}],
        "users": [{"name": name, "user": {"token": token}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name, "namespace": place}}],
        "current-context": name,
    }
    import yaml

    files.write(path, yaml.safe_dump(made, sort_keys=False))
    return Exported(str(path), cluster["server"], place, urlsplit(base).scheme != "https")


def _running(home: Home) -> str:
    try:
        return (home.state / ADDRESS).read_text().strip()
    except FileNotFoundError:
        raise NotFound(
            "no gateway of yours has listened on TCP yet", field="url", code="GATEWAY_NOT_FOUND",
            remedy="start one with dibs serve, or give --url",
        ) from None  # fmt: skip


def _check(base: str, ca_file: str) -> None:
    parts = urlsplit(base)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise InvalidRequest(
            "the SDK takes http://HOST:PORT or https://HOST", field="url", value=base, code="URL_INVALID",
            remedy="have the gateway listen on HOST:PORT",
        )  # fmt: skip
    if ca_file and parts.scheme != "https":
        raise InvalidRequest(
            "certificates are for https", field="url", value=base, code="URL_INVALID", remedy="give an https URL"
        )


def _namespace(base: str, token: str, ca_file: str) -> str:
    from dibs.remote.connection import Line
    from dibs.remote.target import Target

    line = Line(Target(base, "--url or the gateway's address", token, ca_file))
    try:
        return line.ask(WhoAmI, "GET", "/whoami").tenant or "default"
    finally:
        line.close()


def _only_ours(path: Path, name: str) -> None:
    """A file that holds something else is not replaced."""
    if not path.exists():
        return
    import yaml

    try:
        before = yaml.safe_load(files.read(str(path), "file"))
        names = [one["name"] for one in before["clusters"]]
    except (yaml.YAMLError, TypeError, KeyError):
        names = ["?"]
    if names != [name]:
        raise Conflict(
            "the file holds other clusters, and would be replaced", field="file", value=str(path), code="FILE_EXISTS",
            remedy="name another file; KUBECONFIG=FILE:FILE joins several",
        )  # fmt: skip
