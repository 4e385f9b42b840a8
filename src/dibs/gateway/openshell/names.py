"""Names as OpenShell has them: what a name and a request id may be, names that are made up. Pure."""

from __future__ import annotations

import hashlib
import re
import secrets

from dibs.errors import Problem, quoted

LONGEST_NAME = 19  # a name is part of a routable host name there
LONGEST_WORKSPACE = 63
LONGEST_REQUEST_ID = 128
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", re.ASCII)
_CONSONANTS, _VOWELS = "bdfgklmnprstvz", "aeiou"


def name_problem(text: str, field: str, longest: int = LONGEST_NAME) -> Problem | None:
    """What is wrong with a name."""
    if _NAME.fullmatch(text) and len(text) <= longest:
        return None
    reason = f"must be 1 to {longest} lower-case letters, digits and -, and begin and end with a letter or digit"
    return Problem("NAME_INVALID", field, quoted(text)[1:-1], reason, "as in train-1")


def request_id_problem(text: str) -> Problem | None:
    if len(text) <= LONGEST_REQUEST_ID and text.isprintable():
        return None
    reason = f"must be at most {LONGEST_REQUEST_ID} printable characters"
    return Problem("REQUEST_ID_INVALID", "request_id", quoted(text)[1:-1], reason, "a UUID is usual")


def made_up(seed: str = "") -> str:
    """Two words joined by a dash; for a seed always the same two."""
    data = hashlib.sha256(seed.encode()).digest() if seed else secrets.token_bytes(12)
    letters = [
        (_CONSONANTS if place % 2 == 0 else _VOWELS)[byte % (14 if place % 2 == 0 else 5)]
        for place, byte in enumerate(data[:12])
    ]
    return "".join(letters[:6]) + "-" + "".join(letters[6:])
