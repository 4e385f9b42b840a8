"""What a kubelet's device plugins gave away counts as long as the pod is there, and no longer."""

from __future__ import annotations

import json
from pathlib import Path

from dibs.node.driver import _held_by_pods


def checkpoint(kubelet: Path, **pods: int) -> None:
    entries = [
        {"PodUID": uid, "ContainerName": "main", "ResourceName": "a.com/gpu", "DeviceIDs": {"-1": list("abcd"[:count])}}
        for uid, count in pods.items()
    ]
    file = kubelet / "device-plugins" / "kubelet_internal_checkpoint"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"Data": {"PodDeviceEntries": entries}}))


def test_devices_of_pods_that_are_gone_are_not_held(tmp_path: Path) -> None:
    checkpoint(tmp_path, here=2, gone=1)
    assert _held_by_pods(tmp_path, "a.com/gpu") == 3  # no folder of pods: nothing says that one is gone
    (tmp_path / "pods" / "here").mkdir(parents=True)
    assert _held_by_pods(tmp_path, "a.com/gpu") == 2
    (tmp_path / "pods" / "here").rmdir()
    assert _held_by_pods(tmp_path, "a.com/gpu") == 0
