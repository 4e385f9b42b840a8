"""Whether NVIDIA's driver is whole: the loaded module and the library agree, and the nodes that CUDA needs are there.

`nvidia-smi` answers without /dev/nvidia-uvm and CUDA does not start, so the node is looked for by itself.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from dibs.devices.host import Roots, has_nvidia_traces, read_text
from dibs.devices.model import Version
from dibs.devices.names import version
from dibs.doctor.finding import Finding, Scene

_LOADED = re.compile(r"Kernel Module\b[^0-9]*(?:for \S+\s+)?([0-9]+\.[0-9]+(?:\.[0-9]+)?)")


def check(scene: Scene) -> Iterable[Finding]:
    failures = [error for error in scene.inventory.errors if error.source == "nvml"]
    for failure in failures:
        title = "NVIDIA's library does not answer as it should"
        yield Finding("nvidia.library", "fail", title, failure.reason, failure.remedy or "nvidia-smi")
    if has_nvidia_traces(scene.roots):
        if not failures:
            yield driver(scene)
        yield uvm(scene.roots)
    elif not failures:
        yield Finding("nvidia", "skip", "no NVIDIA driver", "there is no trace of one in /proc/driver or /dev")


def driver(scene: Scene) -> Finding:
    name = "nvidia.driver"
    loaded = loaded_version(scene.roots)
    if not loaded:
        why = "device nodes are there, but /proc/driver/nvidia/version is not: the module is not loaded"
        return Finding(name, "fail", "the NVIDIA kernel module is not loaded", why, "sudo modprobe nvidia")
    told = {
        device.attributes["driverVersion"]
        for device in scene.inventory.devices
        if device.vendor == "nvidia" and "driverVersion" in device.attributes
    }
    differing = [value for value in told if value != version(loaded)]
    if differing and isinstance(differing[0], Version):
        why = f"the loaded module is {loaded} and the library is {differing[0].text}: CUDA does not start"
        return Finding(name, "fail", "driver and library differ", why, "sudo reboot")
    return Finding(name, "ok", f"driver {loaded}")


def uvm(roots: Roots) -> Finding:
    name = "nvidia.uvm"
    try:
        cards = [node for node in os.listdir(roots.dev) if re.fullmatch(r"nvidia[0-9]+", node)]
    except FileNotFoundError:
        cards = []
    if not cards:
        return Finding(name, "skip", "there are no nodes of cards", "/dev/nvidia0 and further are not there")
    missing = [node for node in ("/dev/nvidiactl", "/dev/nvidia-uvm") if not os.path.exists(roots.node(node))]
    if missing:
        why = "without it nvidia-smi works and CUDA does not start"
        return Finding(name, "fail", f"{' and '.join(missing)} is missing", why, "sudo nvidia-modprobe -u -c=0")
    return Finding(name, "ok", "the nodes that CUDA needs are there")


def loaded_version(roots: Roots) -> str:
    """The version of the kernel module that is loaded; empty if none is."""
    text = read_text(f"{roots.proc}/driver/nvidia/version") or ""
    match = _LOADED.search(text)
    return match.group(1) if match else ""
