"""Text to tokens.

Called by the parser only. It must not give meaning to tokens beyond decoding literals, and it must stay linear in the
length of the text: input is hostile.
"""

import re
from typing import Final, NamedTuple

from dibs.cel.errors import CelSyntaxError
from dibs.cel.values import Uint

INT64_MAX: Final = 2**63 - 1
UINT64_MAX: Final = 2**64 - 1

# Words that the grammar keeps for itself; they may still name a field or a method.
RESERVED: Final = frozenset(
    [
        "as",
        "break",
        "const",
        "continue",
        "else",
        "for",
        "function",
        "if",
        "import",
        "let",
        "loop",
        "package",
        "namespace",
        "return",
        "var",
        "void",
        "while",
    ]
)

IDENT: Final = "ident"
QUOTED: Final = "quoted"
LITERAL: Final = "literal"
SYMBOL: Final = "symbol"
END: Final = "end"


class Token(NamedTuple):
    """``value``: the name, the symbol, or the decoded literal."""

    kind: str
    value: object
    offset: int


# Every alternative is a plain run of characters, so matching cannot backtrack far.
_TOKEN: Final = re.compile(
    r"""
    (?P<space>[ \t\n\r\f]+ | //[^\n]*)
  | (?P<text>[bB]?[rR]?(?:\"\"\"|'''|"|') | [rR][bB](?:\"\"\"|'''|"|'))
  | (?P<float>[0-9]+\.[0-9]+(?:[eE][+-]?[0-9]+)? | [0-9]+[eE][+-]?[0-9]+ | \.[0-9]+(?:[eE][+-]?[0-9]+)?)
  | (?P<int>0[xX][0-9a-fA-F]+[uU]? | [0-9]+[uU]?)
  | (?P<ident>[_a-zA-Z][_a-zA-Z0-9]*)
  | (?P<quoted>`[a-zA-Z0-9_.\-/ ]+`)
  | (?P<symbol>&&|\|\||==|!=|<=|>=|[-+*/%<>!?:.,()\[\]{}])
    """,
    re.VERBOSE,
)

_SIMPLE: Final = {
    "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v",
    "\\": "\\", "?": "?", '"': '"', "'": "'", "`": "`",
}  # fmt: skip
_HEX: Final = {"x": 2, "X": 2, "u": 4, "U": 8}
_KEYWORDS: Final = {"true": True, "false": False, "null": None}


def tokenize(text: str) -> list[Token]:
    """All tokens, ending with one of kind END."""
    tokens: list[Token] = []
    place = 0
    match = _TOKEN.match
    new = tuple.__new__  # Token(...) takes twice the time
    while place < len(text):
        found = match(text, place)
        if found is None:
            raise CelSyntaxError(
                f"Syntax error: token recognition error at: {text[place]!r}", expression=text, offset=place
            )
        kind = found.lastgroup
        piece = found.group()
        if kind == "ident":
            if piece == "in":
                tokens.append(new(Token, (SYMBOL, "in", place)))
            elif piece in _KEYWORDS:
                tokens.append(new(Token, (LITERAL, _KEYWORDS[piece], place)))
            else:
                tokens.append(new(Token, (IDENT, piece, place)))
        elif kind == "symbol":
            tokens.append(new(Token, (SYMBOL, piece, place)))
        elif kind == "text":
            value, end = _text(text, place, piece)
            tokens.append(new(Token, (LITERAL, value, place)))
            place = end
            continue
        elif kind == "int":
            tokens.append(new(Token, (LITERAL, _integer(text, place, piece), place)))
        elif kind == "float":
            number = float(piece)
            if number == float("inf"):
                raise CelSyntaxError("invalid double literal", expression=text, offset=place)
            tokens.append(new(Token, (LITERAL, number, place)))
        elif kind == "quoted":
            tokens.append(new(Token, (QUOTED, piece[1:-1], place)))
        place = found.end()
    tokens.append(new(Token, (END, "<EOF>", len(text))))
    return tokens


def _integer(text: str, place: int, piece: str) -> int:
    unsigned = piece[-1] in "uU"
    digits = piece[:-1] if unsigned else piece
    # The length is looked at first: converting a very long number is not linear.
    value = UINT64_MAX + 1 if len(digits) > 80 else int(digits, 16 if digits[:2] in ("0x", "0X") else 10)
    # A signed literal may be one above the maximum, so that the parser can put a minus before it.
    if value > (UINT64_MAX if unsigned else INT64_MAX + 1):
        raise CelSyntaxError(
            f"invalid {'uint' if unsigned else 'int'} literal: {piece[:40]} is out of range",
            expression=text,
            offset=place,
        )
    return Uint(value) if unsigned else value


def _text(text: str, place: int, opening: str) -> tuple[str | bytes, int]:
    prefix = opening.rstrip("\"'").lower()
    quote = opening[len(prefix) :]
    raw, binary = "r" in prefix, "b" in prefix
    start = place + len(opening)
    end = start
    while True:
        end = text.find(quote, end)
        if end < 0:
            raise CelSyntaxError("Syntax error: unterminated string", expression=text, offset=place)
        if raw:
            break
        # A quote counts unless an odd number of backslashes stands before it.
        slashes = end
        while slashes > start and text[slashes - 1] == "\\":
            slashes -= 1
        if (end - slashes) % 2 == 0:
            break
        end += 1
    body = text[start:end]
    if len(quote) == 1 and ("\n" in body or "\r" in body):
        raise CelSyntaxError("Syntax error: a line ends inside a string", expression=text, offset=place)
    if len(quote) == 3:
        body = body.replace("\r\n", "\n")
    after = end + len(quote)
    try:
        if binary:
            return (body.encode() if raw else _bytes(text, start, body)), after
        value = body if raw or "\\" not in body else _string(text, start, body)
        value.encode()
    except UnicodeEncodeError:
        raise CelSyntaxError("a string holds a lone surrogate", expression=text, offset=place) from None
    return value, after


def _escapes(text: str, start: int, body: str) -> list[tuple[str, int | None]]:
    """Cut into (characters, None) and ("x" or "u", code) pieces; "x" is a byte in bytes and a code point in strings."""
    pieces: list[tuple[str, int | None]] = []
    place = 0
    while True:
        slash = body.find("\\", place)
        if slash < 0:
            pieces.append((body[place:], None))
            return pieces
        pieces.append((body[place:slash], None))
        letter = body[slash + 1]
        place = slash + 2
        if letter in _SIMPLE:
            pieces.append((_SIMPLE[letter], None))
            continue
        if letter in _HEX:
            size, base, allowed = _HEX[letter], 16, "0123456789abcdefABCDEF"
        elif letter in "0123":
            size, base, allowed = 3, 8, "01234567"
            place -= 1
        else:
            size, base, allowed = 0, 16, ""
        digits = body[place : place + size]
        if not size or len(digits) < size or digits.strip(allowed):
            raise CelSyntaxError(f"Syntax error: invalid escape \\{letter}", expression=text, offset=start + slash)
        place += size
        code = int(digits, base)
        if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
            raise CelSyntaxError("Syntax error: invalid code point", expression=text, offset=start + slash)
        pieces.append(("u" if letter in "uU" else "x", code))


def _string(text: str, start: int, body: str) -> str:
    return "".join(piece if code is None else chr(code) for piece, code in _escapes(text, start, body))


def _bytes(text: str, start: int, body: str) -> bytes:
    parts: list[bytes] = []
    for piece, code in _escapes(text, start, body):
        if code is None:
            parts.append(piece.encode())
        elif piece == "u":
            parts.append(chr(code).encode())
        else:
            parts.append(bytes((code,)))
    return b"".join(parts)
