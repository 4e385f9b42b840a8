"""Sources of mounts, opened once and mounted by their descriptors.

Between the look at a path and its mount a folder can be exchanged for a link. So the shim opens each source part by
part without following a link, sees that it is the very file or folder that was checked, and gives bubblewrap the
descriptor, which compares once more after the mount. Like the shim it imports nothing of dibs: `dibs.backends.mounts`
opens paths in the same way.
"""

from __future__ import annotations

import os

_FLAGS = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_KIND = 0o170000
_LINK = 0o120000
_BY_DESCRIPTOR = {"--bind": "--bind-fd", "--ro-bind": "--ro-bind-fd"}


class Changed(OSError):
    """A source is not what was checked."""


def open_beneath(path: str) -> int:
    """A descriptor of an absolute path none of whose parts is a link. Raises OSError; Changed for a link.

    Resolved part by part: a concurrent rename can make it fail, but cannot redirect it.
    """
    fd = os.open("/", _FLAGS | os.O_DIRECTORY)
    try:
        for part in path.split("/"):
            if part in ("", "."):
                continue
            if part == "..":
                raise Changed(40, "it has .. in it", path)
            following = os.open(part, _FLAGS, dir_fd=fd)
            os.close(fd)
            fd = following
            if os.fstat(fd).st_mode & _KIND == _LINK:
                raise Changed(40, "there is a symbolic link on the way", path)
    except BaseException:
        os.close(fd)
        raise
    return fd


def identity(info: os.stat_result) -> str:
    """A file or folder of the host, in words that can be compared."""
    return f"inode {info.st_ino} on {os.major(info.st_dev)}:{os.minor(info.st_dev)}"


def by_descriptor(args: list[str], checked: dict[str, str]) -> tuple[list[str], list[int]]:
    """The options with descriptors in place of the sources that were checked, and the descriptors.

    `checked`: what each source was. One that is on a file system which does not tell is not compared here.
    """
    out = list(args)
    opened: list[int] = []
    try:
        for at, option in enumerate(args[:-2]):
            source = args[at + 1]
            if option not in _BY_DESCRIPTOR or source not in checked:
                continue
            fd = open_beneath(source)
            opened.append(fd)
            if checked[source].startswith("inode ") and identity(os.fstat(fd)) != checked[source]:
                raise Changed(116, "it is another file or folder than the one that was checked", source)
            out[at : at + 2] = [_BY_DESCRIPTOR[option], str(fd)]
    except BaseException:
        for fd in opened:
            os.close(fd)
        raise
    return out, opened
