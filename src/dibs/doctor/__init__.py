"""The doctor: looks a host over and says, for each thing that is wrong, why it matters and how to fix it.

`dibs doctor` calls `examine`. Each module is one check; each check returns findings. It looks and tries; it never fixes
anything by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from dibs.devices.host import HOST, Roots
from dibs.doctor.finding import Check, Finding, Scene, Verdict
from dibs.errors import DibsError
from dibs.home import Home

if TYPE_CHECKING:
    from dibs.devices.nvml import Nvml

__all__ = ["Check", "Finding", "Scene", "Verdict", "examine", "look_over"]


def examine(
    home: Home,
    *,
    started_by_dibs: Callable[[int], bool] = lambda _: False,
    roots: Roots = HOST,
    spec_dirs: Iterable[str] | None = None,
    library: Nvml | None = None,
) -> list[Finding]:
    """All findings about this host, in the order in which to fix them."""
    from dibs.devices import cdi_source
    from dibs.devices.inventory import look_at_host

    dirs = tuple(spec_dirs) if spec_dirs is not None else cdi_source.spec_dirs()
    inventory = look_at_host(started_by_dibs, roots, dirs, library)
    return look_over(Scene(home, roots, inventory, cdi_source.cached(dirs)))


def look_over(scene: Scene) -> list[Finding]:
    """Run every check. A check that cannot look says so as a finding; it does not stop the others."""
    from dibs.doctor import bubblewrap, cdi, cgroup, devices, engines, kernel, ledger, network, nvidia, simulated

    checks: tuple[tuple[str, Check], ...] = (
        ("kernel", kernel.check),
        ("bubblewrap", bubblewrap.check),
        ("cgroup", cgroup.check),
        ("network", network.check),
        ("ledger", ledger.check),
        ("nvidia", nvidia.check),
        ("cdi", cdi.check),
        ("engines", engines.check),
        ("devices", devices.check),
        ("simulated", simulated.check),
    )
    findings: list[Finding] = []
    for name, check in checks:
        try:
            findings.extend(check(scene))
        except (OSError, DibsError) as error:
            why = f"the check could not be made: {error}"
            findings.append(Finding(name, "fail", f"{name}: not known", why, "dibs doctor, as a user who may look"))
    return findings
