"""Errors, classified by what the caller can do about them.

All packages raise these; `cli` turns them into text and exit codes, a gateway into HTTP answers. Each error carries one
or more `Problem`s: code, field, value, reason, remedy. A request is checked to the end before it is refused, so one
error may carry many problems. Codes are public: they are never renamed.

    DibsError
    ├── InvalidRequest       the request itself is wrong: change it                      exit 80
    ├── Unsupported          right, but no backend here can deliver it                   exit 81
    ├── NoMatch              no device here fits, now or later                           exit 82
    ├── Busy                 devices fit, but are held: wait or ask for less (retry)     exit 83
    ├── Unhealthy            the fitting devices are broken                              exit 84
    ├── QuotaExceeded        over what the tenant may hold                               exit 85
    ├── BackendUnavailable   the engine, runtime or source cannot be reached (retry)     exit 86
    ├── DeliveryMismatch     what was seen in the workload is not what was planned       exit 87
    ├── Conflict             the thing is in a state that forbids it                     exit 88
    ├── NotFound             no such sandbox, device, lease or file                      exit 89
    ├── Timeout              waited as long as asked                                     exit 90
    ├── StateError           the ledger or a state file cannot be read or written        exit 91
    ├── CommandFailed        the command could not be started (126) or found (127)
    └── Internal             a defect in dibs                                            exit 99
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import ClassVar

import msgspec


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that is wrong: where, what was said, why it cannot be, what to do instead."""

    code: str
    field: str
    value: str
    reason: str
    remedy: str = ""

    def __str__(self) -> str:
        subject = f"{self.field} {quoted(self.value)}" if self.value else self.field
        text = f"{subject}: {self.reason}" if subject else self.reason
        return f"{text}; {self.remedy}" if self.remedy else text


def quoted(value: object, limit: int = 120) -> str:
    """A value as it appears in a message: on one line, printable, not longer than a person would read."""
    text = as_written(value)
    if len(text) > limit:
        text = text[: limit - 1] + "…"
    return f'"{printable(text)}"'


def as_written(value: object) -> str:
    """A value of a request as its author wrote it: text as it is, anything else as JSON has it."""
    if value is None or isinstance(value, bool | list | tuple | dict):
        try:
            return msgspec.json.encode(value).decode()
        except (TypeError, ValueError):  # something in it is no JSON: a caller of the SDK may pass any object
            import json

            with suppress(TypeError, ValueError):
                return json.dumps(value, default=str)
    return str(value)


def printable(text: str, keep: str = "") -> str:
    """Text with everything that a terminal would obey, or that turns letters around, shown as an escape.

    That is every control character (C0, C1, delete), so that no CSI, OSC or DCS begins, and every format character
    (bidirectional, zero width). `keep`: those that may stay, a line break for instance.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode("ascii") for c in text)


class DibsError(Exception):
    """The root. `problems` is never empty; `str()` reads as a sentence or a list of them."""

    exit_code: ClassVar[int] = 99
    default_code: ClassVar[str] = "INTERNAL"
    retryable: ClassVar[bool] = False

    def __init__(
        self,
        reason: str | Problem | Iterable[Problem],
        *,
        field: str = "",
        value: str = "",
        code: str = "",
        remedy: str = "",
    ) -> None:
        if isinstance(reason, str):
            problems: tuple[Problem, ...] = (Problem(code or self.default_code, field, value, reason, remedy),)
        elif isinstance(reason, Problem):
            problems = (reason,)
        else:
            problems = tuple(reason)
        if not problems:
            problems = (Problem(self.default_code, "", "", "no reason was given"),)
        self.problems = problems
        super().__init__("\n".join(str(problem) for problem in problems))

    @property
    def code(self) -> str:
        return self.problems[0].code


class InvalidRequest(DibsError):
    exit_code = 80
    default_code = "INVALID_REQUEST"


class Unsupported(DibsError):
    exit_code = 81
    default_code = "UNSUPPORTED"


class NoMatch(DibsError):
    exit_code = 82
    default_code = "NO_MATCHING_DEVICE"


class Busy(DibsError):
    exit_code = 83
    default_code = "DEVICES_BUSY"
    retryable = True


class Unhealthy(DibsError):
    exit_code = 84
    default_code = "DEVICES_UNHEALTHY"


class QuotaExceeded(DibsError):
    exit_code = 85
    default_code = "QUOTA_EXCEEDED"


class BackendUnavailable(DibsError):
    exit_code = 86
    default_code = "BACKEND_UNAVAILABLE"
    retryable = True


class DeliveryMismatch(DibsError):
    exit_code = 87
    default_code = "DELIVERY_MISMATCH"


class Conflict(DibsError):
    exit_code = 88
    default_code = "CONFLICT"


class NotFound(DibsError):
    exit_code = 89
    default_code = "NOT_FOUND"


class Timeout(DibsError):
    exit_code = 90
    default_code = "TIMEOUT"
    retryable = True


class StateError(DibsError):
    exit_code = 91
    default_code = "STATE_UNUSABLE"


class CommandFailed(DibsError):
    """The command never ran. 127: there is no such command; 126: it cannot be executed."""

    exit_code = 126
    default_code = "COMMAND_NOT_EXECUTABLE"

    def __init__(self, reason: str, *, missing: bool, value: str, remedy: str = "") -> None:
        code = "COMMAND_NOT_FOUND" if missing else self.default_code
        if missing and not remedy and any(char.isspace() for char in value):
            import shlex

            remedy = f"for a line of shell write sh -c {shlex.quote(value)}"
        super().__init__(reason, field="command", value=value, code=code, remedy=remedy)
        self.status = 127 if missing else 126


class Internal(DibsError):
    exit_code = 99
    default_code = "INTERNAL"


def not_utf8(error: UnicodeEncodeError) -> InvalidRequest:
    """What cannot be kept: requests and receipts are JSON. Python has bytes that are no text as lone surrogates."""
    import sys

    reason, remedy = "it is not valid UTF-8, and cannot be kept", "rename it, or give it to the command in a file"
    if sys.getfilesystemencoding() != "utf-8":
        reason = f"it cannot be read in the character set of your locale, {sys.getfilesystemencoding()}"
        remedy = "set a locale with UTF-8, as in LC_ALL=C.UTF-8"
    return InvalidRequest(reason, field="text", value=error.object, remedy=remedy)


def exit_code_of(error: DibsError) -> int:
    """The documented exit code of an error; a missing command has its own."""
    return error.status if isinstance(error, CommandFailed) else error.exit_code
