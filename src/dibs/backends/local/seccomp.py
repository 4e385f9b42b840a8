"""The filter for system calls that everything in a sandbox runs under.

`program` makes it: a small program for the kernel (classic BPF), which looks at the number of a call, and for a few at
an argument. The shim gives it to bubblewrap, `enter` installs it before it runs a command. What runtimes do not allow
is refused with EPERM; what this list does not know, being newer, does not exist (ENOSYS), so that programs fall back to
what they used before. A call of another architecture (32-bit programs) ends the process.

Like the shim it must import nothing of dibs, and little else.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # importing typing for it would cost a megabyte
if TYPE_CHECKING:
    from dibs.backends.local import syscalls
else:
    try:
        import syscalls
    except ImportError:  # in dibs itself
        from dibs.backends.local import syscalls

LOAD, RETURN = 0x20, 0x06  # a word of the call's data; the verdict
EQUAL, AT_LEAST, ANY_BIT, JUMP = 0x15, 0x35, 0x45, 0x05
# struct seccomp_data: number, architecture, instruction pointer, six arguments of eight bytes. Every argument that is
# looked at is an int, so its upper half does not count, as in the kernel.
NUMBER, ARCHITECTURE, FIRST_ARGUMENT = 0, 4, 16
ALLOW, KILL, REFUSE = 0x7FFF0000, 0x80000000, 0x00050000
EPERM, ENOSYS, EAFNOSUPPORT = 1, 38, 97
ARCHITECTURES = {"x86_64": (0xC000003E, syscalls.X86_64), "aarch64": (0xC00000B7, syscalls.AARCH64)}

Instruction = tuple[int, int, int, int]  # code, jump if true, jump if false, operand

_made: dict[str, bytes] = {}


def program(machine: str = "") -> bytes:
    """The filter for a machine, this one if none is said. KeyError if there is none for it."""
    machine = machine or os.uname().machine
    if machine not in _made:
        architecture, names = ARCHITECTURES[machine]
        code = [
            (LOAD, 0, 0, ARCHITECTURE),
            (EQUAL, 1, 0, architecture),
            (RETURN, 0, 0, KILL),
            (LOAD, 0, 0, NUMBER),
            *_search(_ranges(syscalls.numbers(names))),
        ]
        _made[machine] = b"".join(_word(*one) for one in code)
    return _made[machine]


def _word(code: int, yes: int, no: int, operand: int) -> bytes:
    """struct sock_filter; both architectures are little-endian."""
    return code.to_bytes(2, "little") + bytes([yes, no]) + operand.to_bytes(4, "little")


def _verdict(name: str) -> tuple[Instruction, ...]:
    argument = (LOAD, 0, 0, FIRST_ARGUMENT)
    if name == "clone":
        flags = syscalls.CLONE_NAMESPACES
        return (argument, (ANY_BIT, 0, 1, flags), (RETURN, 0, 0, REFUSE | EPERM), (RETURN, 0, 0, ALLOW))
    if name == "personality":
        return _one_of(argument, syscalls.PERSONALITIES, ALLOW, REFUSE | EPERM)
    if name == "socket":
        return _one_of(argument, syscalls.FAMILIES_REFUSED, REFUSE | EAFNOSUPPORT, ALLOW)
    if name in syscalls.ALLOWED:
        return ((RETURN, 0, 0, ALLOW),)
    return ((RETURN, 0, 0, REFUSE | (ENOSYS if name in syscalls.MISSING else EPERM)),)


def _one_of(load: Instruction, values: tuple[int, ...], then: int, other: int) -> tuple[Instruction, ...]:
    tests = [(EQUAL, len(values) - at, 0, value) for at, value in enumerate(values)]
    return (load, *tests, (RETURN, 0, 0, other), (RETURN, 0, 0, then))


def _ranges(numbers: dict[str, int]) -> list[tuple[int, tuple[Instruction, ...]]]:
    """From which number on which verdict counts."""
    unknown: tuple[Instruction, ...] = ((RETURN, 0, 0, REFUSE | ENOSYS),)
    names = {number: name for name, number in numbers.items()}
    found: list[tuple[int, tuple[Instruction, ...]]] = []
    for number in range(max(names) + 2):  # the last one is for all that come after
        verdict = _verdict(names[number]) if number in names else unknown
        if not found or found[-1][1] != verdict:
            found.append((number, verdict))
    return found


def _search(ranges: list[tuple[int, tuple[Instruction, ...]]]) -> list[Instruction]:
    """A binary search for the range that a number is in."""
    if len(ranges) == 1:
        return list(ranges[0][1])
    middle = len(ranges) // 2
    lower, upper = _search(ranges[:middle]), _search(ranges[middle:])
    if len(lower) <= 255:  # a conditional jump has a byte for its distance
        return [(AT_LEAST, len(lower), 0, ranges[middle][0]), *lower, *upper]
    return [(AT_LEAST, 0, 1, ranges[middle][0]), (JUMP, 0, 0, len(lower)), *lower, *upper]
