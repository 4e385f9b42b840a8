"""Kubernetes' URL functions, with Go's idea of what a URL is."""

import ipaddress
import re
from typing import Final, final

from dibs.cel.declarations import Function, Library, Overload, method
from dibs.cel.errors import CelRuntimeError
from dibs.cel.types import BOOL, STRING, list_of, map_of, opaque

_SCHEME: Final = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*):")
_PORT: Final = re.compile(r"(?::[0-9]*)?\Z")
_ESCAPE: Final = re.compile(r"%(?![0-9a-fA-F]{2})")
_USER: Final = re.compile(r"[A-Za-z0-9\-._:~!$&'()*+,;=%@]*\Z")
# What Go leaves as it is in a path, and in a host.
_IN_PATH: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.~$&+,/:;=@")
_KEPT_IN_PATH: Final = _IN_PATH | frozenset("!'()*[]")
_IN_HOST: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.~!$&'()*+,;=:[]<>\"")


def _refuse(text: str, why: str) -> CelRuntimeError:
    return CelRuntimeError(f'URL parse error during conversion from string: parse "{text[:80]}": {why}')


def _unescaped(text: str, piece: str) -> str:
    if _ESCAPE.search(piece):
        raise _refuse(text, "invalid URL escape")
    from urllib.parse import unquote_to_bytes

    return unquote_to_bytes(piece).decode(errors="surrogateescape")


@final
class Url:
    """A parsed URL."""

    __slots__ = ("escaped_path", "fragment", "host", "opaque", "query", "scheme", "text", "user")
    __cel_type__ = "kubernetes.URL"
    __cel_class__ = "cel.URL"
    __cel_strict__ = True

    def __init__(self, text: str) -> None:
        check_request_uri(text)
        self.text = text
        body, _, self.fragment = text.partition("#")
        _unescaped(text, self.fragment)
        self.scheme, rest = _scheme(text, body)
        self.text = self.scheme + text[len(self.scheme) :]
        rest, _, self.query = rest.partition("?")
        self.host = self.user = self.opaque = ""
        if not rest.startswith("/"):
            self.opaque = rest
            rest = ""
        elif rest.startswith("//") and (self.scheme or not rest.startswith("///")):
            authority, slash, path = rest[2:].partition("/")
            self.user, self.host = _authority(text, authority)
            rest = slash + path
        self.escaped_path = _escaped(_unescaped(text, rest), rest)

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

    def _parts(self) -> tuple[str, ...]:
        return (self.scheme, self.user, self.host, self.opaque, self.escaped_path, self.query, self.fragment)

    def __eq__(self, other: object) -> bool:
        return self._parts() == other._parts() if isinstance(other, Url) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._parts())

    def __str__(self) -> str:
        return self.text


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
            _authority(text, authority)
            rest = slash + path
    _unescaped(text, rest)


def _authority(text: str, authority: str) -> tuple[str, str]:
    user, at, host = authority.rpartition("@")
    if at and not _USER.match(user):
        raise _refuse(text, "net/url: invalid userinfo")
    if at:
        _unescaped(text, user)
    return user, _host(text, host)


def _host(text: str, host: str) -> str:
    if host.rfind("[") > 0:
        raise _refuse(text, "invalid IP-literal")
    if host.startswith("["):
        end = host.rfind("]")
        if end < 0:
            raise _refuse(text, "missing ']' in host")
        if not _PORT.match(host, end + 1):
            raise _refuse(text, f'invalid port "{host[end + 1 :]}" after host')
        zone = host.find("%25")
        address = _unescaped(text, host[1:end])
        try:
            ipaddress.IPv6Address(address)
        except ValueError:
            raise _refuse(text, f'invalid host: "{address}" is no IPv6 address') from None
        if zone >= 0:
            return host[:zone] + _unescaped(text, host[zone:])
    else:
        colon = host.rfind(":")
        if colon >= 0 and not _PORT.match(host, colon):
            raise _refuse(text, f'invalid port "{host[colon:]}" after host')
    for place, char in enumerate(host):
        if char == "%":
            # Only bytes beyond ASCII may be escaped in a host.
            if host[place + 1 : place + 2] not in set("89abcdefABCDEF") or _ESCAPE.match(host, place):
                raise _refuse(text, f'invalid URL escape "{host[place : place + 3]}"')
        elif char.isascii() and char not in _IN_HOST:
            raise _refuse(text, f'invalid character "{char}" in host name')
    return _unescaped(text, host)


def _escaped(path: str, raw: str) -> str:
    """The path as it was written where that is a way of writing it, else as Go writes it."""
    made = "".join(char if char in _IN_PATH else _percent(char) for char in path)
    if raw == made:
        return made
    if all(char in _KEPT_IN_PATH or char == "%" for char in raw):
        return raw
    return "*" if path == "*" else made


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
