"""Real torchrun and real JAX, two ranks, the same objects on every backend. Only the devices are simulated."""

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
from tests.jobs.submitting import driven, objects, removed, replicated, runtime

from dibs.devices.simulated import parse_world, simulate
from dibs.home import Home
from dibs.workloads.jobs.model import Job, Objects, Options
from dibs.workloads.jobs.service import Jobs
from dibs.workloads.service import Workloads

Json = dict[str, Any]
IMAGE = "localhost/dibs-frameworks:1"
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


def training(programs: Path, policy: str, command: list[str], env: dict[str, str]) -> Objects:
    volumes = [
        {"name": "usr", "hostPath": {"path": f"{programs}/usr"}},
        {"name": "work", "hostPath": {"path": f"{programs}/examples"}},
    ]
    mounts = [
        {"name": "usr", "mountPath": "/usr", "readOnly": True},
        {"name": "work", "mountPath": "/programs", "readOnly": True},
    ]
    made = runtime(replicated(pod={"volumes": volumes}, volumeMounts=mounts), policy={"numNodes": 1, policy: {}})
    del made["metadata"]["annotations"]
    trainer = {"image": IMAGE, "env": [{"name": name, "value": value} for name, value in env.items()]}
    return objects(command, runtime=made, nodes=2, gpus=2, trainer=trainer)


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
