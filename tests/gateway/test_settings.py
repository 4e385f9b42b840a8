"""Settings: strict, complete in their complaints, and free where there are none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from dibs import settings as module
from dibs.errors import InvalidRequest
from dibs.home import Home
from dibs.settings import ClusterSettings, GatewaySettings, Quota, Settings, address, load_settings, with_flags


def written(home: Home, text: str) -> Home:
    home.config.mkdir(parents=True, exist_ok=True)
    (home.config / "config.toml").write_text(text)
    return home


def problems_of(home: Home, **environ: str) -> dict[str, str]:
    with pytest.raises(InvalidRequest) as caught:
        load_settings(home, environ=environ)
    return {problem.field: f"{problem.reason}; {problem.remedy}" for problem in caught.value.problems}


def test_without_a_file_there_are_defaults(home: Home) -> None:
    assert load_settings(home, environ={}) == Settings()


def test_without_a_file_no_toml_is_loaded(home: Home) -> None:
    code = (
        "import sys; from dibs.settings import load_settings; from dibs.home import find_home;"
        "load_settings(find_home(), environ={}); sys.exit('tomllib' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_section_is_read(home: Home) -> None:
    written(
        home,
        """
        ledger = "postgresql://db/dibs"
        backends = ["docker", "local"]
        [images]
        ubuntu = "/srv/roots/ubuntu.tar"
        [mounts]
        allow = ["/data"]
        [docker]
        socket = "/run/docker.sock"
        [gateway]
        listen = ["127.0.0.1:9000", "[::1]:9000"]
        socket_mode = "0660"
        max_body = "4Mi"
        drain = "1m30s"
        max_sandbox_ttl = "2d"
        loopback_open = true
        [tenants.red]
        sandboxes = 3
        cpu = "1500m"
        memory = "8Gi"
        gpus = 2
        """,
    )
    found = load_settings(home, environ={})
    assert found.ledger == "postgresql://db/dibs"
    assert found.backends == ("docker", "local")
    assert found.images == {"ubuntu": "/srv/roots/ubuntu.tar"}
    assert found.mounts_allow == ("/data",)
    assert found.docker_socket == "/run/docker.sock"
    assert found.tenants == {"red": Quota(sandboxes=3, cpu_millis=1500, memory_bytes=8 << 30, gpus=2)}
    gateway = found.gateway
    assert gateway.listen == ("127.0.0.1:9000", "[::1]:9000")
    assert (gateway.socket_mode, gateway.max_body, gateway.drain) == (0o660, 4 << 20, 90.0)
    assert (gateway.max_sandbox_ttl, gateway.loopback_open) == (172800.0, True)


def test_every_problem_is_reported_at_once_and_unknown_keys_come_with_the_known_ones(home: Home) -> None:
    written(
        home,
        """
        backend = "local"
        ledger = 5
        [images]
        box = "relative"
        [mounts]
        allow = ["data"]
        [gateway]
        port = 80
        listen = ["nowhere"]
        max_body = "much"
        drain = true
        socket_mode = 660
        [tenants.RED]
        gpus = 1
        [tenants.blue]
        gpu = 1
        memory = -1
        """,
    )
    found = problems_of(home, DIBS_GATEWAY_THREADS="none", DIBS_GATEWAY_THREAD="3")
    assert set(found) == {
        "backend", "ledger", "images.box", "mounts.allow", "gateway.port", "gateway.listen", "gateway.max_body",
        "gateway.drain", "gateway.socket_mode", "tenants.RED", "tenants.blue.gpu", "tenants.blue.memory",
        "DIBS_GATEWAY_THREADS", "DIBS_GATEWAY_THREAD",
    }  # fmt: skip
    assert "the known ones are ledger, backends, mounts" in found["backend"]
    assert "listen, socket" in found["gateway.port"]
    assert "sandboxes, cpu, memory, gpus" in found["tenants.blue.gpu"]
    assert "DIBS_GATEWAY_THREADS" in found["DIBS_GATEWAY_THREAD"]


def test_the_environment_stands_over_the_file_and_flags_over_both(home: Home) -> None:
    written(home, '[gateway]\nthreads = 3\nlog_format = "json"\ndrain = "5s"\n')
    found = load_settings(home, environ={"DIBS_GATEWAY_THREADS": "4", "DIBS_GATEWAY_LISTEN": "[::1]:1, 127.0.0.1:2"})
    assert found.gateway.threads == 4
    assert found.gateway.listen == ("[::1]:1", "127.0.0.1:2")
    found = with_flags(found, {"log_format": "text", "ledger": "postgresql://x", "socket": None})
    assert (found.gateway.log_format, found.gateway.drain, found.ledger) == ("text", 5.0, "postgresql://x")


@pytest.mark.parametrize("text", ["not = [toml", "a = \x00", '"""'])
def test_a_file_that_is_not_toml_is_refused(home: Home, text: str) -> None:
    assert "it is not TOML" in problems_of(written(home, text))["config"]


def test_a_named_file_must_exist(home: Home, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="there is no such file"):
        load_settings(home, path=str(tmp_path / "nothing.toml"))


def test_a_password_in_a_url_is_not_shown(home: Home) -> None:
    written(home, 'ledger = "mysql://dibs:hunter2@db/dibs"')
    with pytest.raises(InvalidRequest) as caught:
        load_settings(home, environ={})
    assert "hunter2" not in str(caught.value)
    assert "mysql://dibs:…@db" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "host", "port"), [("127.0.0.1:0", "127.0.0.1", 0), ("[::]:65535", "::", 65535), ("box:80", "box", 80)]
)
def test_addresses_are_read(text: str, host: str, port: int) -> None:
    assert address(text) == (host, port)


@pytest.mark.parametrize("text", ["80", ":80", "host:", "host:99999", "::1:80", "host:-1", "host:8 0"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"HOST:PORT|brackets"):
        address(text)


def test_every_field_has_a_line_in_the_tables_and_every_line_a_field() -> None:
    fields = {field.name for field in msgspec.structs.fields(GatewaySettings)}
    assert {setting.field for setting in module.GATEWAY} == fields
    assert {setting.field for setting in module.TENANT} == {field.name for field in msgspec.structs.fields(Quota)}
    tables = (module.TOP, module.MOUNTS, module.DOCKER, module.PODMAN, module.FAKE)
    rest = {setting.field for table in tables for setting in table}
    assert {one.field for one in module.KUBERNETES} == {one.name for one in msgspec.structs.fields(ClusterSettings)}
    assert rest | {"images", "gateway", "tenants", "clusters"} == {
        field.name for field in msgspec.structs.fields(Settings)
    }


def test_clusters_are_backends_by_their_names(home: Home) -> None:
    text = '[kubernetes]\ncontext = "dev"\n[clusters.prod]\nnamespace = "boxes"\npending = "30m"\nkind = "Sandbox"\n'
    found = load_settings(written(home, text), environ={"DIBS_KUBERNETES_NAMESPACE": "mine"}).clusters
    assert found == {
        "kubernetes": ClusterSettings(context="dev", namespace="mine"),
        "kubernetes-prod": ClusterSettings(namespace="boxes", pending=1800.0, kind="Sandbox"),
    }


def test_what_is_wrong_with_a_cluster_is_told_all_at_once(home: Home) -> None:
    text = 'kubernetes = 1\n[clusters.Prod]\n[clusters.a]\nkind = "Job"\nname = "x"\ntemplate = "pod.yaml"\n'
    assert set(problems_of(written(home, text))) == {
        "kubernetes", "clusters.Prod", "clusters.a.kind", "clusters.a.name", "clusters.a.template",
    }  # fmt: skip


def test_the_defaults_that_the_tables_print_are_the_real_ones() -> None:
    real = GatewaySettings()
    for setting in module.GATEWAY:
        try:
            said = setting.read(setting.default.strip('"'))
        except ValueError:
            continue  # words, as in "no limit"
        if setting.key not in ("public_url", "socket_group"):
            assert said == getattr(real, setting.field), setting.key
