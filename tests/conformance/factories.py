"""The backends that the suite runs against, and in what they differ.

A difference is a named line: what the suite then does not ask of the backend, and why. Adding a backend means
adding a factory; removing a difference runs more tests.

Engines of further versions, and a cluster, run the tests of `SMALLER`, and everything with DIBS_SOAK=1. The further
kinds of workload of a cluster differ in who makes the pod: they run those of `ENDS`.
"""

from __future__ import annotations

import os
from pathlib import Path

from tests.cluster import images as cluster_images
from tests.cluster import kinds
from tests.cluster import shared as clusters
from tests.cluster.binaries import CannotBuild
from tests.engines import images, shared

from dibs.backends.fake import FakeBackend
from dibs.backends.installed import declared
from dibs.backends.local.backend import LocalBackend
from dibs.backends.port import Backend
from dibs.home import Home
from dibs.kube.render import Kind
from dibs.settings import ClusterSettings
from dibs.testing import Factory

# Where versions of an engine differ: devices, limits, further commands, a life from its beginning to its end.
SMALLER = frozenset(
    (
        "test_what_is_expected_is_observed",
        "test_only_the_leased_nodes_are_inside",
        "test_limits_are_delivered_or_refused",
        "test_it_is_held_until_it_is_started",
        "test_a_missing_command_fails_the_start",
        "test_its_exit_code_is_told",
        "test_stop_ends_it_with_the_reason",
        "test_delete_is_refused_while_it_lives_and_repeatable_after",
        "test_the_log_has_what_it_said",
        "test_attached_before_the_start_nothing_is_missed",
        "test_signals_arrive",
        "test_exec_runs_a_further_command_with_its_own_end",
        "test_exec_has_the_workloads_environment_and_its_own",
        "test_a_further_command_runs_as_the_user_or_is_refused",
        "test_what_is_said_last_is_not_lost",
        "test_pause_and_resume_can_be_repeated",
        "test_a_file_goes_in_and_comes_out",
        "test_its_time_to_live_ends_it",
        "test_a_survey_tells_of_each_what_a_look_would",
        "test_usage_is_measured_against_the_limits",
        "test_a_held_one_can_be_discarded_by_its_name_alone",
        "test_a_snapshot_is_an_image_or_refused_by_name",
    )
)


ENDS = frozenset(
    (
        "test_its_exit_code_is_told",
        "test_stop_ends_it_with_the_reason",
        "test_delete_is_refused_while_it_lives_and_repeatable_after",
        "test_a_held_one_can_be_discarded_by_its_name_alone",
    )
)


def _selection(*, further: bool) -> frozenset[str] | None:
    return SMALLER if further and not os.environ.get("DIBS_SOAK") else None


def _local(folder: Path) -> Backend:
    return LocalBackend(Home(state=folder / "home", config=folder / "home" / "config").make())


def _engine(name: str, suite: str = "trixie", version: str = "") -> Factory:
    """`version`: what the suite is there for; an engine of another one is not taken for it."""

    def missing() -> str:
        found = shared.engine(name, suite)
        if isinstance(found, str):
            return found
        told = found.version()
        return "" if told.startswith(version) else f"Debian {suite} has {name} {told} now, not {version}"

    def make(folder: Path) -> Backend:
        found = shared.engine(name, suite)
        assert not isinstance(found, str)
        config = folder / "home" / "config"
        config.mkdir(parents=True)
        (config / "config.toml").write_text(f'[{name}]\nsocket = "{found.socket}"\n')
        home = Home(state=folder / "home", config=config).make()
        if name == "docker":
            from dibs.backends.engines.docker import DockerBackend

            return DockerBackend(home, str(found.socket))
        from dibs.backends.engines.podman import PodmanBackend

        return PodmanBackend(home, str(found.socket))

    differences = {
        "held": "an engine cannot show a container that does not run: it is looked at right after the start",
        "work": "its root is an image: the working folder is made in it, not shared with the host",
    }
    label = f"{name}-{version}" if version else name
    return Factory(
        name=label,
        make=make,
        declaration=declared(name),
        differences=differences,
        missing=missing,
        fields={"image": images.REFERENCE},
        only=_selection(further=bool(version)),
    )


def _kubernetes(kind: Kind = "Pod") -> Factory:
    def missing() -> str:
        found = clusters.nodes()
        if isinstance(found, str):
            return found
        try:
            if kind != "Pod":
                kinds.keep(found, kind)
        except CannotBuild as reason:
            return f"no controller of {kind}: {reason}"
        return ""

    def make(_: Path) -> Backend:
        from dibs.backends.kubernetes.backend import KubernetesBackend

        found = clusters.nodes()
        assert not isinstance(found, str)
        kubeconfig = str(found.kubeconfig())
        return KubernetesBackend("kubernetes", ClusterSettings(kubeconfig=kubeconfig, namespace="default", kind=kind))

    differences = {
        "held": "a pod runs when its node is ready: it is looked at right after the start",
        "work": "its root is an image: the working folder is made in it, not shared with the host",
        "granted": "its scheduler chooses the devices: tests/cluster claims them",
        "kill": "a kubelet asks with SIGTERM first, and kills a second later",
        "streams": "a kubelet's log does not tell stdout from stderr",
        "isolation": "a pod has the network of its cluster",
    }
    fields = {"image": cluster_images.BUSYBOX, "private": True}  # as through a gateway: its expiry can be renewed
    return Factory(
        name="kubernetes" if kind == "Pod" else f"kubernetes-{kind}",
        make=make,
        declaration=declared("kubernetes"),
        differences=differences,
        missing=missing,
        fields=fields,
        only=(_selection(further=True) and ENDS)
        if kind != "Pod"
        else _selection(further=True),  # they take seconds to end
    )


FACTORIES = (
    Factory(
        name="fake",
        make=lambda _: FakeBackend(),
        declaration=declared("fake"),
        differences={
            "shell": "nothing really runs: only its small programs are there",
            "descriptor": "a session in memory has no descriptor to wait on",
        },
    ),
    Factory(name="local", make=_local, declaration=declared("local")),
    _engine("docker"),
    _engine("podman"),
    _kubernetes(),
    _kubernetes("Sandbox"),
    _kubernetes("BatchSandbox"),
    _engine("docker", "sid", "28"),
    _engine("podman", "bookworm", "4.3"),
)
