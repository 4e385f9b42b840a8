"""Private networks of real engines: one for each tenant, and nothing of another's, nor of the host's loopback."""

from __future__ import annotations

import re
import threading
import time

import pytest
from tests.engines.conftest import Bench

from dibs.backends.engines import networks
from dibs.backends.port import Exec, Handle, PublishedPort
from dibs.errors import Conflict, NotFound
from dibs.workloads.receipt import differences

PATIENCE = 20.0
SERVE = "while true; do echo crimson | nc -l -p 8000; done"


def address(bench: Bench, handle: Handle) -> str:
    words = bench.collect(bench.backend.exec(handle, _exec("ip", "-4", "-o", "address", "show", "eth0")))[0].decode()
    found = re.search(r"inet ([0-9.]+)/", words)
    assert found is not None, words
    return found[1]


def _exec(*command: str) -> Exec:
    return Exec(command=command)


def reaches(bench: Bench, handle: Handle, place: str, port: int = 8000) -> bool:
    asked = _exec("sh", "-c", f"echo | nc -w 3 {place} {port}")
    return b"crimson" in bench.collect(bench.backend.exec(handle, asked))[0]


def names(bench: Bench) -> set[str]:
    client = bench.backend.client()
    path = "/networks/json" if bench.engine.kind == "podman" else "/networks"
    return {str(one.get("Name") or one.get("name")) for one in client.call("GET", path)}


def test_a_tenants_server_is_reached_by_that_tenant_alone(bench: Bench) -> None:
    server = bench.start("sh", "-c", SERVE, network="private", tenant="red")
    friend = bench.start("sleep", "1000", network="private", tenant="red")
    stranger = bench.start("sleep", "1000", network="private", tenant="blue")
    where = address(bench, server)
    assert reaches(bench, friend, where)
    assert not reaches(bench, stranger, where)
    own = f"dibs-{server.sandbox_id}"
    assert not reaches(bench, stranger, own)
    with bench.backend.connect(server, 8000) as line:  # as the gateway's proxy does it
        line.settimeout(30)
        assert line.recv(100) == b"crimson\n"


def test_the_hosts_loopback_is_not_reached(bench: Bench) -> None:
    """The host of an engine is the network that the engine is in."""
    port = PublishedPort("127.0.0.1", 18090, 8000)
    bench.start("sh", "-c", SERVE, network="private", tenant="red", publish=(port,))
    host = bench.start("sleep", "1000", network="host")
    until = time.monotonic() + PATIENCE
    while not reaches(bench, host, "127.0.0.1", 18090):
        assert time.monotonic() < until
    inside = bench.start("sleep", "1000", network="private", tenant="blue")
    route = bench.collect(bench.backend.exec(inside, _exec("ip", "route")))[0].decode()
    gateway = re.search(r"default via ([0-9.]+)", route)
    assert gateway is not None
    for place in ("127.0.0.1", gateway[1]):
        assert not reaches(bench, inside, place, 18090)


def test_on_the_hosts_network_a_port_is_reached_only_where_it_is_listened_on(bench: Bench) -> None:
    server = bench.start("sh", "-c", "while true; do echo crimson | nc -l -p 8002; done", network="host")
    other = bench.start("sleep", "1000", network="host")
    until = time.monotonic() + PATIENCE
    while True:
        try:
            with bench.backend.connect(server, 8002) as line:
                line.settimeout(PATIENCE)
                assert line.recv(100) == b"crimson\n"
            break
        except NotFound:
            assert time.monotonic() < until
    with pytest.raises(NotFound):
        bench.backend.connect(other, 8002)


def test_the_network_is_in_the_receipt(bench: Bench) -> None:
    port = PublishedPort("127.0.0.1", 18081, 8000)
    handle, realisation = bench.create(
        bench.workload("sh", "-c", SERVE, network="private", tenant="red", publish=(port,))
    )
    bench.backend.start(handle)
    seen = bench.backend.observe(handle)
    name = networks.name_of(bench.home, "red")
    assert seen.process["network"] == f"private, through {name}"
    assert seen.process["published"] == "127.0.0.1:18081->8000"
    assert not differences(realisation.expectation, seen)
    shared = bench.start("sleep", "1000", network="host")
    assert reaches(bench, shared, "127.0.0.1", 18081)


def test_networks_come_with_the_first_container_and_go_with_the_last(bench: Bench) -> None:
    name = networks.name_of(bench.home, "green")
    workloads = [bench.workload("sleep", "1000", network="private", tenant="green") for _ in range(4)]
    errors: list[Exception] = []

    def make(number: int) -> None:
        try:
            bench.create(workloads[number])
        except Exception as error:  # noqa: BLE001 - told below
            errors.append(error)

    threads = [threading.Thread(target=make, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert name in names(bench)
    for handle in bench.handles[:3]:
        bench.backend.discard(handle)
        assert name in names(bench)
    bench.backend.discard(bench.handles[3])
    assert name not in names(bench)


def test_a_network_of_that_name_which_dibs_did_not_make_is_refused(bench: Bench) -> None:
    name = networks.name_of(bench.home, "taken")
    client = bench.backend.client()
    client.call("POST", "/networks/create", json={"Name": name} if bench.engine.kind == "docker" else {"name": name})
    try:
        with pytest.raises(Conflict) as caught:
            bench.start("true", network="private", tenant="taken")
        assert name in caught.value.problems[0].remedy
    finally:
        client.call("DELETE", f"/networks/{name}")
