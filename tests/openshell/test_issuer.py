"""OpenShell's SDK with tokens of an OIDC issuer: it renews them there, and the gateway fetches the keys there."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from tests.openshell import wheels
from tests.openshell.conftest import Place, begin_on
from tests.openshell.test_sdk import activate, is_whole, live

from openshell import ClientCredentialsAuth, GatewayError, SandboxClient


class Issuer:
    """Signs tokens for those with the right refresh token or secret, with its present key."""

    def __init__(self) -> None:
        self.granted: list[str] = []
        self.answers = True
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self.new_key()
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def new_key(self) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.kid = f"k{time.monotonic_ns()}"

    def token(self, **claims: Any) -> str:
        usual: dict[str, Any] = {
            "iss": self.url,
            "aud": "dibs",
            "sub": "dora",
            "tenant": "team-b",
            "scope": "sandbox:write",
        }
        usual |= {"exp": int(time.time()) + 600, **claims}
        return jwt.encode(usual, self.key, algorithm="ES256", headers={"kid": self.kid})

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, path: str, form: dict[str, list[str]]) -> dict[str, Any] | None:
        """What stands under a path; None where nothing does."""
        if path == "/.well-known/openid-configuration":
            return {"issuer": self.url, "token_endpoint": f"{self.url}/token", "jwks_uri": f"{self.url}/keys"}
        if path == "/keys":
            public = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(self.key.public_key()))
            return {"keys": [{**public, "kid": self.kid, "use": "sig", "alg": "ES256"}]}
        if path == "/token" and (form.get("refresh_token") == ["again"] or form.get("client_secret") == ["sesame"]):
            self.granted += form["grant_type"]
            return {"access_token": self.token(), "refresh_token": "again", "expires_in": 600}
        return None

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                size = int(self.headers.get("Content-Length") or 0)
                found = issuer.answer(self.path, parse_qs(self.rfile.read(size).decode())) if issuer.answers else None
                data = json.dumps(found or {"error": "invalid_grant"}).encode()
                self.send_response(200 if found else 400)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def do_POST(self) -> None:
                self.do_GET()

            def log_message(self, *_: object) -> None:
                pass

        return Handler


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Place, Issuer]]:
    issuer = Issuer()
    settings = f'[gateway]\noidc_issuer = "{issuer.url}"\noidc_audience = "dibs"\n'
    for place in begin_on("local", tmp_path_factory.mktemp("openshell-issuer"), settings):
        yield place, issuer
    issuer.close()


def signed_in(place: Place, issuer: Issuer, config: Path) -> Path:
    """The files of a user whose token has expired, and who can have a new one; the folder of the gateway."""
    named = {"oidc_issuer": issuer.url, "oidc_client_id": "tests", "oidc_audience": "dibs"}
    folder = activate(config, gateway_endpoint=f"http://{place.endpoint}", auth_mode="oidc", **named)
    kept = {"access_token": issuer.token(exp=1), "refresh_token": "again", "expires_at": 1, "issuer": issuer.url}
    (folder / "oidc_token.json").write_text(json.dumps({**kept, "client_id": "tests"}))
    return folder


def test_a_whole_life_with_a_token_that_the_sdk_renews(served: tuple[Place, Issuer], tmp_path: Path) -> None:
    place, issuer = served
    for release in wheels.releases():
        folder = signed_in(place, issuer, tmp_path / release)
        is_whole(live(place, tmp_path / release, release), place)
        kept = json.loads((folder / "oidc_token.json").read_text())
        assert kept["expires_at"] > time.time()
        assert "refresh_token" in issuer.granted


def test_a_service_signs_in_with_its_secret(
    served: tuple[Place, Issuer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, issuer = served
    signed_in(place, issuer, tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with SandboxClient.from_active_cluster(client_credentials=ClientCredentialsAuth(client_secret="sesame")) as client:
        assert client.list_all(workspace="team-b") == []
    assert "client_credentials" in issuer.granted


def told(place: Place, token: str) -> str:
    """Why a caller with this token is turned away; nothing if it is not."""
    with place.client(token) as client:
        try:
            client.list_all(workspace="default")
        except GatewayError as error:
            return error.error_info.reason if error.error_info else "nothing was said"
    return ""


def test_a_new_key_of_the_issuer_is_fetched_and_the_old_one_is_not_good_any_more(served: tuple[Place, Issuer]) -> None:
    place, issuer = served
    before = issuer.token()
    place.gateway.until(lambda: not told(place, before))
    issuer.new_key()
    after = issuer.token()
    place.gateway.until(lambda: not told(place, after))
    assert told(place, before) == "TOKEN_UNKNOWN"


def test_an_issuer_that_is_away_is_named_and_known_keys_are_still_good(served: tuple[Place, Issuer]) -> None:
    place, issuer = served
    known = issuer.token()
    place.gateway.until(lambda: not told(place, known))
    issuer.answers = False
    try:
        unknown = jwt.encode({"iss": issuer.url}, issuer.key, algorithm="ES256", headers={"kid": "other"})
        place.gateway.until(lambda: told(place, unknown) == "OIDC_KEYS_UNREADABLE")
        assert told(place, known) == ""
    finally:
        issuer.answers = True
