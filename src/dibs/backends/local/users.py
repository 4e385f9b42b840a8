"""Who a command runs as: the words of a request, the ids of a sandbox.

`rendering` asks for a workload's user before anything is made, `enter_client` for that of a further command. A number
needs no entry in any file; its group, if none is said, is the one of its entry in the root's own passwd file, else the
group with the same number. A name must be in that file.
"""

from __future__ import annotations

import os

from dibs.backends.accounts import find
from dibs.backends.local.kernel import status_field
from dibs.errors import Conflict, InvalidRequest, Problem


def unmapped(kind: str, number: int, text: str, remedy: str) -> Problem:
    reason = f"the {kind} {number} is not mapped in the sandbox's user namespace"
    return Problem("USER_NOT_MAPPED", "user", text, reason, remedy)


def is_mapped(number: int, id_map: str) -> bool:
    rows = [[int(word) for word in line.split()] for line in id_map.splitlines()]
    return any(first <= number < first + count for first, _, count in rows)


def of_process(init: int) -> tuple[int, int]:
    """Who the workload's command is. Every sandbox has the ids that it has outside."""
    uids, gids = status_field(init, "Uid").split(), status_field(init, "Gid").split()
    if not uids or not gids:
        raise Conflict("the sandbox has ended", code="NOT_RUNNING")
    return int(uids[1]), int(gids[1])


def inside(init: int, text: str) -> tuple[int, int]:
    """The ids of a user in a running sandbox. Raises InvalidRequest if there is none such."""
    from dibs.backends.proc import unreadable

    uid, gid = find(text, f"/proc/{init}/root")
    problems = []
    for kind, number in (("uid", uid), ("gid", gid)):
        try:
            with open(f"/proc/{init}/{kind}_map") as file:
                ids = file.read()
        except OSError as error:
            raise unreadable("its user namespace", error) from error
        if not is_mapped(number, ids):
            known = ", ".join(line.split()[0] for line in ids.splitlines())
            remedy = f"only {kind} {known} is there; all are in a sandbox that root has made"
            problems.append(unmapped(kind, number, text, remedy))
    if problems:
        raise InvalidRequest(problems)
    return uid, gid


def for_workload(text: str, root: str, *, all_ids: bool) -> tuple[tuple[int, int], list[Problem]]:
    """The ids of a workload's user, and what is wrong with them."""
    try:
        uid, gid = find(text, root)
    except InvalidRequest as error:
        return (0, 0), list(error.problems)
    if all_ids or (uid, gid) == (os.getuid(), os.getgid()):
        return (uid, gid), []
    remedy = f"as an ordinary user say {os.getuid()}:{os.getgid()} or nothing; root can run workloads as any user"
    return (uid, gid), [unmapped("user", uid, text, remedy)]
