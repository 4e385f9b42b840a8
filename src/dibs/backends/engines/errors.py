"""What an engine's words mean: one mapper for each engine.

Known message → cause → remedy; the engine's own text is kept. A message that is not known is still an error of the
right kind, by its status: `translate` never guesses a cause. Rows are tried from the first to the last. Each row
needs a message in the tests; one without fails them.
"""

from __future__ import annotations

import errno
import functools
import re

import msgspec

from dibs.backends.engines.client import EngineError, Unreachable
from dibs.errors import (
    BackendUnavailable,
    CommandFailed,
    Conflict,
    DibsError,
    InvalidRequest,
    NotFound,
    Unsupported,
)


class Known(msgspec.Struct, frozen=True):
    """One thing that an engine says. `words` is a regular expression, looked for in the message in lower case."""

    words: str
    error: type[DibsError]
    code: str
    cause: str
    remedy: str = ""


_NOT_RUNNING = "stop, pause and exec need a sandbox in the right state; see `dibs ps --all`"
_CDI_REMEDY = "see `dibs doctor`; the spec must lie in a folder that the engine reads (/etc/cdi, /var/run/cdi)"

_DENIED = (
    r"pull access denied|unauthorized|authentication required|requested access to the resource is denied"
    r"|access .*denied.*registry|denied: |no basic auth credentials"
)
_BOTH: tuple[Known, ...] = (
    Known(
        r"error creating device nodes", Unsupported, "CDI_SPEC_UNUSABLE",
        "the engine's runtime cannot make a node of the device", "make the spec anew; see `dibs doctor`",
    ),
    Known(
        r"exec: .*(executable file not found|no such file or directory)"
        r"|failed to exec .*no such file|exec .* failed: no such file|command that was not found",
        CommandFailed, "COMMAND_NOT_FOUND", "there is no such command in the image",
    ),
    Known(
        r"exec: .*permission denied|exec .* failed: permission denied|oci permission denied|is a directory: unknown",
        CommandFailed, "COMMAND_NOT_EXECUTABLE", "it cannot be executed",
    ),
    Known(
        r"exec format error", CommandFailed, "COMMAND_NOT_EXECUTABLE", "the program is made for another processor",
        "use an image for this platform",
    ),
    Known(
        r"unresolvable cdi devices", Unsupported, "CDI_NAME_UNKNOWN", "the engine does not know this CDI device",
        _CDI_REMEDY,
    ),
    Known(
        r"failed to (inject|stat) cdi|cdi device injection failed|setting up cdi devices",
        Unsupported, "CDI_SPEC_UNUSABLE", "the engine cannot use the device's CDI spec",
        "make the spec anew (nvidia-ctk cdi generate, amd-ctk cdi generate); see `dibs doctor`",
    ),
    Known(
        r"nvidia-container-cli|nvidia-container-runtime", Unsupported, "DEVICE_RUNTIME_FAILED",
        "NVIDIA's own part of the engine failed", "see `dibs doctor`, and whether nvidia-smi works on this host",
    ),
    Known(
        r"no matching entries in (passwd|group) file|unable to find (user|group)", InvalidRequest, "USER_UNKNOWN",
        "the image has no such user", "write a number, or a user of the image's /etc/passwd",
    ),
    Known(
        r"minimum memory limit|unable to set memory limit|memory limit .* too (low|small)", InvalidRequest,
        "LIMIT_INVALID", "the memory limit is too small", "ask for more; 6Mi is the least that Docker takes",
    ),
    Known(
        r"range of cpus is from|cpu.* (must be|is) .*(less|greater)", InvalidRequest, "LIMIT_INVALID",
        "the engine cannot give so many processors", "ask for no more than the host has",
    ),
    Known(
        r"controller .*is not available|cgroup.*(permission denied|not delegated)|does not support (memory|cpu|pids)"
        r"|rootless.*cgroup|cgroup v1.*rootless", Unsupported, "LIMIT_NOT_ENFORCEABLE",
        "the engine cannot set this limit here", "use cgroup v2 with delegation, or leave the limit out",
    ),
    Known(
        r"bind source path does not exist|statfs .*no such file or directory", InvalidRequest, "MOUNT_INVALID",
        "the engine does not see the source of a mount", "the path must exist where the engine runs",
    ),
    Known(
        r"read init-p: connection reset by peer", BackendUnavailable, "RUNTIME_DIED",
        "the engine's runtime died before the command", "try again; if it does so each time, see the engine's log",
    ),
    Known(
        r"no space left on device", BackendUnavailable, "ENGINE_DISK_FULL", "the engine's disk is full",
        "free some space: remove unused images and containers",
    ),
    Known(
        r"no matching manifest|does not match the (specified|expected) platform|image found but .*platform"
        r"|no image found in (manifest list|image index) for|image platform .*does not match",
        Unsupported, "PLATFORM_MISMATCH", "the image does not exist for this platform",
        "use an image that is made for it, or another platform",
    ),
    Known(
        r"manifest unknown|manifest for .* not found|name unknown|repository .* not found: does not exist", NotFound,
        "IMAGE_NOT_FOUND", "the registry has no such image", "check its name and tag",
    ),
    Known(
        r"(registry|/v2/|docker://|lookup|dial tcp|dial udp).*(connection refused|network is unreachable|no such host|"
        r"i/o timeout|timeout|name resolution|no route to host|server misbehaving|certificate|http response to https)",
        BackendUnavailable, "REGISTRY_UNREACHABLE", "the image is not here, and its registry cannot be reached",
        "load the image from a file: --image /path/to/image.tar",
    ),
    Known(
        r"invalid reference format|repository name must|invalid image (name|reference)|short-name .*did not resolve"
        r"|unsupported transport|parsing reference",
        InvalidRequest, "IMAGE_INVALID", "this is no image reference that the engine understands",
        "write the whole of it: registry.example/team/image:tag",
    ),
    Known(
        r"unexpected eof|invalid tar header|archive/tar|payload does not match|unrecognized image format|"
        r"not a valid image|open .*manifest\.json: no such file|error processing tar file",
        InvalidRequest, "IMAGE_INVALID", "the file is no image that the engine can load",
        "make it with `save`, or `export`",
    ),
    Known(
        r"rootfs is marked read-only|read-only file ?system", Conflict, "READ_ONLY",
        "the sandbox's root is read-only", "leave out read_only, or use a mount",
    ),
    Known(
        r"extraction point is not a directory|not a directory|cannot overwrite (non-)?directory", InvalidRequest,
        "PATH_UNSUITABLE", "it is not a folder",
    ),
    Known(
        r"is already in use|name .*already (in use|exists)", Conflict, "CONTAINER_EXISTS",
        "there is a container of that name", "remove it; it is a leftover that dibs does not know",
    ),
)  # fmt: skip

DOCKER: tuple[Known, ...] = (
    *_BOTH,
    Known(
        _DENIED, Unsupported, "REGISTRY_DENIED", "the registry does not give this image to you",
        "check the name; a login is kept by Docker's command, not by the engine: pull it with `docker pull` first",
    ),
    Known(
        r"could not select device driver", Unsupported, "CDI_OFF",
        "this Docker has no way to give GPUs",
        'switch CDI on: {"features": {"cdi": true}} in /etc/docker/daemon.json',
    ),
    Known(
        r"client version .* is too (new|old)|requires api version", Unsupported, "ENGINE_TOO_OLD",
        "this Docker is too old for what is needed", "25.0 or later gives devices by CDI name",
    ),
    Known(r"no such image", NotFound, "IMAGE_NOT_FOUND", "the image is not here", "pull it, or load it from a file"),
    Known(r"no such exec|exec .*not found", NotFound, "NOT_FOUND", "the command has ended long ago"),
    Known(r"no such container|could not find container", NotFound, "CONTAINER_GONE", "the container is gone"),
    Known(r"could not find the file|no such file or directory", NotFound, "NOT_FOUND", "there is no such file"),
    Known(
        r"is not running|is not paused|already paused|is paused|is restarting|is already stopped|"
        r"marked for removal|is being removed|removal of container .* in progress|cannot (pause|unpause|kill|exec)",
        Conflict, "NOT_RUNNING", "the sandbox is not in a state for this", _NOT_RUNNING,
    ),
    Known(
        r"denied by authorization plugin|authorization denied by plugin", BackendUnavailable, "ENGINE_DENIED",
        "Docker does not let you", "become a member of the group docker, or ask its administrator",
    ),
)  # fmt: skip

PODMAN: tuple[Known, ...] = (
    Known(
        r"does not have a cgroup", Unsupported, "ROOTLESS_LIMITED",
        "a user's Podman cannot do this without control groups of its own", "use cgroup v2 with delegation",
    ),
    *_BOTH,
    Known(
        _DENIED, Unsupported, "REGISTRY_DENIED", "the registry does not give this image to you",
        "check the name, or log in as the user that the engine runs as: podman login REGISTRY",
    ),
    Known(
        r"no such image|image not known", NotFound, "IMAGE_NOT_FOUND", "the image is not here",
        "pull it, or load it from a file",
    ),
    Known(r"no such exec session|no exec session", NotFound, "NOT_FOUND", "the command has ended long ago"),
    Known(
        r"no such container|no container with (name or id|id or name)|container has already been removed", NotFound,
        "CONTAINER_GONE", "the container is gone",
    ),
    Known(
        r"layer not known|getting container from store .*container not known", BackendUnavailable, "CONTAINER_BROKEN",
        "the engine was cut off while it removed the container", "remove it: dibs sandbox rm",
    ),
    Known(
        r"container state improper|is not running|can only (kill|create|attach|pause|unpause)", Conflict, "NOT_RUNNING",
        "the sandbox is not in a state for this", _NOT_RUNNING,
    ),
    Known(r"could not be found on container|no such file or directory", NotFound, "NOT_FOUND", "there is no such file"),
    Known(
        r"cannot set up namespace using|newuidmap|/etc/subuid|insufficient uids or gids", Unsupported,
        "ROOTLESS_LIMITED", "this user's Podman has too few user ids",
        "give it some: usermod --add-subuids 100000-165535 USER",
    ),
    Known(
        r"unable to setup user: invalid argument", Unsupported, "ROOTLESS_LIMITED",
        "this user or group is not among the ids that this user's Podman has",
        "use another one, or give it more: usermod --add-subuids 100000-165535 USER",
    ),
    Known(
        r"setting up (pasta|slirp4netns)|could not find (pasta|slirp4netns)", Unsupported, "NETWORK_UNAVAILABLE",
        "this user's Podman cannot make a private network",
        "let the user open /dev/net/tun and install passt, or use --network host or none",
    ),
    Known(
        r"fork/exec .*: (resource temporarily unavailable|operation not permitted)|error setting rlimit",
        BackendUnavailable, "ENGINE_LIMITED", "the engine may not set what it sets by default",
        "lower default_ulimits in containers.conf",
    ),
    Known(
        r"(conmon|crun|runc).*(not found|no such file)|could not find a working conmon|default oci runtime .* not found"
        r"|cgroups in hybrid mode not supported", BackendUnavailable, "ENGINE_BROKEN",
        "a part of the engine is missing or does not work here", "install crun or runc, and conmon; see `podman info`",
    ),
)  # fmt: skip

TABLES: dict[str, tuple[Known, ...]] = {"docker": DOCKER, "podman": PODMAN}
_BY_STATUS: dict[int, type[DibsError]] = {400: InvalidRequest, 403: BackendUnavailable, 404: NotFound, 409: Conflict}


@functools.cache
def _compiled(engine: str) -> list[tuple[re.Pattern[str], Known]]:
    """Compiling all of them takes milliseconds, and most processes never see an engine's error."""
    return [(re.compile(row.words, re.DOTALL), row) for row in TABLES[engine]]


def known(engine: str, message: str) -> Known | None:
    text = message.lower()
    return next((row for words, row in _compiled(engine) if words.search(text)), None)


def translate(engine: str, error: EngineError, *, field: str = "sandbox", value: str = "") -> DibsError:
    """An engine's refusal, as what the caller can do about it."""
    row = known(engine, error.message)
    said = f"{engine} says: {one_line(error.message)}"
    if row is None:
        kind = _BY_STATUS.get(error.status, BackendUnavailable)
        code = "ENGINE_REFUSED" if error.status < 500 else "ENGINE_FAILED"
        return kind(f"{said} ({error.doing}: {error.status})", field=field, value=value, code=code)
    reason = f"{row.cause} ({said})"
    if row.error is CommandFailed:
        missing = row.code == "COMMAND_NOT_FOUND"
        return CommandFailed(reason, missing=missing, value=value, remedy=row.remedy)
    return row.error(reason, field=field, value=value, code=row.code, remedy=row.remedy)


def unreachable(engine: str, error: Unreachable, remedy: str = "") -> BackendUnavailable:
    """An engine that does not answer: why, and how to get it going."""
    start = "systemctl start docker" if engine == "docker" else "systemctl start podman.socket"
    why = {
        errno.ENOENT: ("its socket is not there", "ENGINE_NOT_RUNNING", f"install and start it: {start}"),
        errno.ECONNREFUSED: ("nothing listens on its socket", "ENGINE_NOT_RUNNING", f"start it: {start}"),
        errno.EACCES: (
            "you may not use its socket", "ENGINE_DENIED",
            "become a member of the group docker and log in again"
            if engine == "docker" else "use your own: systemctl --user start podman.socket",
        ),
        errno.EPERM: ("you may not use its socket", "ENGINE_DENIED", "ask the administrator of this host"),
        errno.ENOTSOCK: ("there is something else in place of its socket", "ENGINE_NOT_RUNNING", f"start it: {start}"),
    }.get(error.error.errno or 0)  # fmt: skip
    if why is None:
        reason = one_line(error.error.strerror or str(error.error)).lower()
        why = (f"the connection failed: {reason}", "ENGINE_UNREACHABLE", "try again; see whether the engine runs")
    return BackendUnavailable(
        f"{engine} cannot be reached: {why[0]}",
        field="backend",
        value=error.target,
        code=why[1],
        remedy=remedy or why[2],
    )


def silent(engine: str, field: str, value: str) -> BackendUnavailable:
    """An engine that takes questions and does not answer them in time."""
    remedy = f"see what keeps it: journalctl -u {engine}; or start it anew: systemctl restart {engine}"
    return BackendUnavailable(
        f"{engine} does not answer", field=field, value=value, code="ENGINE_UNREACHABLE", remedy=remedy
    )


def one_line(text: str) -> str:
    return " ".join(text.split())[:600]
