"""The files of a sandbox: looking, making, moving, removing, replacing. `transfer` carries their contents.

`routes` calls it. Everything is done by a script inside of the sandbox, as its user or as the one that was asked for;
the gateway never opens a path of a client itself.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dibs.errors import DibsError, InvalidRequest, NotFound
from dibs.gateway.execd import fileinfo, scripts
from dibs.gateway.execd.fileinfo import FileInfo
from dibs.gateway.execd.script_runner import Inside, RuntimeProblem, ScriptFailed

_OWNER = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.$@-]*")
_VANISHED = b": No such file or directory"
_DENIED = b": Permission denied"
DEEPEST = 64


class Permission(msgspec.Struct, kw_only=True):
    mode: int | None = None
    owner: str | None = None
    group: str | None = None


class Rename(msgspec.Struct, kw_only=True):
    src: str
    dest: str


class Replacement(msgspec.Struct, kw_only=True):
    old: str
    new: str


def words(path: str, permission: Permission) -> tuple[str, str, str, str]:
    """A path with its permission, as the scripts take them."""
    for field, name in (("owner", permission.owner), ("group", permission.group)):
        if name and _OWNER.fullmatch(name) is None:
            raise InvalidRequest("it is no name", field=field, value=name, code="INVALID_FILE_METADATA")
    return checked(path), fileinfo.octal(permission.mode), permission.owner or "", permission.group or ""


def checked(path: str) -> str:
    if not path or "\0" in path:
        raise InvalidRequest("a path must not be empty or hold a NUL", field="path", value=path, code="INVALID_FILE")
    return path


def refusal(error: ScriptFailed, paths: Sequence[str]) -> DibsError:
    """What a script said, in the words of the API."""
    path = paths[error.index] if error.index < len(paths) else ""
    path = path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    said = error.said
    if error.word == "missing":
        return NotFound("there is no such file or folder", field="path", value=path, code="FILE_NOT_FOUND")
    reasons = {
        "isdir": "it is a folder",
        "notdir": "it is not a folder",
        "notfile": "it is not a regular file",
        "symlink": "it is a symbolic link, not a folder",
        "exists": "there is something already",
        "root": "the root of the sandbox cannot be removed",
    }
    if error.word == "cwd":
        return InvalidRequest(
            "there is no such folder, or it cannot be entered", field="cwd", code="INVALID_REQUEST_BODY"
        )
    if error.word in reasons:
        return InvalidRequest(reasons[error.word], field="path", value=path, code="INVALID_FILE")
    if error.word == "denied" or "Permission denied" in said or "Operation not permitted" in said:
        return InvalidRequest(said or "permission denied", field="path", value=path, code="INVALID_FILE")
    return RuntimeProblem(said or error.word, field="path", value=path)


class Found(list[FileInfo]):
    """What was found below a folder; `unreadable` is what the tools said of the places that they could not read."""

    def __init__(self, found: Sequence[FileInfo], unreadable: Sequence[str] = ()) -> None:
        super().__init__(sorted(found, key=lambda one: one.path))
        self.unreadable = list(unreadable)


class Files:
    """The files of one sandbox, for one caller."""

    def __init__(self, inside: Inside) -> None:
        self.inside = inside

    async def _run(self, script: str, *args: str, paths: Sequence[str] = ()) -> None:
        try:
            said = await self.inside.run(script, *args)
        except ScriptFailed as error:
            raise refusal(error, paths) from error
        if said.code:
            raise RuntimeProblem(said.err.decode("utf-8", "replace").strip() or f"the tool ended with {said.code}")

    async def _look(self, script: str, *args: str, paths: Sequence[str]) -> tuple[list[FileInfo], list[str]]:
        """What is there, and what was said of places that may not be read."""
        mark = secrets.token_hex(16)
        try:
            said = await self.inside.run(script, mark + scripts.STAT_FORMAT, *args)
        except ScriptFailed as error:
            raise refusal(error, paths) from error
        # A file may go while it is looked at. A folder that may not be read is told beside the list. Anything else that
        # could not be read is an error: half a list is a lie.
        complaints = [line for line in said.err.split(b"\n") if line.strip() and not line.endswith(_VANISHED)]
        denied = [line.decode("utf-8", "replace") for line in complaints if line.endswith(_DENIED)]
        complaints = [line for line in complaints if not line.endswith(_DENIED)]
        if complaints:
            text = b"; ".join(complaints[:5]).decode("utf-8", "replace")
            if said.code == 127:
                raise RuntimeProblem(text, code="NOT_SUPPORTED", remedy="use an image with find and stat")
            raise RuntimeProblem(text)
        return fileinfo.records(said.out, mark), denied

    async def info(self, paths: Sequence[str]) -> dict[str, FileInfo]:
        if not paths:
            return {}
        found, denied = await self._look(scripts.INFO, *map(checked, paths), paths=paths)
        if denied:
            raise RuntimeProblem("; ".join(denied[:5]))
        if len(found) != len(paths):
            raise RuntimeProblem("a file vanished while it was looked at")
        return {_shown(path): one for path, one in zip(paths, found, strict=True)}

    async def listing(self, path: str, depth: int) -> Found:
        if not 0 <= depth <= DEEPEST:
            reason = f"it must be between 0 and {DEEPEST}"
            raise InvalidRequest(reason, field="depth", value=str(depth), code="INVALID_REQUEST_BODY")
        return Found(*await self._look(scripts.LIST, checked(path), str(depth), paths=[path]))

    async def search(self, path: str, pattern: str) -> Found:
        return Found(*await self._look(scripts.SEARCH, checked(path), pattern or "**", paths=[path]))

    async def make_folders(self, wanted: Mapping[str, Permission]) -> None:
        await self._each(scripts.MKDIR, wanted)

    async def set_permissions(self, wanted: Mapping[str, Permission]) -> None:
        await self._each(scripts.CHMOD, wanted)

    async def _each(self, script: str, wanted: Mapping[str, Permission]) -> None:
        if wanted:
            args = [word for path, permission in wanted.items() for word in words(path, permission)]
            await self._run(script, *args, paths=list(wanted))

    async def remove(self, paths: Sequence[str], *, folders: bool = False) -> None:
        if paths:
            script = scripts.REMOVE_TREE if folders else scripts.REMOVE
            await self._run(script, *map(checked, paths), paths=paths)

    async def move(self, wanted: Sequence[Rename]) -> None:
        if wanted:
            args = [checked(path) for one in wanted for path in (one.src, one.dest)]
            try:
                await self._run(scripts.MOVE, *args, paths=[one.src for one in wanted])
            except InvalidRequest as error:
                if "already" in error.problems[0].reason:  # of the two names it is the other
                    where = next(one.dest for one in wanted if _shown(one.src) == error.problems[0].value)
                    reason = error.problems[0].reason
                    raise InvalidRequest(reason, field="dest", value=where, code="INVALID_FILE") from error
                raise


def _shown(path: str) -> str:
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def decode(data: bytes, kind: Any) -> Any:
    """A JSON body; refused in the API's words."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(str(error), field="body", code="INVALID_REQUEST_BODY") from error
