"""Which faults are tried: a bounded set, the same for the same seed.

Each fault has a rank of its own, a hash of the seed and of what it changes. So a change of the code elsewhere, or of
the lines above it, does not exchange the sample.
"""

from __future__ import annotations

import hashlib
import tomllib
from pathlib import Path
from typing import NamedTuple

from mutants.operators import Mutation, mutations

HERE = Path(__file__).parent


class Target(NamedTuple):
    """A module, the tests that concern it, and how many faults of it are tried."""

    module: str
    tests: tuple[str, ...]
    most: int


class Mutant(NamedTuple):
    target: Target
    mutation: Mutation

    def __str__(self) -> str:
        _, _, before, after, _ = self.mutation
        return f"{self.target.module}:{self.mutation.line}: {_short(before)} → {_short(after)}"

    @property
    def identity(self) -> tuple[str, str, str, str]:
        """What it is named by in equivalent.toml: no line numbers."""
        return (self.target.module, self.mutation.where, self.mutation.before, self.mutation.after)


def _short(code: str) -> str:
    return code if len(code) <= 110 else code[:107] + "…"


def targets(path: Path = HERE / "targets.toml") -> list[Target]:
    sets = tomllib.loads(path.read_text())
    return [
        Target(module, tuple(sets["tests"][group["tests"]]), group["count"])
        for group in sets["group"]
        for module in group["modules"]
    ]


def equivalents(path: Path = HERE / "equivalent.toml") -> dict[tuple[str, str, str, str], str]:
    """Faults that change nothing that can be observed, and why."""
    entries = tomllib.loads(path.read_text()).get("mutant", [])
    return {(one["module"], one["where"], one["before"], one["after"]): one["reason"] for one in entries}


def sample(root: Path, target: Target, seed: int) -> list[Mutant]:
    found = [Mutant(target, one) for one in mutations((root / target.module).read_bytes())]
    seen: dict[tuple[str, ...], int] = {}

    def rank(mutant: Mutant) -> str:
        """The same text twice in one function: told apart by their order."""
        number = seen[mutant.identity] = seen.get(mutant.identity, -1) + 1
        return hashlib.sha256(repr((seed, mutant.identity, number)).encode()).hexdigest()

    ranks = {mutant: rank(mutant) for mutant in found}
    chosen = sorted(found, key=ranks.__getitem__)[: target.most]
    return sorted(chosen, key=lambda mutant: mutant.mutation.span)
