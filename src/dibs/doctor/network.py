"""Whether sandboxes of the local backend can have a private network: a helper that connects it to the outside."""

from __future__ import annotations

from collections.abc import Iterable

from dibs.doctor.finding import Finding, Scene


def check(scene: Scene) -> Iterable[Finding]:
    if not scene.is_real:
        yield Finding("network", "skip", "private networks were not tried", "this is not the running host")
        return
    from dibs.backends.local import networks
    from dibs.backends.local.probes import Probes

    found = networks.find(Probes(scene.home.state / "local-probes.json"))
    if found.name:
        yield Finding("network", "ok", f"private networks are connected by {found.name} ({found.path})")
        return
    why = f"--network private is refused, and sandboxes of a gateway have no network at all: {found.reason}"
    yield Finding("network", "warn", "there are no private networks", why, found.remedy)
