"""Kubernetes' IP and CIDR functions. The values wrap Python's own address classes."""

import ipaddress
from typing import Any, Final, final

from dibs.cel.declarations import Function, Library, Overload, method
from dibs.cel.errors import CelRuntimeError
from dibs.cel.types import BOOL, INT, STRING, opaque

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_MAX_LENGTH: Final = 64


@final
class Ip:
    """An address. An IPv4 address that is written as IPv6 (``::ffff:c0a8:1``) equals the IPv4 one."""

    __slots__ = ("address",)
    __cel_type__ = "net.IP"
    __cel_class__ = "cel.IP"
    __cel_strict__ = True

    def __init__(self, address: _Address) -> None:
        self.address = address

    def __cel_size__(self) -> int:
        return len(self.address.packed)

    def plain(self) -> _Address:
        """The address itself, IPv4 where it is one."""
        mapped = self.address.ipv4_mapped if isinstance(self.address, ipaddress.IPv6Address) else None
        return mapped or self.address

    def __eq__(self, other: object) -> bool:
        return self.plain() == other.plain() if isinstance(other, Ip) else NotImplemented

    def __hash__(self) -> int:
        return hash((Ip, self.plain()))

    def __str__(self) -> str:
        return str(self.address)


@final
class Cidr:
    """An address with a prefix length."""

    __slots__ = ("interface",)
    __cel_type__ = "net.CIDR"
    __cel_class__ = "cel.CIDR"
    __cel_strict__ = True

    def __init__(self, interface: ipaddress.IPv4Interface | ipaddress.IPv6Interface) -> None:
        self.interface = interface

    def __cel_size__(self) -> int:
        return -(-self.prefix // 8)

    @property
    def prefix(self) -> int:
        """The number of fixed bits."""
        return int(self.interface.network.prefixlen)

    def holds(self, ip: Ip) -> bool:
        """Whether an address lies inside."""
        return ip.plain() in self.interface.network

    def __eq__(self, other: object) -> bool:
        return self.interface == other.interface if isinstance(other, Cidr) else NotImplemented

    def __hash__(self) -> int:
        return hash((Cidr, self.interface))

    def __str__(self) -> str:
        return str(self.interface)


IP: Final = opaque("net.IP", Ip)
CIDR: Final = opaque("net.CIDR", Cidr)


def _ip(text: str) -> Ip:
    # Zones and IPv4 addresses in the form of IPv6 are refused, as Kubernetes does.
    if len(text) > _MAX_LENGTH or "%" in text:
        raise CelRuntimeError(f"IP Address {text[:80]!r} parse error during conversion from string")
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        raise CelRuntimeError(f"IP Address {text!r} parse error during conversion from string") from None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        raise CelRuntimeError(f"IPv4-mapped IPv6 address {text!r} is not allowed")
    return Ip(address)


def _cidr(text: str) -> Cidr:
    address, slash, prefix = text.partition("/")
    plain = prefix.isascii() and prefix.isdigit() and (prefix == "0" or not prefix.startswith("0"))
    if len(text) > _MAX_LENGTH or not slash or not plain or "%" in text:
        raise CelRuntimeError(f"network address parse error during conversion from string: {text[:80]!r}")
    try:
        found = ipaddress.ip_interface(f"{address}/{prefix}")
    except ValueError:
        raise CelRuntimeError(f"network address parse error during conversion from string: {text!r}") from None
    if isinstance(found, ipaddress.IPv6Interface) and found.ip.ipv4_mapped is not None:
        raise CelRuntimeError(f"IPv4-mapped IPv6 address {text!r} is not allowed")
    return Cidr(found)


def _is(parse: Any) -> Any:
    def test(text: str) -> bool:
        try:
            parse(text)
        except CelRuntimeError:
            return False
        return True

    return test


def _is_global_unicast(ip: Ip) -> bool:
    address = ip.plain()
    broadcast = address == ipaddress.IPv4Address("255.255.255.255")
    return not (
        broadcast or address.is_unspecified or address.is_loopback or address.is_multicast or address.is_link_local
    )


def _is_link_local_multicast(ip: Ip) -> bool:
    address = ip.plain()
    if isinstance(address, ipaddress.IPv4Address):
        return address in ipaddress.IPv4Network("224.0.0.0/24")
    return address.is_multicast and address.packed[1] & 0x0F == 2


def _contains_cidr(outer: Cidr, inner: Cidr) -> bool:
    if outer.interface.version != inner.interface.version:
        return False
    return outer.prefix <= inner.prefix and outer.holds(Ip(inner.interface.ip))


def network() -> Library:
    """The library."""
    text, ip, cidr = (STRING,), (IP,), (CIDR,)
    return Library(
        "network",
        [
            Function(
                "ip",
                Overload(text, IP, _ip, fold=True),
                method(cidr, IP, lambda a: Ip(a.interface.ip), fails=False),
            ),
            Function("isIP", Overload(text, BOOL, _is(_ip), fails=False)),
            Function("ip.isCanonical", Overload(text, BOOL, lambda a: str(_ip(a)) == a)),
            Function("cidr", Overload(text, CIDR, _cidr, fold=True)),
            Function("isCIDR", Overload(text, BOOL, _is(_cidr), fails=False)),
            Function("string", Overload(ip, STRING, str, fails=False), Overload(cidr, STRING, str, fails=False)),
            Function("family", method(ip, INT, lambda a: a.plain().version, fails=False)),
            Function("isUnspecified", method(ip, BOOL, lambda a: a.plain().is_unspecified, fails=False)),
            Function("isLoopback", method(ip, BOOL, lambda a: a.plain().is_loopback, fails=False)),
            Function("isGlobalUnicast", method(ip, BOOL, _is_global_unicast, fails=False)),
            Function("isLinkLocalMulticast", method(ip, BOOL, _is_link_local_multicast, fails=False)),
            Function("isLinkLocalUnicast", method(ip, BOOL, lambda a: a.plain().is_link_local, fails=False)),
            Function(
                "containsIP",
                method((CIDR, IP), BOOL, lambda a, b: a.holds(b), fails=False),
                method((CIDR, STRING), BOOL, lambda a, b: a.holds(_ip(b))),
            ),
            Function(
                "containsCIDR",
                method((CIDR, CIDR), BOOL, _contains_cidr, fails=False),
                method((CIDR, STRING), BOOL, lambda a, b: _contains_cidr(a, _cidr(b))),
            ),
            Function(
                "masked",
                method(
                    cidr,
                    CIDR,
                    lambda a: Cidr(ipaddress.ip_interface((a.interface.network.network_address, a.prefix))),
                    fails=False,
                ),
            ),
            Function("prefixLength", method(cidr, INT, lambda a: a.prefix, fails=False)),
        ],
        types=(IP, CIDR),
    )
