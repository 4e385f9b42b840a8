"""Whether a simulated world is on, so that it is neither taken for hardware nor forgotten."""

from __future__ import annotations

from collections.abc import Iterable

from dibs.devices.simulated import load
from dibs.doctor.finding import Finding, Scene
from dibs.errors import StateError

OFF = "dibs gpus simulate off"


def check(scene: Scene) -> Iterable[Finding]:
    try:
        world = load(scene.home)
    except StateError as error:
        why = f"no device is offered, neither simulated nor real: {error.problems[0].reason}"
        return [Finding("simulated", "fail", f"{scene.home.simulated} cannot be used", why, OFF)]
    if world is None:
        return [Finding("simulated", "ok", "no simulated world: the devices are real")]
    listed = ", ".join(f"{group.count} × {group.model}" for group in world.groups)
    why = "while it is on, real devices are not offered and nothing computes on the simulated ones"
    return [Finding("simulated", "warn", f"the devices are simulated: {listed}", why, OFF)]
