"""A semantic version (semver 2.0.0) as a value.

Read by ``kubernetes`` (the CEL functions) and by readers of a device's ``version`` attribute. Build metadata is kept
for printing and ignored in comparisons, as the standard says. It must not know CEL; text that is no version is a
ValueError.
"""

from typing import Final

_DIGITS: Final = frozenset("0123456789")
_IDENTIFIER: Final = frozenset("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-")
_UINT64_MAX: Final = 2**64 - 1
_MAX_LENGTH: Final = 1000

# A numeric identifier sorts before a textual one; a release after all of its pre-releases.
_Key = tuple[int, int, int, int, tuple[tuple[int, int, str], ...]]


class Semver:
    """One version. Immutable, hashable, ordered: ``Semver.parse("1.0.0-rc.1") < Semver.parse("1.0.0")``."""

    __slots__ = ("build", "key", "major", "minor", "patch", "prerelease")

    __cel_type__ = "kubernetes.Semver"
    __cel_class__ = "cel.Semver"
    __cel_strict__ = True

    major: int
    minor: int
    patch: int
    prerelease: tuple[str, ...]
    build: tuple[str, ...]
    key: _Key

    def __init__(
        self, major: int, minor: int, patch: int, prerelease: tuple[str, ...] = (), build: tuple[str, ...] = ()
    ) -> None:
        self.major = major
        self.minor = minor
        self.patch = patch
        self.prerelease = prerelease
        self.build = build
        parts = tuple((0, int(part), "") if _DIGITS.issuperset(part) else (1, 0, part) for part in prerelease)
        self.key = (major, minor, patch, 0 if prerelease else 1, parts)

    @classmethod
    def parse(cls, text: str, *, normalize: bool = False) -> "Semver":
        """Read ``major.minor.patch[-prerelease][+build]``.

        ``normalize`` is lenient as Kubernetes is: it drops a leading ``v`` and leading zeros and adds missing parts.
        """
        if len(text) > _MAX_LENGTH:
            raise ValueError(f'version "{text[:40]}…": it is too long')
        core = _normalized(text) if normalize else text
        core, plus, build = core.partition("+")
        core, dash, prerelease = core.partition("-")
        numbers = core.split(".")
        if len(numbers) != 3:
            raise ValueError(f'version "{text}": it must have the form major.minor.patch')
        values = tuple(_number(text, part) for part in numbers)
        return cls(
            values[0],
            values[1],
            values[2],
            _identifiers(text, prerelease, numeric=True) if dash else (),
            _identifiers(text, build, numeric=False) if plus else (),
        )

    def compare(self, other: "Semver") -> int:
        """-1, 0 or 1."""
        return (self.key > other.key) - (self.key < other.key)

    def __eq__(self, other: object) -> bool:
        return self.key == other.key if isinstance(other, Semver) else NotImplemented

    def __lt__(self, other: "Semver") -> bool:
        return self.key < other.key

    def __le__(self, other: "Semver") -> bool:
        return self.key <= other.key

    def __gt__(self, other: "Semver") -> bool:
        return self.key > other.key

    def __ge__(self, other: "Semver") -> bool:
        return self.key >= other.key

    def __hash__(self) -> int:
        return hash((Semver, self.key))

    def __str__(self) -> str:
        text = f"{self.major}.{self.minor}.{self.patch}"
        if self.prerelease:
            text += "-" + ".".join(self.prerelease)
        return text + ("+" + ".".join(self.build) if self.build else "")

    def __repr__(self) -> str:
        return f"Semver.parse({str(self)!r})"


def _number(text: str, part: str) -> int:
    if not part or not _DIGITS.issuperset(part):
        raise ValueError(f'version "{text}": "{part}" is not a number')
    if len(part) > 1 and part[0] == "0":
        raise ValueError(f'version "{text}": "{part}" must not begin with a zero')
    value = int(part)
    if value > _UINT64_MAX:
        raise ValueError(f'version "{text}": "{part}" does not fit into 64 bits')
    return value


def _identifiers(text: str, joined: str, *, numeric: bool) -> tuple[str, ...]:
    parts = tuple(joined.split("."))
    for part in parts:
        if not part or not _IDENTIFIER.issuperset(part):
            raise ValueError(f'version "{text}": "{part}" is not an identifier of letters, digits and "-"')
        if numeric and len(part) > 1 and part[0] == "0" and _DIGITS.issuperset(part):
            raise ValueError(f'version "{text}": "{part}" must not begin with a zero')
    return parts


def _normalized(text: str) -> str:
    parts = text.removeprefix("v").split(".", 2)
    for place, part in enumerate(parts):
        if len(part) > 1:
            stripped = part.lstrip("0")
            parts[place] = stripped if stripped[:1] in _DIGITS and stripped else "0" + stripped
    if len(parts) < 3:
        if "+" in parts[-1] or "-" in parts[-1]:
            raise ValueError(f'version "{text}": a short version cannot have a pre-release or build part')
        parts += ["0"] * (3 - len(parts))
    return ".".join(parts)
