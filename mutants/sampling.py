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
Identity = tuple[str, ...]  # module, function, line of code, before, after


class Target(NamedTuple):
    """A module, the tests that concern it, and how many faults of it are tried."""

    module: str
    tests: tuple[str, ...]
    most: int


class Mutant(NamedTuple):
    target: Target
    mutation: Mutation

    def __str__(self) -> str:
        fault = self.mutation
        return f"{self.target.module}:{fault.line}: {_short(fault.before)} → {_short(fault.after)}"

    @property
    def identity(self) -> Identity:
        """What it is named by in equivalent.toml: no line numbers, no comments."""
        fault = self.mutation
        return (self.target.module, fault.where, _code(fault.text), fault.before, fault.after)


def _code(line: str) -> str:
    return line.partition("  # ")[0]


def _short(code: str) -> str:
    return code if len(code) <= 110 else code[:107] + "…"


def targets(path: Path = HERE / "targets.toml") -> list[Target]:
    sets = tomllib.loads(path.read_text())
    return [
        Target(module, tuple(sets["tests"][group["tests"]]), group["count"])
        for group in sets["group"]
        for module in group["modules"]
    ]


def equivalents(path: Path = HERE / "equivalent.toml") -> dict[Identity, str]:
    """Faults that change nothing that can be observed, and why."""
    entries = tomllib.loads(path.read_text()).get("mutant", [])
    names = ("module", "where", "line", "before", "after")
    return {tuple(one[name] for name in names): one["reason"] for one in entries}


def sample(root: Path, target: Target, seed: int) -> list[Mutant]:
    found = [Mutant(target, one) for one in mutations((root / target.module).read_bytes())]
    seen: dict[tuple[str, ...], int] = {}

    def rank(mutant: Mutant) -> str:
        """The same fault twice in one function: told apart by their order."""
        number = seen[mutant.identity] = seen.get(mutant.identity, -1) + 1
        return hashlib.sha256(repr((seed, mutant.identity, number)).encode()).hexdigest()

    ranks = {mutant: rank(mutant) for mutant in found}
    chosen = sorted(found, key=ranks.__getitem__)[: target.most]
    return sorted(chosen, key=lambda mutant: mutant.mutation.span)
