"""What was rendered is changed on its way to an engine, by a proxy on its socket: none of it is delivered.

The engine and everything else is real. Each case names the field of the receipt that must tell it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.engines import shared
from tests.engines.whole.house import House
from tests.tampering.proxy import Change, Proxy

from dibs.backends.engines.client import Client
from dibs.errors import DeliveryMismatch
from dibs.process import ProcessName

_numbers = itertools.count()


def host(**fields: Any) -> Change:
    """Docker: settings of the host's side."""
    return lambda body: body["HostConfig"].update(fields)


def setting(**fields: Any) -> Change:
    return lambda body: body.update(fields)


def mount(number: int, **fields: Any) -> Change:
    """Docker: the first mount is the read-only one, the second the writable one."""
    return lambda body: body["HostConfig"]["Mounts"][number].update(fields)


def without(*path: str | int) -> Change:
    def change(body: Any) -> None:
        for part in path[:-1]:
            body = body[part]
        del body[path[-1]]

    return change


def added(*path: str, value: Any) -> Change:
    def change(body: Any) -> None:
        for part in path[:-1]:
            body = body.setdefault(part, {})
        body.setdefault(path[-1], []).append(value)

    return change


def env(body: dict[str, Any], text: str) -> None:
    name = text.partition("=")[0]
    body["Env"] = [line for line in body["Env"] if not line.startswith(f"{name}=")] + ([text] if "=" in text else [])


GPU_1 = {"Driver": "cdi", "DeviceIDs": ["sim.dibs/gpu=1"]}
NODE = {"PathOnHost": "/dev/zero", "CgroupPermissions": "rwm"}
DOCKER: dict[str, tuple[str, Change]] = {
    "the device is dropped": ("devices", without("HostConfig", "DeviceRequests")),
    "another device": ("devices", host(DeviceRequests=[GPU_1])),
    "a device more": ("devices", added("HostConfig", "DeviceRequests", value=GPU_1)),
    "a node more": ("devices", added("HostConfig", "Devices", value=NODE | {"PathInContainer": "/dev/more"})),
    "a node outside of /dev": (
        "devices",
        added("HostConfig", "Devices", value=NODE | {"PathInContainer": "/opt/more"}),
    ),
    "the host's /dev elsewhere": ("devices", added("HostConfig", "Binds", value="/dev:/opt/dev")),
    "the host's root elsewhere": ("mounts", added("HostConfig", "Binds", value="/:/host:ro")),
    "access to all devices": ("options", host(DeviceCgroupRules=["c *:* rwm"])),
    "privileged": ("options", host(Privileged=True)),
    "a capability more": ("capabilities", host(CapAdd=["SYS_ADMIN"])),
    "all capabilities dropped": ("options", host(CapDrop=["ALL"])),
    "system calls are not filtered": ("seccomp", host(SecurityOpt=["seccomp=unconfined"])),
    "no new privileges": ("options", host(SecurityOpt=["no-new-privileges"])),
    "the host's processes": ("isolation.pid", host(PidMode="host")),
    "the host's ipc": ("isolation.ipc", host(IpcMode="host")),
    "the host's name": ("isolation.uts", host(UTSMode="host")),
    "the host's network": ("network", host(NetworkMode="host")),
    "the host's users": ("options", host(UsernsMode="host")),
    "a mount is dropped": ("mounts", without("HostConfig", "Mounts", 0)),
    "a mount of another folder": ("mounts", mount(0, Source="/tmp")),
    "a read-only mount is writable": ("mounts", mount(0, ReadOnly=False)),
    "a writable mount is read-only": ("mounts", mount(1, ReadOnly=True)),
    "a mount is elsewhere": ("mounts", mount(0, Target="/srv/date")),
    "a mount more": ("mounts", added("HostConfig", "Binds", value="/tmp:/opt/more")),
    "a file of the host on /etc/hosts": ("mounts", added("HostConfig", "Binds", value="/etc/passwd:/etc/hosts:ro")),
    "a tmpfs more": ("mounts", lambda body: body["HostConfig"]["Tmpfs"].update({"/srv": ""})),
    "a volume more": ("mounts", setting(Volumes={"/opt/volume": {}})),
    "the kernel's files are writable": ("kernel_files", host(MaskedPaths=[], ReadonlyPaths=[])),
    "the root is not read-only": ("read_only", host(ReadonlyRootfs=False)),
    "shared memory of another size": ("shm", host(ShmSize=8 << 20)),
    "another memory limit": ("memory", host(Memory=128 << 20, MemorySwap=128 << 20)),
    "another limit of processes": ("pids", host(PidsLimit=77)),
    "a cpu limit that was not asked for": ("cpu", host(NanoCpus=500_000_000)),
    "a variable is changed": ("env.ANSWER", lambda body: env(body, "ANSWER=43")),
    "a variable is dropped": ("env.ANSWER", lambda body: env(body, "ANSWER")),
    "a variable more": ("env.LD_PRELOAD", lambda body: env(body, "LD_PRELOAD=/x.so")),
    "another command": ("command", setting(Cmd=["sleep", "999"])),
    "an argument more": ("command", lambda body: body["Cmd"].append("--verbose")),
    "an entrypoint": ("command", setting(Entrypoint=["env"])),
    "another working directory": ("workdir", setting(WorkingDir="/opt")),
    "another user": ("user", setting(User="0:0")),
    "a group more": ("groups", host(GroupAdd=["999"])),
    "no init": ("init", host(Init=False)),
    "it is restarted": ("options", host(RestartPolicy={"Name": "always"})),
    "it is removed at its end": ("options", host(AutoRemove=True)),
    "a kernel setting": ("options", host(Sysctls={"net.ipv4.ip_unprivileged_port_start": "1"})),
    "a resource limit": ("options", host(Ulimits=[{"Name": "nofile", "Soft": 64, "Hard": 64}])),
    "a name more": ("options", host(ExtraHosts=["pypi.org:127.0.0.1"])),
    "another name server": ("options", host(Dns=["127.0.0.9"])),
    "killed first when memory is short": ("options", host(OomScoreAdj=500)),
    "no log": ("options", host(LogConfig={"Type": "none"})),
    "a label is dropped": ("options", without("Labels", "dibs.sandbox")),
    "a terminal": ("options", setting(Tty=True)),
    "a command beside it": ("options", setting(Healthcheck={"Test": ["CMD", "true"], "Interval": 10**9})),
}


def bind(source: str, target: str, mode: str) -> dict[str, Any]:
    return {"type": "bind", "source": source, "destination": target, "options": ["rbind", mode]}


def option(number: int, mode: str) -> Change:
    return lambda body: body["mounts"][number].update(options=["rbind", mode])


PODMAN: dict[str, tuple[str, Change]] = {
    "the device is dropped": ("devices", without("devices")),
    "another device": ("devices", setting(devices=[{"path": "sim.dibs/gpu=1"}])),
    "a device more": ("devices", added("devices", value={"path": "sim.dibs/gpu=1"})),
    "a node more": ("devices", added("devices", value={"path": "/dev/zero:/dev/more:rwm"})),
    "a node outside of /dev": ("devices", added("devices", value={"path": "/dev/zero:/opt/more:rwm"})),
    "the host's /dev elsewhere": ("devices", added("mounts", value=bind("/dev", "/opt/dev", "ro"))),
    "the host's root elsewhere": ("mounts", added("mounts", value=bind("/", "/host", "ro"))),
    "privileged": ("options", setting(privileged=True)),
    "a capability more": ("capabilities", setting(cap_add=["CAP_SYS_ADMIN"])),
    "all capabilities dropped": ("options", setting(cap_drop=["ALL"])),
    "system calls are not filtered": ("seccomp", setting(seccomp_profile_path="unconfined")),
    "no new privileges": ("options", setting(no_new_privileges=True)),
    "the host's processes": ("isolation.pid", setting(pidns={"nsmode": "host"}, init=False)),
    "the host's ipc": ("isolation.ipc", setting(ipcns={"nsmode": "host"}, shm_size=None)),
    "the host's name": ("isolation.uts", setting(utsns={"nsmode": "host"})),
    "the host's network": ("network", setting(netns={"nsmode": "host"})),
    "a mount is dropped": ("mounts", without("mounts", 0)),
    "a mount of another folder": ("mounts", lambda body: body["mounts"][0].update(source="/tmp")),
    "a read-only mount is writable": ("mounts", option(0, "rw")),
    "a writable mount is read-only": ("mounts", option(1, "ro")),
    "a mount is elsewhere": ("mounts", lambda body: body["mounts"][0].update(destination="/srv/date")),
    "a mount more": ("mounts", added("mounts", value=bind("/tmp", "/opt/more", "rw"))),
    "a file of the host on /etc/hosts": ("mounts", added("mounts", value=bind("/etc/passwd", "/etc/hosts", "ro"))),
    "a tmpfs more": (
        "mounts",
        added("mounts", value={"type": "tmpfs", "source": "tmpfs", "destination": "/srv", "options": ["rw"]}),
    ),
    "a volume more": ("mounts", added("volumes", value={"Name": "", "Dest": "/opt/volume"})),
    "the kernel's files are writable": ("kernel_files", setting(unmask=["ALL"])),
    "the root is not read-only": ("read_only", setting(read_only_filesystem=False)),
    "shared memory of another size": ("shm", setting(shm_size=8 << 20)),
    "another memory limit": ("memory", lambda body: body["resource_limits"].update(memory={"limit": 128 << 20})),
    "another limit of processes": ("pids", lambda body: body["resource_limits"].update(pids={"limit": 77})),
    "a cpu limit that was not asked for": (
        "cpu",
        lambda body: body["resource_limits"].update(cpu={"quota": 50_000, "period": 100_000}),
    ),
    "a variable is changed": ("env.ANSWER", lambda body: body["env"].update(ANSWER="43")),
    "a variable is dropped": ("env.ANSWER", without("env", "ANSWER")),
    "a variable more": ("env.LD_PRELOAD", lambda body: body["env"].update(LD_PRELOAD="/x.so")),
    "another command": ("command", setting(command=["sleep", "999"])),
    "an argument more": ("command", lambda body: body["command"].append("--verbose")),
    "an entrypoint": ("command", setting(entrypoint=["env"])),
    "another working directory": ("workdir", setting(work_dir="/opt")),
    "another user": ("user", setting(user="0:0")),
    "a group more": ("groups", setting(groups=["999"])),
    "no init": ("init", setting(init=False)),
    "it is restarted": ("options", setting(restart_policy="always")),
    "it is removed at its end": ("options", setting(remove=True)),
    "a name more": ("options", setting(hostadd=["pypi.org:127.0.0.1"])),
    "killed first when memory is short": ("options", setting(oom_score_adj=500)),
    "no log": ("options", setting(log_configuration={"driver": "none"})),
    "a label is dropped": ("options", without("labels", "dibs.sandbox")),
    "a terminal": ("options", setting(terminal=True)),
    "a command beside it": (
        "options",
        setting(healthconfig={"Test": ["CMD", "true"], "Interval": 3600 * 10**9, "Timeout": 10**9, "Retries": 1}),
    ),
}
CASES = [*(("docker", way) for way in DOCKER), *(("podman", way) for way in PODMAN)]


@pytest.mark.parametrize("ways", [DOCKER, PODMAN], ids=["docker", "podman"])
def test_there_are_enough_ways(ways: dict[str, tuple[str, Change]]) -> None:
    assert len(ways) >= 30


class Between(House):
    """A house whose dibs speaks to the engine through the proxy."""

    def __init__(self, engine: Any, state: Path, tmp: Path) -> None:
        self.proxy = Proxy(tmp / "proxy.sock", engine.socket)
        super().__init__(engine, state)

    def settings(self, *lines: str) -> None:
        self.home.config.mkdir(exist_ok=True)
        text = "\n".join(lines) + f'\n[{self.kind}]\nsocket = "{self.proxy.path}"\n'
        (self.home.config / "config.toml").write_text(text)


_houses: dict[str, Between] = {}


@pytest.fixture(scope="module")
def houses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Between]]:
    """One for each engine, for all cases; the engine behind the proxy is the one that is looked at."""
    patch = pytest.MonkeyPatch()
    real = Client.peer

    def peer(client: Client) -> ProcessName | None:
        for house in _houses.values():
            if str(house.proxy.path) in client.target:
                return real(Client(f"unix://{house.engine.socket}", "", 5.0))
        return real(client)

    patch.setattr(Client, "peer", peer)
    yield _houses
    for house in _houses.values():
        house.close()
        house.proxy.close()
        for file in house.engine.etc_cdi.iterdir():
            file.unlink()
    _houses.clear()
    patch.undo()


def house_of(kind: str, houses: dict[str, Between], tmp_path_factory: pytest.TempPathFactory) -> Between:
    if kind not in houses:
        engine = shared.engine(kind)
        if isinstance(engine, str):
            pytest.skip(f"{kind} is not here: {engine}")
        if not engine.answers():
            engine.start()
        houses[kind] = Between(engine, engine.home, tmp_path_factory.mktemp(kind))
        houses[kind].world()
    return houses[kind]


def wanted(tmp: Path) -> dict[str, Any]:
    for name in ("data", "scratch"):
        (tmp / name).mkdir(mode=0o777)
    return {
        "gpu": 1, "env": {"ANSWER": "42"}, "network": "none", "read_only": True, "shm": "1Mi", "memory": "64Mi",
        "pids": 50, "user": "1000:1000", "workdir": "/opt/work",
        "mounts": [f"{tmp}/data:/srv/data:ro", f"{tmp}/scratch:/scratch:rw"], "command": ["sleep", "1000"],
    }  # fmt: skip


@pytest.mark.parametrize(("kind", "way"), CASES)
def test_what_is_changed_on_the_way_is_not_delivered(
    kind: str, way: str, houses: dict[str, Between], tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    house = house_of(kind, houses, tmp_path_factory)
    field, change = (DOCKER if kind == "docker" else PODMAN)[way]
    house.proxy.change, before = change, house.proxy.changed
    name = f"target-{next(_numbers)}"
    with pytest.raises(DeliveryMismatch) as caught:
        house.create(name=name, **wanted(tmp_path))
    assert house.proxy.changed == before + 1
    assert field in [problem.field for problem in caught.value.problems], str(caught.value)
    assert not house.service.leases()
    assert house.service.receipt(name).verdict == "mismatch"


@pytest.mark.parametrize("kind", ["docker", "podman"])
def test_what_is_not_changed_is_delivered(
    kind: str, houses: dict[str, Between], tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    house = house_of(kind, houses, tmp_path_factory)
    house.proxy.change = lambda body: None
    row = house.create(name=f"target-{next(_numbers)}", **wanted(tmp_path))
    receipt = house.service.receipt(row.id)
    assert {line.outcome for line in receipt.lines} == {"delivered"}, receipt.lines
    house.service.remove(row.id, 0.0)
