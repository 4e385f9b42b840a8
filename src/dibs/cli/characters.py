"""Characters that a terminal may not have.

`main` and `__main__` call this before anything is printed. An encoding that lacks a character is never a reason to
fail: our own dashes, arrows and dots have plain stand-ins, anything else is shown as an escape.
"""

from __future__ import annotations

import io

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TextIO

# Only for encodings without the real ones: quotation marks and dashes of messages, the marks of tables.
STAND_INS = {
    "–": "-", "—": "-", "…": "...", "→": "->", "·": "|", "×": "x", "≤": "<=", "≥": ">=", "µ": "u", "✓": "ok", "✗": "no",
    "“": '"', "”": '"', "‘": "'", "’": "'", "│": "|", "─": "-", "█": "#", "⇄": "<->",
}  # fmt: skip
HANDLER = "dibs-stand-in"


def forgive(*streams: TextIO) -> None:
    """From now on these streams can print any text."""
    for stream in streams:
        if not isinstance(stream, io.TextIOWrapper) or stream.encoding.lower().replace("_", "-") == "utf-8":
            # UTF-8 has them all, except for halves of characters, which come from the names of files.
            if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
                stream.reconfigure(errors="backslashreplace")
            continue
        import codecs

        codecs.register_error(HANDLER, _stand_in)
        stream.reconfigure(errors=HANDLER)


def _stand_in(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    missing = error.object[error.start : error.end]
    shown = "".join(STAND_INS.get(c) or c.encode("ascii", "backslashreplace").decode("ascii") for c in missing)
    return shown, error.end
