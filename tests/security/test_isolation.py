"""What a hostile workload can do, on every backend: the attacks of `attacks`, and the page that tells of them."""

from __future__ import annotations

import ctypes
import os
import pty
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import msgspec
import pytest
from tests.cluster import images as cluster_images
from tests.cluster import shared as clusters
from tests.engines import images, shared
from tests.installation import private
from tests.security.attacks import ATTACKS, BACKENDS, Attack, Host
from tests.security.elf import program

PAGE = Path(__file__).parents[2] / "docs" / "security.md"
NOBODY = 65534
WAYS = ("command", "exec")
# Root has power over files there (`userns.FILE_POWERS`), and must get no further for it than in the host's root.
OWN_ROOT = "local, root, in a root of its own"
ADD_KEY, SESSION_KEYRING = 248, -3
_END = "@@"


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    """A folder that sandboxes do not get anew, and a process, a socket and a key of ours."""
    if os.uname().machine != "x86_64":
        pytest.skip("the attacks are written for x86_64")
    top = Path(tempfile.mkdtemp(prefix="dibs-attacks-", dir="/srv" if os.access("/srv", os.W_OK) else Path.home()))
    top.chmod(0o755)
    file = Path("/etc/os-release").resolve()  # on every host, and in no image of the tests
    (top / "victim").write_text("untouched\n")
    (top / "victim").chmod(0o666)
    (top / "setuid").write_bytes(program((105, (0,))))
    (top / "setuid").chmod(0o4755)
    name = f"dibs-attacks-{os.getpid()}"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("\0" + name)
    listener.listen(64)
    server = socket.create_server(("127.0.0.1", 0))
    process = subprocess.Popen(["sleep", "1000"])
    key = ctypes.CDLL(None).syscall(ADD_KEY, b"user", name.encode(), b"secret", 6, SESSION_KEYRING)
    disk = next(iter(Path("/sys/block").iterdir())) / "dev"
    yield Host(
        mark=file.read_text().splitlines()[0], file=str(file), victim=str(top / "victim"), state=str(top / "state"),
        setuid=str(top / "setuid"), socket=name, process=process.pid, key=key,
        disk=disk.read_text().strip().replace(":", " "),
        server=f"127.0.0.1:{server.getsockname()[1]}",
    )  # fmt: skip
    for one in [process, *(target.listener for target in _targets.values() if target.listener is not None)]:
        one.kill()
        one.wait()
    listener.close()
    server.close()
    for folder in (top, *(target.work for target in _targets.values())):
        shutil.rmtree(folder)
    _targets.clear()


class Target:
    """`dibs` on one backend, as one user, with a home of its own."""

    def __init__(self, backend: str, host: Host) -> None:
        self.backend = backend
        self.user = NOBODY if backend == "local, user" and os.getuid() == 0 else None
        self.home = Path(host.state) / backend.replace(", ", "-")
        self.host = msgspec.structs.replace(host, state=str(self.home))
        self.home.mkdir(parents=True)
        self.work = Path(
            tempfile.mkdtemp(prefix="dibs-attacks-")
        )  # below /tmp, which the engines of the tests have too
        for folder in (self.home, self.work):
            folder.chmod(0o755)
            if self.user is not None:
                os.chown(folder, self.user, self.user)
        self.listener: subprocess.Popen[bytes] | None = None
        self.options = ["--backend", backend.partition(",")[0]]
        if backend == OWN_ROOT:
            self.options += ["--root", str(_busybox(self.work / "root")), "-e", "PATH=/bin", "-w", "/"]
        self.network: tuple[str, ...] = ("--network", "none")
        if backend == "kubernetes":
            nodes = clusters.nodes()
            assert not isinstance(nodes, str)
            (self.home / "config").mkdir()
            (self.home / "config" / "config.toml").write_text(f'[kubernetes]\nkubeconfig = "{nodes.kubeconfig()}"\n')
            self.options += ["--image", cluster_images.BUSYBOX]
            self.network = ()  # a pod has that of its cluster
            server = re.search(r"https://([0-9.]+:[0-9]+)", nodes.kubeconfig().read_text())
            assert server is not None
            self.host = msgspec.structs.replace(self.host, server=server[1])
        if backend in ("docker", "podman"):
            engine = shared.engine(backend)
            assert not isinstance(engine, str)
            (self.home / "config").mkdir()
            (self.home / "config" / "config.toml").write_text(f'[{backend}]\nsocket = "{engine.socket}"\n')
            self.options += ["--image", images.REFERENCE]
            # The engines of the tests have a network of their own: that is the host's to them.
            script = (
                f"import socket, time; s = socket.socket(1); s.bind('\\0{host.socket}'); s.listen(9); time.sleep(999)"
            )
            self.listener = subprocess.Popen(
                ["nsenter", f"--net={engine.network()}", sys.executable, "-c", script], stdin=subprocess.DEVNULL
            )

    def dibs(self, *words: str) -> str:
        """What it says, started from a terminal, with private descriptors open."""
        root, file = os.open("/", os.O_RDONLY), os.open(self.host.file, os.O_RDONLY)
        ours, terminal = pty.openpty()
        try:
            done = subprocess.run(
                [sys.executable, "-m", "dibs", *words], cwd=self.work, stdin=subprocess.DEVNULL, text=True,
                capture_output=True, check=False, timeout=300, pass_fds=(root, file, terminal),
                preexec_fn=lambda: self._begin(terminal),
                env={"PATH": os.environ["PATH"], "HOME": str(self.work), "DIBS_HOME": str(self.home)},
            )  # fmt: skip
        finally:
            for fd in (root, file, ours, terminal):
                os.close(fd)
        return f"{done.stdout}\n{done.returncode}\n{done.stderr}"

    def _begin(self, terminal: int) -> None:
        import fcntl
        import termios

        os.setsid()
        fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
        if self.user is not None:
            os.setgroups([])
            os.setresgid(self.user, self.user, self.user)
            os.setresuid(self.user, self.user, self.user)

    @cache  # noqa: B019  # one for each backend, for the whole module
    def together(self, way: str) -> dict[str, bool]:
        """Every attack that needs nothing special, in one sandbox: whether it has worked."""
        attacks = [attack for attack in ATTACKS if not attack.alone]
        text = "\n".join(_shell(attack, self.host) for attack in attacks)
        options = [*self.options, *self.network]
        if way == "command":
            said = self.run(options, text)
        else:
            made = self.dibs("sandbox", "create", "--name", "attacked", *options, "--", "sleep", "1000")
            said = self.dibs("sandbox", "exec", "--no-tty", "attacked", "--", "sh", "-c", text)
            removed = self.dibs("sandbox", "rm", "--grace", "0s", "attacked")
            assert "\n0\n" in made, made
            assert "\n0\n" in removed, removed
        found = {attack.title: _worked(attack, said, self.host) for attack in attacks}
        assert said.count(_END) == len(attacks), said
        return found

    def run(self, options: Sequence[str], text: str) -> str:
        """What it says, as the command of a sandbox, to its end."""
        if self.backend != "kubernetes":
            return self.dibs("run", "-q", "--no-tty", *options, "--", "sh", "-c", text)
        made = self.dibs("sandbox", "create", "--name", "attacked", *options, "--", "sh", "-c", text)
        if "\n0\n" not in made:
            return made
        said = self.dibs("logs", "--follow", "attacked")  # a pod's command may end before anybody is attached to it
        ended = self.dibs("sandbox", "wait", "attacked")
        removed = self.dibs("sandbox", "rm", "--grace", "0s", "attacked")
        assert "\n0\n" in removed, removed
        return said + ended

    def alone(self, attack: Attack) -> bool:
        text = _shell(attack, self.host)
        options = attack.alone if "--network" in attack.alone else (*attack.alone, *self.network)
        if attack.as_user and self.backend.startswith("local, root"):
            options += ("--user", f"{NOBODY}:{NOBODY}")
        said = self.run([*self.options, *options], text)
        refusals = ("LIMIT_NOT_ENFORCEABLE", "FIELD_NOT_SUPPORTED", "NETWORK_UNAVAILABLE", "OUT_OF_MEMORY", "\n137\n")
        refused = any(one in said for one in refusals)
        assert refused or _END in said, said
        return _worked(attack, said, self.host)


def _busybox(root: Path) -> Path:
    (root / "bin").mkdir(parents=True)
    shutil.copy("/bin/busybox", root / "bin")
    subprocess.run(["/bin/busybox", "--install", "-s", str(root / "bin")], check=True)
    for link in (root / "bin").iterdir():
        if link.is_symlink():
            link.unlink()
            link.symlink_to("busybox")
    return root


def _shell(attack: Attack, host: Host) -> str:
    inner = shlex.quote(f"{host.words()}; {attack.script(host)}")
    return f"echo; timeout 60 sh -c {inner} </dev/null 2>/dev/null; echo '{_END} {attack.title.replace(chr(39), '')}'"


def _worked(attack: Attack, said: str, host: Host) -> bool:
    if "VICTIM" in str(attack.shell):
        return not Path(host.victim).exists() or Path(host.victim).read_text() != "untouched\n"
    part = said.partition(f"{_END} {attack.title.replace(chr(39), '')}")[0].rpartition(_END)[2]
    return re.search(r"^GOT$", part, re.MULTILINE) is not None


_targets: dict[str, Target] = {}


@pytest.fixture(params=[*BACKENDS, OWN_ROOT])
def target(request: pytest.FixtureRequest, host: Host) -> Target:
    backend = request.param
    if backend in ("docker", "podman"):
        if isinstance(missing := shared.engine(backend), str):
            pytest.skip(f"{backend} is not here: {missing}")
    elif backend == "kubernetes":
        if isinstance(without := clusters.nodes(), str):
            pytest.skip(f"no cluster with nodes here: {without}")
    elif backend.startswith("local, root") and os.getuid():
        pytest.skip("needs root")
    elif backend == OWN_ROOT and not os.access("/bin/busybox", os.X_OK):
        pytest.skip("needs a busybox (busybox-static)")
    elif backend == "local, user" and os.getuid() == 0 and (reason := private()):
        pytest.skip(reason)
    if backend not in _targets:
        _targets[backend] = Target(backend, host)
    return _targets[backend]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("attack", [a for a in ATTACKS if not a.alone], ids=lambda attack: attack.title)
def test_an_attack_ends_as_the_page_says(target: Target, attack: Attack, way: str) -> None:
    """As the command of a sandbox, and as one that comes later."""
    assert target.together(way)[attack.title] is (target.backend in attack.works)


def test_root_in_a_root_of_its_own_has_the_power_that_the_attacks_go_with(host: Host) -> None:
    if os.getuid() or not os.access("/bin/busybox", os.X_OK):
        pytest.skip("needs root, and a busybox (busybox-static)")
    target = _targets.setdefault(OWN_ROOT, Target(OWN_ROOT, host)) if OWN_ROOT not in _targets else _targets[OWN_ROOT]
    words = ("run", "-q", "--no-tty", *target.options, "--network", "none", "--", "sh", "-c")
    assert "given" in target.dibs(*words, "chown 5 /bin && chmod 0 /bin && ls /bin >/dev/null && echo given")


@pytest.mark.parametrize("attack", [a for a in ATTACKS if a.alone], ids=lambda attack: attack.title)
def test_an_attack_on_its_own_ends_as_the_page_says(target: Target, attack: Attack) -> None:
    page = "local, root" if target.backend == OWN_ROOT and "--network" in attack.alone else target.backend
    assert target.alone(attack) is (page in attack.works)


def test_the_attacks_work_where_nothing_keeps_them_from_it(host: Host) -> None:
    """On the host itself, by its user: or an attack that fails would say nothing."""
    harmless = ["see a process", "send a signal", "connect to a", "read a key", "read dibs", "read a file"]
    Path(host.state).mkdir(exist_ok=True)
    (Path(host.state) / "token").write_text("secret")
    for attack in ATTACKS:
        if not attack.alone and attack.title.startswith(tuple(harmless)):
            said = subprocess.run(["sh", "-c", _shell(attack, host)], capture_output=True, text=True, check=True).stdout
            assert _worked(attack, said, host), (attack.title, said)


def test_the_page_has_a_row_for_each_attack_and_no_other() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| ") and not line.startswith("| ---")]
    table = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    start = next(at for at, row in enumerate(table) if tuple(row[1:]) == BACKENDS)
    told = {row[0]: row[1:] for row in table[start + 1 : start + 1 + len(ATTACKS)]}
    wanted = {
        attack.title: [f"**yes**: {attack.works[one]}" if one in attack.works else "no" for one in BACKENDS]
        for attack in ATTACKS
    }
    assert told == wanted
