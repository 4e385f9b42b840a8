"""Certificates, tokens and kubeconfigs of a test cluster, in its folder. `control_plane` calls it once."""

from __future__ import annotations

import secrets
import subprocess
from pathlib import Path

import msgspec

USERS = {
    # name in the kubeconfig: the user and its groups
    "admin": ("admin", "system:masters"),
    "controllers": ("system:kube-controller-manager", ""),
    "scheduler": ("system:kube-scheduler", ""),
    "node-a": ("system:node:node-a", "system:nodes"),
    "node-b": ("system:node:node-b", "system:nodes"),
    "viewer": ("viewer", ""),  # has what a test gives it
    "stranger": ("stranger", ""),  # has nothing
}


def make(folder: Path, address: str, port: int) -> None:
    _authority(folder)
    names = f"DNS:localhost,DNS:kubernetes.default.svc,IP:127.0.0.1,IP:10.96.0.1,IP:{address}"
    certificate(folder, "apiserver", "/CN=kube-apiserver", "serverAuth", names)
    certificate(folder, "apiserver-kubelet", "/O=system:masters/CN=kube-apiserver-kubelet-client", "clientAuth")
    certificate(folder, "admin-client", "/O=system:masters/CN=admin-by-certificate", "clientAuth")
    _openssl(folder, "genrsa", "-out", "accounts.key", "2048")
    _openssl(folder, "rsa", "-in", "accounts.key", "-pubout", "-out", "accounts.pub")
    tokens = {name: secrets.token_hex(16) for name in USERS}
    lines = [
        ",".join([tokens[name], user, f"uid-{name}", *([f'"{groups}"'] if groups else [])])
        for name, (user, groups) in USERS.items()
    ]
    (folder / "tokens.csv").write_text("\n".join(lines) + "\n")
    (folder / "tokens.csv").chmod(0o600)
    server = f"https://{address}:{port}"
    for name, token in tokens.items():
        _kubeconfig(folder / f"{name}.kubeconfig", folder / "ca.crt", server, {name: {"token": token}})
    certified = {
        "client-certificate": str(folder / "admin-client.crt"),
        "client-key": str(folder / "admin-client.key"),
    }
    _kubeconfig(folder / "certificate.kubeconfig", folder / "ca.crt", server, {"certified": certified})


def certificate(folder: Path, name: str, subject: str, usage: str, alternatives: str = "DNS:unused") -> None:
    _openssl(folder, "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", f"{name}.key")
    _openssl(folder, "req", "-new", "-key", f"{name}.key", "-subj", subject, "-out", f"{name}.csr")
    extensions = folder / f"{name}.ext"
    extensions.write_text(
        f"keyUsage=critical,digitalSignature\nextendedKeyUsage={usage}\nsubjectAltName={alternatives}\n"
    )
    _openssl(
        folder, "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial",
        "-days", "30", "-out", f"{name}.crt", "-extfile", str(extensions),
    )  # fmt: skip


def _authority(folder: Path) -> None:
    _openssl(folder, "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", "ca.key")
    _openssl(
        folder, "req", "-x509", "-new", "-key", "ca.key", "-days", "30", "-subj", "/CN=dibs-test-authority",
        "-out", "ca.crt", "-addext", "keyUsage=critical,keyCertSign,cRLSign,digitalSignature",
    )  # fmt: skip


def _kubeconfig(file: Path, authority: Path, server: str, users: dict[str, dict[str, str]]) -> None:
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": {"server": server, "certificate-authority": str(authority)}}],
        "users": [{"name": name, "user": user} for name, user in users.items()],
        "contexts": [{"name": name, "context": {"cluster": "test", "user": name}} for name in users],
        "current-context": next(iter(users)),
    }
    file.write_bytes(msgspec.json.encode(content))  # JSON is YAML
    file.chmod(0o600)


def _openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)
