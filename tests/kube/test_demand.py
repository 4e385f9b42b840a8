"""What a pod asks of a node, by Kubernetes' arithmetic."""

from __future__ import annotations

import msgspec

from dibs.kube.demand import in_use, is_extended, requested, shown
from dibs.kube.objects import Pod, Taint, Toleration
from dibs.quantity import NANO


def pod(**spec: object) -> Pod:
    return msgspec.convert({"metadata": {"name": "x"}, "spec": spec}, Pod)


def asks(**amounts: str) -> dict[str, object]:
    return {"name": "c", "resources": {"requests": {key.replace("__", "/"): value for key, value in amounts.items()}}}


def test_containers_are_added_and_init_containers_count_by_the_largest() -> None:
    found = requested(
        pod(
            containers=[asks(cpu="1"), asks(cpu="500m")],
            initContainers=[asks(cpu="3"), {**asks(cpu="1"), "restartPolicy": "Always"}, asks(cpu="1")],
        )
    )
    assert shown(found["cpu"], "cpu") == "3"  # the first step alone; later 1 + 1, then 1.5 + 1


def test_sidecars_count_with_the_containers() -> None:
    found = requested(pod(containers=[asks(cpu="2")], initContainers=[{**asks(cpu="1"), "restartPolicy": "Always"}]))
    assert shown(found["cpu"], "cpu") == "3"


def test_resources_of_the_pod_as_a_whole_and_its_overhead_count() -> None:
    found = requested(
        pod(containers=[asks(cpu="1", memory="1Gi")], resources={"requests": {"cpu": "4"}}, overhead={"cpu": "250m"})
    )
    assert (shown(found["cpu"], "cpu"), shown(found["memory"], "memory")) == ("4250m", "1Gi")


def test_only_live_pods_on_a_node_hold_anything() -> None:
    live = pod(nodeName="a", containers=[asks(**{"nvidia.com__gpu": "2"})])
    ended = msgspec.convert({"spec": {"nodeName": "a"}, "status": {"phase": "Succeeded"}}, Pod)
    waiting = pod(containers=[asks(cpu="1")])
    assert in_use([live, ended, waiting]) == {"a": {"nvidia.com/gpu": 2 * NANO, "pods": NANO}}


def test_only_qualified_names_are_extended_resources() -> None:
    assert [is_extended(name) for name in ("nvidia.com/gpu", "cpu", "hugepages-2Mi", "gpu")] == [
        True, False, False, False,
    ]  # fmt: skip


def test_tolerations_accept_as_in_kubernetes() -> None:
    taint = Taint(key="a", value="5", effect="NoSchedule")
    accepted = [
        Toleration(operator="Exists"),
        Toleration(key="a", operator="Exists"),
        Toleration(key="a", value="5"),
        Toleration(key="a", operator="Equal", value="5", effect="NoSchedule"),
        Toleration(key="a", operator="Lt", value="6"),
    ]
    refused = [
        Toleration(),
        Toleration(key="b", operator="Exists"),
        Toleration(key="a", value="4"),
        Toleration(key="a", operator="Exists", effect="NoExecute"),
        Toleration(key="a", operator="Gt", value="6"),
    ]
    assert all(one.accepts(taint) for one in accepted)
    assert not any(one.accepts(taint) for one in refused)
