"""The error tree of the CDI library, and `Problem`, one located fault of a spec.

Everything in this package raises `CdiError` and nothing else for bad input. It must not import
anything of dibs: the library stands alone.

    CdiError
    ├── InvalidNameError       a vendor, class, device or qualified name is malformed
    ├── SpecError              a spec cannot be decoded or is not valid; carries every problem
    ├── UnresolvableError      asked for devices that no loaded spec defines; carries all names
    ├── InjectError            the edits cannot be applied to this OCI spec on this host
    ├── AnnotationError        a CRI annotation is malformed or already used
    └── StoreError             a spec file or directory cannot be read, written or removed
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class Problem(msgspec.Struct, frozen=True):
    """One fault: where it is (`devices[1].containerEdits.env[0]`, or empty for the whole) and what it is."""

    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}" if self.where else self.what


class CdiError(Exception):
    """The base of every error of this library. The message is one lower-case sentence."""


class InvalidNameError(CdiError):
    """A name breaks the CDI grammar."""

    def __init__(self, value: str, message: str) -> None:
        super().__init__(message)
        self.value = value


class SpecError(CdiError):
    """A spec that cannot be used, with all of its problems. `source` is the file's path, if there is one."""

    def __init__(self, problems: Sequence[Problem], source: str = "") -> None:
        self.problems = tuple(problems)
        self.source = source
        text = "; ".join(str(problem) for problem in self.problems)
        super().__init__(f"{source}: {text}" if source else text)


class UnresolvableError(CdiError):
    """Devices that cannot be resolved: each name, with the reason where one is known (else empty)."""

    def __init__(self, reasons: dict[str, str]) -> None:
        self.reasons = reasons
        parts = [f"{name} ({reason})" if reason else name for name, reason in reasons.items()]
        super().__init__(f"unresolvable CDI devices {', '.join(parts)}")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.reasons)


class InjectError(CdiError):
    """The edits cannot be applied. Nothing was changed."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(str(problem) for problem in self.problems))


class AnnotationError(CdiError):
    """A CRI annotation cannot be made or read."""


class StoreError(CdiError):
    """A spec file or directory cannot be read, written or removed."""


def quoted(value: object, limit: int = 120) -> str:
    """A value as messages show it: quoted, on one line, printable, and short enough to read."""
    text = str(value)
    if len(text) > limit:
        text = text[: limit - 1] + "…"
    return '"' + "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text) + '"'
