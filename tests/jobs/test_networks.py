"""The ranks of a job find each other by name; what is not of the job does not meet them."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.jobs.submitting import driven, objects, options, removed, row_of

from dibs.devices.simulated import parse_world, simulate
from dibs.home import Home
from dibs.train import shipped
from dibs.workloads.jobs import ports
from dibs.workloads.jobs.driver import Driver
from dibs.workloads.jobs.model import Job, Objects
from dibs.workloads.jobs.service import Jobs
from dibs.workloads.networks import able
from dibs.workloads.service import Workloads

# Rank 0 answers once, the other asks it by its name; both say where they were.
MEET = """
import os, socket, time
host, port = os.environ["PET_MASTER_ADDR"], int(os.environ["PET_MASTER_PORT"])
if os.environ["PET_NODE_RANK"] == "0":
    server = socket.create_server((host, port))
    connection, _ = server.accept()
    connection.sendall(b"hello from " + socket.gethostname().encode())
    connection.close()
else:
    for _ in range(600):
        try:
            connection = socket.create_connection((host, port), 1)
            break
        except OSError:
            time.sleep(0.05)
    print(connection.recv(100).decode(), "at", port)
"""


@pytest.fixture
def jobs(service: Workloads) -> Iterator[Jobs]:
    found = Jobs(service)
    yield found
    for job in found.list():
        removed(service, job)


def meeting(name: str = "demo") -> Objects:
    torch = shipped.runtime("torch-distributed")
    assert torch is not None
    what = objects(["python3", "-c", MEET], name=name, gpus=1)
    body = {**what.job, "spec": {**what.job["spec"], "runtimeRef": {**what.job["spec"]["runtimeRef"]}}}
    body["spec"]["runtimeRef"]["name"] = "torch-distributed"
    return Objects(body, torch)


def said(jobs: Jobs, job: Job) -> str:
    return "".join(one.record.data.decode() for one in jobs.logs(job.id))


def test_on_the_hosts_network_a_port_that_is_taken_is_not_used(service: Workloads, jobs: Jobs) -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            taken.bind(("0.0.0.0", ports.USUAL))
            taken.listen()
        except OSError:
            pass  # something else has it: as well
        job = driven(service, jobs.submit(meeting(), options(network="host")))
    assert job.state == "complete", (job.status.conditions, said(jobs, job))
    assert job.status.port > ports.USUAL
    assert said(jobs, job) == f"hello from demo-node-0-0 at {job.status.port}\n"


def test_two_jobs_on_the_hosts_network_have_ports_of_their_own(service: Workloads, jobs: Jobs) -> None:
    first = driven(service, jobs.submit(objects(name="first"), options(network="host")), "running")
    second = driven(service, jobs.submit(objects(name="second"), options(network="host")), "running")
    assert first.status.port != second.status.port


def test_jobs_of_two_users_have_ports_of_their_own_before_either_listens(
    service: Workloads, jobs: Jobs, tmp_path: Path
) -> None:
    """Each user has a ledger of their own, and a rank that has just been started does not listen yet."""
    home = Home(state=tmp_path / "other", config=tmp_path / "other" / "config").make()
    simulate(home, parse_world("2"))
    first = jobs.submit(objects(name="first"), options(network="host"))
    chosen: list[int] = []

    def while_it_runs() -> bool:
        if jobs.get(first.id).state != "running":
            return False
        with Workloads(home) as other:
            second = driven(other, Jobs(other).submit(objects(), options(network="host")), "running")
            chosen.extend((jobs.get(first.id).status.port, second.status.port))
            removed(other, second)
        return True

    Driver(service, row_of(service, first)).run(while_it_runs)
    assert len(set(chosen)) == 2


@pytest.mark.root
def test_in_a_private_network_ranks_meet_and_the_host_does_not_see_them(service: Workloads, jobs: Jobs) -> None:
    if not able(service.registry.get("local"), "private").ok:
        pytest.skip("neither pasta nor slirp4netns is here")
    job = driven(service, jobs.submit(meeting(), options(network="private")))
    assert job.state == "complete", (job.status.conditions, said(jobs, job))
    assert said(jobs, job) == f"hello from demo-node-0-0 at {ports.USUAL}\n"
    networks = [
        line.observed for one in jobs.receipt(job.id).ranks.values() for line in one.lines if line.field == "network"
    ]
    assert all("private" in network for network in networks)
    running = driven(service, jobs.submit(objects(name="sleepers"), options(network="private")), "running")
    spaces = {_network(service, rank.sandbox_id) for rank in running.ranks}
    assert len(spaces) == 1
    assert os.readlink("/proc/self/ns/net") not in spaces


def _network(service: Workloads, sandbox_id: str) -> str:
    from dibs.workloads.reconcile import handle_of

    init = handle_of(service.sandbox(sandbox_id)).init
    assert init is not None
    return os.readlink(f"/proc/{init.pid}/ns/net")
