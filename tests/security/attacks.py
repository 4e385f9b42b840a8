"""What a hostile workload tries, and on which backends it gets there.

`test_isolation` runs every attack on every backend and compares docs/security.md with this list: a row there is an
attack here. An attack is a piece of shell that says GOT if it has worked. A backend on which it works is named with the
reason: that is no defect but something that a user must know.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable

import msgspec
from tests.security.elf import PREVIOUS, script

BACKENDS = ("local, root", "local, user", "docker", "podman", "kubernetes")
REFUSED = "1 38"  # EPERM, ENOSYS: not even looked at
Call = tuple[int, tuple[object, ...]]


class Host(msgspec.Struct, frozen=True):
    """What an attacker is after."""

    mark: str  # a line of `file`, which anybody may read
    file: str
    victim: str  # a file that anybody may write
    state: str
    setuid: str  # a program that does what only root may
    socket: str  # the name of an abstract socket that listens
    process: int
    key: int  # in the session's keyring
    disk: str  # major and minor number
    server: str  # the address of one that listens

    def words(self) -> str:
        """As variables of a shell."""
        values = {name: getattr(self, name) for name in self.__struct_fields__}
        return "; ".join(f"{name.upper()}='{value}'" for name, value in values.items())


class Attack(msgspec.Struct, frozen=True):
    """`works`: where, and why that is so. `alone`: it needs a sandbox of its own, with these options."""

    title: str
    shell: str | Callable[[Host], str]
    works: dict[str, str] = {}
    alone: tuple[str, ...] = ()
    as_user: bool = False  # made by root, it runs as another user

    def script(self, host: Host) -> str:
        return self.shell if isinstance(self.shell, str) else self.shell(host)


def _looked_at(number: int, *arguments: object) -> str:
    """Got, if the kernel has looked at the call instead of refusing it."""
    return f'{script((number, arguments))}; case " {REFUSED} 99 " in *" $? "*) ;; *) echo GOT ;; esac'


def _done(*calls: Call) -> str:
    """Got, if every call has worked."""
    return f"{{ {script(*calls)}; }} && echo GOT"


def _abstract(host: Host) -> str:
    """Connect to a socket of the host that has a name instead of a file."""
    address = b"\1\0\0" + host.socket.encode()
    return _done((41, (1, 1, 0)), (42, (PREVIOUS, address, len(address))))


def _server(host: Host) -> str:
    """Connect to a server that listens there."""
    name, _, port = host.server.rpartition(":")
    address = b"\2\0" + int(port).to_bytes(2, "big") + ipaddress.IPv4Address(name).packed + bytes(8)
    return _done((41, (2, 1, 0)), (42, (PREVIOUS, address, len(address))))


def _trace(host: Host) -> str:
    return _done((101, (16, host.process, 0, 0)))


def _key(host: Host) -> str:
    return _done((250, (11, host.key, 0, 0)))


CLUSTER = "a pod has the network of its cluster; what it may reach there is decided by the cluster's policies"
NETWORK = "it was asked for: everything on the host's network can be reached"
FILES = "image `host` is the host's own files, as its user may read them"
NODE = "one of the engine's default capabilities; it cannot be opened"
SETUID = "root of the container, with the engine's default capabilities"
NESTED = "the engine's own filter allows it"
RINGS = "the default filter of containerd 1.7 allows it"
FORKS = "i=0; while [ $i -lt 80 ]; do sleep 30 & i=$((i+1)); done"

# Machine code is that of x86_64: 175 init_module, 321 bpf, 298 perf_event_open, 425 io_uring_setup, 164 settimeofday,
# 169 reboot, 272 unshare, 101 ptrace, 41 socket, 42 connect, 250 keyctl, 105 setuid.
ATTACKS = (
    Attack("write a sysctl", 'v=$(cat /proc/sys/vm/swappiness) && echo "$v" > /proc/sys/vm/swappiness && echo GOT'),
    Attack(
        "have the host run a program when another crashes (core_pattern)",
        'v=$(cat /proc/sys/kernel/core_pattern) && echo "$v" > /proc/sys/kernel/core_pattern && echo GOT',
    ),
    Attack("use the system request keys", "echo h > /proc/sysrq-trigger && echo GOT"),
    Attack(
        "write to hardware through /proc or /sys",
        "for f in $(find /proc/bus /proc/irq /proc/driver /proc/fs /proc/acpi /sys/bus /sys/power -type f); do"
        " (: >> $f) && echo GOT && break; done",
    ),
    Attack("read the kernel's memory (kcore)", "[ $(head -c 64 /proc/kcore | wc -c) -gt 0 ] && echo GOT"),
    Attack("read firmware tables", '[ -n "$(ls -A /sys/firmware)" ] && echo GOT'),
    Attack("load a kernel module", _looked_at(175, 0, 0, 0)),
    Attack("load a bpf program", _looked_at(321, 0, 0, 0)),
    Attack("watch the machine with perf", _looked_at(298, 0, 0, 0, 0, 0)),
    Attack("use io_uring", _looked_at(425, 1, 0), {"kubernetes": RINGS}),
    Attack("change the host's time", _done((164, (0, 0)))),
    Attack("restart the host", _looked_at(169, 0, 0, 0, 0)),
    Attack("mount a file system", "mkdir -p /tmp/m && mount -t tmpfs none /tmp/m && echo GOT"),
    Attack("make a user namespace", _done((272, (0x10000000,))), {"podman": NESTED}),
    Attack("see a process of the host", "[ -e /proc/$PROCESS ] && echo GOT"),
    Attack("send a signal to a process of the host", "kill -0 $PROCESS && echo GOT"),
    Attack("trace a process of the host (ptrace)", _trace),
    Attack("leave through /proc/1/root", '[ -n "$(find "/proc/1/root$STATE" -type f)" ] && echo GOT'),
    Attack("connect to an abstract socket of the host", _abstract),
    Attack(
        "the same, on the host's network", _abstract, dict.fromkeys(BACKENDS[:4], NETWORK), alone=("--network", "host")
    ),
    Attack("connect to a server of the host's or the cluster's network", _server, {"kubernetes": CLUSTER}),
    Attack(
        "speak to a cluster's API server as the pod that it is",
        '[ -n "$(find /run/secrets /var/run/secrets -name token)" ] && echo GOT',
    ),
    Attack(
        "use a descriptor of the process that started it",
        'for f in /proc/self/fd/*; do grep -qF "$MARK" "$f$FILE" && echo GOT;'
        ' [ "$(readlink $f)" = "$FILE" ] && echo GOT; done',
    ),
    Attack("read a key of the session that started it", _key),
    Attack("type into the terminal that it was started from", "(: > /dev/tty) && echo GOT"),
    Attack("read dibs' state and tokens", '[ -n "$(find "$STATE" -type f)" ] && echo GOT'),
    Attack("read a file of the host", 'grep -qF "$MARK" "$FILE" && echo GOT', dict.fromkeys(BACKENDS[:2], FILES)),
    Attack("change a file of the host", 'echo changed > "$VICTIM"; rm "$VICTIM"'),
    Attack(
        "open a device that it was not given",
        "for d in /dev/mem /dev/kmsg /dev/kvm /dev/fuse /dev/[svx]d[a-z] /dev/nvme* /dev/loop* /dev/nvidia* /dev/kfd;"
        " do (: < $d) && echo GOT; done",
    ),
    Attack("make a device node", "mknod /tmp/node c 1 5 && echo GOT", {"docker": NODE}),
    Attack(
        "read a disk through a node of its own",
        "mknod /tmp/disk b $DISK && [ $(head -c 512 /tmp/disk | wc -c) -gt 0 ] && echo GOT",
    ),
    Attack(
        "become root through a set-user-id program",
        f'if [ -e "$SETUID" ]; then "$SETUID" && echo GOT; else {script((105, (0,)))} || exit; chmod 4755 $p;'
        " echo u:x:4567:4567::/:/bin/sh >> /etc/passwd; start-stop-daemon -S -c u -x $p && echo GOT; fi",
        {"docker": SETUID, "podman": SETUID},
        alone=("-e", "ALONE=1"),
        as_user=True,
    ),
    Attack(
        "lift its own limits",
        "for f in $(find /sys/fs/cgroup -name '*.max' -o -name '*limit_in_bytes'); do (: >> $f) && echo GOT && break;"
        " done",
    ),
    Attack(
        "start more processes than its limit",
        f"({FORKS}); set -- /proc/[0-9]*; [ $# -gt 60 ] && echo GOT",
        alone=("--pids", "40"),
    ),
    Attack(
        "use more memory than its limit",
        "[ $(head -c 300000000 /dev/zero | tail -c 300000000 | wc -c) = 300000000 ] && echo GOT",
        alone=("--memory", "64Mi"),
    ),
)
