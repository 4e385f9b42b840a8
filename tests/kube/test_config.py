"""Which cluster and as whom: kubeconfig files by kubectl's rules, the pod's own account, and what is refused."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
import yaml

from dibs.errors import DibsError
from dibs.kube import config
from dibs.kube.config import cluster_names, find_cluster


@pytest.fixture
def kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "config"
    monkeypatch.setenv("KUBECONFIG", str(file))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    return file


def write(
    file: Path, *, user: dict[str, Any] | None = None, cluster: dict[str, Any] | None = None, **more: Any
) -> None:
    content = {
        "current-context": "prod",
        "contexts": [
            {"name": "prod", "context": {"cluster": "c", "user": "u", "namespace": "team"}},
            {"name": "dev", "context": {"cluster": "c", "user": "u"}},
        ],
        "clusters": [{"name": "c", "cluster": {"server": "https://prod.example:6443", **(cluster or {})}}],
        "users": [{"name": "u", "user": user or {"token": "secret"}}],
        **more,
    }
    file.write_text(yaml.safe_dump(content))


def refused(name: str | None = None) -> DibsError:
    with pytest.raises(DibsError) as caught:
        find_cluster(name)
    return caught.value


def test_the_current_context_is_taken_and_any_other_by_its_name(kubeconfig: Path) -> None:
    write(kubeconfig)
    found = find_cluster()
    assert (found.name, found.server, found.namespace, found.token) == (
        "prod", "https://prod.example:6443", "team", "secret",
    )  # fmt: skip
    assert find_cluster("dev").namespace == "default"
    assert cluster_names() == ("prod", "dev")


def test_the_first_of_several_files_wins_and_paths_are_relative_to_their_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = tmp_path / "a" / "config", tmp_path / "b" / "config"
    for file in (first, second):
        file.parent.mkdir()
    (second.parent / "ca.pem").write_text("the authority")
    write(first, clusters=[], users=[])
    write(second, cluster={"certificate-authority": "ca.pem"})
    monkeypatch.setenv("KUBECONFIG", f"{first}:{second}:{tmp_path / 'absent'}")
    assert find_cluster().ca == "the authority"


def test_data_in_the_file_is_decoded(kubeconfig: Path) -> None:
    data = base64.b64encode(b"pem").decode()
    write(kubeconfig, user={"client-certificate-data": data, "client-key-data": data})
    assert find_cluster().certificate == "pem"
    write(kubeconfig, user={"client-certificate-data": "%%%"})
    assert refused().code == "KUBECONFIG_UNREADABLE"


def test_an_unknown_context_is_refused_with_those_that_are_there(kubeconfig: Path) -> None:
    write(kubeconfig)
    error = refused("prd")
    assert error.code == "CLUSTER_UNKNOWN"
    assert "prod, dev" in error.problems[0].remedy


def test_no_kubeconfig_is_reported_with_the_place_where_it_belongs(kubeconfig: Path) -> None:
    error = refused()
    assert error.code == "KUBECONFIG_MISSING"
    assert str(kubeconfig) in error.problems[0].remedy


def test_what_cannot_be_honoured_is_refused_all_at_once_and_without_the_password(kubeconfig: Path) -> None:
    write(
        kubeconfig,
        user={"username": "u", "password": "hunter2", "auth-provider": {"name": "gcp"}, "as": "root"},
        cluster={"proxy-url": "http://proxy"},
    )
    error = refused()
    assert {one.field for one in error.problems} == {"proxy-url", "auth-provider", "username", "password", "as"}
    assert "hunter2" not in str(error)


@pytest.mark.parametrize("content", ["[", "just text", "contexts: [1]", "\x00"])
def test_garbage_is_refused(kubeconfig: Path, content: str) -> None:
    kubeconfig.write_text(content)
    assert refused("x").code in ("KUBECONFIG_UNREADABLE", "CLUSTER_UNKNOWN")


def test_a_context_that_names_what_is_not_there_is_refused(kubeconfig: Path) -> None:
    write(kubeconfig, clusters=[])
    assert refused().code == "KUBECONFIG_UNREADABLE"


def test_in_a_pod_its_own_account_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "_ACCOUNT", tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    for name in ("token", "ca.crt", "namespace"):
        (tmp_path / name).write_text(f"the {name}")
    found = find_cluster()
    assert (found.server, found.namespace, found.token_file) == (
        "https://10.96.0.1:443", "the namespace", str(tmp_path / "token"),
    )  # fmt: skip
