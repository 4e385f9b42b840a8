"""The file in which a sandbox keeps variables for all later commands (named by EXECD_ENVS).

Clients append to it with a shell command of their own (`commands.set_env`); `scripts` reads it inside the sandbox for
each command, and here it is understood. Lines are `NAME=value`, `NAME='value'` (as it stands, also over several lines)
or `NAME="value"`, with a backslash before n, r, t or any other character, and `$NAME` or `${NAME}` for what was set
before. The last one of a name counts. What cannot be understood is passed over, up to the next line: the file is the
sandbox's own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_NAME = re.compile(r"(?:export[ \t]+)?([A-Za-z_][A-Za-z0-9_]*)[ \t]*=[ \t]*")
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}
_REFERENCE = re.compile(r"\\(.)|\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))", re.DOTALL)
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)


def parse(text: str, known: Mapping[str, str] | None = None) -> dict[str, str]:
    found: dict[str, str] = {}
    at = 0
    while at < len(text):
        if text[at] in " \t\r\n":
            at += 1
            continue
        match = _NAME.match(text, at)
        if match is None:
            at = _next_line(text, at)
            continue
        start = match.end()
        if text.startswith("'", start):
            end = text.find("'", start + 1)
            if end < 0:
                at = _next_line(text, at)
                continue
            value = text[start + 1 : end]
            at = _next_line(text, end)
        elif text.startswith('"', start):
            quoted = _QUOTED.match(text, start)
            if quoted is None:
                at = _next_line(text, at)
                continue
            value = _expanded(quoted[1], {**(known or {}), **found})
            at = _next_line(text, quoted.end())
        else:
            at = _next_line(text, start)
            value = re.split(r"[ \t]#", text[start:at].rstrip("\r\n"))[0].strip()
        found[match[1]] = value.replace("\0", "")
    return found


def exports(values: Mapping[str, str]) -> str:
    """Shell code that sets them."""
    return "".join(
        f"export {name}='{value.replace(chr(39), chr(39) + chr(92) + chr(39) * 2)}'\n" for name, value in values.items()
    )


def _next_line(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end + 1


def _expanded(text: str, known: Mapping[str, str]) -> str:
    def one(match: re.Match[str]) -> str:
        if match[1] is not None:
            return _ESCAPES.get(match[1], match[1])
        return known.get(match[2] or match[3], "")

    return _REFERENCE.sub(one, text)
