"""Commands that run as another user, and what they can do."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.local.bench import Bench, text_until, to_the_end

from dibs.backends import accounts
from dibs.errors import InvalidRequest

ME = f"{os.getuid()}:{os.getgid()}"
STRANGER = "4567:7654"


@pytest.fixture
def open_bench(bench: Bench) -> Bench:
    """Its working directory is world-writable."""
    bench.work.chmod(0o777)
    bench.work.parent.chmod(0o755)
    return bench


@pytest.mark.root
def test_a_further_command_is_really_the_user(open_bench: Bench) -> None:
    handle = open_bench.start("sleep", "1000")
    out, _, ended = to_the_end(open_bench.exec(handle, "sh", "-c", "id; touch mine /tmp/mine", user=STRANGER))
    assert ended.code == 0
    assert out.split()[:2] == ["uid=4567", "gid=7654"]
    info = (open_bench.work / "mine").stat()
    assert (info.st_uid, info.st_gid) == (4567, 7654)
    assert "4567" in to_the_end(open_bench.exec(handle, "stat", "-c", "%u", "/tmp/mine"))[0]


@pytest.mark.root
def test_a_workload_is_really_the_user_and_others_can_come(open_bench: Bench) -> None:
    handle = open_bench.start("sh", "-c", "touch mine; id -u; id -g; exec sleep 1000", user=STRANGER)
    open_bench.ready(handle, "7654")
    assert open_bench.said(handle) == "4567\n7654\n"
    assert (open_bench.work / "mine").stat().st_uid == 4567
    for user, uid in (("", "4567"), ("0", "0"), ("8", "8")):
        assert to_the_end(open_bench.exec(handle, "id", "-u", user=user))[0].strip() == uid


@pytest.mark.root
def test_a_user_can_use_a_root_that_only_root_can_reach(bench: Bench, make_folder: Callable[[], Path]) -> None:
    from tests.local.test_files import busybox_root

    root = busybox_root(make_folder())
    root.parent.chmod(0o700)
    handle = bench.start(
        "sh", "-c", "cat /etc/mark; exec cat", root=str(root), workdir="/", user="1000", env={"PATH": "/bin"},
        interactive=True,
    )  # fmt: skip
    bench.ready(handle, "of this root")


@pytest.mark.root
def test_no_process_inside_has_or_gains_capabilities(open_bench: Bench) -> None:
    script = (
        "grep -E '^(Cap(Inh|Prm|Eff|Amb)|NoNewPrivs)' /proc/self/status; "
        "for c in 'mknod /tmp/n c 1 5' 'mount -t tmpfs x /mnt' 'unshare -U true' 'chown 5 /tmp' 'chroot / true'; "
        "do $c 2>/dev/null && echo DONE $c; done; su root -c id </dev/null 2>/dev/null; echo over"
    )
    for fields in ({}, {"user": STRANGER}):
        handle = open_bench.start("sh", "-c", script + "; exec sleep 1000", **fields)
        open_bench.ready(handle, "over")
        for user in ("", "0", STRANGER):
            texts = [open_bench.said(handle), to_the_end(open_bench.exec(handle, "sh", "-c", script, user=user))[0]]
            for text in texts:
                assert "DONE" not in text
                assert "uid=0(root)" not in text or user == "0"
                values = dict(line.split() for line in text.splitlines() if ":" in line and "=" not in line)
                assert values.pop("NoNewPrivs:") == "1"
                assert set(values.values()) == {"0" * 16}


CHANGES = (
    "cd /tmp && echo mine >f && chmod 600 f && chown 4567:7654 f && stat -c %u:%g f && cat f && echo more >>f && "
    "chmod 4711 f && mkdir d && chown 4567 d && chmod 700 d && touch d/g && rm -r d && echo changed"
)
BEYOND = (
    "mknod /tmp/n c 1 5", "mount -t tmpfs x /mnt", "unshare -U true", "chroot / true", "hostname other",
    "su daemon -c id", "echo 1 >/proc/sys/user/max_user_namespaces", "echo h >/proc/sysrq-trigger", "cat /proc/kcore",
)  # fmt: skip


def own_root(folder: Path) -> str:
    if not os.access("/bin/busybox", os.X_OK):
        pytest.skip("needs a busybox (busybox-static)")
    root = folder / "root"
    for name in ("bin", "tmp", "etc", "mnt"):
        (root / name).mkdir(parents=True)
    shutil.copy("/bin/busybox", root / "bin")
    for name in ("sh", "cat", "chown", "chmod", "stat", "mkdir", "touch", "rm", "grep", "sleep", "mknod", "mount",
                 "unshare", "chroot", "hostname", "su", "echo"):  # fmt: skip
        (root / "bin" / name).symlink_to("busybox")
    (root / "etc/passwd").write_text("root:x:0:0::/:/bin/sh\ndaemon:x:1:1::/:/bin/sh\n")
    secret = root / "etc/secret"
    secret.write_text("of another user\n")
    secret.chmod(0o600)
    os.chown(secret, 4567, 4567)
    return str(root)


@pytest.mark.root
def test_root_in_a_root_of_its_own_owns_the_files_and_nothing_else(
    bench: Bench, make_folder: Callable[[], Path]
) -> None:
    root = own_root(make_folder())
    script = f"{CHANGES}; cat /etc/secret; chown 0 /etc/secret; " + "".join(
        f"({words}) 2>/dev/null && echo DONE; " for words in BEYOND
    )
    fields = {"root": root, "workdir": "/", "env": {"PATH": "/bin"}}
    handle = bench.start("sh", "-c", script + "echo over; exec sleep 1000", **fields)
    bench.ready(handle, "over")
    texts = [bench.said(handle), to_the_end(bench.exec(handle, "sh", "-c", f"rm -f /tmp/f; {script}"))[0]]
    for text in texts:
        assert "4567:7654\nmine\nchanged\nof another user\n" in text
        assert "DONE" not in text
    assert (Path(root) / "etc/secret").stat().st_uid == 4567  # it was changed in the private layer
    # Another user inside has no power, also one that comes later; and root that comes to another user's has.
    for user, may in ((STRANGER, False), ("4567", False), ("0", True)):
        out = to_the_end(bench.exec(handle, "sh", "-c", "chown 1 /tmp && echo given", user=user))[0]
        assert ("given" in out) is may
    other = bench.start("sh", "-c", "cat /etc/passwd >/dev/null; echo ready; exec sleep 1000", user=STRANGER, **fields)
    bench.ready(other)
    status = to_the_end(bench.exec(other, "grep", "Cap", "/proc/self/status"))[0]
    assert {line.split()[1] for line in status.splitlines()} == {"0" * 16}
    assert "given" in to_the_end(bench.exec(other, "sh", "-c", "chown 1 /tmp && echo given", user="0"))[0]


@pytest.mark.root
def test_root_in_the_hosts_root_has_no_power_over_files_of_others(open_bench: Bench) -> None:
    secret = open_bench.work / "secret"
    secret.write_text("of another user")
    secret.chmod(0o600)
    os.chown(secret, 4567, 4567)
    handle = open_bench.start("sleep", "1000")
    for words in (["cat", str(secret)], ["chown", "0", str(secret)], ["chown", "4567", "/tmp"]):
        assert to_the_end(open_bench.exec(handle, *words))[2].code != 0
    assert secret.stat().st_uid == 4567


@pytest.mark.root
def test_a_set_user_id_program_gains_nothing(open_bench: Bench) -> None:
    program = open_bench.work / "id"
    program.write_bytes(Path("/usr/bin/id").read_bytes())
    program.chmod(0o4755)
    handle = open_bench.start("sleep", "1000")
    assert to_the_end(open_bench.exec(handle, "./id", "-u", user=STRANGER))[0] == "4567\n"
    assert program.stat().st_mode & stat.S_ISUID


@pytest.mark.root
def test_the_streams_can_be_opened_by_their_names(bench: Bench) -> None:
    handle = bench.start("sh", "-c", "echo named > /dev/stdout; exec sleep 1000", user=STRANGER)
    bench.ready(handle, "named")
    session = bench.exec(handle, "sh", "-c", "echo named > /dev/stdout; echo err > /dev/stderr", user="99")
    assert to_the_end(session)[:2] == ("named\n", "err\n")
    terminal = bench.exec(
        handle, "sh", "-c", "echo typed > /dev/tty; stat -Lc own%u /proc/self/fd/0", user="99", tty=True
    )
    text_until(terminal, "own99")
    assert os.stat("/dev/null").st_uid == 0


def test_no_process_inside_can_look_into_a_helper(bench: Bench) -> None:
    """One that has joined the sandbox has the memory of a process of the host."""
    handle = bench.start("sh", "-c", "head -c 10000000 /dev/zero > /tmp/big; echo ready; exec sleep 1000")
    bench.ready(handle)
    stream = bench.backend.copy_out(handle, "/tmp/big")
    next(iter(stream))  # the helper is inside now, and waits for us to take more
    script = "for p in /proc/[0-9]*; do echo $(readlink $p/exe $p/fd/3 || echo closed); done"
    lines = to_the_end(bench.exec(handle, "sh", "-c", script))[0].splitlines()
    assert "closed" in lines
    assert not any("bin/python" in line for line in lines)
    assert sum(len(piece) for piece in stream) > 9_000_000


def test_the_own_user_is_always_one(bench: Bench) -> None:
    handle = bench.start("sh", "-c", "echo as $(id -u); exec sleep 1000", user=ME)
    bench.ready(handle, f"as {os.getuid()}")
    assert to_the_end(bench.exec(handle, "id", "-u", user=ME))[0].strip() == str(os.getuid())


def test_an_ordinary_users_sandbox_has_only_that_user(bench: Bench) -> None:
    if os.getuid() == 0:
        pytest.skip("root has all of them")
    with pytest.raises(InvalidRequest) as caught:
        bench.create("true", user=STRANGER)
    assert caught.value.code == "USER_NOT_MAPPED"
    with pytest.raises(InvalidRequest) as caught:
        bench.exec(bench.start("sleep", "1000"), "true", user=STRANGER)
    assert {problem.code for problem in caught.value.problems} == {"USER_NOT_MAPPED"}


def test_words_of_a_user(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text("root:x:0:0::/:\nada:x:1815:1852::/:\nbroken:x:none:0::/:\n")
    (tmp_path / "etc/group").write_text("engine:x:77:\n")
    for text, ids in (
        ("ada", (1815, 1852)), ("1815", (1815, 1852)), ("5", (5, 5)), ("5:6", (5, 6)), ("ada:engine", (1815, 77)),
    ):  # fmt: skip
        assert accounts.find(text, str(tmp_path)) == ids
    for text in ("nobody-here", "broken", "ada:none", "", ":1", "1:2:3", "4294967295"):
        with pytest.raises(InvalidRequest):
            accounts.find(text, str(tmp_path))


@pytest.mark.parametrize("number", ["4294967295", "4294967296", "9" * 5000, "\N{ARABIC-INDIC DIGIT THREE}", "-1", ""])
def test_a_root_cannot_name_a_user_with_an_id_that_no_process_can_have(tmp_path: Path, number: str) -> None:
    """To the kernel the largest number means: stay who you are."""
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text(f"app:x:{number}:1::/:\nada:x:1815:{number}::/:\n")
    (tmp_path / "etc/group").write_text(f"app:x:{number}:ada\n")
    for text in ("app", "app:7", "ada:app", number):
        with pytest.raises(InvalidRequest):
            accounts.find(text, str(tmp_path))
    assert accounts.find("ada", str(tmp_path)) == (1815, 1815)
    assert accounts.memberships(1815, str(tmp_path)) == set()


def test_a_passwd_file_that_is_none_does_not_hold_anybody_up(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    os.mkfifo(tmp_path / "etc/passwd")
    with pytest.raises(InvalidRequest, match="not a regular file"):
        accounts.find("ada", str(tmp_path))
