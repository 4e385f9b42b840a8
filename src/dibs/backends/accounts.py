"""Users and groups of a root file system, by its own passwd and group files.

Backends ask: before a sandbox is made, to say whose ids are meant; afterwards, to say whether its process has them. The
files may have been written by the workload, so they are looked for within its root, and read within limits.
"""

from __future__ import annotations

from dibs.backends import safe_open
from dibs.errors import InvalidRequest

MUCH = 1 << 20  # bytes of a passwd file that are looked at
LARGEST = (1 << 32) - 2  # the next number means "none" to the kernel


def parse(text: str) -> tuple[str, str]:
    """User and group of `uid`, `uid:gid` or names; the group may be empty."""
    user, colon, group = text.partition(":")
    if not user or (colon and not group) or ":" in group:
        raise _invalid(text, 'it must be "uid" or "uid:gid"')
    return user, group


def _invalid(text: str, reason: str, remedy: str = "") -> InvalidRequest:
    return InvalidRequest(reason, field="user", value=text, remedy=remedy)


def _number(word: str, text: str) -> int | None:
    if not word.isascii() or not word.isdigit():
        return None
    number = _id(word)
    if number is None:
        raise _invalid(text, f"the largest id is {LARGEST}")
    return number


def _id(word: str) -> int | None:
    """An id as the kernel takes it. The number that means "none" would leave a process the user that it has."""
    digits = word.lstrip("0") or word[:1]
    if not (word.isascii() and word.isdigit() and len(digits) <= len(str(LARGEST))):
        return None
    return number if (number := int(digits)) <= LARGEST else None


def _rows(root: str, path: str) -> list[list[str]]:
    """Of a file of a root, which the workload may have written: it is looked for there, and read within limits."""
    try:
        text = safe_open.read(root, path, MUCH).decode(errors="replace")
    except (FileNotFoundError, NotADirectoryError):
        return []  # a root needs no users
    except OSError as error:
        raise _invalid(path, f"it cannot be read: {(error.strerror or str(error)).lower()}") from error
    rows = [line.split(":") for line in text.split("\n")]
    return [row for row in rows if len(row) > 3 and _id(row[2]) is not None]


def find(text: str, root: str) -> tuple[int, int]:
    """The ids that are meant, by the files of a root. Raises InvalidRequest."""
    user_word, group_word = parse(text)
    uid, gid = _number(user_word, text), _number(group_word, text)
    for row in _rows(root, "/etc/passwd") if uid is None or not group_word else []:
        if row[0] == user_word if uid is None else row[2] == str(uid):
            uid = int(row[2])
            gid = _id(row[3]) if not group_word else gid
            break
    if uid is None:
        raise _invalid(text, "the root has no user of this name", "say the number")
    if group_word and gid is None:
        gid = next((int(row[2]) for row in _rows(root, "/etc/group") if row[0] == group_word), None)
        if gid is None:
            raise _invalid(text, "the root has no group of this name", "say the number")
    return uid, uid if gid is None else gid


def memberships(uid: int, root: str) -> set[int]:
    """The further groups of a user, by the group file of a root."""
    name = next((row[0] for row in _rows(root, "/etc/passwd") if row[2] == str(uid)), "")
    return {int(row[2]) for row in _rows(root, "/etc/group") if name and name in row[3].split(",")}
