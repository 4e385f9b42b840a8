"""What `stat` says about a file, as execd's clients read it.

`files` asks with the format of `scripts` behind a mark that cannot be guessed: a name may hold anything, also line ends
and what looks like a record, and still it is only a name.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

from dibs.errors import InvalidRequest
from dibs.gateway.execd.script_runner import RuntimeProblem

Kind = Literal["file", "directory", "symlink", "other"]
_KINDS: dict[str, Kind] = {
    "regular file": "file",
    "regular empty file": "file",
    "directory": "directory",
    "symbolic link": "symlink",
}
_FIELDS = 11


class FileInfo(msgspec.Struct, frozen=True):
    """`mode` is a decimal number whose digits are the octal ones: 644, 755."""

    path: str
    type: Kind
    size: int
    modified_at: str
    created_at: str
    owner: str
    group: str
    mode: int


def records(data: bytes, mark: str) -> list[FileInfo]:
    """All records in the output of `stat`, in its order."""
    first, *rest = data.split(mark.encode())
    if first.strip():
        raise _unreadable(first)
    return [_record(one) for one in rest]


def _record(data: bytes) -> FileInfo:
    fields = data.removesuffix(b"\n").split(b"|", _FIELDS)
    if len(fields) != _FIELDS + 1:
        raise _unreadable(data)
    _, size, mode, uid, gid, owner, group, modified, changed, born, kind, name = (
        field.decode("utf-8", "replace") for field in fields
    )
    try:
        created = int(born) if born.isdigit() and int(born) > 0 else int(changed)  # busybox knows no birth
        return FileInfo(
            path=name,
            type=_KINDS.get(kind, "other"),
            size=int(size),
            modified_at=_told(int(modified)),
            created_at=_told(created),
            owner=uid if owner in ("UNKNOWN", "?", "") else owner,
            group=gid if group in ("UNKNOWN", "?", "") else group,
            mode=int(mode),
        )
    except (ValueError, OverflowError, OSError) as error:  # the last two: a time that no calendar has
        raise _unreadable(data) from error


def _told(at: int) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat().replace("+00:00", "Z")


def _unreadable(data: bytes) -> RuntimeProblem:
    text = data[:80].decode("utf-8", "replace")
    return RuntimeProblem("stat in the sandbox does not answer as it should", value=text)


def octal(mode: Any, field: str = "mode") -> str:
    """A mode as chmod takes it; empty for none. Refuses what is no mode."""
    if mode is None or mode == 0:
        return ""
    text = str(mode)
    if isinstance(mode, bool) or not isinstance(mode, int) or len(text) > 4 or set(text) - set("01234567"):
        raise InvalidRequest(
            "it is no mode", field=field, value=text, code="INVALID_FILE_METADATA",
            remedy="give octal digits as a number: 644, 755",
        )  # fmt: skip
    return text
