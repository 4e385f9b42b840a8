"""What becomes of counts of cards: through OpenSandbox's API, and on clusters with DRA, with a plugin, with both."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.test_kubernetes_placement import CLASS, cards, settings
from tests.cluster.world import DRIVER, World, device
from tests.gateway.conftest import RunningGateway

from dibs.cli.options import read_spec
from dibs.home import Home
from dibs.kube import client as kube
from dibs.request.spec import parse_spec
from dibs.settings import Settings
from dibs.workloads.registry import Registry
from dibs.workloads.service import Workloads

REFUSED = [
    ({"gpu": "all"}, "COUNT_NEEDED"),
    ({"gpu": "0"}, "GPU_COUNT_INVALID"),
    ({"gpu": "0.5"}, "GPU_COUNT_INVALID"),
    ({"gpu": "half"}, ""),
    ({"gpu": ""}, ""),
    ({"example.com/gpu": "1"}, "UNKNOWN_RESOURCE"),
]


@pytest.fixture
def gateway(world: World, home: Home, tmp_path: Path) -> Iterator[RunningGateway]:
    text = (
        f'backends = ["kubernetes"]\n[kubernetes]\nkubeconfig = "{world.running.kubeconfig()}"\nnamespace = "default"\n'
    )
    running = RunningGateway(home, tmp_path, settings=text + "[tenants.team-a]\n").start()
    yield running
    running.stop()


def test_opensandbox_clients_get_the_resource_by_its_name_or_a_refusal(world: World, gateway: RunningGateway) -> None:
    world.node(nvidia_com__gpu="8")
    token = gateway.make_token("anna", "--tenant", "team-a")

    def create(limits: dict[str, str]) -> Any:
        body = {
            "image": {"uri": "example.com/none:1"}, "entrypoint": ["sleep", "1000"], "timeout": 600,
            "resourceLimits": limits, "extensions": {"dibs.backend": "kubernetes"},
        }  # fmt: skip
        headers = {"OPEN-SANDBOX-API-KEY": token}
        return gateway.ask("POST", "/v1/sandboxes", body, token=None, headers=headers)

    for limits, code in REFUSED:
        answer = create(limits)
        assert (answer.status, answer.data["code"]) == (400, code or answer.data["code"]), limits
    assert world.cluster.items(kube.PODS, dict[str, Any], "default") == []
    made = create({"gpu": "2", "cpu": "500m", "memory": "64Mi"})
    assert made.status == 202, made.data
    world.until(lambda: len(world.cluster.items(kube.PODS, dict[str, Any], "default")) == 1, "its pod is there")
    (pod,) = world.cluster.items(kube.PODS, dict[str, Any], "default")
    wanted = {"cpu": "500m", "memory": "64Mi", "nvidia.com/gpu": "2"}
    assert pod["spec"]["containers"][0]["resources"] == {"limits": wanted, "requests": wanted}
    assert "runtimeClassName" not in pod["spec"]


@pytest.mark.parametrize(
    ("offers", "request_", "said"),
    [
        ("dra", {"gpu": 1}, "claim: no node offers "),
        ("plugin", {"gpu": 1}, "extended resource: a plain count, and the cluster offers nvidia.com/gpu"),
        ("both", {"gpu": 1}, "extended resource: a plain count, and the cluster offers nvidia.com/gpu"),
        ("both", {"gpu": "40GB..:1"}, "claim: an extended resource cannot say model or memory"),
        ("both", {"gpu": 1, "options": {"kubernetes": {"devices": "claim"}}}, "claim: a claim was asked for"),
    ],
)
def test_the_form_is_chosen_by_what_the_cluster_has_and_told(
    world: World, home: Home, offers: str, request_: dict[str, Any], said: str
) -> None:
    if offers == "dra":
        cards(world)
    else:
        world.node(nvidia_com__gpu="2")
    if offers == "both":
        world.device_class(CLASS, f"device.driver == '{DRIVER}'")
        world.slice([device("gpu-0")])
    options = request_.pop("options", {})
    asked = {"backend": "kubernetes", "image": "example.com/none:1", "command": ["true"], **request_, **options}
    with Workloads(home, registry=Registry(home, Settings(clusters={"kubernetes": settings(world)}))) as service:
        (found,) = service.explain(parse_spec(asked)).backends
        getattr(service.registry.get("kubernetes"), "close")()  # noqa: B009 - not of the port
    assert any(note.startswith(said) for note in found.notes), found


def test_the_working_directory_stays_behind_where_the_settings_choose_a_cluster(
    world: World, home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.node(nvidia_com__gpu="2")
    monkeypatch.chdir(tmp_path)
    chosen = Settings(backends=("kubernetes",), clusters={"kubernetes": settings(world)})
    with Workloads(home, registry=Registry(home, chosen)) as service:
        (implied,) = service.explain(read_spec({"image": "example.com/none:1"}, ("true",))).backends
        (named,) = service.explain(
            read_spec({"image": "example.com/none:1", "backend": "kubernetes"}, ("true",))
        ).backends
        getattr(service.registry.get("kubernetes"), "close")()  # noqa: B009 - not of the port
    assert implied.ok, implied.problems
    assert implied == named
    assert "your working directory does not come along" in implied.notes[0]
