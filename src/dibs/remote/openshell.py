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

from dibs.errors import InvalidRequest, NotFound, StateError
from dibs.home import Home


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
    token = "" if certificate and not token_file else _read(token_file or str(home.state / "gateway.token"), "token")
    folder = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "openshell"
    place = folder / "gateways" / name
    active = folder / "active_gateway"
    before = active.read_text().strip() if active.is_file() else ""
    metadata = {"gateway_endpoint": endpoint, **({"auth_mode": "oidc"} if token else {})}
    files = {place / "metadata.json": json.dumps(metadata, indent=2) + "\n"}
    if token:
        files[place / "oidc_token.json"] = json.dumps({"access_token": token}) + "\n"
    for source, kept in ((ca_file, "ca.crt"), (certificate, "tls.crt"), (key, "tls.key")):
        if source:
            files[place / "mtls" / kept] = _read(source, kept) + "\n"
    files[active] = f"{name}\n"
    for path, text in files.items():
        _write(path, text)
    return Exported(name, endpoint, tuple(str(path) for path in files), "" if before == name else before)


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


def _read(path: str, what: str) -> str:
    try:
        return Path(path).expanduser().read_text().strip()
    except OSError as error:
        raise StateError(
            f"it cannot be read: {error.strerror}", field=what, value=path, code="STATE_FOLDER_UNUSABLE",
            remedy="check the path and its permissions",
        ) from error  # fmt: skip


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        draft.replace(path)
    except OSError as error:
        raise StateError(
            f"it cannot be written: {error.strerror}", field="file", value=str(path), code="STATE_FOLDER_UNUSABLE",
            remedy="check the permissions of the folder",
        ) from error  # fmt: skip
