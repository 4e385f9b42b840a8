"""The private network of a local sandbox: which helper carries it here, and how it is told.

`backend` and `rendering` ask. A private network is a network namespace of its own; a helper process (pasta or
slirp4netns) passes what is sent there on through sockets of the host, as an ordinary program would. Neither may offer a
way to the host's loopback, which both do unless they are told not to. `uplink` runs the helper, as a part of the shim.
"""

from __future__ import annotations

import ipaddress
import os

import msgspec

from dibs.backends.local.bubblewrap import run
from dibs.backends.local.probes import Probes
from dibs.backends.port import Capability, PublishedPort
from dibs.backends.proc import connected

INSTALL = "install passt (Debian, Ubuntu and Fedora: package passt) or slirp4netns"
FOLDERS = ("/usr/local/bin", "/usr/bin", "/bin")
TUN = "/dev/net/tun"
RESOLV_CONF = "/etc/resolv.conf"
UPSTREAM = "/run/systemd/resolve/resolv.conf"  # behind the stub of systemd-resolved, which listens on loopback
# Where a helper answers for the host's own name server. For pasta any otherwise unused address will do.
PASTA_DNS = "169.254.53.53"
SLIRP_DNS = "10.0.2.3"
_NEEDED = {
    "pasta": ("--config-net", "--no-map-gw", "--userns", "--dns-forward"),
    "slirp4netns": ("--disable-host-loopback", "--userns-path", "--exit-fd", "--ready-fd", "--disable-dns"),
}
MTU = "65520"  # nothing of it is ever on a wire; as both helpers recommend


class Helper(msgspec.Struct, frozen=True):
    """The program that connects private networks, or the reason why there is none (`name` is empty then)."""

    name: str
    path: str = ""
    words: frozenset[str] = frozenset()  # the options that this version has
    reason: str = ""
    remedy: str = ""


def folders() -> tuple[str, ...]:
    """Where helpers are looked for; DIBS_NETWORK_HELPERS names another folder, for tests."""
    other = os.environ.get("DIBS_NETWORK_HELPERS")
    return (other,) if other else FOLDERS


def find(probes: Probes) -> Helper:
    """The first helper that works here: pasta, else slirp4netns."""
    reasons: list[str] = []
    for name, needed in _NEEDED.items():
        path = next((f"{folder}/{name}" for folder in folders() if os.access(f"{folder}/{name}", os.X_OK)), "")
        if not path:
            continue
        words = _words(path, probes)
        missing = [word for word in needed if word not in words]
        if missing:
            reasons.append(f"{path} is too old: it has no {missing[0]}")
        elif name == "pasta" and "--map-host-loopback" not in words and not connected("self"):
            reasons.append(f"{path} needs a default route, and the host has none")
        else:
            return _usable(Helper(name, path, words))
    if not reasons:
        return Helper("", reason="neither pasta nor slirp4netns is installed", remedy=INSTALL)
    return Helper("", reason="; ".join(reasons), remedy=INSTALL)


def _usable(helper: Helper) -> Helper:
    if not os.path.exists(TUN):
        return Helper("", reason=f"there is no {TUN}, which {helper.name} needs", remedy="load it: sudo modprobe tun")
    if not os.access(TUN, os.R_OK | os.W_OK):
        reason = f"you may not open {TUN}, which {helper.name} needs"
        return Helper("", reason=reason, remedy=f"let every user open it, as distributions do: sudo chmod 0666 {TUN}")
    return helper


def capability(probes: Probes) -> Capability:
    found = find(probes)
    return Capability(bool(found.name), found.reason, found.remedy, "NETWORK_UNAVAILABLE")


def _words(path: str, probes: Probes) -> frozenset[str]:
    info = os.stat(path)
    return frozenset(probes.get(f"network {path} {info.st_size} {info.st_mtime_ns}", lambda: _options(path)).split())


def _options(path: str) -> str:
    """The options that its help names."""
    words = run([path, "--help"])[1].replace(",", " ").replace("=", " ").replace("[", " ").split()
    return " ".join(sorted({word for word in words if word.startswith("--")}))


# --- name servers


def resolv_conf(helper: Helper) -> tuple[str, bool]:
    """What /etc/resolv.conf says inside, and whether the helper must answer for the host's own name server.

    A name server on the host's loopback cannot be reached from inside. The one behind it is taken, where it is known;
    else the helper passes questions on, and nothing but questions.
    """
    lines = _lines(RESOLV_CONF)
    servers = _reachable(lines) or _reachable(_lines(UPSTREAM))
    rest = [line for line in lines if line.split()[:1] in (["search"], ["domain"], ["options"])]
    forwarded = not servers
    if forwarded:
        servers = [PASTA_DNS if helper.name == "pasta" else SLIRP_DNS]
    return "\n".join([*(f"nameserver {server}" for server in servers[:3]), *rest, ""]), forwarded


def _lines(path: str) -> list[str]:
    try:
        with open(path, errors="replace") as file:
            return file.read(1 << 16).splitlines()
    except FileNotFoundError:
        return []


def _reachable(lines: list[str]) -> list[str]:
    found = []
    for line in lines:
        words = line.split()
        if words[:1] == ["nameserver"] and len(words) > 1:
            try:
                address = ipaddress.ip_address(words[1])
            except ValueError:
                continue  # the C library skips it too
            if not (address.is_loopback or address.is_unspecified or address.is_link_local):
                found.append(words[1])
    return found


# --- words


def arguments(helper: Helper, ports: tuple[PublishedPort, ...], *, dns: bool) -> list[str]:
    """The helper's command line. `INIT` and `OWNER` stand for processes that are known only when they are there."""
    if helper.name == "pasta":
        words = [helper.path, "--foreground", "--quiet", "--config-net", "--mtu", MTU]
        # Its default is to join the loopbacks of both sides, by the gateway's address and by every open port.
        words += ["--no-map-gw", "-T", "none", "-U", "none", "-u", "none"]
        words += ["--no-dhcp", "--no-dhcpv6", "--no-ra"]
        # Else each one takes an inotify instance, of which a user has 128, to watch /proc, where it is told nothing.
        words += ["--no-netns-quit"] if "--no-netns-quit" in helper.words else []
        for option in ("--map-host-loopback", "--map-guest-addr"):
            words += [option, "none"] if option in helper.words else []
        words += ["--dns-forward", PASTA_DNS] if dns else []
        for port in ports:
            words += ["-t", f"{port.address}/{port.host_port}:{port.port}"]
        words += [] if ports else ["-t", "none"]
        words += ["--runas", "0"] if os.geteuid() == 0 else []  # as the user `nobody` it could not join the namespaces
        return [*words, "--userns", "/proc/OWNER/ns/user", "--netns", "/proc/INIT/ns/net"]
    words = [helper.path, "--configure", f"--mtu={MTU}", "--disable-host-loopback"]
    words += ["--enable-sandbox"] if os.geteuid() == 0 else []  # it would become root of a namespace that has none
    words += ["--enable-seccomp"] if "--enable-seccomp" in helper.words else []
    words += [] if dns else ["--disable-dns"]
    words += ["--api-socket=APISOCKET"] if ports else []
    words += ["--ready-fd=READY", "--exit-fd=EXIT", "--userns-path=/proc/OWNER/ns/user", "--netns-type=path"]
    return [*words, "/proc/INIT/ns/net", "tap0"]
