"""The frames that shims and their clients exchange.

A frame is one type byte, a length of four bytes (big endian) and the payload. Payloads that are not raw bytes are
`key=value` fields, separated by NUL. Unknown frames and fields are ignored, so that an old shim serves a newer dibs.

    to the shim     H hello (mode: attach, wait) · I input · E end of input · C report how much of the input is read ·
                    D goodbye · S signal · R resize · N tell me when there is more log · Q status · T stop · P pause ·
                    U resume · L put a line into the log · K keep until (another end of its time) ·
                    W which process are you (before anything else)
    from the shim   A answer · O stdout · 2 stderr · C bytes of input read · M more log · X exit · F failure (of an
                    exec or a copy)
    from `forker`   B the request was taken

Imported by dibs and, as a file of its own, by the shim: it must import nothing but `os`.
"""

from __future__ import annotations

import os

Fields = list[tuple[str, str]]


def encode(fields: Fields) -> bytes:
    return b"\0".join(os.fsencode(f"{key}={value}") for key, value in fields)


def decode(payload: bytes) -> Fields:
    if not payload:
        return []
    pairs = [os.fsdecode(item).partition("=") for item in payload.split(b"\0")]
    return [(key, value) for key, _, value in pairs]


def frame(kind: bytes, payload: bytes = b"") -> bytes:
    return kind + len(payload).to_bytes(4, "big") + payload


def cut(buffer: bytearray) -> tuple[bytes, bytes] | None:
    """Take the first whole frame off the buffer."""
    if len(buffer) < 5:
        return None
    end = 5 + int.from_bytes(buffer[1:5], "big")
    if len(buffer) < end:
        return None
    kind, payload = bytes(buffer[:1]), bytes(buffer[5:end])
    del buffer[:end]
    return kind, payload
