"""The encoders library: base64."""

import binascii

from dibs.cel.declarations import Function, Library, Overload, linear
from dibs.cel.errors import CelRuntimeError
from dibs.cel.types import BYTES, STRING


def _encode(value: bytes) -> str:
    return binascii.b2a_base64(value, newline=False).decode("ascii")


def _decode(text: str) -> bytes:
    try:
        return binascii.a2b_base64(text.encode("ascii") + b"=" * (-len(text) % 4), strict_mode=True)
    except ValueError:
        raise CelRuntimeError("illegal base64 data") from None


def encoders() -> Library:
    """The library."""
    return Library(
        "encoders",
        [
            Function("base64.encode", Overload((BYTES,), STRING, _encode, fails=False, cost=linear(0.1, result=2))),
            Function("base64.decode", Overload((STRING,), BYTES, _decode, cost=linear(0.1, result=1))),
        ],
    )
