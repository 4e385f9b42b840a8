"""The private networks of an engine: one bridge for each tenant of a home, so that containers of two never meet.

`create` makes one when the first container needs it, `stop` removes it after the last. Engines keep bridges apart
by firewall rules, so where an engine is told to make none there are no private networks. A network is known by its name
and its labels; one of that name without them is foreign, and is refused.

A process that makes a container holds the lock of its home's networks shared; one that removes networks holds it
alone. So none is removed between its making and that of the container which needs it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from dibs.backends.engines.client import Client, EngineError
from dibs.backends.engines.facts import Facts
from dibs.backends.port import Capability, Peers, PublishedPort, Workload
from dibs.errors import Conflict
from dibs.home import Home
from dibs.http import query, segment

HOME, TENANT, NETWORK = "dibs.home", "dibs.tenant", "dibs.network"
LOCK = "networks.lock"
_TUN = "/dev/net/tun"
_CONFLICT = 409
_FIRST_RANK = 10


def name_of(home: Home, tenant: str, group: str = "") -> str:
    """Tenants may have any name; an engine's networks may not. `group`: a network for the ranks of one job."""
    words = f"{home.state}\0{tenant}\0{group}" if group else f"{home.state}\0{tenant}"
    import hashlib

    return "dibs-" + hashlib.sha256(words.encode()).hexdigest()[:12]


def name_for(home: Home, workload: Workload) -> str:
    return name_of(home, workload.tenant, workload.peers.group if workload.peers is not None else "")


def addresses(subnet: str, peers: Peers) -> list[str]:
    """Of every rank in the network of its job. The first ones are the engine's own."""
    import ipaddress

    network = ipaddress.ip_network(subnet)
    return [str(network[_FIRST_RANK + number]) for number in range(len(peers.hosts))]


def names(peers: Peers, addresses: list[str]) -> list[str]:
    """Lines of /etc/hosts, as engines want them told."""
    pairs = zip(peers.hosts, addresses, strict=True)
    return [f"{name}:{address}" for host, address in pairs for name in (host, host.partition(".")[0])]


def capability(engine: str, facts: Facts) -> Capability:
    """Whether networks of this engine are kept apart."""
    if engine == "docker" and facts.peer is not None and _without_rules(facts):
        reason = "dockerd is told to make no firewall rules (iptables is false), so its networks are not kept apart"
        return Capability(False, reason, "let it: remove iptables from /etc/docker/daemon.json", "NETWORK_UNAVAILABLE")
    if facts.rootless and facts.peer is not None and not os.access(facts.seen(_TUN), os.R_OK | os.W_OK):
        reason = f"the user of {engine} may not open {_TUN}, which its private networks need"
        remedy = f"let every user open it, as distributions do: sudo chmod 0666 {_TUN}"
        return Capability(False, reason, remedy, "NETWORK_UNAVAILABLE")
    return Capability(True)


def _without_rules(facts: Facts) -> bool:
    from dibs.backends import proc

    assert facts.peer is not None
    try:
        words = [os.fsdecode(word) for word in proc.words(facts.peer.pid, "cmdline")]
    except OSError:
        return False  # not ours to inspect
    if "--iptables=false" in words:
        return True
    path = "/etc/docker/daemon.json"
    for at, word in enumerate(words):
        if word == "--config-file":
            path = words[at + 1]
        elif word.startswith("--config-file="):
            path = word.partition("=")[2]
    try:
        with open(facts.seen(path), "rb") as file:
            return msgspec.json.decode(file.read()).get("iptables") is False
    except (OSError, msgspec.DecodeError, AttributeError):
        return False


# --- words


def ports(published: tuple[PublishedPort, ...]) -> dict[str, list[dict[str, str]]]:
    """As both engines say them of a container, and Docker wants them said."""
    found: dict[str, list[dict[str, str]]] = {}
    for one in published:
        found.setdefault(f"{one.port}/tcp", []).append({"HostIp": one.address, "HostPort": str(one.host_port)})
    return found


def told(document: dict[str, Any]) -> dict[str, str]:
    """What an engine says of a container's network: its kind and what connects it, and its published ports."""
    mode = str((document.get("HostConfig") or {}).get("NetworkMode") or "")
    settings = document.get("NetworkSettings") or {}
    if mode in ("host", "none"):
        return {"network": mode}
    found = {"network": f"private, through {', '.join(sorted(settings.get('Networks') or {})) or mode}"}
    published = [
        str(PublishedPort(str(one.get("HostIp") or "0.0.0.0"), int(one.get("HostPort") or 0), int(port.split("/")[0])))  # noqa: S104
        for port, places in sorted((settings.get("Ports") or {}).items())
        for one in places or ()
    ]
    return {**found, "published": ", ".join(published)} if published else found


# --- life


@contextmanager
def lock(home: Home, *, alone: bool) -> Iterator[None]:
    fd = os.open(home.state / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield
    finally:
        os.close(fd)


def ensure(engine: str, client: Client, home: Home, tenant: str, group: str = "", subnet: str = "") -> None:
    """The network of a tenant or of a job, made if it is not there. Raises Conflict if its name is another's."""
    name = name_of(home, tenant, group)
    labels = {HOME: str(home.state), TENANT: tenant}
    if engine == "docker":
        body: dict[str, Any] = {"Name": name, "CheckDuplicate": True, "Driver": "bridge", "Labels": labels}
    else:
        body = {
            "name": name,
            "driver": "bridge",
            "labels": labels,
            "options": {"isolate": "true"},
            "dns_enabled": False,
            **({"subnets": [{"subnet": subnet}]} if subnet else {}),
        }
    try:
        found = _find(engine, client, name)
        if found is None:
            client.call("POST", "/networks/create", json=body)
            return
    except EngineError as error:
        if error.status != _CONFLICT:
            raise
        found = _find(engine, client, name)  # another process was faster
    if found is not None and {key: found.get(key) for key in labels} != labels:
        raise Conflict(
            f"{engine} has a network of this name that dibs did not make", field="network", value=name,
            code="NETWORK_UNAVAILABLE", remedy=f"remove it: {engine} network rm {name}",
        )  # fmt: skip


def subnet(client: Client, name: str) -> str:
    """The addresses of a network of Podman's."""
    document = client.call("GET", f"/networks/{segment(name)}/json")
    found: str = document["subnets"][0]["subnet"]
    return found


def _find(engine: str, client: Client, name: str) -> dict[str, str] | None:
    """The labels of a network; None if there is none."""
    path = f"/networks/{segment(name)}" + ("" if engine == "docker" else "/json")
    try:
        document = client.call("GET", path)
    except EngineError as error:
        if error.status == 404:
            return None
        raise
    return document.get("Labels") or document.get("labels") or {}


def sweep(client: Client, home: Home) -> None:
    """Remove the networks of a home that no container is made for."""
    if not os.path.exists(home.state / LOCK):
        return  # this home never had one
    filters = msgspec.json.encode({"label": [f"{HOME}={home.state}"]}).decode()
    with lock(home, alone=True):
        path = "/networks/json" if client.prefix.endswith("libpod") else "/networks"
        listed = client.call("GET", path + query(filters=filters)) or []
        names = [str(one.get("Name") or one.get("name")) for one in listed]
        if not names:
            return
        used = {(one.get("Labels") or {}).get(NETWORK) for one in client.containers(filters)}
        for name in names:
            if name not in used:
                client.answer("DELETE", f"/networks/{segment(name)}", accept=(403, 404, 409, 500))
