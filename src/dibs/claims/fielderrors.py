"""Field errors: what is wrong with an object, with the path and in the form in which Kubernetes prints it.

`validation` and `slice_validation` collect them; nothing is raised before everything was looked at. The kinds are
Kubernetes' own (Required value, Invalid value, ...), so that the same mistake reads the same on both sides.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from dibs.errors import InvalidRequest, Problem

REQUIRED = "Required value"
INVALID = "Invalid value"
DUPLICATE = "Duplicate value"
UNSUPPORTED = "Unsupported value"
TOO_MANY = "Too many"
TOO_LONG = "Too long"
FORBIDDEN = "Forbidden"

_WITHOUT_VALUE = (REQUIRED, TOO_LONG, FORBIDDEN)


class FieldError(msgspec.Struct, frozen=True):
    """One mistake. `str()` is the line that Kubernetes prints."""

    path: str
    kind: str
    value: str = ""  # as it is printed: text in quotes, everything else as JSON
    detail: str = ""

    def __str__(self) -> str:
        parts = [self.path, self.kind]
        if self.kind not in _WITHOUT_VALUE:
            parts.append(self.value)
        if self.detail:
            parts.append(self.detail)
        return ": ".join(parts)

    def problem(self) -> Problem:
        reason = f"{self.kind}: {self.detail}" if self.detail else self.kind
        return Problem("CLAIM_INVALID", self.path, self.value.strip('"'), reason)


class FieldErrors(list[FieldError]):
    """What was found so far."""

    def required(self, path: str, detail: str = "") -> None:
        self.append(FieldError(path, REQUIRED, "", detail))

    def invalid(self, path: str, value: object, detail: str) -> None:
        self.append(FieldError(path, INVALID, printed(value), detail))

    def duplicate(self, path: str, value: object) -> None:
        self.append(FieldError(path, DUPLICATE, printed(value)))

    def unsupported(self, path: str, value: object, supported: Iterable[str]) -> None:
        listed = ", ".join(f'"{one}"' for one in supported)
        self.append(FieldError(path, UNSUPPORTED, printed(value), f"supported values: {listed}"))

    def too_many(self, path: str, count: int, limit: int) -> None:
        self.append(FieldError(path, TOO_MANY, str(count), f"must have at most {limit} items"))

    def too_long(self, path: str, limit: int) -> None:
        self.append(FieldError(path, TOO_LONG, "", f"may not be more than {limit} bytes"))

    def forbidden(self, path: str, detail: str) -> None:
        self.append(FieldError(path, FORBIDDEN, "", detail))

    def at_most(self, path: str, items: Sequence[object], limit: int) -> None:
        if len(items) > limit:
            self.too_many(path, len(items), limit)

    def shorter(self, path: str, text: str, limit: int) -> None:
        if len(text.encode()) > limit:
            self.too_long(path, limit)


def printed(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else msgspec.json.encode(value).decode()


def refuse(found: Iterable[FieldError]) -> None:
    """Raise all of them at once, if there are any."""
    problems = [error.problem() for error in found]
    if problems:
        raise InvalidRequest(problems)
