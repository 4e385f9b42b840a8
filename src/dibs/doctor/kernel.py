"""Whether the kernel lets an ordinary user build a sandbox: user namespaces, and overlays inside of one.

The settings explain a refusal; only a try decides. Ubuntu's AppArmor lets an unprivileged user make a user namespace
and then takes away everything in it, so that reading the settings alone would say yes.
"""

from __future__ import annotations

from collections.abc import Iterable

from dibs.devices.host import Roots, read_text
from dibs.doctor.bubblewrap import judge
from dibs.doctor.finding import Finding, Scene

NAMESPACES = "kernel.user-namespaces"
OVERLAY = "kernel.overlay"


def check(scene: Scene) -> Iterable[Finding]:
    if not scene.is_real:
        yield from settings(scene.roots)
        return
    from dibs.backends.local import bubblewrap

    usable = [path for path, _ in bubblewrap.candidates() if not judge(path)[0]]
    if not usable:
        yield from settings(scene.roots)
        yield Finding(OVERLAY, "skip", "overlays were not tried", "there is no usable bubblewrap to try them with")
        return
    plain = ["--ro-bind", "/", "/"]
    yield namespaces(scene.roots, bubblewrap.try_out(usable[0], plain), usable[0])
    yield overlay(bubblewrap.try_out(usable[0], [*plain, "--overlay-src", "/etc", "--tmp-overlay", "/etc"]))


def settings(roots: Roots) -> Iterable[Finding]:
    """What the settings alone say, where nothing can be tried."""
    reason, fix = refusal(roots)
    if reason:
        yield Finding(NAMESPACES, "warn", "user namespaces are restricted", reason, fix)
    else:
        yield Finding(NAMESPACES, "ok", "user namespaces are allowed by the settings")


def namespaces(roots: Roots, complaint: str, bwrap: str = "/usr/bin/bwrap") -> Finding:
    """The verdict after a try: `complaint` is what was said, empty if it worked."""
    if not complaint:
        return Finding(NAMESPACES, "ok", "user namespaces can be made")
    reason, fix = refusal(roots, bwrap)
    why = f"sandboxes of the local backend are made of them; the try said: {complaint}"
    return Finding(NAMESPACES, "fail", reason or "user namespaces cannot be made", why, fix or "dmesg | tail")


def overlay(complaint: str) -> Finding:
    if not complaint:
        return Finding(OVERLAY, "ok", "overlays work in a user namespace")
    why = f"a sandbox over the host's root needs a private writable layer; the try said: {complaint}"
    title = "overlays do not work in a user namespace (they need Linux 5.11)"
    return Finding(OVERLAY, "fail", title, why, "sudo modprobe overlay")


def refusal(roots: Roots, bwrap: str = "/usr/bin/bwrap") -> tuple[str, str]:
    """The setting that forbids user namespaces and the command that allows them; empty if none does."""
    sysctl = f"{roots.proc}/sys"
    if read_text(f"{sysctl}/user/max_user_namespaces") == "0":
        return "user.max_user_namespaces is 0", "sudo sysctl -w user.max_user_namespaces=15000"
    if read_text(f"{sysctl}/kernel/unprivileged_userns_clone") == "0":
        return "kernel.unprivileged_userns_clone is 0", "sudo sysctl -w kernel.unprivileged_userns_clone=1"
    if read_text(f"{sysctl}/kernel/apparmor_restrict_unprivileged_userns") == "1":
        rule = f"abi <abi/4.0>,\\nprofile dibs-bwrap {bwrap} flags=(unconfined) {{ userns, }}"
        file = "/etc/apparmor.d/dibs-bwrap"
        fix = f"printf '{rule}\\n' | sudo tee {file} && sudo apparmor_parser -r {file}"
        return "AppArmor restricts user namespaces (kernel.apparmor_restrict_unprivileged_userns is 1)", fix
    return "", ""
