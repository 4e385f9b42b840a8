"""The Helm chart: rendered by a real Helm, accepted by a real API server, installed on real nodes."""

from __future__ import annotations

import base64
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cluster import dibs_image, images, postgres_image
from tests.cluster.binaries import CannotBuild
from tests.cluster.controllers import HELM, installed
from tests.cluster.helm import CHART, Helm
from tests.cluster.node_driver import NVIDIA
from tests.cluster.place import Place
from tests.cluster.running import RunningCluster
from tests.cluster.test_train_webhook import CRDS, PREWIRED
from tests.cluster.world import World
from tests.docs import pages
from tests.engines import installing
from tests.train.jobs import exactly, job

from dibs.kube import client as kube

Json = dict[str, Any]

IMAGE, _, TAG = dibs_image.REFERENCE.partition(":")
SECRETS = kube.Resource("v1", "secrets", "Secret")
# On two shared cores, requests would only keep pods from being scheduled.
SMALL = {"requests": {"cpu": "1m", "memory": "1Mi"}}


@pytest.fixture(scope="module")
def program() -> Path:
    try:
        return installed(HELM).program
    except CannotBuild as reason:
        pytest.skip(f"no Helm: {reason}")


@pytest.fixture
def rendering(world: World, program: Path, tmp_path: Path) -> Helm:
    return Helm(program, world.running, "default", tmp_path)


EVERYTHING: Json = {
    "gateway": {"jobs": True, "config": "[tenants.red]\ngpus = 4\n", "replicas": 2, "nodeSelector": {"zone": "a"},
                "tolerations": [{"key": "gpu", "operator": "Exists"}],
                "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                    {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]}}}},
    "image": {"pullSecrets": ["registry"]},
    "networkPolicy": {"clients": [{"podSelector": {"matchLabels": {"app": "agents"}}}]},
    "node": {"enabled": True, "simulate": "H100:4,L4:2", "driver": "gpu.example.com",
             "deviceClasses": [NVIDIA, "gpu.example.com"]},
    "postgresql": {"storage": {"class": "fast"}, "nodeSelector": {"zone": "a"},
                   "tolerations": [{"operator": "Exists"}]},
    "webhook": {"enabled": True},
}  # fmt: skip
OWN_DATABASE: Json = {"postgresql": {"enabled": False}, "ledger": {"urlSecret": "ledger"}}


@pytest.mark.parametrize(
    "values",
    [
        {},
        EVERYTHING,
        {**OWN_DATABASE, "gateway": {"tokenSecret": "token"}, "networkPolicy": {"sandboxes": {"except": []}}},
        {"sandboxes": {"kind": "Sandbox", "namespace": "kube-public"}, "postgresql": {"storage": {"size": 0}}},
        {"sandboxes": {"kind": "BatchSandbox"}, "networkPolicy": {"enabled": False}},
        {"gateway": {"enabled": False}, "node": {"enabled": True, "devicePlugin": "nvidia.com/gpu"}},
    ],
    ids=["defaults", "everything", "own-database", "agent-sandbox", "batch-sandbox", "device-plugin"],
)
def test_every_manifest_is_accepted_with_strict_field_validation(world: World, rendering: Helm, values: Json) -> None:
    found = rendering.rendered(values)
    assert found
    text = yaml.safe_dump_all(found)
    done = subprocess.run(
        [str(world.running.binaries / "kubectl"), f"--kubeconfig={world.running.kubeconfig()}", "create",
         "--dry-run=server", "--validate=strict", "-f", "-"],
        input=text, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == len(found)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"gatway": {}}, "additional properties 'gatway' not allowed"),
        ({"node": {"enabled": True, "simulated": "8"}}, "additional properties 'simulated' not allowed"),
        ({"sandboxes": {"kind": "Pods"}}, "value must be one of"),
        ({"postgresql": {"enabled": False}}, "ledger.urlSecret: the gateway needs a ledger"),
        ({"ledger": {"urlSecret": "mine"}}, "ledger.urlSecret and postgresql.enabled"),
        ({"webhook": {"enabled": True, "tlsSecret": "absent"}}, "there is no Secret absent"),
    ],
)
def test_values_that_would_be_dropped_or_contradict_each_other_are_refused(
    rendering: Helm, values: Json, reason: str
) -> None:
    done = rendering.run("template", "dibs", str(CHART), "--dry-run=server", values=values)
    assert done.returncode != 0
    assert reason in done.stderr


def test_the_gateway_may_do_nothing_that_its_documentation_does_not_list(rendering: Helm) -> None:
    roles = [one for one in rendering.rendered({}) if one["kind"] in ("Role", "ClusterRole")]
    listed = {
        (one["kind"], resource, verb)
        for one in roles
        for rule in one["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    every = ("create", "get", "list", "watch", "patch", "delete")
    wanted = {("Role", "pods", verb) for verb in every}
    wanted |= {("Role", f"pods/{one}", verb) for one in ("exec", "attach", "portforward") for verb in ("create", "get")}
    wanted |= {("Role", "resourceclaimtemplates", verb) for verb in ("create", "get", "patch", "delete")}
    wanted |= {("Role", "pods/log", "get"), ("Role", "resourceclaims", "get")}
    wanted |= {("Role", "persistentvolumeclaims", verb) for verb in ("create", "get")}
    wanted |= {("Role", "events", "list"), ("Role", "resourcequotas", "list")}
    wide = ("nodes", "pods", "resourceslices", "deviceclasses", "resourceclaims", "devicetaintrules")
    wanted |= {("ClusterRole", one, "list") for one in wide} | {("ClusterRole", "nodes", "get")}
    assert listed == wanted
    assert not any("*" in str(one["rules"]) for one in roles)


@pytest.fixture
def helm(place: Place, program: Path, tmp_path: Path) -> Iterator[Helm]:
    """Helm in the test's namespace, with the images on the nodes. What it installs is removed."""
    binaries = postgres_image.programs()
    if binaries is None:
        pytest.skip("there is no PostgreSQL here")
    root = installing.install("trixie")
    for archive in (dibs_image.write(tmp_path, root), postgres_image.write(tmp_path, root, binaries)):
        place.running.command(f"load {archive}")
        archive.unlink()
    found = Helm(program, place.running, place.namespace, tmp_path)
    yield found
    for pod in place.pods("dibs.dev/sandbox"):  # of a test that failed; the gateway would have to read their exits
        place.cluster.patch(kube.PODS, pod["metadata"]["name"], {"metadata": {"finalizers": None}}, place.namespace)
    place.empty_of_users()
    found.uninstall()
    place.cluster.delete_all(kube.SLICES)


HERE: Json = {
    "image": {"repository": IMAGE, "tag": TAG, "pullPolicy": "Never"},
    "gateway": {"resources": SMALL},
    "postgresql": {"image": postgres_image.REFERENCE, "storage": {"size": 0}, "resources": SMALL},
    "node": {"resources": SMALL},
    "webhook": {"resources": SMALL},
}
_KLOG = re.compile(r"[IWE][0-9]{4} ")  # of Helm's and kubectl's libraries, on a slow machine
PAGE = pages.ROOT / "docs" / "kubernetes-deploy.md"
KEPT = (("dibs-token", "token"), ("dibs-postgresql", "url"), ("dibs-webhook", "tls.crt"))


@pytest.mark.skipif(not os.environ.get("DIBS_SOAK"), reason="installs the chart twice, minutes; DIBS_SOAK runs it")
def test_the_commands_of_the_page_install_change_and_remove_a_working_chart(place: Place, helm: Helm) -> None:
    run = _Page(place, helm)
    kept: list[str] = []
    place.running.kubectl("apply", "-f", str(_written(helm, *CRDS)))
    try:
        for block in pages.blocks(PAGE):
            if block.language == "yaml":
                run.save(block)
                continue
            if "helm upgrade" in block.text:
                _the_webhook_is_asked(place, helm)
                kept += [_secret(place, *one) for one in KEPT]
            for step in pages.steps(block):
                run.step(step)
            if "helm upgrade" in block.text:
                assert [_secret(place, *one) for one in KEPT] == kept
        assert not place.pods("dibs.dev/sandbox")
    finally:
        run.close()
        place.running.kubectl("delete", "--ignore-not-found", "-f", str(_written(helm, *CRDS)))


def _the_webhook_is_asked(place: Place, helm: Helm) -> None:
    """By the name of its service, with the certificate that the chart made."""
    place.template("four", exactly(4))
    done = _apply(place, helm, PREWIRED)
    assert done.returncode == 0, done.stderr
    done = _apply(place, helm, job("typo", trainer={"numnodes": 2}))
    assert "spec.trainer.numnodes: unknown field" in done.stderr


class _Page:
    """The page's commands on the test cluster: its namespace, its images, a free port."""

    def __init__(self, place: Place, helm: Helm) -> None:
        self._work = helm.folder / "work"
        self._work.mkdir()
        (self._work / "deploy").symlink_to(pages.ROOT / "deploy")
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self._words = {
            "namespace dibs": f"namespace {place.namespace}",
            "127.0.0.1:8080": f"127.0.0.1:{port}",
            " 8080:8080": f" {port}:8080",
            "busybox:1.37": images.BUSYBOX,
        }
        scripts = Path(sys.executable).parent
        self._env = {
            **helm.environment(), "DIBS_HOME": str(helm.folder / "dibs-home"),
            "PATH": f"{helm.program.parent}:{place.running.binaries}:{scripts}:/usr/bin:/bin",
        }  # fmt: skip

    def save(self, block: pages.Block) -> None:
        name = block.text.partition("\n")[0].removeprefix("# ")
        found: Json = yaml.safe_load(block.text)
        for section, here in HERE.items() if name == "values.yaml" else ():
            found[section] = {**found.get(section, {}), **here}
        (self._work / name).write_text(yaml.safe_dump(found))

    def step(self, step: pages.Step) -> None:
        command = step.command
        for shown, here in self._words.items():
            command = command.replace(shown, here)
        began = time.monotonic()
        # No pipe, and not the same file: what goes on in the background may still hold it.
        with (self._work / f"output-{step.line}").open("w+") as output:
            done = subprocess.run(
                ["sh", "-c", command], stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=self._work,
                env=self._env, check=False,
            )  # fmt: skip
            output.seek(0)
            printed = tuple(line for line in output.read().rstrip().splitlines() if not _KLOG.match(line))
        print(f"{time.monotonic() - began:5.1f} s  {command}")
        assert done.returncode == step.code, f"{PAGE.name}:{step.line}: {command}\n" + "\n".join(printed)
        if step.output:
            assert pages.matches(step.output, printed), f"{PAGE.name}:{step.line} prints:\n" + "\n".join(printed)

    def close(self) -> None:
        """End what a page that failed has left in the background."""
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            os.kill(int((self._work / "forward.pid").read_text()), signal.SIGKILL)


def _secret(place: Place, name: str, key: str) -> str:
    found = place.cluster.get(SECRETS, name, dict[str, Any], place.namespace)
    return base64.b64decode(found["data"][key]).decode()


def _written(helm: Helm, *objects: Json) -> Path:
    file = helm.folder / "objects.yaml"
    file.write_text(yaml.safe_dump_all(objects))
    return file


def _apply(place: Place, helm: Helm, *objects: Json) -> subprocess.CompletedProcess[str]:
    running: RunningCluster = place.running
    return subprocess.run(
        [str(running.binaries / "kubectl"), f"--kubeconfig={running.kubeconfig()}", "apply", "-n", place.namespace,
         "-f", str(_written(helm, *objects))],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
