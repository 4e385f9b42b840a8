"""Plain values as YAML text with sorted keys: the runtime in a job's snapshot.

`jobset` calls it for every job that is rendered, where a general YAML library takes most of the time. The same value
gives the same bytes, and every YAML reader gives the value back. Only what JSON has can be written.
"""

from __future__ import annotations

import json
import re
from typing import Any

# Text that every version of YAML reads as text: it begins with a letter and has nothing that means something.
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*\Z")
_WORDS = frozenset(("true", "false", "yes", "no", "on", "off", "y", "n", "null"))
_SAFE = re.compile(r"[ -~]*\Z")


def dumped(value: dict[str, Any]) -> str:
    lines: list[str] = []
    _mapping(value, "", lines)
    lines.append("")
    return "\n".join(lines)


def _mapping(value: dict[str, Any], indent: str, lines: list[str]) -> None:
    for key in sorted(value):
        item = value[key]
        head = f"{indent}{_text(key)}:"
        if isinstance(item, dict) and item:
            lines.append(head)
            _mapping(item, indent + "  ", lines)
        elif isinstance(item, list) and item:
            lines.append(head)
            _sequence(item, indent, lines)
        else:
            lines.append(f"{head} {_scalar(item)}")


def _sequence(value: list[Any], indent: str, lines: list[str]) -> None:
    for item in value:
        if isinstance(item, dict | list) and item:
            at = len(lines)
            (_mapping if isinstance(item, dict) else _sequence)(item, indent + "  ", lines)  # type: ignore[arg-type]
            lines[at] = f"{indent}- {lines[at][len(indent) + 2 :]}"
        else:
            lines.append(f"{indent}- {_scalar(item)}")


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, float):
        text = repr(value)
        return text if "." in text else text.replace("e", ".0e")  # YAML 1.1 reads 1e16 as text
    return json.dumps(value)


def _text(value: str) -> str:
    if _PLAIN.match(value) and value.lower() not in _WORDS:
        return value
    if _SAFE.match(value):
        return json.dumps(value)
    return '"' + "".join(_escaped(one) for one in value) + '"'


def _escaped(character: str) -> str:
    if " " <= character <= "~":
        return f"\\{character}" if character in '"\\' else character
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
