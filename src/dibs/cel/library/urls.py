"""Kubernetes' URL functions, with Go's idea of what a URL is."""

import ipaddress
import re
from typing import Final, final

from dibs.cel.declarations import Function, Library, Overload, method
from dibs.cel.errors import CelRuntimeError
from dibs.cel.library.localized import quoted
from dibs.cel.types import BOOL, STRING, list_of, map_of, opaque

_SCHEME: Final = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*):")
_PORT: Final = re.compile(r"(?::[0-9]*)?\Z")
_ESCAPE: Final = re.compile(r"%(?![0-9a-fA-F]{2})")
_USER: Final = re.compile(r"[A-Za-z0-9\-._:~!$&'()*+,;=%@]*\Z")
# What Go leaves as it is in a path, and in a host.
_IN_PATH: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.~$&+,/:;=@")
_KEPT: Final = frozenset("!$&'()*+,;=:@[]%")
_IN_HOST: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.~!$&'()*+,;=:[]<>\"")
_IN_USER: Final = _IN_PATH - frozenset("/:@")
_IN_FRAGMENT: Final = _IN_PATH | frozenset("!()*?")


def _refuse(text: str, why: str) -> CelRuntimeError:
    return CelRuntimeError(f"URL parse error during conversion from string: parse {quoted(text)}: {why}")


def _unescaped(text: str, piece: str) -> str:
    wrong = _ESCAPE.search(piece)
    if wrong is not None:
        raise _refuse(text, f"invalid URL escape {quoted(piece[wrong.start() : wrong.start() + 3])}")
    from urllib.parse import unquote_to_bytes

    return unquote_to_bytes(piece).decode(errors="surrogateescape")


@final
class Url:
    """A parsed URL."""

    __slots__ = ("escaped_path", "host", "query", "scheme", "text", "written")
    __cel_type__ = "kubernetes.URL"
    __cel_class__ = "cel.URL"
    __cel_strict__ = True

    def __init__(self, text: str) -> None:
        check_request_uri(text)
        self.text = text
        body, _, fragment = text.partition("#")
        self.scheme, rest = _scheme(text, body)
        forced = rest.endswith("?") and rest.count("?") == 1
        rest, _, self.query = rest.partition("?")
        self.host = begin = ""
        if text != "*" and not rest.startswith("/"):
            begin = rest
            rest = ""
        elif rest.startswith("//") and (self.scheme or not rest.startswith("///")):
            authority, slash, path = rest[2:].partition("/")
            user, self.host = _authority(text, self.scheme, authority)
            rest = slash + path
            begin = f"//{user}{_percented(self.host, _IN_HOST)}" if self.host or user or rest else ""
        self.escaped_path = _escaped(_unescaped(text, rest), rest)
        # As Go writes it; two that are written alike are equal.
        scheme = f"{self.scheme}:" if self.scheme else ""
        query = f"?{self.query}" if self.query or forced else ""
        end = _escaped(_unescaped(text, fragment), fragment, _IN_FRAGMENT)
        self.written = f"{scheme}{begin}{self.escaped_path}{query}{'#' if end else ''}{end}"

    def hostname(self) -> str:
        """The host without its port and brackets."""
        host = self._without_port()
        return host[1:-1] if host.startswith("[") and host.endswith("]") else host

    def port(self) -> str:
        """The port, or nothing."""
        return self.host[len(self._without_port()) + 1 :]

    def _without_port(self) -> str:
        colon = self.host.rfind(":")
        return self.host[:colon] if colon >= 0 and _PORT.match(self.host, colon) else self.host

    def parameters(self) -> dict[str, list[str]]:
        """The query by name. Pairs that cannot be read are left out, as in Go."""
        found: dict[str, list[str]] = {}
        for pair in self.query.split("&"):
            if not pair or ";" in pair:
                continue
            key, _, value = pair.partition("=")
            if _ESCAPE.search(key) or _ESCAPE.search(value):
                continue
            name = _unescaped(self.text, key.replace("+", " "))
            found.setdefault(name, []).append(_unescaped(self.text, value.replace("+", " ")))
        return found

    def __eq__(self, other: object) -> bool:
        return self.written == other.written if isinstance(other, Url) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.written)

    def __str__(self) -> str:
        return self.written


def _scheme(text: str, body: str) -> tuple[str, str]:
    found = _SCHEME.match(body)
    if found is not None:
        return found[1].lower(), body[found.end() :]
    if body.startswith(":"):
        raise _refuse(text, "missing protocol scheme")
    return "", body


def check_request_uri(text: str) -> None:
    """What Go's ParseRequestURI refuses: an absolute URI or an absolute path it must be."""
    if any(char < " " or char == "\x7f" for char in text):
        raise _refuse(text, "net/url: invalid control character in URL")
    if not text:
        raise _refuse(text, "empty url")
    if text == "*":
        return
    scheme, rest = _scheme(text, text)
    rest, _, _ = rest.partition("?")
    if not rest.startswith("/"):
        if scheme:
            return
        raise _refuse(text, "invalid URI for request")
    if rest.startswith("//") and (scheme or not rest.startswith("///")):
        authority, slash, path = rest[2:].partition("/")
        if scheme:
            _authority(text, scheme, authority)
            rest = slash + path
    _unescaped(text, rest)


def _authority(text: str, scheme: str, authority: str) -> tuple[str, str]:
    """The user as Go writes it, with the @, and the host."""
    user, at, host = authority.rpartition("@")
    host = _host(text, scheme, host)
    if at and not _USER.match(user):
        raise _refuse(text, "net/url: invalid userinfo")
    name, colon, password = (_percented(_unescaped(text, part), _IN_USER) for part in user.partition(":"))
    return f"{name}{':' if colon else ''}{password}{at}", host


def _host(text: str, scheme: str, host: str) -> str:
    if host.rfind("[") > 0:
        raise _refuse(text, "invalid IP-literal")
    if host.startswith("["):
        return _literal(text, host)
    # Only what http would reach may have no more than one colon.
    colon = host.find(":") if scheme in ("http", "https") else host.rfind(":")
    if colon >= 0 and not _PORT.match(host, colon):
        raise _refuse(text, f"invalid port {quoted(host[colon:])} after host")
    return _in_host(text, host)


def _literal(text: str, host: str) -> str:
    """An address of IPv6 in brackets, maybe with a zone, and a port."""
    end = host.rfind("]")
    if end < 0:
        raise _refuse(text, "missing ']' in host")
    port = host[end + 1 :]
    if not _PORT.match(port):
        raise _refuse(text, f"invalid port {quoted(port)} after host")
    name, percent, zone = host[1:end].partition("%25")
    address = _in_host(text, name)
    if percent:
        address += _in_host(text, percent + zone, zone=True)
    plain, percent, zone = address.partition("%")
    try:
        found = ipaddress.ip_address(plain)
    except ValueError:
        found = None
    if found is None or (percent and (found.version == 4 or not zone)):
        raise _refuse(text, f"invalid host: ParseAddr({quoted(address)}): unable to parse IP")
    if found.version == 4:
        raise _refuse(text, "invalid IP-literal")
    return f"[{address}]{port}"


def _in_host(text: str, piece: str, *, zone: bool = False) -> str:
    for place, char in enumerate(piece):
        if char == "%":
            escape = piece[place : place + 3]
            if not _may_be_escaped(escape, zone=zone):
                raise _refuse(text, f"invalid URL escape {quoted(escape)}")
        elif char.isascii() and char not in _IN_HOST:
            raise _refuse(text, f"invalid character {quoted(char)} in host name")
    return _unescaped(text, piece)


def _may_be_escaped(escape: str, *, zone: bool) -> bool:
    """A host has escapes for what is not ASCII only; a zone also for what it may hold as it is, and for spaces."""
    if _ESCAPE.match(escape):
        return False
    code = int(escape[1:], 16)
    if zone:
        return chr(code) in _IN_HOST | {"%", " "}
    return code >= 0x80 or escape == "%25"


def _escaped(path: str, raw: str, safe: frozenset[str] = _IN_PATH) -> str:
    """A path or fragment as it was written where that is a way of writing it, else as Go writes it."""
    made = _percented(path, safe)
    if raw == made:
        return made
    if all(char in safe or char in _KEPT for char in raw):
        return raw
    return "*" if path == "*" else made


def _percented(text: str, safe: frozenset[str]) -> str:
    return "".join(char if char in safe else _percent(char) for char in text)


def _percent(char: str) -> str:
    return "".join(f"%{byte:02X}" for byte in char.encode(errors="surrogateescape"))


URL: Final = opaque("kubernetes.URL", Url)


def _is_url(text: str) -> bool:
    try:
        check_request_uri(text)
    except CelRuntimeError:
        return False
    return True


def urls() -> Library:
    """The library."""
    one = (URL,)
    return Library(
        "urls",
        [
            Function("url", Overload((STRING,), URL, Url, fold=True)),
            Function("isURL", Overload((STRING,), BOOL, _is_url, fails=False)),
            Function("getScheme", method(one, STRING, lambda a: a.scheme, fails=False)),
            Function("getHost", method(one, STRING, lambda a: a.host, fails=False)),
            Function("getHostname", method(one, STRING, Url.hostname, fails=False)),
            Function("getPort", method(one, STRING, Url.port, fails=False)),
            Function("getEscapedPath", method(one, STRING, lambda a: a.escaped_path, fails=False)),
            Function("getQuery", method(one, map_of(STRING, list_of(STRING)), Url.parameters, fails=False)),
        ],
    )
