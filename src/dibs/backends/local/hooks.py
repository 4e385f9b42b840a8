"""OCI hooks that CDI devices ask for.

`backend` runs them at the moments that OCI names; the shim runs `poststop`. None is skipped: a hook whose meaning
cannot be met makes `render` refuse the device.

    prestart, createRuntime   outside, while the command is held back
    createContainer           in the sandbox's namespaces with its powers over them, the program taken from the host
    startContainer            in the sandbox as the command will be, the program taken from the sandbox
    poststart                 outside, after the start; a failure is told, the workload goes on
    poststop                  outside, after the end, by the shim

Every hook gets the OCI state on its standard input. Its bundle holds a `config.json` whose root is the sandbox's.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from dibs.backends.local.hookrun import Hook as Job
from dibs.backends.local.hookrun import run_hook
from dibs.cdi.spec import Hook
from dibs.descriptors import closing
from dibs.errors import BackendUnavailable, Problem

OUTSIDE = ("prestart", "createRuntime")
INSIDE = ("createContainer", "startContainer")
KNOWN = (*OUTSIDE, *INSIDE, "poststart", "poststop")
OCI_VERSION = "1.0.2"


def problems(hook: Hook, device: str) -> list[Problem]:
    """What keeps a hook from being run as it is meant."""
    field = f"devices[{device}].hooks"
    found = []
    if hook.hook_name not in KNOWN:
        reason = "there is no such OCI hook"
        found.append(Problem("FIELD_NOT_SUPPORTED", field, hook.hook_name, reason, f"use one of {', '.join(KNOWN)}"))
    if not hook.path.startswith("/"):
        found.append(Problem("INVALID_DEVICE_SPEC", field, hook.path, "a hook's path must be absolute"))
    elif hook.hook_name in KNOWN and hook.hook_name != "startContainer" and not os.access(hook.path, os.X_OK):
        reason = "the device needs this hook, and there is no such program here"
        found.append(Problem("HOOK_NOT_FOUND", field, hook.path, reason, "install it, or make the CDI spec anew"))
    return found


def state(sandbox_id: str, status: str, pid: int, bundle: str) -> bytes:
    return msgspec.json.encode(
        {"ociVersion": OCI_VERSION, "id": sandbox_id, "status": status, "pid": pid, "bundle": bundle}
    )


def write_bundle(folder: Path, name: str, root: str) -> Path:
    """A bundle folder with just as much configuration as hooks look at."""
    bundle = folder / name
    bundle.mkdir(exist_ok=True)
    (bundle / "config.json").write_bytes(configuration(root))
    return bundle


def configuration(root: str) -> bytes:
    return msgspec.json.encode({"ociVersion": OCI_VERSION, "root": {"path": root}})


def environment(hook: Hook) -> dict[str, str]:
    return dict(item.partition("=")[::2] for item in hook.env)


def run_outside(hook: Hook, text: bytes) -> None:
    """Run a hook on the host; raises when it fails."""
    job = Job(hook.path)
    job.args, job.env, job.timeout = list(hook.args), list(hook.env), float(hook.timeout or 0)
    failure = run_hook(job, text, closing())
    if failure:
        raise failed(hook, failure)


def failed(hook: Hook, reason: str) -> BackendUnavailable:
    return BackendUnavailable(f"the {hook.hook_name} hook {reason}", field="hooks", value=hook.path, code="HOOK_FAILED")
