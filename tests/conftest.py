"""Every test has a home of its own and an environment without surprises."""

from __future__ import annotations

import os
import re
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from dibs.devices.simulated import parse_world, simulate
from dibs.home import Home
from dibs.workloads.service import Workloads

# How fast an example is made or run says how busy the machine is, and nothing of what is tested.
settings.register_profile("dibs", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("dibs")

# In the background (`make test &`) a shell ignores Ctrl-C for the tests, and so would every program that a test
# starts and presses it on.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


ENGINE = re.compile(r"\b(docker|podman)\b")
ENGINES_OF_A_KIND = 3  # how many workers start an engine of their own, for a share of its tests


# What takes longest comes first where there are several workers, so that none is left with it at the end.
LONG = (
    "nodes", "cluster", "docker", "podman", "tests/docs/test_pages.py", "tests/stress/", "tests/host/",
    "tests/gateway/test_openapi.py", "tests/local/test_rootless.py", "tests/guest/", "tests/jobs/",
    "tests/opensandbox/", "tests/kubeflow/", "tests/openshell/", "tests/gateway/", "tests/cel/", "tests/golang/",
    "tests/ledger/", "tests/docs/", "tests/security/", "tests/local/", "tests/cli/",
)  # fmt: skip


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What runs in one worker, where there are several (`make test`): the tests of a file, which may share a gateway;
    those of a cluster, which is started once; a share of those of an engine. Without workers this changes nothing."""
    groups = {item: _started_for(item) or _file(item) for item in items}
    shares = _shares([(group, _file(item)) for item, group in groups.items() if group in ("docker", "podman")])
    groups |= {
        item: f"{group} {shares[group, _file(item)]}" for item, group in groups.items() if group in ("docker", "podman")
    }
    for item, group in groups.items():
        item.add_marker(pytest.mark.xdist_group(group))
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: next((n for n, one in enumerate(LONG) if groups[item].startswith(one)), len(LONG)))


def _shares(tests: list[tuple[str, str]]) -> dict[tuple[str, str], int]:
    """The files with tests of an engine, spread over its shares: the largest first, each to the smallest share."""
    sizes = Counter(tests)
    filled = Counter[tuple[str, int]]()
    found = {}
    for (engine, file), size in sorted(sizes.items(), key=lambda one: (-one[1], one[0])):
        share = min(range(1, ENGINES_OF_A_KIND + 1), key=lambda number: filled[engine, number])
        found[engine, file] = share
        filled[engine, share] += size
    return found


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """pytest-xdist marks what belongs together in the ids of the tests, and says nothing where it cannot."""
    if not getattr(session.config.option, "loadgroup", False):
        return
    if any(
        not item.nodeid.endswith(f"@{mark.args[0]}")
        for item in session.items
        for mark in item.iter_markers("xdist_group")
    ):
        raise pytest.UsageError("this pytest and this pytest-xdist do not keep the tests of a file in one worker")


def _file(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def _started_for(item: pytest.Item) -> str:
    """What has to be started for a test: a cluster or an engine."""
    fixtures = getattr(item, "fixturenames", ())
    if "nodes" in fixtures or "kubernetes" in item.nodeid.partition("[")[2]:
        return "nodes"  # a real cluster with nodes
    if item.nodeid.startswith("tests/cluster/"):
        return "cluster"  # a real control plane
    found = ENGINE.search(item.nodeid.partition("[")[2])
    if found:
        return found[0]
    return "docker" if "old_docker" in fixtures else next((one for one in ("docker", "podman") if one in fixtures), "")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("root") and os.getuid():
        pytest.skip("needs root")


@pytest.fixture(autouse=True)
def own_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("DIBS_", "XDG_")) and name != "DIBS_CONFORMANCE_DATA":
            monkeypatch.delenv(name)
    for name in (
        "NO_COLOR", "COLUMNS", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "DOCKER_HOST", "CONTAINER_HOST",
        "KUBECONFIG",
    ):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DIBS_HOME", str(tmp_path / "home"))


@pytest.fixture
def home(tmp_path: Path) -> Home:
    root = tmp_path / "home"
    return Home(state=root, config=root / "config").make()


@pytest.fixture
def eight_gpus(home: Home) -> Home:
    """A home with eight simulated H100s."""
    simulate(home, parse_world("8", model="H100"))
    return home


@pytest.fixture
def service(eight_gpus: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workloads]:
    """The service on eight simulated GPUs, in a working folder of its own; everything is removed afterwards."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    with Workloads(eight_gpus) as found:
        yield found
        for row in found.sandboxes():
            found.remove(row.id, 0.0)
