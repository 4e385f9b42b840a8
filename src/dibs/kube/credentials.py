"""Who asks: TLS settings and the bearer token of a `ClusterConfig`. `client` uses it; nothing is logged here.

A token in a file is read again for every connection's worth of requests, because the kubelet renews it. An exec plugin
is run once, and again when the server no longer takes its token.
"""

from __future__ import annotations

import os
import ssl
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

from dibs.errors import StateError
from dibs.kube.config import ClusterConfig, ExecPlugin
from dibs.kube.errors import Unauthorized

_PLUGIN_SECONDS = 60.0
_FRESH = 30.0  # s for which a token from a file is not read again


class Credentials:
    def __init__(self, config: ClusterConfig) -> None:
        self._config = config
        self._token = config.token
        self._read_at = 0.0
        self._certificate = config.certificate
        self._key = config.key
        self._asked = False
        self._context: ssl.SSLContext | None = None

    def headers(self) -> dict[str, str]:
        config = self._config
        if config.token_file and time.monotonic() - self._read_at > _FRESH:
            self._token = self._from_file(config.token_file)
            self._read_at = time.monotonic()
        if config.exec is not None and not self._asked:
            self._run(config.exec)
        return {"Authorization": f"Bearer {self._token}"} if self._token else {}

    def renew(self) -> bool:
        """After a 401: whether there is another token to try."""
        before = self._token
        if self._config.exec is not None:
            if not self._asked:
                return False
            self._run(self._config.exec)
        elif self._config.token_file:
            self._token = self._from_file(self._config.token_file)
        return self._token != before

    def context(self) -> ssl.SSLContext | None:
        """TLS as the kubeconfig asks for it; None for a plain http address."""
        config = self._config
        if not config.server.startswith("https://"):
            return None
        if config.exec is not None and not self._asked:
            self._run(config.exec)  # it may give a certificate
        if self._context is not None:
            return self._context
        try:
            context = ssl.create_default_context(cadata=config.ca or None)
            if config.insecure:
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            if self._certificate:
                self._load(context)
        except ssl.SSLError as error:
            raise StateError(
                f"its certificates cannot be used: {error.reason or error}",
                field="cluster",
                value=config.name,
                code="KUBECONFIG_UNREADABLE",
                remedy="check the certificates and the key of the context",
            ) from error
        self._context = context
        return context

    def _load(self, context: ssl.SSLContext) -> None:
        # Python's ssl reads a key from files only: it lies in one for a moment, readable by this user alone.
        with tempfile.TemporaryDirectory(prefix="dibs-tls-") as folder:
            file = Path(folder) / "pair.pem"
            file.touch(mode=0o600)
            file.write_text(f"{self._certificate}\n{self._key}\n", encoding="ascii")
            context.load_cert_chain(file)

    def _from_file(self, path: str) -> str:
        try:
            return Path(path).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise StateError(
                f"the token cannot be read: {error}", field="tokenFile", value=path, code="KUBECONFIG_UNREADABLE"
            ) from error

    def _run(self, plugin: ExecPlugin) -> None:
        """Ask the plugin for a credential, as kubectl does."""
        self._asked = True
        info = {
            "apiVersion": plugin.api_version,
            "kind": "ExecCredential",
            "spec": {"interactive": False, "cluster": {"server": self._config.server}},
        }
        environment = {**os.environ, **plugin.env, "KUBERNETES_EXEC_INFO": msgspec.json.encode(info).decode()}
        try:
            done = subprocess.run(
                [plugin.command, *plugin.args],
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_PLUGIN_SECONDS,
                check=False,
            )
        except FileNotFoundError as error:
            raise self._plugin_failed(plugin, "there is no such command", plugin.hint) from error
        except (OSError, subprocess.TimeoutExpired) as error:
            raise self._plugin_failed(plugin, str(error)) from error
        if done.returncode:
            said = done.stderr.decode("utf-8", "replace").strip()
            raise self._plugin_failed(plugin, f"exit code {done.returncode}: {said[-500:]}")
        try:
            status: Any = msgspec.json.decode(done.stdout)["status"]
            self._token = str(status.get("token") or "")
            self._certificate = str(status.get("clientCertificateData") or self._config.certificate)
            self._key = str(status.get("clientKeyData") or self._config.key)
        except (msgspec.DecodeError, KeyError, TypeError, AttributeError) as error:
            raise self._plugin_failed(plugin, "it printed no ExecCredential") from error
        self._context = None

    def _plugin_failed(self, plugin: ExecPlugin, reason: str, remedy: str = "") -> Unauthorized:
        return Unauthorized(
            f"the credential plugin failed: {reason}",
            field="exec.command",
            value=plugin.command,
            code="CREDENTIAL_PLUGIN_FAILED",
            remedy=remedy or "run it by hand; usually it asks you to log in again",
        )
