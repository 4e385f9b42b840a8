"""What a sandbox has of the host that started it: no descriptors, no kernel files to write, no state of dibs."""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.local.bench import PATIENCE, Bench, simulated, to_the_end

from dibs.backends.local import bubblewrap, kernel, keyring, masks, seccomp, syscalls
from dibs.backends.local.hidden_paths import Mount, elsewhere, parse
from dibs.backends.port import Limits
from dibs.backends.port import Mount as Asked
from dibs.cdi.spec import Hook
from dibs.errors import BackendUnavailable, CommandFailed, InvalidRequest

# Every file of the kernel that can be opened for writing and is not a process's own. Pressure files are for all users
# who wants to be told of pressure.
WRITABLE = """
import os, stat
for top in ("/proc", "/sys"):
    for folder, folders, files in os.walk(top):
        if folder == "/proc":
            folders[:] = [name for name in folders if not name.isdigit() and name not in ("pressure", "net")]
        for name in files:
            path = os.path.join(folder, name)
            try:
                if stat.S_ISREG(os.lstat(path).st_mode):
                    os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
                    print(path)
            except OSError:
                pass
print("over")
"""
READABLE = """
import os, sys
for path in sys.argv[1:]:
    try:
        found = os.listdir(path) if os.path.isdir(path) else open(path, "rb").read(1)
    except OSError:
        found = ""
    if found:
        print(path)
print("over")
"""
DESCRIPTORS = "for n in /proc/self/fd/*; do [ ${n##*/} -gt 2 ] && readlink $n; done; echo over"


@pytest.fixture
def leaking(tmp_path: Path) -> Iterator[list[int]]:
    """Descriptors as a shell would leave them to us: one on /, and one of a locked file."""
    root = os.open("/", os.O_RDONLY)
    lock = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    for fd in (root, lock):
        os.set_inheritable(fd, True)
    yield [root, lock]
    for fd in (root, lock):
        os.close(fd)


def test_no_file_of_the_kernel_can_be_written(bench: Bench) -> None:
    handle = bench.start("python3", "-uc", WRITABLE + "import time; time.sleep(1000)")
    bench.ready(handle, "over\n")
    assert bench.said(handle) == "over\n"
    assert to_the_end(bench.exec(handle, "python3", "-c", WRITABLE))[0] == "over\n"


def test_masked_files_cannot_be_read(bench: Bench) -> None:
    points = [line.split(" ")[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    paths = [*masks.MASKED, *(point for point in points if point.startswith("/sys/"))]
    handle = bench.start("python3", "-uc", READABLE + "import time; time.sleep(1000)", *paths)
    bench.ready(handle, "over\n")
    assert bench.said(handle) == "over\n"
    assert to_the_end(bench.exec(handle, "python3", "-c", READABLE, *paths))[0] == "over\n"


@pytest.mark.usefixtures("leaking")
def test_a_sandbox_inherits_no_descriptors(bench: Bench) -> None:
    handle = bench.start("sh", "-c", DESCRIPTORS + "; exec sleep 1000")
    bench.ready(handle, "over")
    said = [bench.said(handle), to_the_end(bench.exec(handle, "sh", "-c", DESCRIPTORS))[0]]
    session = bench.exec(handle, "sh", "-c", DESCRIPTORS, tty=True)
    said.append(to_the_end(session)[0])
    for text in said:
        assert [line for line in text.split() if not line.startswith("/proc/")] == ["over"]


def test_no_process_of_a_sandbox_keeps_what_its_maker_has_open(bench: Bench, leaking: list[int]) -> None:
    handle = bench.start("sleep", "1000")
    assert handle.keeper is not None
    assert handle.init is not None
    kept = {(found.st_dev, found.st_ino) for found in map(os.fstat, leaking)}
    for process in (handle.keeper, handle.init):
        folder = f"/proc/{process.pid}/fd"
        found = [os.stat(f"{folder}/{name}") for name in os.listdir(folder)]
        assert not kept & {(one.st_dev, one.st_ino) for one in found}


def _keep(bench: Bench, name: str, text: str) -> str:
    path = bench.work / name
    path.write_text(f"#!/bin/sh\ncd {bench.work}\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.usefixtures("leaking")
@pytest.mark.parametrize("name", ["createRuntime", "createContainer", "startContainer", "poststart", "poststop"])
def test_a_hook_inherits_no_descriptors(bench: Bench, name: str) -> None:
    program = _keep(bench, "hook", f"({DESCRIPTORS}) > seen")
    status, _, _ = bench.run("true", devices=(simulated(0, hooks=(Hook(name, program),)),))
    assert status.exit is not None
    assert status.exit.code == 0
    # The shell has the script itself open; a hook in the sandbox may have its bundle, which leads nowhere.
    allowed = {program, "over", "/", "/memfd:hook (deleted)"}
    assert set((bench.work / "seen").read_text().splitlines()) - allowed == set()


@pytest.mark.parametrize("name", ["createContainer", "startContainer"])
def test_a_hook_in_the_sandbox_reaches_no_file_of_the_host(
    bench: Bench, name: str, make_folder: Callable[[], Path]
) -> None:
    secret = make_folder() / "secret"
    secret.write_text("of the host")
    text = (
        f'for n in /proc/self/fd/*; do for up in . .. ../.. ../../../../../../..; do cat "$n/$up{secret}"; done; done'
    )
    program = _keep(bench, "hook", f"({text}) > seen 2>/dev/null; true")
    bench.run("true", devices=(simulated(0, hooks=(Hook(name, program),)),))
    assert (bench.work / "seen").read_text() == ""


def test_the_program_of_a_hook_cannot_be_changed_from_within(bench: Bench) -> None:
    """Root inside is the owner of the host's programs; through its own descriptor it could write to them."""
    program = _keep(bench, "hook", 'for n in /proc/self/fd/*; do echo "echo changed" >> "$n"; done 2>/dev/null; true')
    before = Path(program).read_text()
    bench.run("true", devices=(simulated(0, hooks=(Hook("createContainer", program),)),))
    assert Path(program).read_text() == before


def test_a_folder_of_path_that_may_not_be_searched_has_no_commands(
    bench: Bench, make_folder: Callable[[], Path]
) -> None:
    closed = make_folder() / "closed"  # below one that is ours: /tmp itself keeps its mode
    closed.mkdir()
    closed.chmod(0)
    fields: dict[str, Any] = {"env": {"PATH": f"{closed}:/usr/bin:/bin"}}
    if os.getuid() == 0:
        closed.parent.chmod(0o755)
        bench.work.chmod(0o777)
        bench.work.parent.chmod(0o755)
        fields["user"] = "4567:7654"
    handle = bench.start("sleep", "1000", mounts=(Asked(str(closed), str(closed), False),), **fields)
    for tty in (False, True):
        with pytest.raises(CommandFailed) as caught:
            bench.exec(handle, "no-such-command", tty=tty)
        assert caught.value.status == 127
    assert to_the_end(bench.exec(handle, "echo", "found"))[0] == "found\n"
    with pytest.raises(CommandFailed) as caught:
        bench.exec(handle, f"{closed}/command")
    assert caught.value.status == 126
    closed.chmod(0o700)


def test_paths_that_lead_to_a_folder_are_found(tmp_path: Path) -> None:
    mounts = parse(Path("/proc/self/mountinfo").read_text())
    assert all(mount.point.startswith("/") for mount in mounts)
    assert elsewhere("/proc/self", [Mount("0:1", "/", "/")]) == []


SEEN = """
import os, sys
from dibs.backends.local.hidden_paths import elsewhere, parse
print(*elsewhere(sys.argv[1], parse(open("/proc/self/mountinfo").read())))
"""


@pytest.mark.root
@pytest.mark.parametrize("what", ["state", "above", "in it", "a file"])
def test_the_state_folder_is_hidden_wherever_it_is_mounted(tmp_path: Path, what: str) -> None:
    state, work, other = tmp_path / "top" / "state", tmp_path / "work", Path("/mnt") / f"dibs-{os.getpid()}"
    (state / "sandboxes").mkdir(parents=True)
    work.mkdir()
    for path in (state / "token", state / "sandboxes" / "token"):
        path.write_text("secret")
    source = {"state": state, "above": state.parent, "in it": state / "sandboxes", "a file": state / "token"}[what]
    dibs = Path(sys.executable).parent / "dibs"
    make = f"touch {other}" if what == "a file" else f"mkdir {other}"
    try:
        script = (
            f"{make}; mount --bind {source} {other}; cd {work}; {dibs} run -- grep -rs secret {other}; echo $?;"
            f"{dibs} run --mount /mnt:/srv -- grep -rs secret /srv; echo $?;"
            f"{dibs} run --mount {other}:/srv -- grep -rs secret /srv; echo $?"
        )
        done = subprocess.run(
            ["unshare", "-m", "sh", "-c", script], env={**os.environ, "DIBS_HOME": str(state)},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
    finally:
        other.unlink() if what == "a file" else other.rmdir()
    last = {"above": "2"}.get(what, "80")
    codes = done.stdout.split()
    assert codes[:2] in (["1", "1"], ["2", "2"], ["1", "2"], ["2", "1"]), done
    assert codes[2] in (last, "1"), done
    assert "secret" not in done.stdout


def test_a_folder_of_the_state_cannot_be_mounted(bench: Bench) -> None:
    (bench.home.state / "part").mkdir()
    with pytest.raises(InvalidRequest, match="state folder"):
        bench.create("true", mounts=(Asked(str(bench.home.state / "part"), "/srv", False),))


# --- system calls, keys, privileges

CALLS = """
import ctypes, errno, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *args):
    number = {"x86_64": X86, "aarch64": ARM}[os.uname().machine][name]
    ctypes.set_errno(0)
    result = libc.syscall(number, *args)
    print(name, "done" if result >= 0 else errno.errorcode[ctypes.get_errno()])
X86 = dict(keyctl=250, bpf=321, perf_event_open=298, io_uring_setup=425, clone3=435, unshare=272, mount=165, setns=308,
           init_module=175, userfaultfd=323, getpid=39, mbind=237, newest=9999)
ARM = dict(keyctl=219, bpf=280, perf_event_open=241, io_uring_setup=425, clone3=435, unshare=97, mount=40, setns=268,
           init_module=105, userfaultfd=282, getpid=172, mbind=235, newest=9999)
for name in X86:
    call(name, 0, 0, 0, 0, 0, 0)
for family in (socket.AF_VSOCK, 38):
    try:
        socket.socket(family, socket.SOCK_SEQPACKET).close()
        print(family, "made")
    except OSError as error:
        print(int(family), errno.errorcode[error.errno])
print(*[line.split()[1] for line in open("/proc/self/status") if line.startswith(("Seccomp:", "NoNewPrivs"))])
print("over", flush=True)
"""
VERDICTS = """keyctl EPERM
bpf EPERM
perf_event_open EPERM
io_uring_setup EPERM
clone3 ENOSYS
unshare EPERM
mount EPERM
setns EPERM
init_module EPERM
userfaultfd EPERM
getpid done
mbind done
newest ENOSYS
40 EAFNOSUPPORT
38 EAFNOSUPPORT
1 2
over
"""


def test_system_calls_are_filtered_for_the_command_and_whatever_comes_later(bench: Bench) -> None:
    handle = bench.start("python3", "-uc", CALLS + "import time; time.sleep(1000)")
    bench.ready(handle, "over\n")
    assert bench.said(handle) == VERDICTS
    assert to_the_end(bench.exec(handle, "python3", "-c", CALLS))[0] == VERDICTS
    assert to_the_end(bench.exec(handle, "python3", "-c", CALLS, tty=True))[0].replace("\r", "") == VERDICTS


def test_copying_is_filtered_too(bench: Bench) -> None:
    handle = bench.start("sleep", "1000")
    assert handle.init is not None
    init = handle.init.pid
    seen: list[str] = []

    def archive() -> Iterator[bytes]:
        """Asked for when the helper is in the sandbox and waits for it."""
        for pid in kernel.inside(init):
            seen.append(kernel.status_field(pid, "Seccomp") + kernel.status_field(pid, "NoNewPrivs"))
        yield b"\0" * 10240

    bench.backend.copy_in(handle, archive(), "/tmp")
    assert seen == ["21", "21"]


def test_the_init_of_a_sandbox_is_filtered_too(bench: Bench) -> None:
    handle = bench.start("sleep", "1000")
    assert handle.init is not None
    # bubblewrap's init takes the filter on just after it has forked the command, which may run first.
    until = time.monotonic() + PATIENCE
    while kernel.status_field(handle.init.pid, "Seccomp") != "2":
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_hook_of_the_sandbox_is_filtered(bench: Bench) -> None:
    program = _keep(bench, "hook", "grep Seccomp: /proc/self/status > seen; grep NoNewPrivs /proc/self/status >> seen")
    bench.run("true", devices=(simulated(0, hooks=(Hook("startContainer", program),)),))
    assert (bench.work / "seen").read_text().split() == ["Seccomp:", "2", "NoNewPrivs:", "1"]


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_says_of_every_call_what_the_list_says(machine: str) -> None:
    """The program is run here, for every number and for the arguments that count."""
    architecture, names = seccomp.ARCHITECTURES[machine]
    numbers = syscalls.numbers(names)
    code = seccomp.program(machine)
    by_number = {number: name for name, number in numbers.items()}
    for number in range(1100):
        name = by_number.get(number)
        verdict = _run(code, number, architecture, 0)
        if name is None or name in syscalls.MISSING:
            assert verdict == seccomp.REFUSE | seccomp.ENOSYS, number
        elif name in syscalls.ALLOWED or name in ("clone", "personality", "socket"):
            assert verdict == seccomp.ALLOW, name
        else:
            assert verdict == seccomp.REFUSE | seccomp.EPERM, name
    refused = seccomp.REFUSE | seccomp.EPERM
    for flag in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
        assert _run(code, numbers["clone"], architecture, flag | 17) == refused
    assert _run(code, numbers["clone"], architecture, 0x3D0F00) == seccomp.ALLOW  # a thread
    assert _run(code, numbers["personality"], architecture, 0x40000) == refused
    for family, verdict in ((1, seccomp.ALLOW), (2, seccomp.ALLOW), (40, seccomp.REFUSE | seccomp.EAFNOSUPPORT)):
        assert _run(code, numbers["socket"], architecture, family) == verdict
    assert _run(code, numbers["read"], 0x40000003, 0) == seccomp.KILL  # a 32-bit program
    assert _run(code, numbers["read"] | 0x40000000, architecture, 0) == seccomp.REFUSE | seccomp.ENOSYS  # x32


def _run(code: bytes, number: int, architecture: int, argument: int) -> int:
    """A machine for the few instructions that are used."""
    words = {seccomp.NUMBER: number, seccomp.ARCHITECTURE: architecture, seccomp.FIRST_ARGUMENT: argument}
    at = value = 0
    while True:
        kind, yes, no = int.from_bytes(code[at : at + 2], "little"), code[at + 2], code[at + 3]
        operand = int.from_bytes(code[at + 4 : at + 8], "little")
        at += 8
        if kind == seccomp.RETURN:
            return operand
        if kind == seccomp.LOAD:
            value = words[operand]
        elif kind == seccomp.JUMP:
            at += 8 * operand
        else:
            hit = {seccomp.EQUAL: value == operand, seccomp.AT_LEAST: value >= operand}.get(kind, bool(value & operand))
            at += 8 * (yes if hit else no)


def test_the_numbers_are_those_of_this_kernels_headers() -> None:
    headers = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
    if not headers.exists():
        pytest.skip("no kernel headers for x86_64 here")
    found = re.findall(r"#define __NR_(\w+) (\d+)", headers.read_text())
    ours = syscalls.numbers(syscalls.X86_64)
    assert len(found) > 300
    assert {name: ours.get(name) for name, _ in found} == {name: int(number) for name, number in found}


def test_every_allowed_call_exists_and_every_machine_has_a_filter() -> None:
    known = {name for _, names in seccomp.ARCHITECTURES.values() for name in syscalls.numbers(names)}
    assert known >= syscalls.ALLOWED
    assert set(bubblewrap.FILTERED) == set(seccomp.ARCHITECTURES) == set(keyring.KEYCTL)


def _session_keyring() -> str:
    """The serial number of our own."""
    script = f"import ctypes; print(ctypes.CDLL(None).syscall({keyring.KEYCTL[os.uname().machine]}, 0, -3, 0))"
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.strip()


def test_a_sandbox_has_a_session_keyring_of_its_own(bench: Bench) -> None:
    """Seen by the one hook in it that may ask."""
    script = f"import ctypes; print(ctypes.CDLL(None).syscall({keyring.KEYCTL[os.uname().machine]}, 0, -3, 0))"
    program = _keep(bench, "hook", f"python3 -c '{script}' > seen")
    ours = _session_keyring()
    bench.run("true", devices=(simulated(0, hooks=(Hook("createContainer", program),)),))
    inside = (bench.work / "seen").read_text().strip()
    assert int(inside) > 0
    assert inside != ours


FULL = """
import ctypes, sys
from dibs.backends.local import keyring
libc = ctypes.CDLL(None)
libc.syscall(int(sys.argv[3]), 1, None)  # as at a login; without a session the kernel grants one beyond the quota
if sys.argv[1] == "left":
    keyring.join_own()
number = 0
while libc.syscall(int(sys.argv[2]), b"keyring", b"k%d" % number, None, 0, -2) > 0:  # the process's own keyring
    number += 1
try:
    keyring.join_own()
    print("stays", number > 0)
except OSError as error:
    print(error.strerror)
"""


@pytest.mark.root
def test_a_user_with_too_many_keys_is_reported_and_a_fork_server_goes_on() -> None:
    machine = os.uname().machine
    add_key = {"x86_64": "248", "aarch64": "217"}[machine]
    for how, words in (("fresh", "kernel.keys.maxkeys"), ("left", "stays True")):
        # The kernel frees the keys of a process some time after its end, so each run needs a user without any.
        user = 20_000 + secrets.randbelow(40_000)
        done = subprocess.run(
            [sys.executable, "-c", FULL, how, add_key, str(keyring.KEYCTL[machine])],
            user=user, group=user, extra_groups=[], text=True,
            capture_output=True, check=True, cwd="/",
        )  # fmt: skip
        assert words in done.stdout, done


# --- what fails before the command


@pytest.mark.root
@pytest.mark.parametrize("tty", [False, True])
def test_a_working_directory_that_cannot_be_entered_is_no_exit_of_the_command(bench: Bench, tty: bool) -> None:
    bench.work.chmod(0o700)
    bench.work.parent.chmod(0o755)
    handle = bench.create("true", user="4567:7654", tty=tty)
    with pytest.raises(BackendUnavailable, match="Can't chdir") as caught:
        bench.backend.start(handle)
    assert caught.value.code == "SANDBOX_SETUP_FAILED"
    status = bench.backend.wait(handle, PATIENCE)
    assert status.exit is not None
    assert status.exit.reason == "not-started"
    assert "Can't chdir" in status.exit.detail


def test_a_program_that_the_kernel_refuses_is_no_exit_of_the_command(bench: Bench) -> None:
    """Its loader is missing: that the file is there and executable does not help."""
    program = bench.work / "program"
    text, changed = re.subn(rb"(/lib[^\0]*/ld-[^\0]*)[^\0]\0", rb"\g<1>?\0", Path(sys.executable).read_bytes(), count=1)
    assert changed
    program.write_bytes(text)
    program.chmod(0o755)
    handle = bench.create(str(program))
    with pytest.raises(CommandFailed) as caught:
        bench.backend.start(handle)
    assert caught.value.status == 127
    status = bench.backend.wait(handle, PATIENCE)
    assert status.exit is not None
    assert (status.exit.reason, status.exit.code) == ("not-started", 127)


def test_a_command_that_says_what_bubblewrap_would_say_has_ended_by_itself(bench: Bench) -> None:
    for words in ("bwrap: Can't fork for pid 1: Resource temporarily unavailable", "bwrap: execvp x: No such file"):
        status, _, err = bench.run("sh", "-c", f'echo "{words}" >&2; exit 1')
        assert status.exit is not None
        assert (status.exit.reason, status.exit.code) == ("exited", 1)
        assert err == words + "\n"


def test_a_limit_that_leaves_no_room_for_the_command_is_refused(bench: Bench, limits: type[Limits]) -> None:
    with pytest.raises(InvalidRequest, match="at least 3") as caught:
        bench.create("true", limits=limits(pids=2))
    assert caught.value.problems[0].field == "pids"
    status, _, _ = bench.run("true", limits=limits(pids=3))
    assert status.exit is not None
    assert status.exit.code == 0
