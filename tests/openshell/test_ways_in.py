"""Ways in besides dibs' own tokens: client certificates (mTLS) and JWTs of an OIDC issuer, through the SDK."""

from __future__ import annotations

import datetime as dt
import ipaddress
import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import jwt
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from openshell.errors import GatewayError
from tests.openshell import wheels
from tests.openshell.conftest import Place, begin_on
from tests.openshell.test_sdk import activate, is_whole, live

from openshell import SandboxClient, TlsConfig

OPEN = "[gateway]\nloopback_open = true\n"
ISSUER, AUDIENCE = "https://issuer.example", "dibs"


def made(folder: Path, name: str, organization: str, signer: Any = None) -> Any:
    """A certificate and its key in PEM files; signed by itself without a signer."""
    key = ec.generate_private_key(ec.SECP256R1())
    words = [x509.NameAttribute(NameOID.COMMON_NAME, name), x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization)]
    subject = x509.Name(words)
    now = dt.datetime.now(dt.UTC)
    issuer, signing = signer or (subject, key)
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=signer is None, path_length=None), critical=True)
        .sign(signing, hashes.SHA256())
    )
    (folder / f"{name}.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    private = serialization.PrivateFormat.PKCS8
    (folder / f"{name}.key").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, private, serialization.NoEncryption())
    )
    return subject, key


def certificates(folder: Path) -> str:
    """An authority, its certificates, keys of an issuer, and the settings that name them."""
    authority = made(folder, "ca", "tests")
    made(folder, "server", "tests", authority)
    made(folder, "carl", "team-a", authority)
    made(folder, "root", "dibs:admins", authority)
    made(folder, "odd", "NOT A TENANT", authority)
    return f"""
[gateway]
openshell_certificate = "{folder}/server.crt"
openshell_key = "{folder}/server.key"
openshell_client_ca = "{folder}/ca.crt"
"""


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Place, Path, Any]]:
    folder = tmp_path_factory.mktemp("openshell-tls")
    settings = certificates(folder)
    signing = ec.generate_private_key(ec.SECP256R1())
    key = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(signing.public_key()))
    (folder / "keys.json").write_text(json.dumps({"keys": [{**key, "kid": "k1", "use": "sig", "alg": "ES256"}]}))
    settings += f"""oidc_issuer = "{ISSUER}"
oidc_audience = "{AUDIENCE}"
oidc_jwks = "{folder}/keys.json"
"""
    for place in begin_on("local", folder, settings):
        yield place, folder, signing


def client(place: Place, folder: Path, who: str = "carl", token: str | None = None) -> SandboxClient:
    own = {"cert_path": folder / f"{who}.crt", "key_path": folder / f"{who}.key"} if who else {}
    return SandboxClient(
        place.endpoint, tls=TlsConfig(ca_path=folder / "ca.crt", **own), bearer_token=token, timeout=60
    )


def claims(**changes: Any) -> dict[str, Any]:
    usual = {"iss": ISSUER, "aud": AUDIENCE, "sub": "dora", "tenant": "team-b", "scope": "sandbox:write"}
    return {**usual, "exp": int(time.time()) + 600, **changes}


def refusal(place: Place, folder: Path, who: str = "carl", token: str | None = None) -> str:
    with client(place, folder, who, token) as one, pytest.raises(GatewayError) as caught:
        one.list_all(workspace="default")
    error: Any = caught.value
    assert error.code() is grpc.StatusCode.UNAUTHENTICATED, error
    return str(error.error_info.reason)


def test_a_certificate_says_who_and_which_tenant(secure: tuple[Place, Path, Any]) -> None:
    place, folder, _ = secure
    with client(place, folder, "carl") as carl, client(place, folder, "root") as root:
        name = carl.create(workspace="default", spec=place.spec(1)).name
        carl.wait_ready(name, workspace="default")
        assert carl.exec(name, ["echo", "hi"], workspace="default").stdout == "hi\n"
        assert [one.workspace for one in root.list_all_for_all_workspaces()] == ["team-a"]
        root.delete(name, workspace="team-a")
    assert refusal(place, folder, "odd") == "TENANT_INVALID"
    with client(place, folder, "") as nobody, pytest.raises(GatewayError) as caught:
        nobody.health()
    error: Any = caught.value
    assert error.code() is grpc.StatusCode.UNAVAILABLE  # no handshake without a certificate


@pytest.mark.parametrize("kind", ["local", "docker", "podman"])
def test_a_whole_life_with_a_certificate(kind: str, tmp_path: Path) -> None:
    for place in begin_on(kind, tmp_path, certificates(tmp_path)):
        for release in wheels.releases():
            config = tmp_path / release
            own = activate(config, gateway_endpoint=f"https://{place.endpoint}") / "mtls"
            own.mkdir()
            for name, source in (("ca.crt", "ca.crt"), ("tls.crt", "carl.crt"), ("tls.key", "carl.key")):
                shutil.copy(tmp_path / source, own / name)
            is_whole(live(place, config, release), place)


@pytest.mark.parametrize("kind", ["local", "docker", "podman"])
def test_a_whole_life_in_plaintext_without_a_token(kind: str, tmp_path: Path) -> None:
    for place in begin_on(kind, tmp_path, OPEN):
        for release in wheels.releases():
            config = tmp_path / release
            activate(config, gateway_endpoint=f"http://{place.endpoint}")
            is_whole(live(place, config, release, admin=True), place)


def test_a_token_of_dibs_says_more_than_a_certificate(secure: tuple[Place, Path, Any]) -> None:
    place, folder, _ = secure
    with client(place, folder, token=place.other) as one:
        assert one.list_all(workspace="team-b") == []
    assert refusal(place, folder, token="dibs_unknown") == "TOKEN_UNKNOWN"


def test_a_token_of_the_issuer_says_who_which_tenant_and_what_is_allowed(secure: tuple[Place, Path, Any]) -> None:
    place, folder, key = secure

    def token(signing: Any = key, **changes: Any) -> str:
        return jwt.encode(claims(**changes), signing, algorithm="ES256", headers={"kid": "k1"})

    with client(place, folder, token=token()) as dora:
        name = dora.create(workspace="default", spec=place.spec()).name
        dora.delete(name, workspace="default")
        assert dora.list_all(workspace="team-b") == []
    with client(place, folder, token=token(scope="sandbox:read")) as reader, pytest.raises(GatewayError) as caught:
        reader.create(workspace="default", spec=place.spec())
    error: Any = caught.value
    assert error.code() is grpc.StatusCode.PERMISSION_DENIED
    for bad, reason in (
        (token(exp=int(time.time()) - 600), "TOKEN_EXPIRED"),
        (token(aud="others"), "TOKEN_UNKNOWN"),
        (token(iss="https://other.example"), "TOKEN_UNKNOWN"),
        (token(signing=ec.generate_private_key(ec.SECP256R1())), "TOKEN_UNKNOWN"),
        (token(tenant=None), "TENANT_MISSING"),
        (token(scope="email"), "SCOPE_MISSING"),
        (jwt.encode(claims(), "a" * 40, algorithm="HS256", headers={"kid": "k1"}), "TOKEN_UNKNOWN"),
    ):
        assert refusal(place, folder, token=bad) == reason
