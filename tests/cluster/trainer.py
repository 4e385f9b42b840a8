"""The released JobSet and Kubeflow Trainer on a control plane of the tests, as plain processes with their webhooks.

`started` gives them to a test, on any cluster of which there is a folder with its authority. Their CRDs and webhooks
are those of their modules; the webhooks are registered by address. The processes die with the tests. Nothing of dibs is
asked here: this is what dibs is compared with.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from tests.cluster import controllers, pki
from tests.cluster.control_plane import CannotStart, free_ports
from tests.cluster.controllers import JOBSET, TRAINER, Controller

Json = dict[str, Any]

GROUP = "/apis/trainer.kubeflow.org/v1alpha1"
JOB_SETS = "/apis/jobset.x-k8s.io/v1alpha2"
_PATIENCE = 300.0
_BYPASS = "trainer.kubeflow.org/webhook-validation"
# Where the modules keep what is applied: CRDs, then webhooks.
_FILES = {
    JOBSET.name: (("components/crd/bases",), "components/webhook/manifests.yaml"),
    TRAINER.name: (("base/crds",), "base/webhook/manifests.yaml"),
}


class Api:
    """The API server, asked plainly: what it answers is compared, so no client of ours is in between."""

    def __init__(self, folder: Path) -> None:
        config = json.loads((folder / "admin.kubeconfig").read_text())
        self.server = config["clusters"][0]["cluster"]["server"]
        self._token = config["users"][0]["user"]["token"]
        self._tls = ssl.create_default_context(cafile=str(folder / "ca.crt"))

    def __call__(self, method: str, path: str, body: Json | None = None) -> tuple[int, Json]:
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.server + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, context=self._tls, timeout=60) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    def items(self, path: str) -> list[Json]:
        code, answer = self("GET", path)
        assert code == 200, answer
        return [{"apiVersion": answer["apiVersion"], "kind": answer["kind"].removesuffix("List"), **one}
                for one in answer["items"]]  # fmt: skip

    def apply(self, path: str, body: Json) -> Json:
        code, answer = self("POST", path, body)
        assert code == 201, answer
        return answer


class Controllers:
    """JobSet, and Kubeflow Trainer unless `names` leaves it out, on the cluster whose files are in `folder`."""

    def __init__(self, folder: Path, work: Path, which: Sequence[Controller] = (JOBSET, TRAINER)) -> None:
        """Raises `CannotBuild` where they are not built."""
        self.api = Api(folder)
        self._folder = folder
        self._work = work
        self._installed = {one.name: controllers.installed(one) for one in which}
        self._processes: list[tuple[subprocess.Popen[bytes], Path]] = []
        self._made: list[str] = []

    def start(self) -> None:
        serving = self._work / "k8s-webhook-server" / "serving-certs"
        serving.mkdir(parents=True)
        pki.certificate(self._folder, "controllers-webhooks", "/CN=webhooks", "serverAuth", "IP:127.0.0.1")
        for end in ("crt", "key"):
            shutil.copyfile(self._folder / f"controllers-webhooks.{end}", serving / f"tls.{end}")
        for name in self._installed:
            self._define(name)
        for name in self._installed:
            self._run(name)

    def stop(self) -> None:
        """End them, and take away what was registered: what is left of a cluster is as it was."""
        for process, _ in self._processes:
            process.kill()
        for process, _ in self._processes:
            process.wait()
        for path in reversed(self._made):
            self.api("DELETE", path)
        end = time.monotonic() + _PATIENCE
        while any(self.api("GET", path)[0] != 404 for path in self._made):
            assert time.monotonic() < end, "the CRDs of the controllers are not removed"
            time.sleep(0.1)

    def check(self) -> None:
        """Raises where one of them has ended."""
        for process, log in self._processes:
            if process.poll() is not None:
                raise CannotStart(f"{log.stem} ended: {' | '.join(log.read_text().splitlines()[-5:])}")

    def _define(self, name: str) -> None:
        crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        module = self._installed[name].module
        for folder in _FILES[name][0]:
            for file in sorted((module / folder).glob("*.yaml")):
                for crd in yaml.safe_load_all(file.read_text()):
                    if not crd or crd["kind"] != "CustomResourceDefinition":
                        continue
                    crd.pop("status", None)
                    self.api.apply(crds, crd)
                    path = f"{crds}/{crd['metadata']['name']}"
                    self._made.append(path)
                    self._await(lambda path=path: _established(self.api("GET", path)[1]), path)

    def _run(self, name: str) -> None:
        health, webhook, status = free_ports(3, "127.0.0.1")
        config: Json = {
            "kind": "Configuration",
            "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
            "metrics": {"bindAddress": "0"},
            "webhook": {"port": webhook, "host": "127.0.0.1"},
            "leaderElection": {"leaderElect": False},
        }
        if name == TRAINER.name:
            config["apiVersion"] = "config.trainer.kubeflow.org/v1alpha1"
            config["metrics"]["secureServing"] = False
            config["certManagement"] = {"enable": False}
            config["statusServer"] = {"port": status}
        else:
            config["apiVersion"] = "config.jobset.x-k8s.io/v1alpha1"
            config["internalCertManagement"] = {"enable": False}
        file, log = self._work / f"{name}.yaml", self._work / f"{name}.log"
        file.write_text(json.dumps(config))
        with log.open("ab") as out:
            process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", str(self._installed[name].program), f"--config={file}",
                 f"--kubeconfig={self._folder / 'admin.kubeconfig'}"],
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=self._work,
                env={**os.environ, "TMPDIR": str(self._work)},
            )  # fmt: skip
        self._processes.append((process, log))
        self._await(lambda: _answers(f"http://127.0.0.1:{health}/readyz"), f"{name} is ready")
        self._register(name, f"https://127.0.0.1:{webhook}")

    def _register(self, name: str, address: str) -> None:
        bundle = base64.b64encode((self._folder / "ca.crt").read_bytes()).decode()
        for document in yaml.safe_load_all((self._installed[name].module / _FILES[name][1]).read_text()):
            if not document or "webhooks" not in document:
                continue
            document["metadata"] = {"name": f"{name}-{document['metadata']['name']}"}
            for hook in document["webhooks"]:
                path = hook["clientConfig"]["service"]["path"]
                hook["clientConfig"] = {"url": address + path, "caBundle": bundle}
                if path.endswith("-pod"):  # JobSet's own pods are all that it is about
                    existing = {"key": "jobset.sigs.k8s.io/jobset-name", "operator": "Exists"}
                    hook["objectSelector"] = {"matchExpressions": [existing]}
                elif path.endswith("runtime"):  # as the release is installed
                    disabled = {"key": _BYPASS, "operator": "NotIn", "values": ["disabled"]}
                    hook["objectSelector"] = {"matchExpressions": [disabled]}
            group = f"/apis/{document['apiVersion']}/{document['kind'].lower()}s"
            self.api.apply(group, document)
            self._made.append(f"{group}/{document['metadata']['name']}")

    def _await(self, done: Any, what: str) -> None:
        end = time.monotonic() + _PATIENCE
        while not done():
            self.check()
            if time.monotonic() > end:
                raise CannotStart(f"waited for: {what}")
            time.sleep(0.05)


@contextmanager
def started(folder: Path, work: Path, which: Sequence[Controller] = (JOBSET, TRAINER)) -> Iterator[Controllers]:
    found = Controllers(folder, work, which)
    try:
        found.start()
        yield found
    finally:
        found.stop()


def _established(crd: Json) -> bool:
    conditions = crd.get("status", {}).get("conditions") or []
    return any(one["type"] == "Established" and one["status"] == "True" for one in conditions)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except (urllib.error.URLError, OSError):
        return False
