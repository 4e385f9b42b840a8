"""From a plan to the final workload of a backend: names, paths and one environment. Pure."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from dibs.backends.mounts import real
from dibs.backends.port import (
    Backend,
    GrantedDevice,
    Limits,
    Mount,
    Peers,
    PublishedPort,
    Realisation,
    Workload,
    scheduler_of,
)
from dibs.devices.model import Device, Inventory
from dibs.errors import InvalidRequest, Problem, quoted
from dibs.home import Home
from dibs.ledger.rows import Share
from dibs.plan.decision import DevicePlan
from dibs.plan.environment import device_environment, lease_environment
from dibs.request.fields import PASSED
from dibs.request.model import family
from dibs.request.spec import RESERVED_ENV, SandboxSpec
from dibs.workloads.networks import settle
from dibs.workloads.quotas import least_gpus
from dibs.workloads.volumes import volumes_of
from dibs.workloads.working_directory import left_behind

KEEP_ALIVE = ("sleep", "infinity")  # what runs in a sandbox that is made to be used with exec
_NANO = 10**9  # amounts of shares are counted in billionths
_MINIMAL_ENV = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LANG": "C.UTF-8",
}


class Prepared(msgspec.Struct, frozen=True):
    """Everything that is needed to book and create a sandbox."""

    workload: Workload
    realisation: Realisation
    devices: tuple[Device, ...]
    folder: Path
    simulated: bool
    notes: tuple[str, ...] = ()
    shares: Mapping[str, Share] = {}
    told_env: frozenset[str] = frozenset()  # the variables that dibs has set, in place of the user


def prepare(
    spec: SandboxSpec,
    backend: Backend,
    sandbox_id: str,
    plan: DevicePlan,
    inventory: Inventory,
    home: Home,
    base_env: Mapping[str, str],
    foreground: bool,
    *,
    private: bool = False,
    owner: int = -1,
    tenant: str = "",
    gateway: bool = False,
    group_env: Mapping[str, str] | None = None,
    peers: Peers | None = None,
) -> Prepared:
    """Raises with all problems; changes nothing. Called inside the transaction that books the devices."""
    problems: list[Problem] = []
    notes: list[str] = []
    simulated = inventory.simulated and bool(plan.devices)
    memory = {
        device: share.consumed["memory"] // _NANO for device, share in plan.shares.items() if "memory" in share.consumed
    }
    delegated = spec.resources if scheduler_of(backend) is not None and spec.resources.wants_devices else None
    chosen = least_gpus(delegated) if delegated is not None else 0
    env, told = _environment(spec, plan.devices, sandbox_id, simulated, base_env, memory, problems, notes, chosen)
    if simulated:
        from dibs.devices.simulated import identity

        if world := identity(home):
            env["DIBS_WORLD"] = world  # two homes may simulate cards of the same name on one host
            told |= {"DIBS_WORLD"}
    if group_env:
        env |= group_env
        told |= group_env.keys()
    own_root = spec.root == "host" and not spec.image and scheduler_of(backend) is None
    workdir = _workdir(spec, problems, private=private, own_root=own_root)
    # A remote caller was checked by the name that a mount has without links; to follow one now would undo that.
    mounts = tuple(
        Mount(mount.source if private else real(mount.source), mount.target, mount.writable) for mount in spec.mounts
    )
    for mount in mounts:
        if not os.path.exists(mount.source):
            remedy = "make it, or leave the mount out"
            problems.append(Problem("MOUNT_INVALID", "mounts", mount.source, "there is no such file or folder", remedy))
    for device in plan.devices:
        if device.used_by:
            uses = ", ".join(map(str, device.used_by))
            notes.append(f"{device.id} is also used outside dibs: {uses}")
    for name in plan.shares:
        notes.append(f"{name} is shared: what each may take is booked, but the driver does not enforce it")
    volumes = volumes_of(spec, tenant)
    if problems:
        raise InvalidRequest(problems)
    name = spec.name or sandbox_id
    network, why = settle(spec, backend, gateway=gateway)
    notes += [note for note in (why, left_behind(spec, backend.name)) if note]
    workload = Workload(
        id=sandbox_id,
        name=name,
        command=spec.command or KEEP_ALIVE,
        env=env,
        workdir=workdir,
        network=network,
        publish=tuple(PublishedPort(port.address, port.host_port, port.port) for port in spec.publish),
        tenant=tenant,
        limits=Limits(spec.resources.cpu_millis, spec.resources.memory_bytes, spec.resources.pids),
        foreground=foreground,
        devices=tuple(
            GrantedDevice(device.id, device.cdi, device.simulated) for device in plan.devices if device.cdi is not None
        ),
        mounts=mounts,
        volumes=volumes,
        options=spec.options.get(family(backend.name), {}),
        private=private,
        peers=peers,
        owner=owner,
        delegated=delegated,
        **{name: getattr(spec, name) for name in PASSED},
    )
    folder = home.sandbox(sandbox_id)
    realisation = backend.render(workload, folder)
    return Prepared(workload, realisation, plan.devices, folder, simulated, tuple(notes), plan.shares, told)


def _environment(
    spec: SandboxSpec,
    devices: tuple[Device, ...],
    sandbox_id: str,
    simulated: bool,
    base_env: Mapping[str, str],
    memory: Mapping[str, int],
    problems: list[Problem],
    notes: list[str],
    delegated: int,
) -> tuple[dict[str, str], frozenset[str]]:
    """The whole environment, and which of it dibs has set."""
    if spec.image:
        base: dict[str, str] = {}  # the image has its own
    else:
        base = (dict(base_env) if spec.root == "host" else {}) or dict(_MINIMAL_ENV)
    for name in RESERVED_ENV:
        if name in base:
            notes.append(f"{name}={base.pop(name)} from your environment is replaced by what was leased")
    base = {name: value for name, value in base.items() if not name.startswith("DIBS_") and value.find("\0") < 0}
    from_devices = device_environment(devices, problems)
    for name, value in from_devices.items():
        if name in spec.env and spec.env[name] != value:
            reason = f"the device's CDI spec sets it to {quoted(value)}; one of the two would be lost"
            problems.append(Problem("ENV_CONFLICT", f"env.{name}", spec.env[name], reason, "leave it out"))
    leased = lease_environment(devices, sandbox_id=sandbox_id, simulated=simulated, memory=memory, delegated=delegated)
    return {**base, **from_devices, **spec.env, **leased}, frozenset(from_devices) | frozenset(leased) | {"PWD"}


def _workdir(spec: SandboxSpec, problems: list[Problem], *, own_root: bool, private: bool) -> str:
    """Empty where an image says it."""
    if not own_root or private:
        return spec.workdir or ("" if spec.image else "/")
    workdir = spec.workdir or os.getcwd()
    if not os.path.isdir(workdir):
        problems.append(Problem("WORKDIR_INVALID", "workdir", workdir, "there is no such folder", "make it first"))
    return workdir
