"""A static program that makes given system calls: an attacker needs no compiler, and an image may have no tools.

The program makes one call after the other. It ends with the error number of the first that fails, else with 0. x86_64
only; it is written as hexadecimal for `printf`, so that any shell can bring it to life.
"""

from __future__ import annotations

import struct

PREVIOUS = object()  # as an argument: the result of the call before
BASE = 0x400000
HEADERS = 64 + 56
_LOAD = (b"\x48\xbf", b"\x48\xbe", b"\x48\xba", b"\x49\xba", b"\x49\xb8", b"\x49\xb9")  # mov rdi, rsi, rdx, r10, r8, r9
_COPY = (
    b"\x48\x89\xdf",
    b"\x48\x89\xde",
    b"\x48\x89\xda",
    b"\x49\x89\xda",
    b"\x49\x89\xd8",
    b"\x49\x89\xd9",
)  # from rbx
_CHECK = b"\x0f\x05\x48\x89\xc3\x48\x85\xc0\x79\x0b\xf7\xd8\x89\xc7\xb8\xe7\x00\x00\x00\x0f\x05"
_END = b"\x31\xff\xb8\xe7\x00\x00\x00\x0f\x05"  # exit_group(0)


def program(*calls: tuple[int, tuple[object, ...]]) -> bytes:
    """`calls`: number and arguments, each a number, some bytes (their address is passed), or PREVIOUS."""
    length = len(_END)
    for _, arguments in calls:
        length += 5 + len(_CHECK) + sum(3 if one is PREVIOUS else 10 for one in arguments)
    code, data = b"", b""
    for number, arguments in calls:
        for at, one in enumerate(arguments):
            if one is PREVIOUS:
                code += _COPY[at]
            else:
                value = BASE + HEADERS + length + len(data) if isinstance(one, bytes) else one
                assert isinstance(value, int)
                code += _LOAD[at] + (value % (1 << 64)).to_bytes(8, "little")
                data += one if isinstance(one, bytes) else b""
        code += b"\xb8" + number.to_bytes(4, "little") + _CHECK
    code += _END
    assert len(code) == length
    size = HEADERS + length + len(data)
    header = b"\x7fELF\x02\x01\x01" + bytes(9)
    header += struct.pack("<HHIQQQIHHHHHH", 2, 62, 1, BASE + HEADERS, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    header += struct.pack("<IIQQQQQQ", 1, 7, 0, BASE, BASE, size, size, 0x1000)
    return header + code + data


def script(*calls: tuple[int, tuple[object, ...]]) -> str:
    """Shell: make the program and run it. Its exit status is that of the program; 99 if it could not be made."""
    octal = "".join(f"\\{byte:03o}" for byte in program(*calls))
    return f"p=$(mktemp /tmp/pXXXXXX); printf '{octal}' > $p && chmod 755 $p || exit 99; $p"
