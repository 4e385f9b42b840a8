"""Why: filled while deciding, never reconstructed. Data first; `cli` turns it into text.

A `Verdict` is one device seen through one selector. The explanation of a refused request is the same data as that of a
plan, so `dibs explain` before and an error after say the same.
"""

from __future__ import annotations

import enum

import msgspec

from dibs.errors import Problem


class Fate(enum.StrEnum):
    """The outcome for one device under one selector."""

    CHOSEN = "chosen"
    FREE = "free"  # fits and is free, but was not needed
    BUSY = "busy"  # fits, held by a lease
    EXTERNAL = "external"  # fits, used by processes that dibs did not start
    QUEUED = "queued"  # fits and is free, but an earlier request waits for it
    UNHEALTHY = "unhealthy"
    TAINTED = "tainted"  # fits, but an administrator tainted it
    CANNOT = "cannot"  # fits, but cannot be attached on this backend
    TAKEN = "taken"  # already chosen for another part of this request
    NO_MATCH = "no match"


class Verdict(msgspec.Struct, frozen=True, omit_defaults=True):
    device: str
    fate: Fate
    reason: str = ""
    miss: float = 0.0  # how far from fitting, for the nearest miss; 0 if it fits


class SelectorExplanation(msgspec.Struct, frozen=True):
    """One selector against every device."""

    selector: str
    wanted: int | None  # None: all that fit
    verdicts: tuple[Verdict, ...]
    field: str = "gpu"  # which field of the request it came from

    def count(self, *fates: Fate) -> int:
        return sum(verdict.fate in fates for verdict in self.verdicts)

    @property
    def nearest_miss(self) -> Verdict | None:
        misses = [v for v in self.verdicts if v.fate is Fate.NO_MATCH and v.miss > 0]
        return min(misses, key=lambda v: v.miss, default=None)


class BackendExplanation(msgspec.Struct, frozen=True, omit_defaults=True):
    """What would happen on one backend."""

    backend: str
    ok: bool
    selectors: tuple[SelectorExplanation, ...] = ()
    problems: tuple[Problem, ...] = ()
    devices: tuple[str, ...] = ()
    waits_for: str = ""  # what a queued request waits for
    error: str = ""  # the class of the error that `run` would raise
    notes: tuple[str, ...] = ()
    delegated_to: str = ""  # the domain whose scheduler chooses, where one does

    @property
    def verdict(self) -> str:
        """In short: delivered, waits, or the codes of the refusal."""
        if self.waits_for:
            return "waits"
        return "delivered" if self.ok else ", ".join(dict.fromkeys(problem.code for problem in self.problems))


class Explanation(msgspec.Struct, frozen=True, omit_defaults=True):
    """The whole answer to "what would happen": nothing was created."""

    asked: dict[str, object]
    backends: tuple[BackendExplanation, ...]
    simulated: bool = False
    claim: dict[str, object] | None = None
    source_errors: tuple[str, ...] = ()
    queue_length: int = 0

    def __repr__(self) -> str:
        """What a person wants at a prompt; every device with its reason is in `backends`."""
        told = "; ".join(f"{backend.backend} {backend.verdict}" for backend in self.backends)
        return f"<Explanation of {self.asked.get('flags') or 'no devices'}: {told}>"
