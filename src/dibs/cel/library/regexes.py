"""Kubernetes' regex library: ``find`` and ``findAll``."""

from dibs.cel.declarations import Function, Library, method
from dibs.cel.regex import compile_regex
from dibs.cel.types import INT, STRING, list_of


def _find(text: str, pattern: str) -> str:
    span = compile_regex(pattern).find(text)
    return "" if span is None else text[span[0] : span[1]]


def _find_all(text: str, pattern: str, limit: int = -1) -> list[str]:
    return compile_regex(pattern).find_all(text, limit)


def regexes() -> Library:
    """The library."""
    two = (STRING, STRING)
    return Library(
        "regex",
        [
            Function("find", method(two, STRING, _find)),
            Function(
                "findAll",
                method(two, list_of(STRING), _find_all),
                method((STRING, STRING, INT), list_of(STRING), _find_all),
            ),
        ],
    )
