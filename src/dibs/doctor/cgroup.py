"""Whether limits on cpu, memory and processes can be enforced: a group is really made and left again."""

from __future__ import annotations

from collections.abc import Iterable

from dibs.doctor.finding import Finding, Scene

OPTIONS = {"cpu": "--cpu", "memory": "--memory", "pids": "--pids"}


def check(scene: Scene) -> Iterable[Finding]:
    if not scene.is_real:
        yield Finding("cgroup", "skip", "control groups were not tried", "this is not the running host")
        return
    from dibs.backends.local import cgroups

    for name, option in OPTIONS.items():
        able = cgroups.can_limit(name)
        if able.ok:
            yield Finding(f"cgroup.{name}", "ok", f"{name} can be limited")
        else:
            why = f"a request with {option} is refused on the local backend: {able.reason}"
            yield Finding(f"cgroup.{name}", "warn", f"{name} cannot be limited", why, able.remedy)
