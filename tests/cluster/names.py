"""The names of services in a test cluster, as pods ask for them: a small DNS server in place of CoreDNS.

    python -m tests.cluster.names ADDRESS KUBECONFIG

`NAME.NAMESPACE.svc.cluster.local` is answered with the addresses of the service's ready pods, as a real one does for
headless services; `HOSTNAME.NAME.NAMESPACE.svc.cluster.local` with that of the ready pod of this hostname. There is no
kube-proxy here, so it is done for all services. Every other name does not exist. The `keeper` starts it where there are
real nodes.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from typing import Any

from dibs.errors import DibsError
from dibs.kube.client import Cluster, Resource
from dibs.kube.config import find_cluster

DOMAIN = "cluster.local"
ENDPOINTS = Resource("discovery.k8s.io/v1", "endpointslices", "EndpointSlice")
_ADDRESS, _ANSWERED, _FAILED, _NO_SUCH_NAME = 1, 0x8580, 2, 3


def question(packet: bytes) -> tuple[str, int, int]:
    """The name that is asked for, the kind of record, and where the question ends."""
    labels, at = [], 12
    while length := packet[at]:
        labels.append(packet[at + 1 : at + 1 + length].decode("ascii"))
        at += 1 + length
    return ".".join(labels).lower(), struct.unpack_from("!H", packet, at + 1)[0], at + 5


def addresses(cluster: Cluster, name: str) -> list[str] | None:
    """The pods behind a service; None: there is no such name."""
    words = name.removesuffix(f".svc.{DOMAIN}").split(".")
    if not name.endswith(f".svc.{DOMAIN}") or len(words) not in (2, 3):
        return None
    *hostname, service, namespace = words
    slices = cluster.items(ENDPOINTS, dict[str, Any], namespace, labels=f"kubernetes.io/service-name={service}")
    if not slices:
        return None
    ready = [one for found in slices for one in found.get("endpoints") or () if one["conditions"].get("ready")]
    if hostname:
        ready = [one for one in ready if one.get("hostname") == hostname[0]]
        if not ready:
            return None
    return [address for one in ready for address in one["addresses"]]


def answer(cluster: Cluster, packet: bytes) -> bytes:
    name, kind, end = question(packet)
    found: list[str] = []
    code = 0
    try:
        known = addresses(cluster, name)
        code = _NO_SUCH_NAME if known is None else 0
        found = known if known and kind == _ADDRESS else []
    except DibsError:
        code = _FAILED  # the API server is away: the pod asks again
    head = struct.pack("!2sHHHHH", packet[:2], _ANSWERED | code, 1, len(found), 0, 0)
    record = struct.pack("!HHHIH", 0xC00C, _ADDRESS, 1, 0, 4)  # the name of the question; never kept
    return head + packet[12:end] + b"".join(record + socket.inet_aton(one) for one in found)


def main(address: str, kubeconfig: str) -> None:
    os.environ["KUBECONFIG"] = kubeconfig
    cluster = Cluster(find_cluster())
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
        line.bind((address, 53))
        while True:
            packet, client = line.recvfrom(512)
            line.sendto(answer(cluster, packet), client)


if __name__ == "__main__":
    main(*sys.argv[1:])
