"""A gateway to talk to: its address, its token, where both were said; and the contexts that remember them.

`choose` asks once it is plain that a gateway is used. Tokens are read here and go into one header; no message, no
table and no log ever shows one.
"""

from __future__ import annotations

import os
import re
import stat
import tomllib
from typing import Any
from urllib.parse import urlsplit

import msgspec

from dibs.errors import InvalidRequest, NotFound, StateError
from dibs.remote.choose import NOWHERE, contexts_path, host_socket

_NAME = re.compile(r"[a-z0-9]([a-z0-9_.-]{0,61}[a-z0-9])?", re.ASCII)
_LARGEST_TOKEN = 4096


class Target(msgspec.Struct, frozen=True):
    """`host`: the gateway is on this very machine, behind a socket, so the caller's paths mean the same to it."""

    address: str
    why: str  # where it was said, for messages
    token: str = ""
    ca_file: str = ""

    @property
    def host(self) -> bool:
        return self.address.startswith("unix://")

    def __repr__(self) -> str:
        return f"Target({self.address!r}, {self.why!r})"  # without the token


class Context(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A gateway that is remembered by name."""

    url: str
    token_file: str = ""
    token: str = ""
    ca_file: str = ""


class Contexts(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    current: str = ""
    contexts: dict[str, Context] = {}


def address_of(text: str, field: str) -> str:
    """An address as it is used; InvalidRequest for what cannot be one."""
    if text.startswith("/"):
        return f"unix://{text}"
    try:
        parts = urlsplit(text)
        good = (parts.scheme == "unix" and not parts.netloc and parts.path.startswith("/")) or (
            parts.scheme in ("http", "https") and parts.hostname and (parts.port or True)
        )
    except ValueError:
        good = False
    if not good or "@" in parts.netloc or parts.query or parts.fragment:
        raise InvalidRequest(
            "this is not the address of a gateway", field=field, value=text, code="GATEWAY_INVALID",
            remedy="write unix:///path, http://host:port or https://host; tokens go into DIBS_TOKEN or a context",
        )  # fmt: skip
    return text.rstrip("/")


def find(named: str = "") -> Target | None:
    """The gateway to use, by the order that `choose` tells."""
    own_token = os.environ.get("DIBS_TOKEN", "")
    if named:
        return _by_name_or_address(named, "--gateway", own_token)
    said = os.environ.get("DIBS_URL", "")
    if said:
        return _by_name_or_address(said, "DIBS_URL", own_token)
    kept = load()
    if kept.current == NOWHERE:
        return None
    if kept.current:
        return _of_context(kept, kept.current, f"context {kept.current}", own_token)
    path = host_socket()
    if os.environ.get("DIBS_HOME") or not os.path.exists(path):
        return None
    if not os.access(path, os.W_OK):
        from dibs.process import username

        raise StateError(
            "this host has a dibs service that you may not use", field="host", value=path, code="HOST_SERVICE_DENIED",
            remedy=f"ask an administrator for: usermod -aG dibs {username()}, then log in again",
        )  # fmt: skip
    return Target(f"unix://{path}", "the host service")


def _by_name_or_address(text: str, field: str, token: str) -> Target | None:
    """An address, or the name of a context."""
    if text == NOWHERE:
        return None
    if _NAME.fullmatch(text):
        return _of_context(load(), text, f"{field} {text}", token)
    return Target(address_of(text, field), field, token)


def _of_context(kept: Contexts, name: str, why: str, token: str) -> Target:
    context = kept.contexts.get(name)
    if context is None:
        raise unknown(kept, name)
    secret = token or context.token
    if not secret and context.token_file:
        secret = read_token(context.token_file)
    return Target(context.url, why, secret, context.ca_file)


def unknown(kept: Contexts, name: str) -> NotFound:
    names = ", ".join(kept.contexts)
    remedy = f"there are {names}" if names else f"make it: dibs context set {name} --url URL"
    return NotFound("there is no such context", field="context", value=name, code="CONTEXT_UNKNOWN", remedy=remedy)


def read_token(path: str) -> str:
    try:
        with open(os.path.expanduser(path)) as file:
            token = file.read(_LARGEST_TOKEN + 1).strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = f"the token cannot be read: {getattr(error, 'strerror', None) or 'it is no text'}"
        raise StateError(reason, field="token-file", value=path, code="TOKEN_UNREADABLE") from error
    return checked_token(token, "token-file", path)


def checked_token(token: str, field: str, value: str = "") -> str:
    if not token or len(token) > _LARGEST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        reason = "this is not a token: it is one word of printable characters"
        raise InvalidRequest(reason, field=field, value=value, code="TOKEN_INVALID", remedy="see `dibs token --help`")
    return token


# --- the file


def load() -> Contexts:
    """What is remembered; nothing, if there is no file."""
    path = contexts_path()
    try:
        with open(path, "rb") as file:
            found: dict[str, Any] = tomllib.load(file)
            mode = os.fstat(file.fileno()).st_mode
    except FileNotFoundError:
        return Contexts()
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise _unusable(path, str(getattr(error, "strerror", None) or error)) from error
    try:
        kept = msgspec.convert(found, Contexts)
    except msgspec.ValidationError as error:
        raise _unusable(path, str(error)) from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO) and any(one.token for one in kept.contexts.values()):
        raise _unusable(path, "others can read it, and there is a token in it", f"chmod 600 {path}")
    return kept


def save(kept: Contexts) -> None:
    """Written anew, readable by its owner only."""
    path = contexts_path()
    lines = [f"current = {_quoted(kept.current)}"] if kept.current else []
    for name, context in kept.contexts.items():
        lines += ["", f"[contexts.{_quoted(name)}]"]
        lines += [f"{key} = {_quoted(value)}" for key, value in msgspec.to_builtins(context).items()]
    draft = f"{path}.{os.getpid()}.new"
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w", encoding="utf-8", newline="") as file:
            file.write("\n".join(lines).lstrip("\n") + "\n")
        os.replace(draft, path)
    except OSError as error:
        raise _unusable(path, error.strerror or str(error)) from error


def _quoted(text: str) -> str:
    """A TOML basic string: as JSON writes one, but for the one control character that JSON leaves alone."""
    import json

    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def check_name(name: str) -> str:
    if _NAME.fullmatch(name) is None or name == NOWHERE:
        remedy = "a name is up to 63 lower-case letters, digits, - _ ."
        reason = "this cannot be the name of a context"
        raise InvalidRequest(reason, field="name", value=name, code="NAME_INVALID", remedy=remedy)
    return name


def _unusable(path: str, reason: str, remedy: str = "correct it, or remove it") -> StateError:
    return StateError(
        f"the contexts cannot be used: {reason}", field="contexts", value=path, code="CONTEXTS_UNUSABLE", remedy=remedy
    )
