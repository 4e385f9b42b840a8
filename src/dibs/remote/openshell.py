"""The files that make a gateway the active one of OpenShell's SDK: `dibs context export openshell` writes them.

    openshell/active_gateway                    its name
    openshell/gateways/NAME/metadata.json       its address, and that a bearer token is sent
    openshell/gateways/NAME/oidc_token.json     the token, readable by its owner alone
    openshell/gateways/NAME/mtls/               for https: the authority, and the client's certificate and key

They are in the folder where the SDK looks: $XDG_CONFIG_HOME, else ~/.config. Each is replaced as a whole.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from dibs.errors import InvalidRequest, NotFound
from dibs.home import Home
from dibs.remote import files


class Exported(msgspec.Struct, frozen=True):
    """What was written, and which gateway was the active one before."""

    name: str
    endpoint: str
    files: tuple[str, ...]
    before: str = ""


def export(
    home: Home,
    *,
    name: str = "dibs",
    url: str = "",
    token_file: str = "",
    ca_file: str = "",
    certificate: str = "",
    key: str = "",
) -> Exported:
    """Write them. Without a URL, for the gateway that this user has started last, with its own token."""
    endpoint = url or _running(home)
    _check(endpoint, bool(ca_file), certificate, key)
    token = (
        "" if certificate and not token_file else files.read(token_file or str(home.state / "gateway.token"), "token")
    )
    folder = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "openshell"
    place = folder / "gateways" / name
    active = folder / "active_gateway"
    before = active.read_text().strip() if active.is_file() else ""
    metadata = {"gateway_endpoint": endpoint, **({"auth_mode": "oidc"} if token else {})}
    written = {place / "metadata.json": json.dumps(metadata, indent=2) + "\n"}
    if token:
        written[place / "oidc_token.json"] = json.dumps({"access_token": token}) + "\n"
    for source, kept in ((ca_file, "ca.crt"), (certificate, "tls.crt"), (key, "tls.key")):
        if source:
            written[place / "mtls" / kept] = files.read(source, kept) + "\n"
    written[active] = f"{name}\n"
    for path, text in written.items():
        files.write(path, text)
    return Exported(name, endpoint, tuple(str(path) for path in written), "" if before == name else before)


def _running(home: Home) -> str:
    try:
        found = (home.state / "openshell.address").read_text().strip()
    except FileNotFoundError:
        raise NotFound(
            "no gateway of yours has served OpenShell's SDK yet", field="url", code="GATEWAY_NOT_FOUND",
            remedy="start one with dibs serve --openshell 127.0.0.1:50051, or give --url",
        ) from None  # fmt: skip
    return found


def _check(endpoint: str, authority: bool, certificate: str, key: str) -> None:
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidRequest(
            "the SDK takes http://HOST:PORT or https://HOST:PORT", field="url", value=endpoint, code="URL_INVALID",
            remedy="have the gateway listen on HOST:PORT",
        )  # fmt: skip
    if bool(certificate) != bool(key) or (certificate and not authority):
        raise InvalidRequest(
            "a client's certificate needs its key and the authority's certificate", field="certificate",
            value=certificate or key, code="CERTIFICATE_INVALID", remedy="give --certificate, --key and --ca-file",
        )  # fmt: skip
    if (authority or certificate) and parts.scheme != "https":
        raise InvalidRequest(
            "certificates are for https", field="url", value=endpoint, code="URL_INVALID", remedy="give an https URL"
        )
