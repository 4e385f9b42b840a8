"""Private networks: a way out, nothing of the host's loopback, published ports, and a helper that ends with them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.local.bench import Bench

from dibs.backends import sockets
from dibs.backends.local import networks, uplinks
from dibs.backends.local.kernel import children_of
from dibs.backends.port import Handle, Phase, PublishedPort
from dibs.errors import DibsError, InvalidRequest, NotFound, Unsupported
from dibs.process import ProcessName, absent

SERVE = """
import socket, sys
server = socket.create_server((sys.argv[1], int(sys.argv[2])))
print("ready", server.getsockname()[1], flush=True)
while True:
    one, _ = server.accept()
    one.sendall(b"from inside")
    one.close()
"""
# Everything by which a sandbox could mean the host: prints the first that answers.
REACH = """
import socket, sys
port = int(sys.argv[1])
places = ["127.0.0.1", "::1", "0.0.0.0", "localhost", "10.0.2.2", "10.0.2.3", "169.254.53.53", "169.254.1.1"]
for line in open("/proc/net/route"):
    words = line.split()
    if words[1] == "00000000":
        places.append(socket.inet_ntoa(bytes.fromhex(words[2])[::-1]))
for line in open("/proc/net/ipv6_route"):
    words = line.split()
    if words[0] == "0" * 32 and words[9] != "lo":
        places.append(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(words[4])) + "%" + words[9])
print("tried", " ".join(places), flush=True)
for place in places:
    try:
        with socket.create_connection((place, port), 1.0) as one:
            print("reached", place, one.recv(100), flush=True)
    except OSError as error:
        print("not", place, error, flush=True)
print("done", flush=True)
"""
PATIENCE = 20.0
HELPERS = ["pasta", "slirp4netns"]


@pytest.fixture(params=HELPERS)
def helper(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, bench: Bench) -> str:
    """Each helper by itself; skips, and says why, where it cannot be used."""
    name: str = request.param
    monkeypatch.setattr(networks, "_NEEDED", {name: networks._NEEDED[name]})
    capability = bench.backend.can_network("private")
    if not capability.ok:
        pytest.skip(f"no private network with {name}: {capability.reason}; {capability.remedy}")
    return name


@pytest.fixture
def on_loopback() -> Iterator[int]:
    """A server on the host's loopback, by IPv4 and IPv6, at the same port."""
    first = socket.create_server(("127.0.0.1", 0))
    port: int = first.getsockname()[1]
    second = socket.create_server(("::1", port), family=socket.AF_INET6)

    def serve(server: socket.socket) -> None:
        while True:
            try:
                one, _ = server.accept()
            except OSError:
                return
            one.sendall(b"from the host")
            one.close()

    threads = [threading.Thread(target=serve, args=(server,), daemon=True) for server in (first, second)]
    for thread in threads:
        thread.start()
    yield port
    for server in (first, second):
        server.shutdown(socket.SHUT_RDWR)
        server.close()
    for thread in threads:
        thread.join(PATIENCE)


def port_of(bench: Bench, handle: Handle) -> int:
    bench.ready(handle)
    return int(bench.said(handle).split()[1])


def wait_until(done: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE
    while not done():
        assert time.monotonic() < until, "it does not happen"
        time.sleep(0.01)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def helper_of(handle: Handle) -> int:
    process = uplinks.of(handle)
    return process.pid


@pytest.fixture
def outside() -> Iterator[str]:
    """An address that is neither the sandbox's nor on the host's loopback, with a server on port 7 and one for names.

    It is one more address of this host, which a caller cannot tell from another machine.
    """
    if os.getuid():
        pytest.skip("needs root: an address is added to the host")
    address = f"198.51.100.{os.getpid() % 250 + 1}"
    ip = ["ip", "address"]
    subprocess.run([*ip, "add", f"{address}/32", "dev", "lo"], check=True)
    try:
        server, names = socket.create_server((address, 7)), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        names.bind((address, 53))

        def answer() -> None:
            while True:
                try:
                    question, asker = names.recvfrom(512)
                except OSError:
                    return
                if not question:
                    return
                end = question.index(b"\0", 12) + 5
                wanted = question[end - 4 : end - 2] == b"\0\1"
                head = question[:2] + b"\x81\x80\0\1" + (b"\0\1" if wanted else b"\0\0") + bytes(4)
                record = b"\xc0\x0c\0\1\0\1\0\0\0\x0a\0\4" + socket.inet_aton(address) if wanted else b""
                names.sendto(head + question[12:end] + record, asker)

        def serve() -> None:
            while True:
                try:
                    one, _ = server.accept()
                except OSError:
                    return
                one.sendall(b"from outside")
                one.close()

        threads = [threading.Thread(target=target, daemon=True) for target in (answer, serve)]
        for thread in threads:
            thread.start()
        yield address
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
            end.sendto(b"", (address, 53))
        server.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join(PATIENCE)
        server.close()
        names.close()
    finally:
        subprocess.run([*ip, "del", f"{address}/32", "dev", "lo"], check=True)


def test_a_private_network_leads_out_and_finds_names(
    bench: Bench, helper: str, outside: str, make_folder: Callable[[], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = make_folder() / "resolv.conf"
    servers.write_text(f"nameserver 127.0.0.53\nnameserver {outside}\nsearch example.org\n")
    monkeypatch.setattr(networks, "RESOLV_CONF", str(servers))
    script = "import socket; print(socket.create_connection(('a.test', 7), 20).recv(100))"
    handle = bench.start("python3", "-c", script, network="private")
    assert bench.backend.wait(handle, PATIENCE).exit is not None
    assert "from outside" in bench.said(handle), bench.said(handle, "stderr")


def test_the_network_is_observed(bench: Bench, helper: str) -> None:
    handle = bench.start("sleep", "1000", network="private")
    seen = bench.backend.observe(handle)
    assert seen.isolation["network"] == "own"
    assert seen.process["network"] == f"private, through {helper}"
    alone = bench.start("sleep", "1000", network="none")
    assert bench.backend.observe(alone).process["network"] == "none"
    shared = bench.start("sleep", "1000", network="host")
    assert bench.backend.observe(shared).process["network"] == "host"


def test_nothing_of_the_hosts_loopback_is_reached(bench: Bench, helper: str, on_loopback: int) -> None:
    handle = bench.start("python3", "-c", REACH, str(on_loopback), network="private")
    bench.backend.wait(handle, PATIENCE)
    said = bench.said(handle)
    assert "done" in said
    assert "from the host" not in said
    with socket.create_connection(("127.0.0.1", on_loopback), PATIENCE) as one:
        assert one.recv(100) == b"from the host"  # it was there all the time


def test_no_abstract_socket_of_the_host_is_reached(bench: Bench, helper: str) -> None:
    name = f"\0dibs-test-{os.getpid()}"
    connect = f"import socket; socket.socket(socket.AF_UNIX).connect('\\0{name[1:]}')"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(name)
        server.listen()
        handle = bench.start("python3", "-c", connect, network="private")
        ended = bench.backend.wait(handle, PATIENCE)
    assert ended.exit is not None
    assert ended.exit.code == 1
    assert "ConnectionRefused" in bench.said(handle, "stderr")


def test_the_name_servers_inside_can_be_reached(bench: Bench, helper: str) -> None:
    handle = bench.start("cat", "/etc/resolv.conf", network="private")
    bench.backend.wait(handle, PATIENCE)
    said = bench.said(handle)
    assert "nameserver " in said
    assert "nameserver 127." not in said
    assert "nameserver ::1" not in said


def test_two_private_networks_do_not_meet(bench: Bench, helper: str) -> None:
    red = bench.start("python3", "-c", SERVE, "0.0.0.0", "0", network="private")
    port = port_of(bench, red)
    blue = bench.start("python3", "-c", REACH, str(port), network="private")
    bench.backend.wait(blue, PATIENCE)
    assert "done" in bench.said(blue)
    assert "from inside" not in bench.said(blue)
    with bench.backend.connect(red, port) as one:  # as the gateway's proxy does it
        one.settimeout(PATIENCE)
        assert one.recv(100) == b"from inside"
    other = bench.start("sleep", "1000", network="private")
    with pytest.raises(NotFound):
        bench.backend.connect(other, port)


def test_a_published_port_leads_inside(bench: Bench, helper: str) -> None:
    port = PublishedPort("127.0.0.1", free_port(), 8000)
    handle = bench.start("python3", "-c", SERVE, "0.0.0.0", "8000", network="private", publish=(port,))
    bench.ready(handle)
    assert bench.backend.observe(handle).process["published"] == str(port)
    with socket.create_connection((port.address, port.host_port), PATIENCE) as one:
        one.settimeout(PATIENCE)
        assert one.recv(100) == b"from inside"
    assert {row.address for row in sockets.rows() if row.listens and row.port == port.host_port} == {"127.0.0.1"}
    bench.backend.stop(handle, 0)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((port.address, port.host_port), PATIENCE)


def test_a_port_in_use_is_refused_before_anything_is_made(bench: Bench, helper: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = PublishedPort("127.0.0.1", taken.getsockname()[1], 80)
        with pytest.raises(InvalidRequest) as caught:
            bench.start("true", network="private", publish=(port,))
    problem = caught.value.problems[0]
    assert (problem.code, problem.field) == ("PORT_IN_USE", "publish")
    assert str(port.host_port) in problem.value


def test_a_port_that_is_taken_meanwhile_is_never_said_to_be_published(bench: Bench, helper: str) -> None:
    port = PublishedPort("127.0.0.1", free_port(), 80)
    workload = bench.workload("sleep", "1000", network="private", publish=(port,))
    realisation = bench.backend.render(workload, bench.home.sandbox(workload.id))
    with socket.create_server((port.address, port.host_port)):
        try:
            handle = bench.backend.create(workload, realisation, bench.home.sandbox(workload.id))
        except DibsError as error:
            assert str(port.host_port) in str(error) or "network" in str(error)  # noqa: PT017
            return
        bench.handles.append(handle)
        assert "published" not in bench.backend.observe(handle).process


def test_the_helper_inherits_nothing(bench: Bench, helper: str) -> None:
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)
    ours = f"pipe:[{os.fstat(writing).st_ino}]"
    try:
        handle = bench.start("sleep", "1000", network="private")
        pid = helper_of(handle)
        links = {os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")}
        environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except PermissionError:
        pytest.skip("an ordinary user cannot look into the helper")
    finally:
        os.close(reading)
        os.close(writing)
    assert ours not in links
    assert "anon_inode:inotify" not in links  # a host has 128 of them for each user
    foreign = [
        link for link in links
        if not link.startswith(("socket:", "anon_inode:", "net:", "pipe:", "/dev/null", "/dev/net/tun"))
        and not link.endswith("/uplink.err")
    ]  # fmt: skip
    assert not foreign
    assert {item.partition(b"=")[0] for item in environ if item} == {b"DIBS_SANDBOX", b"PATH"}


@pytest.mark.parametrize("victim", ["shim", "init", "helper", "shim and helper", "shim and init"])
def test_whichever_process_is_killed_nothing_is_left(bench: Bench, helper: str, victim: str) -> None:
    port = PublishedPort("127.0.0.1", free_port(), 80)
    handle = bench.start("sleep", "1000", network="private", publish=(port,))
    process = uplinks.of(handle)
    listening = {row.inode for row in sockets.listeners(port.host_port)}
    assert listening
    assert handle.keeper is not None
    assert handle.init is not None
    names = {"shim": handle.keeper, "init": handle.init, "helper": process}
    for name in victim.split(" and "):
        with suppress(ProcessLookupError):  # the second may have ended with the first
            os.kill(names[name].pid, signal.SIGKILL)
    for one in names.values():
        wait_until(lambda one=one: absent(one))  # type: ignore[misc]
    status = bench.backend.wait(handle, PATIENCE)
    assert status.phase in (Phase.EXITED, Phase.ABSENT)
    if victim == "helper":
        assert status.exit is not None
        assert status.exit.reason == "network-lost"
        assert helper in status.exit.detail
    # The kernel may close a killed process's sockets a moment after the process is gone.
    wait_until(lambda: not sockets.listeners(port.host_port))


def kill_with_its_guard(handle: Handle) -> ProcessName:
    """Kill the shim and the guard of its helper, so that no process is left to end the helper; returns which it is."""
    process = uplinks.of(handle)
    assert handle.keeper is not None
    children = children_of(handle.keeper.pid)
    guards = [pid for pid in children if "python" in Path(f"/proc/{pid}/comm").read_text()]
    assert len(guards) == 1, children
    os.kill(process.pid, signal.SIGSTOP)  # so that it cannot end by itself
    for pid in (*guards, handle.keeper.pid):
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: handle.init is not None and absent(handle.init))
    assert not absent(process)
    return process


def test_a_helper_without_shim_and_guard_is_ended_when_it_is_looked_at(bench: Bench, helper: str) -> None:
    handle = bench.start("sh", "-c", "echo ready; exec sleep 1000", network="private")
    bench.ready(handle)
    process = kill_with_its_guard(handle)
    wait_until(lambda: bench.backend.status(handle).phase is Phase.ABSENT)
    assert absent(process)


def test_a_helper_is_found_by_the_folder_alone(bench: Bench, helper: str) -> None:
    workload = bench.workload("sleep", "1000", network="private")
    folder = bench.home.sandbox(workload.id)
    handle = bench.backend.create(workload, bench.backend.render(workload, folder), folder)
    process = kill_with_its_guard(handle)
    bench.backend.discard(Handle("local", workload.id, str(folder)))
    wait_until(lambda: absent(process))


def test_without_a_helper_private_is_refused_with_the_package(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, make_folder: Callable[[], Path]
) -> None:
    monkeypatch.setattr(networks, "FOLDERS", (str(make_folder()),))
    capability = bench.backend.can_network("private")
    assert not capability.ok
    assert "passt" in capability.remedy
    with pytest.raises(Unsupported) as caught:
        bench.start("true", network="private")
    problem = caught.value.problems[0]
    assert (problem.code, problem.field, problem.value) == ("NETWORK_UNAVAILABLE", "network", "private")
    assert "passt" in problem.remedy
