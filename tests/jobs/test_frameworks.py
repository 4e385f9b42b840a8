"""Real torchrun, JAX and MPI on two nodes, the same objects on every backend. Only the devices are simulated."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.engines import shared
from tests.engines.installing import CannotInstall
from tests.engines.running import Engine
from tests.jobs import frameworks
from tests.jobs.frameworks import IMAGE, training
from tests.jobs.submitting import driven, objects, removed, replicated, runtime

from dibs.devices.simulated import parse_world, simulate
from dibs.errors import Unsupported
from dibs.home import Home
from dibs.workloads.jobs.model import Job, Objects, Options
from dibs.workloads.jobs.service import Jobs
from dibs.workloads.service import Workloads

Json = dict[str, Any]
EXAMPLES = Path(__file__).parents[2] / "examples" / "train"


@pytest.fixture(scope="module")
def programs() -> Iterator[Path]:
    """The frameworks below /tmp, where the engines of the tests can see them; hard links, so it takes no room."""
    try:
        root = frameworks.install()
    except CannotInstall as error:
        pytest.skip(f"PyTorch and JAX cannot be had here: {error}")
    place = Path(f"/tmp/dibs-frameworks-{os.getpid()}")
    place.mkdir(mode=0o700)
    try:
        linked = subprocess.run(["cp", "-al", f"{root}/usr", f"{place}/usr"], capture_output=True, check=False)
        if linked.returncode:
            pytest.skip(f"the frameworks in {root} cannot be linked into {place}: another file system")
        shutil.copytree(EXAMPLES, place / "examples")
        frameworks.skeleton_tar(frameworks.skeleton(place / "skeleton"))
        yield place
    finally:
        shutil.rmtree(place)


@pytest.fixture(params=["local", "docker", "podman"])
def place(request: pytest.FixtureRequest, programs: Path, tmp_path: Path) -> Iterator[tuple[str, Workloads]]:
    kind = request.param
    state = tmp_path / "home"
    if kind != "local":
        engine = shared.engine(kind)
        if isinstance(engine, str):
            pytest.skip(f"{kind} is not here: {engine}")
        if not engine.answers():
            engine.start()
        state = engine.home
        load_image(engine, programs / "skeleton.tar")
        text = f'[{kind}]\nsocket = "{engine.socket}"\n'
    else:
        text = f'[images]\n"{IMAGE}" = "{programs / "skeleton"}"\n'
    home = Home(state=state, config=tmp_path / "config").make()
    home.config.mkdir(exist_ok=True)
    (home.config / "config.toml").write_text(text)
    simulate(home, parse_world("4", model="H100"))
    with Workloads(home) as service:
        yield kind, service
        for job in Jobs(service).list():
            removed(service, job)


def load_image(engine: Engine, tar: Path) -> None:
    body = tar.read_bytes()
    repository, _, tag = IMAGE.rpartition(":")
    path = f"{engine.prefix}/images/create?fromSrc=-&repo={repository}&tag={tag}"
    if engine.kind == "podman":
        path = f"{engine.prefix}/images/import?reference={IMAGE}"
    status, answer = engine.api("POST", path, body=body)
    assert status == 200, answer


def run(service: Workloads, kind: str, what: Objects) -> tuple[Job, str]:
    job = driven(service, Jobs(service).submit(what, Options(backend=kind)))
    said = "".join(
        f"{one.rank}: {line}\n" for one in Jobs(service).logs(job.id) for line in one.record.data.decode().splitlines()
    )
    return job, said


def check_devices(job: Job, said: str, processes: int) -> None:
    """Each rank sees exactly its own."""
    for rank in job.ranks:
        mine = [line for line in said.splitlines() if line.startswith(rank.name) and "devices" in line]
        assert len(mine) == processes, said
        assert all(line.endswith(f"devices {','.join(rank.devices)}") for line in mine), said
    used = [one for rank in job.ranks for one in rank.devices]
    assert len(used) == len(set(used)) == 4


def test_torchrun_on_two_nodes_with_two_processes_each(place: tuple[str, Workloads], programs: Path) -> None:
    kind, service = place
    env = {**frameworks.TORCH_ENV, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "HOME": "/tmp"}
    job, said = run(service, kind, training(programs, "torch", ["torchrun", "/programs/torch_allreduce.py"], env))
    assert job.state == "complete", (job.status.conditions, said)
    assert job.status.processes == 2
    for rank in range(4):
        assert f"rank {rank} of 4: all-reduce gives 6," in said
        assert f"rank {rank}: y = 3.00 x + 1.00" in said
    check_devices(job, said, 2)


def test_jax_on_two_processes(place: tuple[str, Workloads], programs: Path) -> None:
    kind, service = place
    env = {"PYTHONPATH": frameworks.JAX_PATH, "JAX_PLATFORMS": "cpu", "PYTHONUNBUFFERED": "1", "HOME": "/tmp"}
    job, said = run(service, kind, training(programs, "jax", ["python3", "/programs/jax_gather.py"], env))
    assert job.state == "complete", (job.status.conditions, said)
    for rank in range(2):
        assert f"rank {rank} of 2: gather gives 1," in said
        assert f"rank {rank}: y = 3.00 x + 1.00" in said
    check_devices(job, said, 1)


# A node that can be reached: keys of its own, and what dibs says of its devices for those who come by ssh.
REACHED = """
mkdir -p /run/sshd
ssh-keygen -q -t ed25519 -N '' -f /tmp/host_key
exec /usr/sbin/sshd -De -h /tmp/host_key -o SetEnv=DIBS_GPUS="$DIBS_GPUS" -o UsePAM=no
"""


def mpi(programs: Path) -> Objects:
    volumes = [
        {"name": "usr", "hostPath": {"path": f"{programs}/usr"}},
        {"name": "work", "hostPath": {"path": f"{programs}/examples"}},
    ]
    mounts = [
        {"name": "usr", "mountPath": "/usr", "readOnly": True},
        {"name": "work", "mountPath": "/programs", "readOnly": True},
    ]
    node = replicated("node", "", pod={"volumes": volumes}, volumeMounts=mounts, command=["sh", "-c", REACHED])
    launcher = replicated(
        "launcher", pod={"volumes": volumes}, volumeMounts=mounts, depends={"name": "node", "status": "Ready"}
    )
    for one in (node, launcher):
        one["template"]["spec"]["template"]["spec"]["containers"][0]["image"] = IMAGE
    policy = {"numNodes": 1, "mpi": {"runLauncherAsNode": True, "sshAuthMountPath": "/root/.ssh"}}
    made = runtime(
        node, launcher, policy=policy, successPolicy={"operator": "All", "targetReplicatedJobs": ["launcher"]}
    )
    del made["metadata"]["annotations"]
    variables = {
        "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "PYTHONUNBUFFERED": "1",
        "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
    }  # fmt: skip
    env = [{"name": name, "value": value} for name, value in variables.items()]
    return objects(["mpirun", "python3", "/programs/mpi_line.py"], runtime=made, nodes=2, gpus=2, trainer={"env": env})


def test_mpirun_on_two_nodes_with_a_process_for_each_device(place: tuple[str, Workloads], programs: Path) -> None:
    kind, service = place
    if shutil.which("ssh-keygen") is None:
        pytest.skip("there is no ssh-keygen here to make a job's keys with")
    if kind == "local":
        with pytest.raises(Unsupported) as refused:
            Jobs(service).submit(mpi(programs), Options(backend=kind))
        assert refused.value.problems[0].code == "MPI_NEEDS_ADDRESSES"
        return
    job, said = run(service, kind, mpi(programs))
    assert job.state == "complete", (job.status.conditions, said)
    assert job.status.processes == 2
    used = {rank.name: ",".join(rank.devices) for rank in job.ranks}
    for number in range(4):
        assert f"rank {number}: y = 3.00 x + 1.00" in said
    for name, devices in used.items():
        assert said.count(f"of 4 on {name}: all-reduce gives 6, devices {devices}") == 2, said
    assert len(set(",".join(used.values()).split(","))) == 4
