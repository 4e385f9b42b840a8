"""etcd, API server, controller manager and scheduler as plain processes. The keeper starts and ends them.

Ports and folder are parameters, so any number of clusters live beside each other. Every process dies with the keeper
(a parent-death signal). No kubelet: a node is what a test says it is.
"""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

from tests.cluster import pki

GATES = "GenericWorkload=true,DRAWorkloadResourceClaims=true"  # pod groups; all else as it comes
_PATIENCE = 120.0  # s; it takes 5 on an idle machine
_QPS = ("--kube-api-qps=500", "--kube-api-burst=1000")


class CannotStart(Exception):
    """A process of the control plane ended, or did not become ready; the text has the end of its log."""


class ControlPlane:
    def __init__(self, binaries: Path, folder: Path, address: str = "127.0.0.1") -> None:
        self.binaries = binaries
        self.folder = folder
        self.address = address
        self.port, self._etcd, self._peer, self._controllers, self._scheduler = free_ports(5, address)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        pki.make(self.folder, self.address, self.port)
        self.start_etcd()
        self.start_api_server()
        self._until_ready("kube-apiserver", f"https://{self.address}:{self.port}/readyz")
        self.start_controllers()
        self.start_scheduler()
        self._until_ready("kube-controller-manager", f"https://127.0.0.1:{self._controllers}/healthz")
        self._until_ready("kube-scheduler", f"https://127.0.0.1:{self._scheduler}/healthz")
        # Before it exists no pod can be created.
        account = f"https://{self.address}:{self.port}/api/v1/namespaces/default/serviceaccounts/default"
        self._until_ready("kube-controller-manager", account)

    def start_etcd(self) -> None:
        client, peer = f"http://127.0.0.1:{self._etcd}", f"http://127.0.0.1:{self._peer}"
        self._run(
            "etcd", f"--data-dir={self.folder}/etcd",
            f"--listen-client-urls={client}", f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync", "--log-level=warn",
        )  # fmt: skip

    def start_api_server(self) -> None:
        f = self.folder
        self._run(
            "kube-apiserver", f"--etcd-servers=http://127.0.0.1:{self._etcd}", f"--bind-address={self.address}",
            f"--advertise-address={self.address}", f"--secure-port={self.port}", f"--tls-cert-file={f}/apiserver.crt",
            f"--tls-private-key-file={f}/apiserver.key", f"--client-ca-file={f}/ca.crt",
            f"--token-auth-file={f}/tokens.csv", f"--kubelet-client-certificate={f}/apiserver-kubelet.crt",
            f"--kubelet-client-key={f}/apiserver-kubelet.key", "--kubelet-preferred-address-types=InternalIP",
            "--service-account-issuer=https://kubernetes.default.svc", f"--service-account-key-file={f}/accounts.pub",
            f"--service-account-signing-key-file={f}/accounts.key", "--authorization-mode=Node,RBAC",
            "--service-cluster-ip-range=10.96.0.0/16", "--allow-privileged=true",
            "--enable-priority-and-fairness=false",
            "--endpoint-reconciler-type=none", f"--feature-gates={GATES}",
            "--enable-aggregator-routing=true",  # to the pods of a webhook's service: there is no kube-proxy
            "--runtime-config=scheduling.k8s.io/v1beta1=true",
        )  # fmt: skip

    def start_controllers(self) -> None:
        f = self.folder
        self._run(
            "kube-controller-manager", f"--kubeconfig={f}/controllers.kubeconfig", "--bind-address=127.0.0.1",
            f"--secure-port={self._controllers}", "--leader-elect=false", "--use-service-account-credentials=true",
            *_QPS, f"--service-account-private-key-file={f}/accounts.key", f"--root-ca-file={f}/ca.crt",
            f"--flex-volume-plugin-dir={f}/flex", "--node-monitor-grace-period=24h", f"--feature-gates={GATES}",
        )  # fmt: skip

    def start_scheduler(self) -> None:
        config = f"{self.folder}/scheduler.kubeconfig"
        self._run(
            "kube-scheduler", f"--kubeconfig={config}", f"--authentication-kubeconfig={config}",
            f"--authorization-kubeconfig={config}", "--bind-address=127.0.0.1", f"--secure-port={self._scheduler}",
            "--leader-elect=false", *_QPS, f"--feature-gates={GATES}",
        )  # fmt: skip

    def stop(self) -> None:
        for process in self.processes.values():
            process.kill()  # its data is thrown away: nothing to save
        for process in self.processes.values():
            process.wait()
        self.processes = {}

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def _run(self, name: str, *arguments: str) -> None:
        with self.log(name).open("ab") as log:
            self.processes[name] = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", str(self.binaries / name), *arguments],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder,
            )  # fmt: skip

    def _until_ready(self, name: str, url: str) -> None:
        token = json.loads((self.folder / "admin.kubeconfig").read_text())["users"][0]["user"]["token"]
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE  # the managers make their own certificates
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
        end = time.monotonic() + _PATIENCE
        said = ""
        while time.monotonic() < end:
            if self.processes[name].poll() is not None:
                break
            try:
                with urllib.request.urlopen(request, context=context, timeout=5):
                    return
            except (urllib.error.URLError, OSError) as error:
                said = str(error)
            time.sleep(0.05)
        tail = self.log(name).read_text(errors="replace").splitlines()[-5:]
        raise CannotStart(f"{name} is not ready ({said}): {' | '.join(tail)}")


def free_ports(count: int, address: str) -> list[int]:
    """Ports that are free now; one that is taken in between makes a start fail, and the keeper tries others."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind((address, 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()
