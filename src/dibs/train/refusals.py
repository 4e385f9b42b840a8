"""What is wrong with a TrainJob or a runtime, in the words and with the paths of the API server and its webhooks.

Everything in `train` collects `Refusals`; nothing is raised before everything was looked at. The kinds are Kubernetes'
own, so that a mistake reads the same whether dibs or a cluster finds it. A remedy is what dibs adds.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from dibs.claims.fielderrors import FORBIDDEN, INVALID, FieldError
from dibs.errors import InvalidRequest, Problem

CODE = "TRAINJOB_INVALID"


class TrainRefused(InvalidRequest):
    """A TrainJob or a runtime that cannot be."""

    default_code = CODE


class Refusal(msgspec.Struct, frozen=True):
    """One mistake, where it was found, and what to do about it."""

    error: FieldError
    remedy: str = ""
    code: str = CODE

    @property
    def path(self) -> str:
        return self.error.path

    @property
    def message(self) -> str:
        """As a cause of Kubernetes' Invalid answer: the line without its path."""
        parts = (self.error.kind, self.error.value, self.error.detail)
        return ": ".join(part for part in parts if part)

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message

    def problem(self) -> Problem:
        reason = f"{self.error.kind}: {self.error.detail}" if self.error.detail else self.error.kind
        return Problem(self.code, self.error.path, self.error.value.strip('"'), reason, self.remedy)


class Refusals(list[Refusal]):
    """What was found so far."""

    def add(self, path: str, kind: str, value: object = None, detail: str = "", remedy: str = "") -> None:
        shown = value if isinstance(value, Printed) else Printed("" if value is None else Printed.of(value))
        self.append(Refusal(FieldError(path, kind, shown, detail), remedy))

    def invalid(self, path: str, value: object, detail: str, remedy: str = "") -> None:
        self.add(path, INVALID, value if isinstance(value, Printed) else Printed.of(value), detail, remedy)

    def forbidden(self, path: str, detail: str, remedy: str = "") -> None:
        self.add(path, FORBIDDEN, None, detail, remedy)

    def check(self) -> None:
        """Raise all of them at once, if there are any."""
        if self:
            raise TrainRefused(refusal.problem() for refusal in self)


class Printed(str):
    """A value as it stands in a message: text in quotes, everything else as JSON."""

    __slots__ = ()

    @classmethod
    def of(cls, value: object) -> Printed:
        return cls(f'"{value}"' if isinstance(value, str) else msgspec.json.encode(value).decode())


def refuse(found: Iterable[Refusal]) -> None:
    Refusals(found).check()
