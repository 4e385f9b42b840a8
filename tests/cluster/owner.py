"""Who owns what a test cluster leaves on the machine: the name of a process, which no other process shares.

`keeper` signs its folder with it and `node` its control groups, so that what a killed keeper left can be told from what
a live one uses.
"""

from __future__ import annotations

from pathlib import Path


def own_name(pid: int) -> str:
    """A process by its id and start time; empty if it has ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    if fields[0] == "Z":
        return ""
    return f"{pid} {fields[19]}"


def is_alive(name: str) -> bool:
    try:
        return own_name(int(name.split(maxsplit=1)[0])) == name
    except FileNotFoundError:
        return False
