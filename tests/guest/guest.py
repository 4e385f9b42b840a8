"""Another host to run a script on: a kernel of its own with cgroup version 2, with or without systemd as process 1.

Its root is this machine's, read-only, below a layer in memory that is gone at its end. `boot` runs a script there as
root and gives back what it printed.
"""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.guest.kernel import CannotFetch, fetch

USER, UID = "alice", 4242
PROGRAMS = ("/lib/systemd/systemd", "/lib/systemd/systemd-logind", "/usr/bin/dbus-daemon", "/usr/sbin/useradd",
            "/usr/bin/setpriv")  # fmt: skip
# Units that only cost time in a guest: what they prepare is there, or is not needed.
IDLE = (
    "systemd-tmpfiles-setup systemd-tmpfiles-setup-dev systemd-sysusers systemd-modules-load systemd-sysctl"
    " systemd-remount-fs systemd-journal-flush systemd-update-utmp systemd-random-seed systemd-machine-id-commit"
    " systemd-udevd systemd-udev-trigger systemd-hwdb-update systemd-pstore systemd-binfmt"
    " systemd-journal-catalog-update modprobe@drm modprobe@efi_pstore modprobe@fuse modprobe@loop modprobe@configfs"
    " modprobe@dm_mod"
)

INIT = """#!/bin/sh
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t tmpfs tmpfs /mnt
/usr/bin/python3 -I -S -c 'import ctypes, os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
sys.exit(ctypes.CDLL(None).syscall(313, fd, b"", 0) != 0)' {modules}/kernel/fs/overlayfs/overlay.ko || poweroff -f
mkdir /mnt/upper /mnt/work /mnt/root
mount -t overlay root -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work /mnt/root
mount --move /proc /mnt/root/proc; mount --move /sys /mnt/root/sys
mount -t devtmpfs dev /mnt/root/dev
mkdir -p /mnt/root/guest; mount -t hostfs -o {folder} out /mnt/root/guest
cd /mnt/root
for unit in {idle}; do ln -sf /dev/null etc/systemd/system/$unit.service; done
cp {folder}/script.service etc/systemd/system/
mount --move . /
{first}
"""
UNIT = """[Unit]
Wants=dbus.socket systemd-logind.service
After=dbus.socket systemd-logind.service
[Service]
Type=oneshot
ExecStart=/bin/sh /guest/run
"""
WITH_SYSTEMD = "exec chroot . /lib/systemd/systemd --unit=script.service --show-status=0 --log-target=null"
WITHOUT = "exec chroot . /bin/sh -c 'mount -t tmpfs run /run; mount -t cgroup2 none /sys/fs/cgroup; exec sh /guest/run'"
# The result counts only when it is complete: a guest that stops half-way has none.
RUN = """exec > /guest/output 2>&1
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
/usr/sbin/useradd -m -u {uid} {user}
sh /guest/script; echo $? > /guest/code.new; mv /guest/code.new /guest/code
sync; /usr/bin/python3 -I -S -c 'import ctypes; ctypes.CDLL(None).reboot(0x4321FEDC)'
"""


# The last words of a kernel that saves registers in a buffer of fixed size, on a processor with a larger set of them.
REGISTERS = "ptrace set fp regs failed"


class Result(NamedTuple):
    """How a script ended, and what it said."""

    code: int
    output: str


def boot(folder: Path, script: str, *, systemd: bool, memory: str = "1G", timeout: float = 900) -> Result:
    """Run a shell script as root on a host of its own. `folder` is there as /guest."""
    if os.geteuid() != 0:
        pytest.skip("a guest shares this machine's root file system, which takes root")
    if missing := [path for path in PROGRAMS if not os.path.exists(path)]:
        pytest.skip(f"the guest's root is this machine's, which lacks {missing[0]}")
    try:
        kernel = fetch()
    except CannotFetch as error:
        pytest.skip(str(error))
    (modules,) = (kernel / "usr/lib/uml/modules").iterdir()
    first = WITH_SYSTEMD if systemd else WITHOUT
    (folder / "init").write_text(INIT.format(modules=modules, folder=folder, idle=IDLE, first=first))
    (folder / "script.service").write_text(UNIT)
    (folder / "init").chmod(0o755)
    (folder / "run").write_text(RUN.format(uid=UID, user=USER))
    (folder / "script").write_text(script)
    command = [
        f"{kernel}/usr/bin/linux.uml", "rootfstype=hostfs", "rootflags=/", "ro", f"mem={memory}", f"init={folder}/init",
        "con=null", "con0=fd:0,fd:1", "quiet", f"uml_dir={folder}/",
    ]  # fmt: skip
    with (folder / "console").open("wb") as console:
        running = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=console, stderr=console, start_new_session=True,
            env={"TMPDIR": "/dev/shm" if os.path.isdir("/dev/shm") else "/tmp", "HOME": str(folder)},
        )  # fmt: skip
        try:
            running.wait(timeout)
        finally:
            if running.poll() is None:
                os.killpg(running.pid, signal.SIGKILL)
                running.wait()
    output = (folder / "output").read_text(errors="replace") if (folder / "output").exists() else ""
    if not (folder / "code").exists():
        console_text = (folder / "console").read_text(errors="replace")[-3000:]
        if REGISTERS in console_text:
            pytest.skip("User Mode Linux does not run on this processor, whose registers take more room than it knows")
        pytest.fail(f"the guest stopped half-way:\n{console_text}\n{output}")
    return Result(int((folder / "code").read_text()), output)
