"""Whether the container engines can be given devices: reachable, with CDI, and with the same specs as dibs.

An engine drops requests in its own ways: without CDI it takes a name for a path, with other spec folders it knows other
devices, and under systemd a running container may lose its devices when units are loaded anew.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator

from dibs.backends import proc
from dibs.backends.engines import advice
from dibs.backends.engines.backend import EngineBackend
from dibs.backends.engines.discovery import find
from dibs.backends.engines.docker import DockerBackend
from dibs.backends.engines.facts import Facts
from dibs.backends.engines.podman import PodmanBackend
from dibs.devices.host import Roots
from dibs.doctor.finding import Finding, Scene
from dibs.errors import BackendUnavailable
from dibs.settings import load_settings

_ENABLE_CDI = (
    """echo '{"features": {"cdi": true}}' | sudo tee /etc/docker/daemon.json && sudo systemctl restart docker"""
)
_MERGE_CDI = 'add "features": {"cdi": true} to /etc/docker/daemon.json, then: sudo systemctl restart docker'
_DELEGATE = "sudo systemctl edit user@.service, and write there: [Service] Delegate=cpu cpuset io memory pids"
_NODES = re.compile(r"nvidia([0-9]+|ctl|-uvm|-uvm-tools|-modeset)")


def check(scene: Scene) -> Iterable[Finding]:
    found: list[Finding] = []
    settings = load_settings(scene.home)
    docker, podman = settings.docker_socket, settings.podman_socket
    for engine, named in ((DockerBackend(scene.home, docker), docker), (PodmanBackend(scene.home, podman), podman)):
        found += _examine(engine, named, scene)
        engine.close()
    return found


def _examine(engine: EngineBackend, named: str, scene: Scene) -> Iterator[Finding]:
    name = f"engine.{engine.name}"
    where = find(engine.name, named)
    if not where.target and not named and not where.said_by:
        yield Finding(name, "skip", f"no {engine.name} here", where.reason)
        return
    try:
        facts = engine.facts()
    except BackendUnavailable as error:
        problem = error.problems[0]
        title = f"{engine.name} cannot be used"
        why = f"requests with an image cannot be delivered by it, and its containers are not seen: {problem.reason}"
        yield Finding(name, "fail", title, why, _fix(engine.name, error.code, where.target) or problem.remedy)
        return
    yield Finding(name, "ok", f"{engine.name} {facts.version} answers", where.target)
    if facts.peer is not None and not facts.rootless and not proc.may_look_at_all():
        title = f"you may not look into the containers of {engine.name}"
        why = f"it runs as root; requests for {engine.name} are refused, because nothing could be proved"
        yield Finding(f"{name}.looks", "warn", title, why, "sudo dibs host install")
    yield from judge(engine.name, facts, scene)
    yield from _privileged(engine)


def _privileged(engine: EngineBackend) -> Iterator[Finding]:
    """Containers that may open every device. They block none: most of them watch the host, and use no card."""
    name = f"engine.{engine.name}.privileged"
    try:
        found = sorted(one.name for one in engine.external_holders(lambda: ()) if one.privileged)
    except BackendUnavailable as error:
        yield Finding(name, "warn", f"the containers of {engine.name} are not known", error.problems[0].reason)
        return
    if found:
        title = f"privileged containers of {engine.name} may open every GPU: {', '.join(found)}"
        why = "they hold none for dibs unless they asked for it; what they really use is seen by its processes only"
        fix = f"give it the devices that it needs by name, in place of privileges: {engine.name} run --device …"
        yield Finding(name, "warn", title, why, fix)


def _fix(engine: str, code: str, target: str) -> str:
    if code == "ENGINE_DENIED":
        return advice.allow(engine, target)
    return advice.start(engine) if code == "ENGINE_NOT_RUNNING" else ""


def judge(engine: str, facts: Facts, scene: Scene) -> Iterator[Finding]:
    """What can be said of an engine that answers."""
    yield from _cdi(engine, facts, scene.roots)
    if facts.cdi:
        yield from _folders(engine, facts, scene)
    missing = sorted({"cpu", "memory", "pids"} - facts.limits)
    if missing:
        why = f"a request that limits {' or '.join(missing)} is refused, because {engine} would not enforce it"
        rootless = facts.rootless
        fix = _DELEGATE if rootless else "enable the controllers of the kernel, or use cgroup version 2"
        kind = "rootless" if rootless else "here"
        yield Finding(f"engine.{engine}.limits", "warn", f"{engine} cannot limit {', '.join(missing)} {kind}", why, fix)
    if facts.systemd:
        yield from _reload_trap(engine, facts, scene.roots)


def _cdi(engine: str, facts: Facts, roots: Roots) -> Iterator[Finding]:
    name = f"engine.{engine}.cdi"
    if facts.cdi:
        return
    why = "devices cannot be passed by their exact names"
    if facts.legacy:
        why += "; NVIDIA's own request is used instead, by exact id, which does not work for other vendors"
    fix = _MERGE_CDI if os.path.exists(roots.file("/etc/docker/daemon.json")) else _ENABLE_CDI
    major = facts.version.partition(".")[0]
    if major.isdigit() and int(major) < 25:
        fix = "upgrade Docker to version 25 or newer"
    yield Finding(name, "warn" if facts.legacy else "fail", f"CDI is off in {engine} {facts.version}", why, fix)


def _folders(engine: str, facts: Facts, scene: Scene) -> Iterator[Finding]:
    """Devices that dibs would offer and the engine does not know, or knows otherwise."""
    name = f"engine.{engine}.specs"
    theirs = facts.specs()
    ours = [str(one) for one in scene.specs.devices()]
    unknown = [one for one in ours if theirs.device(one) is None]
    if unknown:
        shown = ", ".join(unknown[:3]) + (f" and {len(unknown) - 3} more" if len(unknown) > 3 else "")
        why = f"{shown} cannot be given to its containers; it reads {', '.join(facts.cdi_dirs)}"
        fix = advice.spec_folders(engine, scene.specs.spec_dirs)
        yield Finding(name, "fail", f"{engine} reads other CDI specs than dibs", why, fix)
    elif ours:
        yield Finding(name, "ok", f"{engine} knows the same {len(ours)} CDI devices as dibs")


def _reload_trap(engine: str, facts: Facts, roots: Roots) -> Iterator[Finding]:
    """Where systemd keeps the control groups, `systemctl daemon-reload` takes devices away that it cannot name."""
    try:
        nodes = [node for node in os.listdir(roots.dev) if _NODES.fullmatch(node)]
    except FileNotFoundError:
        nodes = []
    nameless = []
    for node in sorted(nodes):
        number = os.stat(roots.node(f"/dev/{node}")).st_rdev
        if not os.path.exists(roots.node(f"/dev/char/{os.major(number)}:{os.minor(number)}")):
            nameless.append(node)
    if nameless:
        why = (
            f"systemd keeps the control groups of {engine}, and /dev/char has no links to {', '.join(nameless[:3])}: "
            "running containers lose their GPUs at the next `systemctl daemon-reload`"
        )
        fix = "sudo nvidia-ctk system create-dev-char-symlinks --create-all"
        yield Finding(f"engine.{engine}.reload", "warn", "GPUs may vanish from running containers", why, fix)
    elif nodes and not facts.cdi:
        why = "NVIDIA's hook gives devices behind systemd's back; `systemctl daemon-reload` takes them away again"
        fix = _MERGE_CDI
        yield Finding(f"engine.{engine}.reload", "warn", "GPUs may vanish from running containers", why, fix)
